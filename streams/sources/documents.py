"""Files of runtime events taken apart into parts of sessions, the fields of their envelopes checked.

A file is lines of JSON objects, or one JSON document. An object is an event with its `session_id`, flat or under `event`, or a
session with its `events`; a document is one of these or a list of them. A flat event names its type as `event` or `type`: what
has neither, and no `events`, is something else and no event.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from schemas.bounds.contract import IDENTIFIER, NAMED
from schemas.bounds.field_rules import Rule
from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from streams.sources.lines import Line, Problem, decode_json, decode_line, is_torn, json_type, read_lines

MAX_DOCUMENT = 64 * 1024 * 1024
"""Bytes of the largest document that is not written as lines."""

Json = dict[str, Any]

_BOM = b"\xef\xbb\xbf"
_ENVELOPE: dict[str, Rule] = {"session_id": IDENTIFIER, "connection": NAMED, "project": NAMED, "agent": IDENTIFIER}


class SessionPart(NamedTuple):
    """Events of one session, each with the words that say where in its line it stood."""

    session_id: str
    connection: str | None
    project: str | None
    agent: str | None
    events: list[tuple[str, Any]]


class Document(NamedTuple):
    """A JSON value that is the whole file."""

    value: Any


def read_values(stream: BinaryIO) -> Iterator[tuple[Line, Json | Document | Problem | None]]:
    """The lines of a stream with their values, or its one document; None for a torn last line, after which nothing comes.

    InputError for a document that is too large.
    """
    head = stream.readline(MAX_DOCUMENT + 1)
    if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"["):
        value = decode_line(_line(head.removeprefix(_BOM)))
        document = None
        if isinstance(value, Problem):
            head += stream.read(MAX_DOCUMENT)
            document = _document(head)
        elif "events" in value:
            # A session on one line is a document when it is all there is.
            ahead = stream.read(1)
            document = None if ahead else Document(value)
            head += ahead
        if document is not None:
            yield _line(head), document
            return
    for line in read_lines(io.BufferedReader(_Joined(head, stream))):
        value = decode_line(line)
        yield line, None if is_torn(line, value) else value


def parts_of(value: Json | Document, name: str) -> Iterator[tuple[Any, SessionPart | Problem]]:
    """The parts of sessions in one value, each with the JSON it was read from.

    `name` is the session of a document that names none.
    """
    if not isinstance(value, Document):
        yield value, _part(value, None, "")
    elif isinstance(value.value, list):
        for index, item in enumerate(value.value):
            yield item, _part(item, name, f"[{index}]")
    else:
        is_session = isinstance(value.value, dict) and "events" in value.value
        yield value.value, _part(value.value, name if is_session else None, "")


def _part(value: Any, name: str | None, place: str) -> SessionPart | Problem:
    if not isinstance(value, dict):
        return Problem("not_an_object", f"{place or 'the document'} is {json_type(value)}, not an object")
    if "events" not in value and value.get("event") is None and value.get("type") is None:
        words = "neither an event nor a session: it has none of event, type and events"
        return Problem("not_an_event", f"{place}: {words}".lstrip(": "))
    problem = _envelope_problem(value, name, place)
    if problem is not None:
        return problem
    session_id, connection, project, agent = (value.get(field) for field in _ENVELOPE)
    if "events" not in value:
        event, within = event_in(value)
        found = [(f"{place}{within}".lstrip("."), event)]
    elif isinstance(events := value["events"], list):
        found = [(f"{place}.events[{index}]".lstrip("."), event) for index, event in enumerate(events)]
    else:
        return Problem("wrong_type", f"{place}.events: is {json_type(events)}, not an array".lstrip("."))
    return SessionPart(session_id or cast("str", name), connection, project, agent, found)


def event_in(value: Json) -> tuple[Json, str]:
    """The event that an object holds, and where in it: under `event`, or flat beside the fields of its envelope."""
    wrapped = value.get("event")
    if isinstance(wrapped, dict):
        return wrapped, ".event"
    return {key: item for key, item in value.items() if key not in _ENVELOPE}, ""


class Refused(NamedTuple):
    """The known facts about a part that cannot be taken: its connection if it names one, its session, its events."""

    connection: str | None
    session_id: str
    events: int


def refused_part(value: Any) -> Refused | None:
    """Return the session and events of a value that could not be taken; None if it does not name them."""
    session_id, connection = (value.get("session_id"), value.get("connection")) if isinstance(value, dict) else (None, None)
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID or not isinstance(connection, str | None):
        return None
    events = value.get("events", [value])
    return Refused(connection, session_id, len(events) if isinstance(events, list) else 0)


def _envelope_problem(value: Json, name: str | None, place: str) -> Problem | None:
    for field, rule in _ENVELOPE.items():
        given = value.get(field)
        at = f"{place}.{field}".lstrip(".")
        if given is None:
            if field == "session_id" and name is None:
                return Problem("missing_field", f"{at}: is missing")
        elif not isinstance(given, str):
            return Problem("wrong_type", f"{at}: is {json_type(given)}, not a string")
        elif fault := rule.fault(given):
            return Problem("bounds", f"{at}: {fault}")
    return None


def _line(body: bytes) -> Line:
    return Line(1, body, len(body), ended=False)


def _document(body: bytes) -> Document | None:
    """The document that the bytes are, where they are one."""
    if len(body) > MAX_DOCUMENT:
        if body[:16].split(maxsplit=1)[0] in (b"{", b"["):
            raise InputError(f"the document is larger than {MAX_DOCUMENT} bytes", hint="Write one session or event a line.")
        return None
    try:
        return Document(decode_json(body.removeprefix(_BOM)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _Joined(io.RawIOBase):
    """Bytes that were read ahead, and then the rest of the stream they came from."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._parts: list[BinaryIO] = [io.BytesIO(head), rest]

    def readable(self) -> bool:
        """It is read only."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from what comes next; 0 at the end."""
        while self._parts:
            data = self._parts[0].read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._parts.pop(0)
        return 0
