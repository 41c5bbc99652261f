"""Files of runtime events as records, and as plain sessions for a diagnosis.

1. A file is lines of JSON objects, or one JSON document: an object or a list of them. An object is an event with its `session_id`, either
   flat (`{"session_id", "event": "tool_call", …}`) or wrapped (`{"session_id", "event": {…}}`), or a session
   (`{"session_id", "events": [{…}, …]}`). A flat event has its type in `event` or `type`. An object with neither, and without `events`, is not an
   event.
2. Each object may name `connection`, `project` and `agent`; the defaults are those of the reading. A session may be spread over the file.
3. An event's `seq` is its position in its session over the whole file. Unreadable events are counted as well, so that correcting one
   changes neither the positions nor the ids of the others.
4. A repeated id gets the suffix #2, #3, ... in order of arrival, as it does in a diagnosis (`audit.diagnosis.events.normalise_session`),
   and so does an id that a failure has in the causal graph.
"""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from audit.diagnosis.diagnosis import FAILURE_NODES
from audit.diagnosis.events import NormalisedEvent, clean_payload, normalise_event, to_record
from audit.exchanges.labels import FIELD, read_labels
from audit.file_kinds import detect_non_events
from audit.fingerprints import canonical_json
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from audit.times import parse_timestamp
from schemas.bounds import MAX_ID, NOT_UNICODE, has_surrogates
from schemas.contract import IDENTIFIER, NAMED, Rule
from schemas.errors import InputError
from schemas.records import AgentEvent
from streams.sources.lines import (
    Line,
    Problem,
    decode_json,
    decode_line,
    is_torn,
    json_type,
    line_fault,
    read_lines,
    value_fault,
)
from streams.sources.openclaw.events import shorten_event
from streams.sources.openclaw.reader import Transcript
from streams.sources.source import FileSource, LineFault, Reading, ReadingBuilder, ReadingContext, SessionRange

