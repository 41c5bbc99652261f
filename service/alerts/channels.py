"""Channels of alerts: the receivers in the settings, the form of messages for each, and a single attempt to post with a deadline.

Addresses of channels are secrets: anyone who knows Slack's can post there. Error messages omit them.

Slack: parts of the text come from agents, which may be hostile. They are sent as plain text, in which Slack interprets nothing. The
notification line is interpreted as mrkdwn, so `&`, `<` and `>` are escaped, which leaves no links or mentions, and mentions of
everybody are broken up.

Webhooks send JSON, signed if there is a secret; the form has a version, and fields may be added to it.
`Driftline-Signature: t=SECONDS,v1=HEX`: HEX is the HMAC-SHA256, by the secret, of the seconds since 1970, a full stop and the body.
A receiver verifies it and refuses old times, so that messages cannot be replayed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal

import msgspec

from audit.fingerprints import stable_id
from schemas.lazy import httpx2
from schemas.records import Alert
from service.alerts.notices import Notice
from service.setup.settings import Secret, Settings
from service.setup.workspace import Clock
from service.text.formats import MISSING, counted, plain
from streams.judges.rate_limits import retry_after

DEADLINE_SECONDS = 10.0
"""Seconds for the receiver's whole answer."""
MOST_READ = 256
"""Bytes of an answer that are read."""
_WORD = re.compile(r"[a-z_]{1,40}")
"""Matches Slack's one-word answers, such as `no_service`; other answers are not repeated."""


@cache
def _failures() -> tuple[tuple[type[Exception], str], ...]:
    """Return the message for each kind of failure, most specific first."""
    late = f"no answer within {DEADLINE_SECONDS:g} s"
    return (
        (httpx2.TimeoutException, late),
        (TimeoutError, late),
        (httpx2.ConnectError, "no connection"),
        (httpx2.ProxyError, "the proxy did not pass it on"),
        (httpx2.TransportError, "the connection broke off"),
    )


def open_client() -> httpx2.AsyncClient:
    """Open a client that follows no redirects: messages go only to the address in the settings."""
    # At INFO, httpx2 logs every address it calls, and the addresses are secrets.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS, headers={"Accept-Encoding": "identity"})


_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the call may be retried."""
Verdict = Literal["delivered", "later", "never"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt: the reason if it was not delivered, and the wait in seconds that the receiver requested."""

    verdict: Verdict
    reason: str | None = None
    retry_after: float | None = None


def verdict_of(status: int) -> Verdict:
    """Return the outcome of a delivery by its HTTP status."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in _LATER or status >= 500 else "never"


async def post(client: httpx2.AsyncClient, channel: Channel, letter: Letter, now: Clock) -> Outcome:
    """Post a message once, and return the outcome."""
    url, content, headers = channel.url.reveal(), letter.body.encode(), channel.headers(letter, now())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), client.stream("POST", url, content=content, headers=headers) as response:
            return _outcome(response, await _beginning(response))
    except (httpx2.HTTPError, TimeoutError) as error:
        return Outcome("later", _in_words(error))
    except httpx2.InvalidURL:
        return Outcome("never", "the address is no URL")


async def _beginning(response: httpx2.Response) -> str:
    """Return the first bytes of an answer as text."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk[:MOST_READ]
        if len(body) >= MOST_READ:
            break
    return body[:MOST_READ].decode("ascii", "replace")


def _outcome(response: httpx2.Response, body: str) -> Outcome:
    verdict = verdict_of(response.status_code)
    if verdict == "delivered":
        return Outcome(verdict)
    word = f": {body}" if _WORD.fullmatch(body) else ""
    reason = f"the answer was {response.status_code}{word}"
    if response.is_redirect:
        reason += ", and redirects are not followed"
    return Outcome(verdict, reason, retry_after(response.headers, time.time))


def _in_words(error: BaseException) -> str:
    """Describe why there was no answer, by the exception's type only, because its message may contain the address."""
    words = next((words for kind, words in _failures() if isinstance(error, kind)), "the call failed")
    root = error
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return f"{words} ({type(root).__name__})"


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
    # The lines are already escaped. One block per line would exceed Slack's limit.
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": line, "verbatim": True}} for line in lines]
    return _message(title, [header, *blocks])


