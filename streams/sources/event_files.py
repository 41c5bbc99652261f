"""Reads files of runtime events, as records or as plain sessions for a diagnosis.

1. A file has lines of JSON objects, or is one JSON document: an object or a list of objects. An object is a flat event
   (`{"session_id", "event": "tool_call", …}`), a wrapped event (`{"session_id", "event": {…}}`), or a session
   (`{"session_id", "events": [{…}, …]}`). A flat event has its type in `event` or `type`. An object without `event`, `type` and `events` is
   not an event.
2. Each object may name `connection`, `project` and `agent`. The context of the reading gives the defaults. The events of a session may be
   anywhere in the file.
3. The `seq` of an event is its position in its session, counted over the whole file. Unreadable events count too, so that correcting one
   changes neither the positions nor the ids of the others.
4. A repeated id gets the suffix #2, #3, … in order of arrival, as in a diagnosis (`audit.diagnosis.events.normalise_session`). So does an id
   that is reserved for a failure in the causal graph.
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

BATCH_SIZE = 10_000
"""Maximum number of events and faults of one reading."""
Report = Callable[[int, str], None]
"""Called with the number of each unreadable line, and a message."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""Maximum size of a document that is not JSON lines."""
Json = dict[str, Any]
_BOM = b"\xef\xbb\xbf"
_ENVELOPE: dict[str, Rule] = {"session_id": IDENTIFIER, "connection": NAMED, "project": NAMED, "agent": IDENTIFIER}
MAX_EVENT_CHARACTERS = 512 * 1024
"""Maximum length of an event as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Session:
    """The raw events of one session, not redacted. `line` is its first line; `faults` are the unreadable lines of a transcript."""

    session_id: str
    events: list[Json]
    line: int
    faults: tuple[LineFault, ...] = ()


def read_event_file(source: Path | BinaryIO, context: ReadingContext) -> Iterator[Reading]:
    """Yield the events of a file or stream, in readings of at most BATCH_SIZE events and faults.

    Each unreadable event becomes a fault that names its line and field. Raises InputError if the file cannot be opened.
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
            if len(reading.events) + len(reading.faults) >= BATCH_SIZE:
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
    for source, part in split_value(value, name):
        if isinstance(part, Problem):
            rejected = _identify_rejected_part(source)
            if rejected is not None:
                sessions[rejected.connection or context.connection, rejected.session_id].skip(rejected.events)
            yield value_fault(line, source, part)
            continue
        owner = Owner(
            connection=part.connection or context.connection,
            project=part.project or context.project,
            agent=context.agent or part.agent,
            session_id=part.session_id,
        )
        state = sessions[owner.connection, owner.session_id]
        for json_path, raw in part.events:
            item = state.record(raw, json_path, owner, context)
            yield value_fault(line, raw, item) if isinstance(item, Problem) else item


def _identify_rejected_part(value: Any) -> RejectedPart | None:
    """Return the session and number of events of a rejected value; None if it names no session."""
    if not isinstance(value, dict):
        return None
    session_id = value.get("session_id")
    connection = value.get("connection")
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID or not isinstance(connection, str | None):
        return None
    events = value.get("events", [value])
    event_count = len(events) if isinstance(events, list) else 0
    return RejectedPart(connection, session_id, event_count)


def _with_session_ids(reading: Reading) -> Reading:
    reading.session_ids = list(dict.fromkeys(event.session_id for event in reading.events))
    return reading


def read_sessions(stream: BinaryIO, name: str, report: Report | None = None) -> Iterator[Session]:
    """Yield the sessions of a stream: a session document, lines of sessions or events, or an OpenClaw transcript.

    `name` is the path of the file, or `-` for standard input. A session without an id gets the file's stem as its id, as in an import.
    `report` is called with each unreadable line. Without it, the first one raises an InputError that names the line. The unreadable lines of a
    transcript are in the faults of its session instead.
    """
    report = report or _raise_on_fault(name)
    name = "standard input" if name == "-" else Path(name).stem[:MAX_ID]
    values = read_values(stream)
    first = next(values, None)
    if first is None:
        return
    values = itertools.chain([first], values)
    if isinstance(first[1], dict) and first[1].get("type") == "session" and "events" not in first[1]:
        yield _read_transcript((line for line, _ in values), name)
    else:
        yield from _read_plain_sessions(values, name, report)