BATCH = 10_000
"""Events of one reading."""
Report = Callable[[int, str], None]
"""Called with each unreadable line and what is wrong with it."""
MAX_DOCUMENT = 64 * 1024 * 1024
"""Bytes of the largest document that is not JSON lines."""
Json = dict[str, Any]
_BOM = b"\xef\xbb\xbf"
_ENVELOPE: dict[str, Rule] = {"session_id": IDENTIFIER, "connection": NAMED, "project": NAMED, "agent": IDENTIFIER}
MAX_EVENT = 512 * 1024
"""Characters of the largest event, as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Session:
    """The raw events of one session, not redacted. `line` is where it starts; `faults` are the unreadable lines of a transcript."""

    session_id: str
    events: list[Json]
    line: int
    faults: tuple[LineFault, ...] = ()


def read_event_file(source: Path | BinaryIO, context: ReadingContext) -> Iterator[Reading]:
    """Yield the events of a file or stream in readings of at most BATCH events and faults.

    Each unreadable event becomes a fault that names line and field. Raises InputError if the file cannot be opened.
    """
    if not isinstance(source, Path):
        yield from _read_batches(source, context, "session")
        return
    try:
        with source.open("rb") as stream:
            yield from _read_batches(stream, context, source.stem)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


def _read_batches(stream: BinaryIO, context: ReadingContext, name: str) -> Iterator[Reading]:
    sessions: dict[tuple[str, str], SessionEvents] = defaultdict(SessionEvents)
    reading = ReadingBuilder()
    for line, value in read_values(stream):
        if value is None:
            reading.complete = False
            break
        for item in _build_items(line, value, name, context, sessions):
            if isinstance(item, AgentEvent):
                reading.events.append(item)
            else:
                reading.faults.append(item)
            if len(reading.events) + len(reading.faults) >= BATCH:
                yield _with_session_ids(reading)
                reading = ReadingBuilder()
    yield _with_session_ids(reading)


def _build_items(
    line: Line,
    value: Json | Document | Problem,
    name: str,
    context: ReadingContext,
    sessions: dict[tuple[str, str], SessionEvents],
) -> Iterator[AgentEvent | LineFault]:
    """Yield the records and faults of one line. `sessions` has the state of each session so far."""
    if isinstance(value, Problem):
        yield line_fault(line, value)
        return
    for source, part in parts_of(value, name):
        if isinstance(part, Problem):
            refused = _refused_part(source)
            if refused is not None:
                sessions[refused.connection or context.connection, refused.session_id].skip(refused.events)
            yield value_fault(line, source, part)
            continue
        agent = context.agent or part.agent
        owner = Owner(part.connection or context.connection, part.project or context.project, agent, part.session_id)
        state = sessions[owner.connection, owner.session_id]
        for position, raw in part.events:
            item = state.record(raw, position, owner, context)
            yield value_fault(line, raw, item) if isinstance(item, Problem) else item


def _refused_part(value: Any) -> Refused | None:
    """Return the session and number of events of a rejected value; None if it names no session."""
    if not isinstance(value, dict):
        return None
    session_id, connection = value.get("session_id"), value.get("connection")
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID or not isinstance(connection, str | None):
        return None
    events = value.get("events", [value])
    return Refused(connection, session_id, len(events) if isinstance(events, list) else 0)


def _with_session_ids(reading: Reading) -> Reading:
    reading.session_ids = list(dict.fromkeys(event.session_id for event in reading.events))
    return reading


def read_sessions(stream: BinaryIO, name: str, report: Report | None = None) -> Iterator[Session]:
    """Yield the sessions of a stream: a session document, lines of sessions or of events, or an OpenClaw transcript.

    `name` is the path of the file, or `-` for standard input. A session without an id gets the file's stem, as in an import. `report` is
    called with unreadable lines; without it, the first one raises an InputError that names the line. A transcript's faults are part of its
    session instead.
    """
    report = report or _raise_on_fault(name)
    name = "standard input" if name == "-" else Path(name).stem[:MAX_ID]
    values = read_values(stream)
    first = next(values, None)
    if first is None:
        return
    values = itertools.chain([first], values)
    if isinstance(first[1], dict) and first[1].get("type") == "session" and "events" not in first[1]:
        yield _transcript((line for line, _ in values), name)
    else:
        yield from _plain_sessions(values, name, report)


def _raise_on_fault(name: str) -> Report:
    def refuse(line: int, detail: str) -> None:
        raise InputError(f"{name}:{line}: {detail}", hint="Correct the line, or import the file to set it aside.")

    return refuse


def _transcript(lines: Iterable[Line], name: str) -> Session:
    events: list[Json] = []
    # The time only dates entries without any time before them; with an infinite gap, silence ends nothing.
    # No redaction: the text is only shown in the user's own terminal.
    unredacted = Redactor(RedactionSettings(enabled=False))
    context = ReadingContext("", "", None, datetime(2000, 1, 1, tzinfo=UTC), timedelta.max, unredacted)
    transcript = Transcript(context, session_id=name, sink=lambda event, _: events.append(shorten_event(event)))
    transcript.read(lines)
    return Session(transcript.session_id, events, 1, tuple(transcript.faults))


def _plain_sessions(values: Iterable[tuple[Line, _Value]], name: str, report: Report) -> Iterator[Session]:
    """Yield whole sessions in order, then those that were given event by event."""
    open_sessions: dict[str, tuple[Session, SessionEvents]] = {}
    for line, value in values:
        if value is None:
            report(line.number, "the line is cut off: the file is incomplete")
            break
        for source, part in [(None, value)] if isinstance(value, Problem) else parts_of(value, name):
            if isinstance(part, Problem):
                report(line.number, part.detail)
                refused = _refused_part(source)
                if refused is not None and refused.session_id in open_sessions:
                    open_sessions[refused.session_id][1].skip(refused.events)
                continue
            begun = Session(part.session_id, [], line.number), SessionEvents()
            if isinstance(value, dict | Document) and _is_whole(value):
                _add_events(part, *begun, partial(report, line.number))
                yield begun[0]
            else:
                _add_events(part, *open_sessions.setdefault(part.session_id, begun), partial(report, line.number))
    yield from (session for session, _ in open_sessions.values())


def _is_whole(value: Json | Document) -> bool:
    """Return whether the value is one whole session."""
    inner = value.value if isinstance(value, Document) else value
    return isinstance(inner, dict) and "events" in inner


def _add_events(part: _SessionPart, session: Session, memory: SessionEvents, report: Callable[[str], None]) -> None:
    """Add the events of a part to its session, and report the unreadable ones."""
    for position, raw in part.events:
        event = memory.plain(raw, position)
        if isinstance(event, Problem):
            report(event.detail)
        else:
            session.events.append(event)


class _SessionPart(NamedTuple):
    """Events of one session, each with its position in its line."""

    session_id: str
    connection: str | None
    project: str | None
    agent: str | None
    events: list[tuple[str, Any]]


class Document(NamedTuple):
    """A JSON value that is the whole file."""

    value: Any


def read_values(stream: BinaryIO) -> Iterator[tuple[Line, Json | Document | Problem | None]]:
    """Yield the lines of a stream with their values, or its only document. The value of a torn last line is None.

    Raises InputError if a document is too large.
    """
    head = stream.readline(MAX_DOCUMENT + 1)
    if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"["):
        value = decode_line(_line(head.removeprefix(_BOM)))
        document = None
        if isinstance(value, Problem):
            head += stream.read(MAX_DOCUMENT)
            document = _document(head)
        elif "events" in value:
            # A session on one line is a document if it is the whole file.
            ahead = stream.read(1)
            document = None if ahead else Document(value)
            head += ahead
        if document is not None:
            yield _line(head), document
            return
    for line in read_lines(io.BufferedReader(_Prepended(head, stream))):
        value = decode_line(line)
        yield line, None if is_torn(line, value) else value


def _line(body: bytes) -> Line:
    return Line(1, body, len(body), ended=False)


def _document(body: bytes) -> Document | None:
    """Return the document in the bytes; None if they are not one document."""
    if len(body) > MAX_DOCUMENT:
        if body[:16].split(maxsplit=1)[0] in (b"{", b"["):
            raise InputError(f"the document is larger than {MAX_DOCUMENT} bytes", hint="Write one session or event a line.")
        return None
    try:
        return Document(decode_json(body.removeprefix(_BOM)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _Prepended(io.RawIOBase):
    """A stream with the bytes that were already read put back in front."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._parts: list[BinaryIO] = [io.BytesIO(head), rest]

    def readable(self) -> bool:
        """Return True."""
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


