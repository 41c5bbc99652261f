"""The entry of a transcript's line, with checked types and a time.

1. Every entry has a `type` and an `id`. `parentId` names the entry that it follows. If it is absent, the entry follows the latest one; if it is
   null, the entry starts a new tree.
2. A line with a field of the wrong type is rejected as a whole. Evidence is never guessed from it.
3. A lone surrogate in a text becomes U+FFFD. An entry with one in an id is rejected, because two ids could become equal.
4. The time of an entry is its ISO timestamp, else the time of its message in milliseconds since 1970, else the time of the previous entry.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from audit.surrogates import repair_value
from audit.times import parse_timestamp
from schemas.bounds import MAX_ID, NOT_UNICODE, has_surrogates, is_plain_identifier
from schemas.contract import IDENTIFIER
from streams.sources.lines import Problem, decode_json, json_type
from streams.sources.media import placeholders_in
from streams.sources.openclaw.text import MIRROR_MODEL

Json = dict[str, Any]
MAX_TOKENS = 2**53
"""Maximum of a token count: the largest integer that every JSON reader keeps exactly."""
TURN_END = "turn_end"
"""Kind of an entry that ends a turn. OpenClaw has none; other dialects create it. It has no events."""
_NO_BLOCKS: list[Json] = []
_IDS = ("id", "parentId")
_COMMON_KINDS = frozenset({"message", "session", "model_change", "thinking_level_change", "compaction", "leaf", "custom"})
"""The most frequent types. Entries of these types skip the full check."""


class Usage(NamedTuple):
    """The token counts of one message. `plain` are the input tokens outside the prompt cache."""

    plain: int
    cache_read: int
    cache_write: int
    output: int

    @property
    def read(self) -> int:
        """Tokens that the model read, including cache reads and writes."""
        return self.plain + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        """Tokens that the model read and wrote."""
        return self.read + self.output


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry with checked fields.

    `linked` is True if the entry has a parentId, `side` if it is beside the conversation, `is_copy` if it is known to be copied from another
    session. `at` is None if it has no time. `role`, `message` and `blocks` belong to entries of type message; `blocks` is the content as a
    list, in which a string is one text block. `digest` identifies the content; if it is None, the line identifies it.

    The other fields are derived from the message. `text` joins its text blocks; a user message without text has media placeholders. `calls`
    are its tool call blocks. An assistant message also has `stop` (`toolUse` if it calls a tool without a reason), `usage` (None if it is
    missing, or zero although the message has content) and `is_mirror` (it copies a delivered message).
    """

    kind: str
    id: str
    parent: str | None
    linked: bool
    side: bool
    at: datetime | None
    body: Json
    role: str | None
    message: Json
    blocks: list[Json]
    digest: bytes | None
    is_copy: bool
    text: str
    calls: list[Json]
    stop: str | None
    usage: Usage | None
    is_mirror: bool


def build_entry(
    kind: str,
    entry_id: str,
    *,
    parent: str | None,
    linked: bool,
    side: bool,
    at: datetime | None,
    body: Json,
    message: Json,
    blocks: list[Json],
    digest: bytes | None = None,
    is_copy: bool = False,
) -> Entry:
    """Return the entry with these checked fields, and the fields derived from its message (see `Entry`)."""
    role = message.get("role")
    text, calls = _read_text_and_calls(blocks, role)
    stop, usage, is_mirror = _read_ending(message, blocks, calls) if role == "assistant" else (None, None, False)
    return Entry(
        kind=kind,
        id=entry_id,
        parent=parent,
        linked=linked,
        side=side,
        at=at,
        body=body,
        role=role,
        message=message,
        blocks=blocks,
        digest=digest,
        is_copy=is_copy,
        text=text,
        calls=calls,
        stop=stop,
        usage=usage,
        is_mirror=is_mirror,
    )


def _read_text_and_calls(blocks: list[Json], role: str | None) -> tuple[str, list[Json]]:
    """Return the text of a message, and its tool call blocks."""
    if len(blocks) == 1 and blocks[0].get("type") == "text":  # the usual case
        text = blocks[0].get("text")
        return (text if isinstance(text, str) else ""), []
    texts: list[str] = []
    calls: list[Json] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            text = block.get("text")
            if isinstance(text, str):
                texts.append(text)
        elif kind == "toolCall":
            calls.append(block)
    text = texts[0] if len(texts) == 1 else "\n".join(texts)
    if not text and role == "user":
        text = placeholders_in(blocks)
    return text, calls


def _read_ending(message: Json, blocks: list[Json], calls: list[Json]) -> tuple[str | None, Usage | None, bool]:
    """Return the stop reason of an assistant message, its usage, and whether it mirrors a delivered message."""
    stop = message.get("stopReason")
    if not isinstance(stop, str):
        stop = "toolUse" if calls else None
    usage = read_counts(message.get("usage"))
    if usage is not None and blocks and not any(usage):
        usage = None  # zero usage of a message with content means that the usage is missing
    return stop, usage, message.get("model") == MIRROR_MODEL


