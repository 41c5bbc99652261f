"""Reading files into encoded records, in this process or in several.

Reading is most of an import's work, and files do not depend on each other, so a large import reads them in worker processes and
takes what they read in the order of the files: the log is the same as with one process.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from audit.policy.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Exchange
from streams.log.admission import Accepted, Admission, Place, Refusal
from streams.process import collect_rarely, end_with_parent
from streams.sources.copies import Account
from streams.sources.source import EVERY_SESSION, FileSource, LeftOut, OpenAnswer, Reading, ReadingContext, SessionRange
from streams.sources.transcript_sources import SOURCES, TranscriptSource

PARALLEL_BYTES = 20_000_000
"""Size from which an import is worth worker processes: each takes half a second to start."""
PART_BYTES = 64_000_000
"""Bytes of a database from which it is read in parts: each part is in memory whole."""
AHEAD_BYTES = 48_000_000
"""Bytes of files that are read ahead, so that workers are busy while a batch is committed and scored."""


@dataclass
class FileRecords:
    """The result of reading a file or a part of one: encoded records, session ids, whether all of it was read, and traces that gave no exchange."""

    accepted: Accepted = field(default_factory=Accepted)
    revisable: list[Exchange] = field(default_factory=list)
    """Exchanges that may be known with what was read of them before."""
    open: list[OpenAnswer] = field(default_factory=list)
    session_ids: list[str] = field(default_factory=list)
    complete: bool = True
    left_out: Counter[LeftOut] = field(default_factory=Counter)


class Part(NamedTuple):
    """A unit of reading: a file, or the sessions of a range in a large database; `ends` marks the last part of the file.

    `copies` are other accounts of the file's session.
    """

    path: Path
    size: int
    sessions: SessionRange
    ends: bool
    copies: tuple[Path, ...] = ()


@dataclass(frozen=True)
class FileReader:
    """Reads files into encoded records. A plain value, so that it can be sent to a worker process."""

    connection: str
    project: str
    agent: str | None
    now: datetime
    session_gap: timedelta
    redaction: RedactionSettings
    redaction_key: bytes

    @functools.cached_property
    def _context(self) -> ReadingContext:
        return ReadingContext(
            connection=self.connection,
            project=self.project,
            agent=self.agent,
            ingested_at=self.now,
            session_gap=self.session_gap,
            redactor=Redactor(self.redaction, self.redaction_key),
        )

    @functools.cached_property
    def _admission(self) -> Admission:
        return Admission(Redactor(self.redaction, self.redaction_key), self.now)

    def transcripts(self, source: str, part: Part) -> FileRecords:
        """Read a file of the source with this name, whole, or the sessions of a range of it."""
        context = dataclasses.replace(self._context, copies=part.copies) if part.copies else self._context
        return _merged(self._parts(part.path, SOURCES[source].read(part.path, context, part.sessions)))

    def parts(self, source: FileSource, path: Path) -> Iterator[FileRecords]:
        """Read a file of a source, part by part."""
        return self._parts(path, source.read(path, self._context, EVERY_SESSION))

    def _parts(self, path: Path, readings: Iterable[Reading]) -> Iterator[FileRecords]:
        try:
            for reading in readings:
                yield self._encoded(path, reading)
        except InputError as error:  # one file that cannot be read stops no other
            part = FileRecords(complete=False)
            self._admission.set_aside(part.accepted, Place(str(path), 0), Refusal("import", "unreadable_file", str(error)), b"")
            yield part

    def _encoded(self, path: Path, reading: Reading) -> FileRecords:
        part = FileRecords(session_ids=reading.session_ids, complete=reading.complete, left_out=reading.left_out)
        part.open = reading.open
        part.revisable = [one for one in reading.exchanges if one.exchange_id in reading.revisable] if reading.revisable else []
        settled = (
            [one for one in reading.exchanges if one.exchange_id not in reading.revisable]
            if part.revisable
            else reading.exchanges
        )
        self._admission.admit(part.accepted, "exchanges", settled, source=str(path))
        self._admission.admit(part.accepted, "agent-events", reading.events, source=str(path))
        for fault in reading.faults:
            place, refusal = Place(str(path), fault.line), Refusal("import", fault.reason, fault.detail)
            self._admission.set_aside(part.accepted, place, refusal, fault.body, size=fault.size, digest=fault.digest)
        return part


def _merged(parts: Iterable[FileRecords]) -> FileRecords:
    whole = FileRecords()
    for part in parts:
        whole.accepted.extend(part.accepted)
        whole.session_ids += part.session_ids
        whole.revisable += part.revisable
        whole.open += part.open
        whole.complete &= part.complete
        whole.left_out += part.left_out
    return whole


def parts_of(source: TranscriptSource, account: Account, size: int) -> list[Part]:
    """Return the parts that a file is read in: the records of a large database would not fit into memory together."""
    path, count = account.path, -(-size // PART_BYTES)
    ranges = source.ranges(path, count) if count > 1 else [EVERY_SESSION]
    last = len(ranges) - 1
    return [
        Part(path, size // len(ranges), sessions, ends=index == last, copies=account.copies)
        for index, sessions in enumerate(ranges)
    ]


def read_transcripts(reader: FileReader, source: str, parts: Iterable[Part]) -> Iterator[FileRecords]:
    """Yield the records of each part of a source's files, in order; several processes read a large import."""
    listed, workers = list(parts), os.cpu_count() or 1
    if workers == 1 or sum(part.size for part in listed) < PARALLEL_BYTES:
        yield from (reader.transcripts(source, part) for part in listed)
        return
    # Forked workers would inherit DuckDB's and polars' locks without the threads that hold them.
    spawn = multiprocessing.get_context("spawn")
    waiting: collections.deque[tuple[Future[FileRecords], int]] = collections.deque()
    ahead = 0
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin) as pool:
        for part in listed:
            while waiting and len(waiting) >= workers and ahead + part.size > AHEAD_BYTES:
                first, taken = waiting.popleft()
                ahead -= taken
                yield first.result()
            waiting.append((pool.submit(reader.transcripts, source, part), part.size))
            ahead += part.size
        for first, _ in waiting:
            yield first.result()


def _begin() -> None:
    collect_rarely()
    end_with_parent()
