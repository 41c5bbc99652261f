"""The interface of file sources: the files they accept, the context of a reading, and its result."""

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
    """Everything that the result of a reading depends on, besides the bytes.

    `agent` overrides the agent's name in the source. `ingested_at` (UTC) is written into the records. A session is idle if its last entry is
    older than `session_gap` at that time. `copies` are other files of the same session.
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
    """A line that could not be read, or was read only in part.

    `line` counts from 1. `reason` is a code and `detail` a message. `body` is the start of the line, at most 64 KiB and not redacted. `size`
    and `digest` (SHA-256, hexadecimal) cover the whole line without its line break.
    """

    line: int
    reason: str
    detail: str
    body: bytes
    size: int
    digest: str


class SkippedTrace(NamedTuple):
    """The reason why a trace has no exchange: the state of its assembly, and an example if the content of a span caused it."""

    state: str
    example: str = ""


class PendingAnswer(NamedTuple):
    """An answer that is not final yet: the reason, and the time at which it becomes final if nothing more is written."""

    session_id: str
    exchange_id: str
    asked_at: datetime
    reason: str
    counts_at: datetime


@dataclass(slots=True)
class Reading:
    """The records of one transcript, one session of a database, or one batch of an event file.

    `complete` is False if the next reading has something to add: a torn last line, or an unfinished exchange. `skipped_traces` counts the
    traces without an exchange. `open` are the answers that are not final yet. `revisable` are the ids of exchanges that may have been
    reported before and have grown since.
    """

    exchanges: Sequence[Exchange] = field(default_factory=list)
    events: Sequence[AgentEvent] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    complete: bool = True
    session_ids: list[str] = field(default_factory=list)
    skipped_traces: Counter[SkippedTrace] = field(default_factory=Counter)
    open: list[PendingAnswer] = field(default_factory=list)
    revisable: frozenset[str] = frozenset()


@dataclass(slots=True)
class ReadingBuilder(Reading):
    """A reading whose records are added one by one."""

    exchanges: list[Exchange] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)


class SessionRange(NamedTuple):
    """Sessions with ids from `first` (inclusive) to `end` (exclusive). None leaves that side open, so that ranges cover future sessions."""

    first: str | None = None
    end: str | None = None


EVERY_SESSION = SessionRange()


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files: its description and its name patterns.

    `detect_mismatch` returns the kind of a file that cannot have this format, given its first bytes; None if it may have it.
    """

    description: str
    patterns: tuple[str, ...]
    detect_mismatch: Callable[[bytes], Kind | None]


@dataclass(frozen=True, slots=True)
class FileSource(FileFormat):
    """A format of files that hold records. `name` is the name of the source in records.

    `read` returns the content of a file for a range of sessions, split into readings that fit into memory.
    """

    name: str
    read: Callable[[Path, ReadingContext, SessionRange], Iterable[Reading]]
