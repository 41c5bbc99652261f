"""One line of a transcript as an entry: checked for the types that the rest relies on, and dated.

1. Every entry has a `type` and an `id`. The id of the entry it follows is `parentId`: absent means "whatever was last", null
   means that it begins a tree of its own.
2. A line whose fields have other types is set aside whole: evidence is never guessed from it.
3. Half a surrogate pair becomes U+FFFD in a text; an entry with one in an id is set aside: two ids would become one.
4. Its time is its own ISO timestamp, else its message's time in milliseconds since 1970, else that of the entry before it.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from audit.surrogates import mended
from audit.times import parse_timestamp
from schemas.bounds.contract import IDENTIFIER
from schemas.bounds.limits import NOT_UNICODE, has_surrogates
from streams.sources.lines import Problem, json_type

Json = dict[str, Any]

_NONE: list[Json] = []
_IDS = ("id", "parentId")


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One checked entry. `linked` says whether parentId is there; `side` whether it stands beside the conversation.

    `at` is null where the entry tells no time. `role`, `blocks` and `message` are of entries of type message; `blocks` is the
    content as a list of blocks, a plain string being one text block. `digest` identifies the content. `is_copy` marks what is known to
    be copied from another session.
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
    digest: bytes
    is_copy: bool = False


def read_entry(body: Json) -> Entry | Problem:
    """Check one decoded line; what is wrong with it where it is no entry."""
    problem = _envelope_problem(body)
    if problem is not None:
        return problem
    try:
        content = msgspec.json.encode(body, order="deterministic")
    except UnicodeEncodeError:
        body = mended(body)
        content = msgspec.json.encode(body, order="deterministic")
    message: Json = {}
    blocks = _NONE
    if body["type"] == "message":
        checked = _message_blocks(body.get("message"))
        if isinstance(checked, Problem):
            return checked
        blocks = checked
        message = body["message"]
    return Entry(
        kind=body["type"],
        id=body["id"],
        parent=body.get("parentId"),
        linked="parentId" in body,
        side=body.get("appendMode") == "side",
        at=_moment(body, message),
        body=body,
        role=message.get("role"),
        message=message,
        blocks=blocks,
        digest=blake2b(content, digest_size=16).digest(),
    )


def has_bad_time(entry: Entry) -> bool:
    """Tell whether the entry gives a time that cannot be read."""
    return entry.at is None and (entry.body.get("timestamp") is not None or entry.message.get("timestamp") is not None)


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
    broken = next((name for name in _IDS if has_surrogates(body.get(name) or "")), None)
    return None if broken is None else Problem("bounds", f"{broken}: {NOT_UNICODE}")


def _message_blocks(message: Any) -> list[Json] | Problem:
    if not isinstance(message, dict):
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    role = message.get("role")
    if not isinstance(role, str):
        return Problem("wrong_type", f"message.role: is {json_type(role)}, not a string")
    return blocks_of("message.content", message.get("content"))


def blocks_of(name: str, content: Any) -> list[Json] | Problem:
    """A content as a list of blocks, a string being one text block; what is wrong with it."""
    if content is None:
        return _NONE
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return Problem("wrong_type", f"{name}: is {json_type(content)}, not a string or an array")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            return Problem("wrong_type", f"{name}[{index}]: is {json_type(block)}, not an object")
    return content


def _moment(body: Json, message: Json) -> datetime | None:
    for value in (body.get("timestamp"), message.get("timestamp")):
        if isinstance(value, str | int | float):
            try:
                return parse_timestamp(value) or None
            except ValueError:
                continue
    return None
