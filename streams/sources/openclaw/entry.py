"""One line of a transcript as an entry with checked types and a time.

1. Every entry has a `type` and an `id`. `parentId` is the entry it follows: if absent, the latest one; if null, the entry starts a new tree.
2. A line with fields of other types is set aside whole. Evidence is never guessed from it.
3. Half a surrogate pair becomes U+FFFD in a text. An entry with one in an id is set aside, because two ids could become one.
4. An entry's time is its ISO timestamp, else its message's time in milliseconds since 1970, else the time of the previous entry.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from audit.surrogates import mended
from audit.times import parse_timestamp
from schemas.bounds import MAX_ID, NOT_UNICODE, has_surrogates, is_plain_identifier
from schemas.contract import IDENTIFIER
from streams.sources.lines import Problem, decode_json, json_type
from streams.sources.media import placeholders_in
from streams.sources.openclaw.text import MIRROR_MODEL

Json = dict[str, Any]
MAX_TOKENS = 2**53
"""Largest token count: the largest integer that every JSON reader keeps exactly."""
TURN_END = "turn_end"
"""Kind of an entry that ends a turn. It has no events; other dialects create it."""
_NO_BLOCKS: list[Json] = []
_NO_MESSAGE: Any = ({}, _NO_BLOCKS, None, "", _NO_BLOCKS, None, None, False)
_IDS = ("id", "parentId")
_KINDS = frozenset({"message", "session", "model_change", "thinking_level_change", "compaction", "leaf", "custom"})
"""The most frequent types, which skip the full check."""


class Usage(NamedTuple):
    """Token counts of one message. `read` includes prompt cache reads and writes."""

    plain: int
    cache_read: int
    cache_write: int
    output: int

    @property
    def read(self) -> int:
        """Tokens the model read."""
        return self.plain + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        """Tokens read and written."""
        return self.read + self.output


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One checked entry. `linked`: it has a parentId; `side`: it is beside the conversation.

    `at` is None if the entry has no time. `role`, `blocks` and `message` belong to entries of type message; `blocks` is the content as a
    list, a plain string being one text block. `digest` identifies the content; if None, the line does. `is_copy`: the entry is known to be
    copied from another session.

    The other fields are derived from a message: `text` of its text blocks (of a user message without text, media placeholders), `calls`
    (its tool call blocks), and for an assistant `stop` (a message that calls a tool without a reason stopped for the tool), `usage` (None if
    missing, or zero beside content) and `is_mirror` (a copy of a delivered message).
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


def entry_of(
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
    """Return the entry with these checked fields; see `Entry`."""
    role = message.get("role")
    text, calls = _text_and_calls(blocks, role)
    stop, usage, is_mirror = _read_ending(message, blocks, calls) if role == "assistant" else (None, None, False)
    fixed = (kind, entry_id, parent, linked, side, at, body, role, message, blocks, digest, is_copy)
    return Entry(*fixed, text, calls, stop, usage, is_mirror)


def _text_and_calls(blocks: list[Json], role: str | None) -> tuple[str, list[Json]]:
    """Return the text of the text blocks (of a user message without text, media placeholders), and the tool call blocks."""
    if len(blocks) == 1 and blocks[0].get("type") == "text":  # as most
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
    """Return the stop reason of an assistant message, its usage, and whether it is a mirror of a delivered message."""
    stop, usage = message.get("stopReason"), counts_of(message.get("usage"))
    if not isinstance(stop, str):
        stop = "toolUse" if calls else None
    if usage is not None and blocks and not any(usage):
        usage = None
    return stop, usage, message.get("model") == MIRROR_MODEL


def read_entry(body: Json, *, is_whole: bool = False) -> Entry | Problem:
    """Return the entry of a decoded line, or why there is none. `is_whole`: no text holds half a surrogate pair."""
    kind, entry_id, parent = body.get("type"), body.get("id"), body.get("parentId")
    is_plain = type(kind) is str and kind in _KINDS and type(entry_id) is str and is_plain_identifier(entry_id, MAX_ID)
    if not is_plain or not (parent is None or (type(parent) is str and parent.isascii())):
        problem = _envelope_problem(body)
        if problem is not None:
            return problem
    if not is_whole:
        body = mended_body(body)
    get = body.get
    message, blocks, role, text, calls, stop, usage, is_mirror = _NO_MESSAGE
    if kind == "message":
        checked = _message_blocks(get("message"))
        if isinstance(checked, Problem):
            return checked
        message, blocks = body["message"], checked
        role = message["role"]
        text, calls = _text_and_calls(blocks, role)
        if role == "assistant":
            stop, usage, is_mirror = _read_ending(message, blocks, calls)
    at, linked, side = _entry_time(body, message), "parentId" in body, get("appendMode") == "side"
    fixed = (body["type"], body["id"], get("parentId"), linked, side, at, body, role, message, blocks, None, False)
    return Entry(*fixed, text, calls, stop, usage, is_mirror)


def _envelope_problem(body: Json) -> Problem | None:
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


def _message_blocks(message: Any) -> list[Json] | Problem:
    if type(message) is not dict:
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    role = message.get("role")
    if type(role) is not str:
        return Problem("wrong_type", f"message.role: is {json_type(role)}, not a string")
    return blocks_of("message.content", message.get("content"))


def _entry_time(body: Json, message: Json) -> datetime | None:
    for source in (body, message):
        value = source.get("timestamp")
        if isinstance(value, (str, int, float)):
            try:
                at = parse_timestamp(value)
            except ValueError:
                continue
            return at
    return None


def mended_body(body: Json) -> Json:
    """Return the line with U+FFFD in place of each half of a surrogate pair; the same object if there is none."""
    try:
        msgspec.json.encode(body)
    except UnicodeEncodeError:
        mended_value: Json = mended(body)
        return mended_value
    return body


def content_of(line: bytes) -> bytes:
    """Return the content of a readable line, independent of the order of its members."""
    return msgspec.json.encode(mended(decode_json(line)), order="deterministic")


def counts_of(usage: Any) -> Usage | None:
    """Return the token counts of a usage in OpenClaw's form; None for any other value."""
    if type(usage) is not dict or "input" not in usage:
        return None
    get: Callable[[str], Any] = usage.get
    plain, read, written, output = get("input"), get("cacheRead"), get("cacheWrite"), get("output")
    # If the bitwise OR is in range, each number is.
    are_whole = type(plain) is int and type(read) is int and type(written) is int and type(output) is int
    if are_whole and 0 <= plain | read | written | output < MAX_TOKENS:
        return Usage(plain, read, written, output)
    return Usage(_count(plain), _count(read), _count(written), _count(output))


def _count(value: Any) -> int:
    """Return a token count; 0 for a value that is not one."""
    if type(value) is int or type(value) is float:
        return int(min(value, MAX_TOKENS)) if value >= 0 else 0
    return 0


def has_bad_time(entry: Entry) -> bool:
    """Return whether the entry has a time that cannot be read."""
    return entry.at is None and (entry.body.get("timestamp") is not None or entry.message.get("timestamp") is not None)


def blocks_of(name: str, content: Any) -> list[Json] | Problem:
    """Return content as a list of blocks, a string being one text block; a Problem if it is neither."""
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