def _raise_on_fault(name: str) -> Report:
    def raise_error(line: int, detail: str) -> None:
        raise InputError(f"{name}:{line}: {detail}", hint="Correct the line, or import the file, which makes it a dead letter.")

    return raise_error


def _read_transcript(lines: Iterable[Line], name: str) -> Session:
    events: list[Json] = []
    context = ReadingContext(
        connection="",
        project="",
        agent=None,
        # Only entries before the first one with a time get this time.
        ingested_at=datetime(2000, 1, 1, tzinfo=UTC),
        # Silence never ends a session of a diagnosis.
        session_gap=timedelta.max,
        # The texts are only shown in the user's own terminal.
        redactor=Redactor(RedactionSettings(enabled=False)),
    )
    transcript = Transcript(context, session_id=name, sink=lambda event, _: events.append(shorten_event(event)))
    transcript.read(lines)
    return Session(transcript.session_id, events, 1, tuple(transcript.faults))


def _read_plain_sessions(values: Iterable[tuple[Line, _Value]], name: str, report: Report) -> Iterator[Session]:
    """Yield the complete sessions in order, then those whose events are spread over the stream."""
    spread_sessions: dict[str, _PlainSession] = {}
    for line, value in values:
        if value is None:
            report(line.number, "the line is cut off: the file is incomplete")
            break
        if isinstance(value, Problem):
            report(line.number, value.detail)
            continue
        for source, part in split_value(value, name):
            if isinstance(part, Problem):
                report(line.number, part.detail)
                rejected = _identify_rejected_part(source)
                if rejected is not None and rejected.session_id in spread_sessions:
                    spread_sessions[rejected.session_id].state.skip(rejected.events)
                continue
            plain_session = _PlainSession(Session(part.session_id, [], line.number), SessionEvents())
            if _is_complete_session(value):
                plain_session.add(part, partial(report, line.number))
                yield plain_session.session
            else:
                spread_sessions.setdefault(part.session_id, plain_session).add(part, partial(report, line.number))
    yield from (plain_session.session for plain_session in spread_sessions.values())


def _is_complete_session(value: Json | Document) -> bool:
    """Return whether the value is a complete session, not an event of one."""
    content = value.value if isinstance(value, Document) else value
    return isinstance(content, dict) and "events" in content


class _PlainSession(NamedTuple):
    """A session of a diagnosis, and its state while the stream is read."""

    session: Session
    state: SessionEvents

    def add(self, part: _SessionPart, report: Callable[[str], None]) -> None:
        """Add the events of a part, and report the unreadable ones."""
        for json_path, raw in part.events:
            event = self.state.next_event(raw, json_path)
            if isinstance(event, Problem):
                report(event.detail)
            else:
                self.session.events.append(event)


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
    head = stream.readline(MAX_DOCUMENT_BYTES + 1)
    document = None
    if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"["):
        head, document = _try_read_document(head, stream)
    if document is not None:
        yield _build_line(head), document
        return
    for line in read_lines(io.BufferedReader(_PrependedStream(head, stream))):
        value = decode_line(line)
        yield line, None if is_torn(line, value) else value


def _try_read_document(first_line: bytes, stream: BinaryIO) -> tuple[bytes, Document | None]:
    """Return the bytes read so far, and the document that the whole stream is; None in its place if it is not one document."""
    value = decode_line(_build_line(first_line.removeprefix(_BOM)))
    if isinstance(value, Problem):
        head = first_line + stream.read(MAX_DOCUMENT_BYTES)
        return head, _decode_document(head)
    if "events" not in value:
        return first_line, None
    # A session on a single line is a document if nothing follows.
    next_byte = stream.read(1)
    return first_line + next_byte, None if next_byte else Document(value)