def read_entry(body: Json, *, is_whole: bool = False) -> Entry | Problem:
    """Return the entry of a decoded line, or the reason why it has none. `is_whole`: no text of the line holds a lone surrogate."""
    if not _has_plain_envelope(body):
        problem = _find_envelope_problem(body)
        if problem is not None:
            return problem
    if not is_whole:
        body = repair_body(body)
    message: Json = {}
    blocks: list[Json] = _NO_BLOCKS
    if body["type"] == "message":
        checked_blocks = _read_message_blocks(body.get("message"))
        if isinstance(checked_blocks, Problem):
            return checked_blocks
        message = body["message"]
        blocks = checked_blocks
    return build_entry(
        body["type"],
        body["id"],
        parent=body.get("parentId"),
        linked="parentId" in body,
        side=body.get("appendMode") == "side",
        at=_read_time(body, message),
        body=body,
        message=message,
        blocks=blocks,
    )


def _has_plain_envelope(body: Json) -> bool:
    """Return whether the envelope is certainly valid. This quick check accepts most lines."""
    kind = body.get("type")
    entry_id = body.get("id")
    parent = body.get("parentId")
    has_plain_id = type(entry_id) is str and is_plain_identifier(entry_id, MAX_ID)
    has_plain_parent = parent is None or (type(parent) is str and parent.isascii())
    return type(kind) is str and kind in _COMMON_KINDS and has_plain_id and has_plain_parent


def _find_envelope_problem(body: Json) -> Problem | None:
    for name in ("type", "id"):
        value = body.get(name)
        if value is None:
            return Problem("missing_field", f"{name}: is missing")
        if not isinstance(value, str):
            return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")
        if fault := IDENTIFIER.fault(value):
            return Problem("bounds", f"{name}: {fault}")
    parent = body.get("parentId")
    if parent is not None and not isinstance(parent, str):
        return Problem("wrong_type", f"parentId: is {json_type(parent)}, not a string")
    for name in _IDS:
        if has_surrogates(body.get(name) or ""):
            return Problem("bounds", f"{name}: {NOT_UNICODE}")
    return None


def _read_message_blocks(message: Any) -> list[Json] | Problem:
    if type(message) is not dict:
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    role = message.get("role")
    if type(role) is not str:
        return Problem("wrong_type", f"message.role: is {json_type(role)}, not a string")
    return read_blocks("message.content", message.get("content"))


def _read_time(body: Json, message: Json) -> datetime | None:
    """Return the time of an entry; None if neither the line nor its message has a valid time."""
    for source in (body, message):
        value = source.get("timestamp")
        if isinstance(value, (str, int, float)):
            try:
                return parse_timestamp(value)
            except ValueError:
                continue
    return None


def repair_body(body: Json) -> Json:
    """Return the line with U+FFFD in place of each lone surrogate. A line without any is returned unchanged."""
    try:
        msgspec.json.encode(body)
    except UnicodeEncodeError:
        repaired: Json = repair_value(body)
        return repaired
    return body


def canonical_content(line: bytes) -> bytes:
    """Return the content of a readable line in a form that does not depend on the order of its members."""
    return msgspec.json.encode(repair_value(decode_json(line)), order="deterministic")


def read_counts(usage: Any) -> Usage | None:
    """Return the token counts of a usage in OpenClaw's form; None for any other value."""
    if type(usage) is not dict or "input" not in usage:
        return None
    return Usage(
        plain=_read_count(usage["input"]),
        cache_read=_read_count(usage.get("cacheRead")),
        cache_write=_read_count(usage.get("cacheWrite")),
        output=_read_count(usage.get("output")),
    )


def _read_count(value: Any) -> int:
    """Return a token count; 0 for any other value."""
    if (type(value) is int or type(value) is float) and value >= 0:
        return int(min(value, MAX_TOKENS))
    return 0


def has_bad_time(entry: Entry) -> bool:
    """Return whether the entry has a timestamp that cannot be read."""
    return entry.at is None and (entry.body.get("timestamp") is not None or entry.message.get("timestamp") is not None)


def read_blocks(name: str, content: Any) -> list[Json] | Problem:
    """Return the content of a message as a list of blocks; a string becomes one text block. `name` is its field, for problems."""
    if content is None:
        return _NO_BLOCKS
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return Problem("wrong_type", f"{name}: is {json_type(content)}, not a string or an array")
    for block in content:
        if type(block) is not dict:
            index = next(position for position, other in enumerate(content) if type(other) is not dict)
            return Problem("wrong_type", f"{name}[{index}]: is {json_type(block)}, not an object")
    return content
