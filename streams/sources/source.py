"""Interface of file sources: their files, what a reading depends on, and what it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from audit.file_kinds import Kind
from audit.redaction import Redactor
from schemas.records import AgentEvent, Exchange


@dataclass(frozen=True, slots=True)
class ReadingContext:
    """Everything that a reading depends on besides the bytes.

    `agent` overrides the name in the source. `ingested_at` (UTC) goes into the records, and is the "now" at which a session is idle if
    nothing followed for longer than `session_gap`. `copies` are other files of the session.
    """

    connection: str
    project: str
    agent: str | None
    ingested_at: datetime
    session_gap: timedelta
    redactor: Redactor
    copies: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class LineFault:
    """A line that could not be read, or only in part.

    `line` counts from 1; `reason` is a code, `detail` a message; `body` is the start of the line, not redacted, at most 64 KiB; `size` and
    `digest` (SHA-256, hexadecimal) are of the whole line without its line break.
    """

    line: int
    reason: str
    detail: str
    body: bytes
    size: int
    digest: str


class LeftOut(NamedTuple):
    """Why a trace gave no exchange: the state of its assembly, and an example span if its content was the reason."""

    state: str
    example: str = ""


class OpenAnswer(NamedTuple):
    """An answer that does not count yet: why, and when it will count if nothing more is written."""

    session_id: str
    exchange_id: str
    asked_at: datetime
    reason: str
    counts_at: datetime


@dataclass(slots=True)
class Reading:
    """The records of one transcript, one session of a database, or one batch of an event file.

    `complete` is False if something is left for the next reading: a torn last line, or an unfinished exchange. `left_out` counts the traces
    without an exchange. `open` are the answers that do not count yet, `revisable` the ids of exchanges that may have been reported before
    and have grown.
    """

    exchanges: Sequence[Exchange] = field(default_factory=list)
    events: Sequence[AgentEvent] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    complete: bool = True
    session_ids: list[str] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)
    open: list[OpenAnswer] = field(default_factory=list)
    revisable: frozenset[str] = frozenset()


@dataclass(slots=True)
class GrowingReading(Reading):
    """A reading whose records are added one by one."""

    exchanges: list[Exchange] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)


class SessionRange(NamedTuple):
    """Sessions with ids from `first` (inclusive) to `end` (exclusive). None leaves a side open, so that ranges cover new sessions."""

    first: str | None = None
    end: str | None = None


EVERY_SESSION = SessionRange()


@dataclass(frozen=True, slots=True)
class FileSort:
    """A kind of file: its description, name patterns, and a test that tells what other kind a file is."""

    description: str
    patterns: tuple[str, ...]
    unlike: Callable[[bytes], Kind | None]


@dataclass(frozen=True, slots=True)
class FileSource(FileSort):
    """A kind of file with records. `name` is its name in records.

    `read` returns the content of a file for a range of sessions, in readings that each fit into memory.
    """

    name: str
    read: Callable[[Path, ReadingContext, SessionRange], Iterable[Reading]]
