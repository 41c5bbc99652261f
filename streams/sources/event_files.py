"""Files of runtime events as records, and as plain sessions for a diagnosis.

An event file holds, a line, an event with its `session_id`, either flat (`{"session_id", "event": "tool_call", …}`) or wrapped
(`{"session_id", "event": {…}}`), or a session (`{"session_id", "events": [{…}, …]}`). Each may name `connection`, `project` and
`agent`; where it does not, those of the reading count. A session may be spread over the file.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from audit.file_kinds import unlike_events
from audit.policy.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from schemas.records import AgentEvent
from streams.sources.documents import Document, Json, SessionPart, parts_of, read_values, refused_part
from streams.sources.event_records import Owner, SessionEvents
from streams.sources.lines import Line, Problem, line_fault, value_fault
from streams.sources.openclaw.events import shortened
from streams.sources.openclaw.reader import Transcript
from streams.sources.source import FileSource, GrowingReading, LineFault, Reading, ReadingContext, SessionRange

BATCH = 10_000
"""Events of one reading."""
_Value = Json | Document | Problem | None


@dataclass(frozen=True, slots=True)
class Session:
    """The raw events of one session, not redacted. `line` is where it begins; `faults` are what a transcript lost."""

    session_id: str
    events: list[Json]
    line: int
    faults: tuple[LineFault, ...] = ()


def read_event_file(source: Path | BinaryIO, context: ReadingContext) -> Iterator[Reading]:
    """The events of a file or stream in readings of at most BATCH events and faults.

    Only what cannot be taken is left out, as a fault that names line and field. InputError when the file cannot be opened.
    """
    if not isinstance(source, Path):
        yield from _readings(source, context, "session")
        return
    try:
        with source.open("rb") as stream:
            yield from _readings(stream, context, source.stem)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


Report = Callable[[int, str], None]
"""Called with each line that cannot be taken, and what is wrong with it."""


def read_sessions(stream: BinaryIO, name: str, report: Report | None = None) -> Iterator[Session]:
    """The sessions of a stream: a session document, lines of sessions or of events, or an OpenClaw transcript.

    `name` is the path of the file, or `-` for standard input; a session that names itself nowhere is called by the file's stem,
    as an import calls it. `report` is called with lines that cannot be taken, and the rest goes on; without one it is an InputError that
    names the line. A transcript's faults are part of its session instead.
    """
    report = report or _refusal(name)
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


def _refusal(name: str) -> Report:
    def refuse(line: int, detail: str) -> None:
        raise InputError(f"{name}:{line}: {detail}", hint="Correct the line, or import the file to set it aside.")

    return refuse


def _plain_sessions(values: Iterable[tuple[Line, _Value]], name: str, report: Report) -> Iterator[Session]:
    """Sessions given whole as they come, then those that were given event by event."""
    spread: dict[str, tuple[Session, SessionEvents]] = {}
    for line, value in values:
        if value is None:
            report(line.number, "the line is cut off: the file is incomplete")
            break
        for source, part in [(None, value)] if isinstance(value, Problem) else parts_of(value, name):
            if isinstance(part, Problem):
                report(line.number, part.detail)
                refused = refused_part(source)
                if refused is not None and refused.session_id in spread:
                    spread[refused.session_id][1].skip(refused.events)
                continue
            begun = Session(part.session_id, [], line.number), SessionEvents()
            if isinstance(value, dict | Document) and _is_whole(value):
                _collect(part, *begun, partial(report, line.number))
                yield begun[0]
            else:
                _collect(part, *spread.setdefault(part.session_id, begun), partial(report, line.number))
    yield from (session for session, _ in spread.values())


def _collect(part: SessionPart, session: Session, known: SessionEvents, report: Callable[[str], None]) -> None:
    """Add the events of a part to its session; those that cannot be taken are reported."""
    for place, raw in part.events:
        event = known.plain(raw, place)
        if isinstance(event, Problem):
            report(event.detail)
        else:
            session.events.append(event)


def _is_whole(value: Json | Document) -> bool:
    """Tell whether the value is one session."""
    inner = value.value if isinstance(value, Document) else value
    return isinstance(inner, dict) and "events" in inner


def _transcript(lines: Iterable[Line], name: str) -> Session:
    events: list[Json] = []
    # Without a clock: only an entry without any time before it is dated so, and no gap ends anything.
    # Without a redactor: its own user's terminal is all that sees the text.
    unredacted = Redactor(RedactionSettings(enabled=False))
    context = ReadingContext("", "", None, datetime(2000, 1, 1, tzinfo=UTC), timedelta.max, unredacted)
    transcript = Transcript(context, session_id=name, sink=lambda event, _: events.append(shortened(event)))
    transcript.read(lines)
    return Session(transcript.session_id, events, 1, tuple(transcript.faults))


def _readings(stream: BinaryIO, context: ReadingContext, name: str) -> Iterator[Reading]:
    sessions: dict[tuple[str, str], SessionEvents] = defaultdict(SessionEvents)
    reading = GrowingReading()
    for line, value in read_values(stream):
        if value is None:
            reading.complete = False
            break
        for item in _items_of(line, value, name, context, sessions):
            if isinstance(item, AgentEvent):
                reading.events.append(item)
            else:
                reading.faults.append(item)
            if len(reading.events) + len(reading.faults) >= BATCH:
                yield _closed(reading)
                reading = GrowingReading()
    yield _closed(reading)


def _closed(reading: Reading) -> Reading:
    reading.session_ids = list(dict.fromkeys(event.session_id for event in reading.events))
    return reading


def _items_of(
    line: Line,
    value: Json | Document | Problem,
    name: str,
    context: ReadingContext,
    sessions: dict[tuple[str, str], SessionEvents],
) -> Iterator[AgentEvent | LineFault]:
    """The records of one line and what is wrong with it; `sessions` remembers each session so far."""
    if isinstance(value, Problem):
        yield line_fault(line, value)
        return
    for source, part in parts_of(value, name):
        if isinstance(part, Problem):
            refused = refused_part(source)
            if refused is not None:
                sessions[refused.connection or context.connection, refused.session_id].skip(refused.events)
            yield value_fault(line, source, part)
            continue
        agent = context.agent or part.agent
        owner = Owner(part.connection or context.connection, part.project or context.project, agent, part.session_id)
        known = sessions[owner.connection, owner.session_id]
        for place, raw in part.events:
            item = known.record(raw, place, owner, context)
            yield value_fault(line, raw, item) if isinstance(item, Problem) else item


def _read_events(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
    return read_event_file(path, context)


EVENT_FILES = FileSource(
    name="events",
    words="event JSON lines or a session.json",
    patterns=("*.jsonl", "*.ndjson", "*.json"),
    unlike=unlike_events,
    read=_read_events,
)
"""Files of runtime events."""
