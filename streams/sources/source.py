"""The interface of file sources: what its files are, what a reading depends on, and what comes out of it."""

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
    """Everything a reading depends on besides the bytes.

    `agent` overrides the name the source gives. `ingested_at` (UTC) goes into the records and is the "now" that decides
    whether a session fell idle, which takes longer than `session_gap`. `copies` are other accounts of the session in the file.
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
    """A line that could not be taken, or not wholly.

    `line` counts from 1; `reason` is a code, `detail` says it in words; `body` is the start of the line, not redacted, at most
    64 KiB; `size` and `digest` (SHA-256, hexadecimal) are of the whole line without its line end.
    """

    line: int
    reason: str
    detail: str
    body: bytes
    size: int
    digest: str


class LeftOut(NamedTuple):
    """Why a trace gave no exchange: the state of its assembly, and what one of its spans says of itself, where that was decisive."""

    state: str
    example: str = ""


class OpenAnswer(NamedTuple):
    """An answer that does not count yet: why, and when it does at the latest, if nothing more is written."""

    session_id: str
    exchange_id: str
    asked_at: datetime
    reason: str
    counts_at: datetime


@dataclass(slots=True)
class Reading:
    """The records from one transcript, one session of a database, or one batch of an event file.

    `complete` is False while something was left for the next time: a torn last line, or an exchange that is not over. `left_out` counts
    the traces that gave no exchange.
    `open` are the answers that do not count yet, `revisable` the ids of the exchanges that may have been handed out before and went on.
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
    """Sessions whose ids lie from `first` on and before `end`; None leaves a side open, so that new sessions lie in a range too."""

    first: str | None = None
    end: str | None = None


EVERY_SESSION = SessionRange()


@dataclass(frozen=True, slots=True)
class FileSort:
    """A sort of files: what they are in words, what they are called, and the test that tells why a file is not one."""

    description: str
    patterns: tuple[str, ...]
    unlike: Callable[[bytes], Kind | None]


@dataclass(frozen=True, slots=True)
class FileSource(FileSort):
    """A sort of files with records in them. `name` is what records call it.

    `read` gives what one file holds of a range of sessions, in readings that fit into memory each.
    """

    name: str
    read: Callable[[Path, ReadingContext, SessionRange], Iterable[Reading]]
