"""Text that a gateway wraps around messages: removed before judging, or recognised as noise.

1. A user message may begin with blocks of metadata: a line `Conversation info (untrusted metadata):`, a line
   `Sender (untrusted metadata):` or any line that ends in the mark `⟦openclaw:ctx⟧`, each followed by a fenced JSON document;
   then a stamp such as `[Sat 2026-04-18 22:09 GMT-3] `. Only such leading blocks are removed, in order.
2. An unclosed fence, and everything after it, is kept.
3. Heartbeat prompts and their answers, deliberate silence, messages between sessions, scheduled runs and mirrors of delivered messages are
   noise: they are tagged, not dropped. An answer is noise only if it consists of nothing but the token, so that an agent cannot hide an
   answer behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import re2

CONTEXT_MARK = "⟦openclaw:ctx⟧"
"""End of the header line of a metadata block in newer versions."""
MIRROR_MODEL = "delivery-mirror"
"""Model name on the mirror of a message delivered to a channel."""

_HEADERS = frozenset({"Conversation info (untrusted metadata):", "Sender (untrusted metadata):"})
_MAX_HEADER = 256
_MAX_METADATA = 64 * 1024
_FENCE = "```"
_SILENT = {"HEARTBEAT_OK": "heartbeat", "NO_REPLY": "no_reply"}
_PREFIXES = {
    "[Inter-session message]": "inter_session",
    "[cron:": "cron",
    "Read HEARTBEAT.md": "heartbeat",
    "[OpenClaw heartbeat poll]": "heartbeat",
}
_BEGINNINGS = tuple(_PREFIXES)
_HEARTBEAT_LINE = "\nRead HEARTBEAT.md"
_HEARTBEAT_END = "reply HEARTBEAT_OK"


def _stamp_pattern() -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(
        r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: [A-Za-z0-9+:/_-]{1,40})?\] ?", options
    )


_STAMP = _stamp_pattern()


class Unwrapped(NamedTuple):
    """A user message without its wrapping. `multi_user`: the wrapping says that several users take part."""

    text: str
    multi_user: bool


def unwrap(text: str) -> Unwrapped:
    """Remove the leading metadata blocks and the stamp from a user message, in linear time."""
    if "\n" not in text and not text.startswith("["):  # a block has lines, and a stamp begins with a bracket
        return Unwrapped(text, False)
    start, multi_user = 0, False
    while (block := _metadata_block(text, start)) is not None:
        start, metadata = block
        multi_user = multi_user or _names_a_group(metadata)
    rest = text[start:]
    # Without a block, leading spaces belong to the user's text.
    body = rest.lstrip() if start else rest
    stamp = _STAMP.match(body) if body.startswith("[") else None
    if stamp is not None:
        body = body[stamp.end() :]
    return Unwrapped(body, multi_user)


def _metadata_block(text: str, start: int) -> tuple[int, str] | None:
    """Return the end and the JSON text of the metadata block at `start`, after optional white space; None if there is none."""
    begin = start
    while begin < len(text) and text[begin] in " \t\r\n":
        begin += 1
    line_end = text.find("\n", begin, begin + _MAX_HEADER)
    if line_end < 0:
        return None
    header = text[begin:line_end].strip()
    if header not in _HEADERS and not header.endswith(CONTEXT_MARK):
        return None
    fence_end = text.find("\n", line_end + 1, line_end + 1 + _MAX_HEADER)
    if fence_end < 0 or not text[line_end + 1 : fence_end].strip().startswith(_FENCE):
        # A marked header may precede prose: only its line is wrapping.
        return (line_end + 1, "") if header.endswith(CONTEXT_MARK) else None
    close = text.find("\n" + _FENCE, fence_end)
    if close < 0:
        return None
    return close + 1 + len(_FENCE), text[fence_end + 1 : close]


def _names_a_group(metadata: str) -> bool:
    if "is_group_chat" not in metadata or len(metadata) > _MAX_METADATA:
        return False
    try:
        value = msgspec.json.decode(metadata)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return isinstance(value, dict) and value.get("is_group_chat") is True


def question_tags(text: str) -> set[str]:
    """Return the tags that follow from an unwrapped user message."""
    tags = set[str]()
    if text.startswith(_BEGINNINGS):
        tags = {tag for prefix, tag in _PREFIXES.items() if text.startswith(prefix)}
    if _HEARTBEAT_LINE in text or text[-_MAX_HEADER:].rstrip(" .\n").endswith(_HEARTBEAT_END):
        tags.add("heartbeat")
    return tags


def answer_tags(response: str) -> set[str]:
    """Return the tags that follow from a response that is nothing but a silence token."""
    if len(response) > _MAX_HEADER or "_" not in response:  # every token has one
        return set()
    tag = _SILENT.get(response.strip(" \t\r\n*_`."))
    return {tag} if tag else set()


def cut(text: str, limit: int) -> str:
    """Return the text, cut at `limit` characters with the cut marked."""
    return text if len(text) <= limit else f"{text[:limit]}[cut: {len(text) - limit} more characters]"


def cut_bytes(text: str, limit: int) -> str:
    """Return the text, cut at `limit` bytes of UTF-8 between characters, with the cut marked."""
    if len(text) * 4 <= limit or len(encoded := text.encode()) <= limit:
        return text
    return cut(text, len(encoded[:limit].decode("utf-8", "ignore")))


def text_of(content: Any) -> str:
    """Return the text of a message's content: the string, or its text blocks joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(block["text"] for block in content if block.get("type") == "text" and isinstance(block.get("text"), str))