def parts_of(value: Json | Document, name: str) -> Iterator[tuple[Any, _SessionPart | Problem]]:
    """Yield the session parts of one value, each with its source JSON.

    `name` is the session of a document that names none.
    """
    if not isinstance(value, Document):
        yield value, _read_part(value, None, "")
    elif isinstance(value.value, list):
        for index, item in enumerate(value.value):
            yield item, _read_part(item, name, f"[{index}]")
    else:
        is_session = isinstance(value.value, dict) and "events" in value.value
        yield value.value, _read_part(value.value, name if is_session else None, "")


def _read_part(value: Any, name: str | None, position: str) -> _SessionPart | Problem:
    if not isinstance(value, dict):
        return Problem("not_an_object", f"{position or 'the document'} is {json_type(value)}, not an object")
    if "events" not in value and value.get("event") is None and value.get("type") is None:
        detail = "neither an event nor a session: it has none of event, type and events"
        return Problem("not_an_event", f"{position}: {detail}".lstrip(": "))
    problem = _envelope_problem(value, name, position)
    if problem is not None:
        return problem
    session_id, connection, project, agent = (value.get(field) for field in _ENVELOPE)
    if "events" not in value:
        event, within = event_in(value)
        events_in_line = [(f"{position}{within}".lstrip("."), event)]
    elif isinstance(events := value["events"], list):
        events_in_line = [(f"{position}.events[{index}]".lstrip("."), event) for index, event in enumerate(events)]
    else:
        return Problem("wrong_type", f"{position}.events: is {json_type(events)}, not an array".lstrip("."))
    return _SessionPart(session_id or cast("str", name), connection, project, agent, events_in_line)


def _envelope_problem(value: Json, name: str | None, position: str) -> Problem | None:
    for field, rule in _ENVELOPE.items():
        content = value.get(field)
        at = f"{position}.{field}".lstrip(".")
        if content is None:
            if field == "session_id" and name is None:
                return Problem("missing_field", f"{at}: is missing")
        elif not isinstance(content, str):
            return Problem("wrong_type", f"{at}: is {json_type(content)}, not a string")
        elif fault := rule.fault(content):
            return Problem("bounds", f"{at}: {fault}")
    return None


def event_in(value: Json) -> tuple[Json, str]:
    """Return the event in an object, and its position: under `event`, or beside the envelope's fields."""
    wrapped = value.get("event")
    if isinstance(wrapped, dict):
        return wrapped, ".event"
    return {key: item for key, item in value.items() if key not in _ENVELOPE}, ""


class Refused(NamedTuple):
    """What is known about an unreadable part: its connection if named, its session, and its number of events."""

    connection: str | None
    session_id: str
    events: int