def escaped(text: str) -> str:
    """Escape a text for mrkdwn, so that it contains no link and no mention."""
    return text.translate(_ESCAPES)


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _visible(text, limit), "emoji": False}


def _visible(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text; invisible and direction characters are shown as their code points."""
    lines = (plain(line, limit) for line in _CALLS.sub("@ ", text[:limit]).splitlines())
    # Slack refuses an empty text.
    shown = "\n".join(lines).strip() or MISSING
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _message(line: str, blocks: list[dict[str, Any]]) -> str:
    text = escaped(_visible(line.replace("\n", " "), MAX_LINE))
    return msgspec.json.encode({"text": text, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}).decode()


VERSION = 1
DIGEST = "digest"
MOST_IN_DIGEST = 100
"""Alerts that a digest holds in full; it counts them all."""


def webhook_body(notice: Notice, alert_id: str, url: str | None, created_at: datetime) -> str:
    """Return one alert as a JSON document."""
    return _json(
        {
            "version": VERSION,
            "id": alert_id,
            "kind": notice.kind,
            "severity": notice.severity,
            "project": notice.project,
            "subject": notice.subject,
            "title": notice.title,
            "text": notice.text,
            "url": url,
            "createdAt": created_at.isoformat(),
            "details": notice.details,
        }
    )


def webhook_digest(alerts: Sequence[Alert], digest_id: str, title: str, created_at: datetime) -> str:
    """Return several alerts as one JSON document, oldest first."""
    severities = {alert.severity for alert in alerts}
    return _json(
        {
            "version": VERSION,
            "id": digest_id,
            "kind": DIGEST,
            "severity": "critical" if "critical" in severities else "warning",
            "title": title,
            "createdAt": created_at.isoformat(),
            "count": len(alerts),
            "alerts": [msgspec.json.decode(alert.body) for alert in alerts[:MOST_IN_DIGEST]],
        }
    )


def signature(secret: str, body: bytes, at: datetime) -> str:
    """Return the value of the header Driftline-Signature."""
    seconds = int(at.timestamp())
    signed = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256)
    return f"t={seconds},v1={signed.hexdigest()}"


def _json(document: Mapping[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


WEBHOOK, SLACK = "webhook", "slack"
ID_HEADER = "Driftline-Delivery"
SIGNATURE_HEADER = "Driftline-Signature"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to post: its id, by which a receiver recognises repetitions, and its JSON body."""

    letter_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A receiver of alerts. `url` and `secret` are never shown."""

    name: str
    url: Secret
    secret: Secret | None = None
    public_url: str | None = None
    """Address under which people reach the server, for links."""

    def body(self, notice: Notice, now: datetime) -> str:
        """Return the notice in the channel's form."""
        url = None if self.public_url is None or notice.path is None else self.public_url.rstrip("/") + notice.path
        if self.name == SLACK:
            return slack_body(notice, url)
        return webhook_body(notice, notice.alert_id(self.name), url, now)

    def letter(self, alerts: Sequence[Alert], now: datetime) -> Letter:
        """Return the message for these alerts: a single alert as it is, several as a digest."""
        if len(alerts) == 1:
            return Letter(alerts[0].alert_id, alerts[0].body)
        title = f"Driftline: {counted(len(alerts), 'alert')}"
        digest_id = stable_id("alert digest", *(alert.alert_id for alert in alerts))
        if self.name == SLACK:
            return Letter(digest_id, slack_digest(alerts, title))
        return Letter(digest_id, webhook_digest(alerts, digest_id, title, now))

    def headers(self, letter: Letter, now: datetime) -> Mapping[str, str]:
        """Return the headers of a message: its id, and a signature if there is a secret."""
        headers = {"Content-Type": "application/json", ID_HEADER: letter.letter_id}
        if self.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self.secret.reveal(), letter.body.encode(), now)
        return headers


def channels_of(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels that the settings name."""
    secrets = {SLACK: None, WEBHOOK: settings.alert_secret}
    addresses = {WEBHOOK: settings.alert_webhook, SLACK: settings.alert_slack}
    return tuple(Channel(name, url, secrets[name], settings.public_url) for name, url in addresses.items() if url is not None)