def _build_line(body: bytes) -> Line:
    return Line(1, body, len(body), ended=False)


def _decode_document(body: bytes) -> Document | None:
    """Return the document in the bytes; None if they are not one document. Raises InputError if it is too large."""
    if len(body) > MAX_DOCUMENT_BYTES:
        if body[:16].split(maxsplit=1)[0] in (b"{", b"["):
            raise InputError(
                f"the document is larger than {MAX_DOCUMENT_BYTES} bytes", hint="Write one session or event per line."
            )
        return None
    try:
        return Document(decode_json(body.removeprefix(_BOM)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _PrependedStream(io.RawIOBase):
    """A stream preceded by the bytes that were already read from it."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._parts: list[BinaryIO] = [io.BytesIO(head), stream]

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes and return their number; 0 at the end."""
        while self._parts:
            data = self._parts[0].read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._parts.pop(0)
        return 0


def split_value(value: Json | Document, name: str) -> Iterator[tuple[Any, _SessionPart | Problem]]:
    """Yield the parts of one value, each with the JSON value that it was read from.

    `name` is the session id of a document without one.
    """
    if not isinstance(value, Document):
        yield value, _read_session_part(value, None, "")
    elif isinstance(value.value, list):
        for index, item in enumerate(value.value):
            yield item, _read_session_part(item, name, f"[{index}]")
    else:
        is_session = isinstance(value.value, dict) and "events" in value.value
        yield value.value, _read_session_part(value.value, name if is_session else None, "")


def _read_session_part(value: Any, name: str | None, json_path: str) -> _SessionPart | Problem:
    if not isinstance(value, dict):
        return Problem("not_an_object", f"{json_path or 'the document'} is {json_type(value)}, not an object")
    if "events" not in value and value.get("event") is None and value.get("type") is None:
        detail = "is neither an event nor a session: it has no field event, type or events"
        return Problem("not_an_event", f"{json_path}: {detail}" if json_path else f"the object {detail}")
    problem = _find_envelope_problem(value, name, json_path)
    if problem is not None:
        return problem
    session_id, connection, project, agent = (value.get(field) for field in _ENVELOPE)
    if "events" not in value:
        event, inner_path = find_event(value)
        events = [(f"{json_path}{inner_path}".lstrip("."), event)]
    elif isinstance(value["events"], list):
        events = [(f"{json_path}.events[{index}]".lstrip("."), event) for index, event in enumerate(value["events"])]
    else:
        return Problem("wrong_type", f"{json_path}.events: is {json_type(value['events'])}, not an array".lstrip("."))
    return _SessionPart(session_id or cast("str", name), connection, project, agent, events)


def _find_envelope_problem(value: Json, name: str | None, json_path: str) -> Problem | None:
    for field, rule in _ENVELOPE.items():
        content = value.get(field)
        path = f"{json_path}.{field}".lstrip(".")
        if content is None:
            if field == "session_id" and name is None:
                return Problem("missing_field", f"{path}: is missing")
        elif not isinstance(content, str):
            return Problem("wrong_type", f"{path}: is {json_type(content)}, not a string")
        elif fault := rule.fault(content):
            return Problem("bounds", f"{path}: {fault}")
    return None


def find_event(value: Json) -> tuple[Json, str]:
    """Return the event in an object, and its position in it. The event is under `event`, or beside the fields of the envelope."""
    wrapped = value.get("event")
    if isinstance(wrapped, dict):
        return wrapped, ".event"
    return {key: item for key, item in value.items() if key not in _ENVELOPE}, ""


class RejectedPart(NamedTuple):
    """The identity of an unreadable part: its connection if it names one, its session, and the number of its events."""

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
    """The state of one session while its file is read: the number of its events so far, and their ids."""

    def __init__(self) -> None:
        self._count = 0
        self._used_ids: set[str] = set()
        self._copies: dict[str, int] = {}
        self._has_gap = False

    def skip(self, count: int) -> None:
        """Count the events of an unreadable part."""
        self._count += count
        self._has_gap = True

    def record(self, raw: Any, json_path: str, owner: Owner, context: ReadingContext) -> AgentEvent | Problem:
        """Return the record of the session's next event, or the reason why it cannot be read. `json_path` is its path in the line."""
        seq = self._count
        self._count += 1
        problem = _find_id_problem(raw, json_path)
        if problem is not None:
            return problem
        try:
            event = self._with_unique_id(normalise_event(context.redactor.redact_json(raw)[0], seq))
        except InputError as error:
            return _build_malformed_problem(raw, error, seq, json_path)
        try:
            labels = read_labels(event.payload.get(FIELD), context.redactor, f"{json_path}.{FIELD}".lstrip("."))
        except InputError as error:
            return Problem("bad_labels", str(error))
        try:
            occurred_at = parse_timestamp(event.timestamp)
        except ValueError as error:
            return Problem("bad_timestamp", f"{json_path}.{error}".lstrip("."))
        payload = canonical_json(event.payload)
        if len(payload) > MAX_EVENT_CHARACTERS:
            name = json_path or "the event"
            return Problem("too_long", f"{name} has {len(payload)} characters; the limit is {MAX_EVENT_CHARACTERS}")
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

    def next_event(self, raw: Any, json_path: str) -> Json | Problem:
        """Return the session's next event for a diagnosis, or the reason why it cannot be read.

        The event is unchanged, except that after an unreadable event it gets the id that follows from its position in the file.
        """
        seq = self._count
        self._count += 1
        problem = _find_id_problem(raw, json_path)
        try:
            event = problem or clean_payload(raw, seq)
        except InputError as error:
            event = _build_malformed_problem(raw, error, seq, json_path)
        if isinstance(event, Problem):
            self._has_gap = True
            return event
        return {**event, "event_id": normalise_event(event, seq).event_id} if self._has_gap else event

    def _with_unique_id(self, event: NormalisedEvent) -> NormalisedEvent:
        """Return the event with an id that is new in the session."""
        name = event.event_id
        while name in self._used_ids or name in FAILURE_NODES:
            copy = self._copies.get(event.event_id, 1) + 1
            self._copies[event.event_id] = copy
            name = f"{event.event_id}#{copy}"
        self._used_ids.add(name)
        if name == event.event_id:
            return event
        return msgspec.structs.replace(event, event_id=name, payload={**event.payload, "event_id": name})


def _find_id_problem(raw: Any, json_path: str) -> Problem | None:
    """Return the problem of an event id with a lone surrogate: after a repair it could equal the id of another event."""
    if not isinstance(raw, dict) or not has_lone_surrogate_in_id(raw):
        return None
    return Problem("malformed_event", f"{json_path}.event_id: {NOT_UNICODE}".lstrip("."))


def _build_malformed_problem(raw: Any, error: InputError, seq: int, json_path: str) -> Problem:
    """Return the problem of a value that is not an event, with its position in the line."""
    if not isinstance(raw, dict):
        return Problem("malformed_event", f"{json_path or 'the event'}: is {json_type(raw)}, not an object")
    message = str(error).removeprefix(f"events[{seq}]")
    if not json_path:
        return Problem("malformed_event", message.lstrip(".: "))
    separator = "" if message.startswith((".", ":", "[")) else ": "
    return Problem("malformed_event", f"{json_path}{separator}{message}")


def has_lone_surrogate_in_id(event: Mapping[str, Any]) -> bool:
    """Return whether the event's id has a lone surrogate."""
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