class Owner(NamedTuple):
    """The owner of events: connection, project, agent and session."""

    connection: str
    project: str
    agent: str | None
    session_id: str


class SessionEvents:
    """State of one session while its file is read: the number of its events, and their ids."""

    def __init__(self) -> None:
        self._count = 0
        self._used_ids: set[str] = set()
        self._copies: dict[str, int] = {}
        self._has_lost = False

    def skip(self, count: int) -> None:
        """Count events of an unreadable part."""
        self._count += count
        self._has_lost = True

    def record(self, raw: Any, position: str, owner: Owner, context: ReadingContext) -> AgentEvent | Problem:
        """Return the record of the session's next event, or why it cannot be read. `position` is its position in the line."""
        seq = self._count
        self._count += 1
        if problem := _id_problem(raw, position):
            return problem
        try:
            event = self._with_unique_id(normalise_event(context.redactor.redact_json(raw)[0], seq))
        except InputError as error:
            return _malformed_problem(raw, error, seq, position)
        try:
            labels = read_labels(event.payload.get(FIELD), context.redactor, f"{position}.{FIELD}".lstrip("."))
        except InputError as error:
            return Problem("bad_labels", str(error))
        try:
            occurred_at = parse_timestamp(event.timestamp)
        except ValueError as error:
            return Problem("bad_timestamp", f"{position}.{error}".lstrip("."))
        payload = canonical_json(event.payload)
        if len(payload) > MAX_EVENT:
            return Problem(
                "too_long", f"{position or 'the event'} has {len(payload)} characters; the longest event has {MAX_EVENT}"
            )
        return to_record(
            event,
            connection=owner.connection,
            project=owner.project,
            agent=owner.agent,
            session_id=owner.session_id,
            seq=seq,
            occurred_at=occurred_at or context.ingested_at,
            ingested_at=context.ingested_at,
            payload_json=payload,
            labels=labels,
        )

    def plain(self, raw: Any, position: str) -> Json | Problem:
        """Return the session's next event unchanged, for a diagnosis, or why it cannot be read.

        After an unreadable event, later events get ids by position.
        """
        seq = self._count
        self._count += 1
        problem = _id_problem(raw, position)
        try:
            event = problem or clean_payload(raw, seq)
        except InputError as error:
            event = _malformed_problem(raw, error, seq, position)
        if isinstance(event, Problem):
            self._has_lost = True
            return event
        return {**event, "event_id": normalise_event(event, seq).event_id} if self._has_lost else event

    def _with_unique_id(self, event: NormalisedEvent) -> NormalisedEvent:
        """Return the event with an id that is new in the session."""
        name = event.event_id
        while name in self._used_ids or name in FAILURE_NODES:
            self._copies[event.event_id] = copy = self._copies.get(event.event_id, 1) + 1
            name = f"{event.event_id}#{copy}"
        self._used_ids.add(name)
        if name == event.event_id:
            return event
        return msgspec.structs.replace(event, event_id=name, payload={**event.payload, "event_id": name})


def _id_problem(raw: Any, position: str) -> Problem | None:
    """Return the problem of an event id with half a surrogate pair: repaired, it could equal another event's id."""
    if not isinstance(raw, dict) or not has_broken_id(raw):
        return None
    return Problem("malformed_event", f"{position}.event_id: {NOT_UNICODE}".lstrip("."))


def _malformed_problem(raw: Any, error: InputError, seq: int, position: str) -> Problem:
    """Return why the value is not an event, with its position in the file."""
    if not isinstance(raw, dict):
        return Problem("malformed_event", f"{position or 'the event'}: is {json_type(raw)}, not an object")
    where = str(error).removeprefix(f"events[{seq}]")
    at = position if where.startswith((".", ":", "[")) else f"{position}: "
    return Problem("malformed_event", f"{at}{where}" if position else where.lstrip(".: "))


def has_broken_id(event: Mapping[str, Any]) -> bool:
    """Return whether the event's id holds half a surrogate pair."""
    event_id = event.get("event_id")
    return isinstance(event_id, str) and has_surrogates(event_id)


def _read_events(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
    return read_event_file(path, context)


_Value = Json | Document | Problem | None
EVENT_FILES = FileSource(
    name="events",
    description="event JSON lines or a session.json",
    patterns=("*.jsonl", "*.ndjson", "*.json"),
    detect_mismatch=detect_non_events,
    read=_read_events,
)
"""Files of runtime events."""
