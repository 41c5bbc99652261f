"""Text that a gateway adds to messages: metadata is removed before judging, and messages of the program are tagged.

1. A user message may start with blocks of metadata. A block is a header line and a fenced JSON document. The header is
   `Conversation info (untrusted metadata):`, `Sender (untrusted metadata):`, or a line that ends in the mark `⟦openclaw:ctx⟧`. A time stamp
   such as `[Sat 2026-04-18 22:09 GMT-3] ` may follow. Only these leading parts are removed.
2. An unclosed fence, and everything after it, is kept.
3. Heartbeat prompts and their answers, deliberate silence, messages between sessions, scheduled runs and mirrors of delivered messages are
   noise. They are tagged, not dropped. An answer is noise only if it consists of nothing but a silence token, so that an agent cannot hide
   an answer behind one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import re2

CONTEXT_MARK = "⟦openclaw:ctx⟧"
"""End of the header line of a metadata block, in newer versions."""
MIRROR_MODEL = "delivery-mirror"
"""Model name of a message that mirrors a message delivered to a channel."""

_HEADERS = frozenset({"Conversation info (untrusted metadata):", "Sender (untrusted metadata):"})
_MAX_HEADER = 256
_MAX_METADATA = 64 * 1024
_FENCE = "```"
_SILENCE_TAGS = {"HEARTBEAT_OK": "heartbeat", "NO_REPLY": "no_reply"}
_TAG_BY_PREFIX = {
    "[Inter-session message]": "inter_session",
    "[cron:": "cron",
    "Read HEARTBEAT.md": "heartbeat",
    "[OpenClaw heartbeat poll]": "heartbeat",
}
_TAGGED_PREFIXES = tuple(_TAG_BY_PREFIX)
_HEARTBEAT_LINE = "\nRead HEARTBEAT.md"
_HEARTBEAT_END = "reply HEARTBEAT_OK"


def _compile_stamp() -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(
        r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: [A-Za-z0-9+:/_-]{1,40})?\] ?", options
    )


_STAMP = _compile_stamp()


class Unwrapped(NamedTuple):
    """A user message without its metadata. `multi_user` is True if the metadata says that several users take part."""

    text: str
    multi_user: bool


def unwrap(text: str) -> Unwrapped:
    """Remove the leading metadata blocks and the stamp from a user message, in linear time."""
    if "\n" not in text and not text.startswith("["):  # a block has several lines, and a stamp starts with a bracket
        return Unwrapped(text, False)
    start = 0
    multi_user = False
    while True:
        block = _find_metadata_block(text, start)
        if block is None:
            break
        start, metadata = block
        multi_user = multi_user or _is_group_metadata(metadata)
    # Without a block, leading white space belongs to the user's text.
    body = text[start:].lstrip() if start else text
    stamp = _STAMP.match(body) if body.startswith("[") else None
    if stamp is not None:
        body = body[stamp.end() :]
    return Unwrapped(body, multi_user)


def _find_metadata_block(text: str, start: int) -> tuple[int, str] | None:
    """Return the end and the JSON text of the metadata block at `start`, after optional white space; None if there is none."""
    header_start = start
    while header_start < len(text) and text[header_start] in " \t\r\n":
        header_start += 1
    header_end = text.find("\n", header_start, header_start + _MAX_HEADER)
    if header_end < 0:
        return None
    header = text[header_start:header_end].strip()
    is_marked = header.endswith(CONTEXT_MARK)
    if header not in _HEADERS and not is_marked:
        return None
    fence_end = text.find("\n", header_end + 1, header_end + 1 + _MAX_HEADER)
    if fence_end < 0 or not text[header_end + 1 : fence_end].strip().startswith(_FENCE):
        # If prose follows a marked header, only the header line is metadata.
        return (header_end + 1, "") if is_marked else None
    json_end = text.find("\n" + _FENCE, fence_end)
    if json_end < 0:
        return None
    return json_end + 1 + len(_FENCE), text[fence_end + 1 : json_end]


def _is_group_metadata(metadata: str) -> bool:
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
    if text.startswith(_TAGGED_PREFIXES):
        tags = {tag for prefix, tag in _TAG_BY_PREFIX.items() if text.startswith(prefix)}
    if _HEARTBEAT_LINE in text or text[-_MAX_HEADER:].rstrip(" .\n").endswith(_HEARTBEAT_END):
        tags.add("heartbeat")
    return tags


def answer_tags(response: str) -> set[str]:
    """Return the tag of a response that is nothing but a silence token; no tag for any other response."""
    if len(response) > _MAX_HEADER or "_" not in response:  # every token has an underscore
        return set()
    tag = _SILENCE_TAGS.get(response.strip(" \t\r\n*_`."))
    return {tag} if tag else set()


def cut(text: str, limit: int) -> str:
    """Return the text, cut at `limit` characters. The cut is marked."""
    return text if len(text) <= limit else f"{text[:limit]}[cut: {len(text) - limit} more characters]"


def cut_bytes(text: str, limit: int) -> str:
    """Return the text, cut at `limit` bytes of UTF-8, between two characters. The cut is marked."""
    if len(text) * 4 <= limit:  # UTF-8 takes at most four bytes per character
        return text
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return cut(text, len(encoded[:limit].decode("utf-8", "ignore")))


def text_of(content: Any) -> str:
    """Return the text of a message's content: the string, or its text blocks joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(block["text"] for block in content if block.get("type") == "text" and isinstance(block.get("text"), str))
