"""Alerts in the form of Slack's incoming webhooks, which other chats understand as well.

Texts come from agents in part, and agents are hostile: they are shown as plain text, which Slack gives no meaning. In the line
that notifications show, which Slack reads as mrkdwn, `&`, `<` and `>` are escaped, so that nothing in it is a link or a mention, and
what would call everybody is taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.records import Alert
from service.alerts.notices import Notice
from service.text.plain import MISSING, plain

MAX_HEADER = 150
"""Characters that Slack takes in a header."""
MAX_TEXT = 2_900
"""Of the 3000 that Slack takes in a section."""
MAX_LINE = 300
MOST_LINES = 20
"""Alerts that a digest shows; it counts them all."""
_MARKS = {"critical": "🔴", "warning": "🟡"}
_CALLS = re.compile(r"@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def slack_body(notice: Notice, url: str | None) -> str:
    """Return one alert as a message."""
    where = f"project {notice.project}, {notice.kind}, {notice.severity}" if notice.project else notice.kind
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(f"{_MARKS[notice.severity]} {notice.title}", MAX_HEADER)},
        {"type": "section", "text": _plain(notice.text or notice.title, MAX_TEXT)},
        {"type": "context", "elements": [_plain(where, MAX_LINE)]},
    ]
    if url is not None:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{escaped(url)}|Open>", "verbatim": True}})
    return _message(f"{_MARKS[notice.severity]} {where}: {notice.title}", blocks)


def slack_digest(alerts: Sequence[Alert], title: str) -> str:
    """Return several alerts as one message, oldest first."""
    lines = [msgspec.json.decode(alert.body)["text"] for alert in alerts[:MOST_LINES]]
    more = len(alerts) - len(lines)
    if more:
        lines.append(f"and {more} more")
    header = {"type": "header", "text": _plain(title, MAX_HEADER)}
    # The lines are escaped already. One block each would be too many.
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": line, "verbatim": True}} for line in lines]
    return _message(title, [header, *blocks])


def escaped(text: str) -> str:
    """Return the text without a meaning in mrkdwn: neither a link nor a mention."""
    return text.translate(_ESCAPES)


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _visible(text, limit), "emoji": False}


def _visible(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text; invisible and direction characters are shown as their code points."""
    lines = (plain(line, limit) for line in _CALLS.sub("@ ", text[:limit]).splitlines())
    # An empty text is refused.
    shown = "\n".join(lines).strip() or MISSING
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _message(line: str, blocks: list[dict[str, Any]]) -> str:
    text = escaped(_visible(line.replace("\n", " "), MAX_LINE))
    return msgspec.json.encode({"text": text, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}).decode()
