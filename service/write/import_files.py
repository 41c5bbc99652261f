"""Input files of commands, and reading them into encoded records, in this process or in several.

1. Each path is a file or a folder. A folder stands for the files of the command's kind below it, by name, without hidden files and
   symbolic links.
2. A named file that is missing, empty or of another kind is refused before anything is written.
3. A file of another kind in a folder is reported and skipped, and the exit code is 1. An empty file is skipped silently.
4. Files of exchanges are profiled first, one by one, to find the layout by which each is read.
5. Reading is most of an import's work, and files are independent, so a large import file_format them in worker processes. Results are
   used in the order of the files, so the log is the same as with one process.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from audit.file_kinds import HEAD, detect_non_json
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Exchange
from streams.log.admission import Admission, EncodedRecords, RecordOrigin, Refusal
from streams.process import collect_rarely, end_with_parent
from streams.sources.copies import SessionFiles
from streams.sources.event_files import EVENT_FILES
from streams.sources.exchange_files.mapping import Fields
from streams.sources.exchange_files.profiling import PROFILED_ROWS, FileProfile, Layout, profile_file
from streams.sources.exchange_files.reading import Labels, read_exchange_file
from streams.sources.exchange_files.rows import PATTERNS, WORDS, detect_non_exchanges
from streams.sources.exchange_files.span_exports import LANGFUSE, LANGFUSE_TRACES
from streams.sources.exchange_files.tables import EXCHANGES
from streams.sources.lines import visible_files
from streams.sources.source import (
    EVERY_SESSION,
    FileFormat,
    FileSource,
    LineFault,
    PendingAnswer,
    Reading,
    ReadingContext,
    SessionRange,
    SkippedTrace,
)
from streams.sources.transcript_sources import SOURCES, TranscriptSource

STANDARD_INPUT = "-"


SESSIONS = FileFormat("sessions, event JSON lines or a transcript", EVENT_FILES.patterns, detect_non_json)


class Found(NamedTuple):
    """The files to read, and files of another kind in folders."""

    files: list[Path]
    refused: list[InputError]


def input_files(paths: Iterable[Path], file_format: FileFormat) -> Found:
    """Return the files at the paths, each once. Raises InputError for a refused path, or if no file is left."""
    given = list(paths)
    files = (file for path in given for file in (files_below(path, file_format.patterns) if path.is_dir() else [path]))
    return checked(dict.fromkeys(files), given, file_format)


def checked(files: Iterable[Path], paths: Sequence[Path], file_format: FileFormat, *, allow_empty: bool = False) -> Found:
    """Return the readable files. An unreadable file raises an InputError if it is one of the paths, and is skipped otherwise.

    Raises InputError as well if all files are empty, unless that is allowed.
    """
    found, named, empty = Found([], []), set(paths), 0
    for file in files:
        if file not in named and _is_empty(file):
            empty += 1
            continue
        try:
            require(file, file_format, allow_empty=allow_empty)
        except InputError as error:
            if file in named:
                raise
            found.refused.append(error)
        else:
            found.files.append(file)
    if found.refused and not found.files:
        raise found.refused[0]
    if empty and not found.files and not allow_empty:
        where = ", ".join(map(str, paths))
        raise InputError(f"{where}: every file in it is empty", hint=f"Give {file_format.description}, or a folder of them.")
    return found


def files_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files below a folder that match these patterns, by name. Raises InputError if no file matches."""
    files = visible_files(folder, patterns)
    if not files:
        raise InputError(f"{folder}: holds no {_either(patterns)}", hint="Give a file, or a folder that holds some.")
    return files


def require(file: Path, file_format: FileFormat, *, allow_empty: bool = False) -> None:
    """Raise an InputError for a file that is missing, empty or of another kind. Pipes and devices are not inspected."""
    if not file.exists():
        raise InputError(f"{file}: does not exist", hint=f"Give {file_format.description}, or a folder of them.")
    if not file.is_file():
        return
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}", hint="Check the path and its permissions.") from error
    if head or not allow_empty:
        _refuse(str(file), head, file_format)


def require_stream(stream: BinaryIO, file_format: FileFormat) -> None:
    """Wait for the first bytes of standard input, without consuming them.

    Raises InputError if it is empty or of another kind.
    """
    peek = getattr(stream, "peek", None)
    if peek is not None:
        _refuse("standard input", peek(HEAD)[:HEAD], file_format)


def _refuse(name: str, head: bytes, file_format: FileFormat) -> None:
    kind = file_format.detect_mismatch(head)
    if kind is not None:
        but = f", not {file_format.description}" if head.strip() else ""
        raise InputError(f"{name}: is {kind.name}{but}", hint=kind.hint)


def _is_empty(file: Path) -> bool:
    return file.is_file() and not file.stat().st_size


def _either(patterns: Sequence[str]) -> str:
    """Join patterns into a text such as `*.jsonl, *.json or *.ndjson`."""
    return f"{', '.join(patterns[:-1])} or {patterns[-1]}"


NAME = "exchanges"
EXCHANGE_FORMAT = FileFormat(f"exchanges as {WORDS}", PATTERNS, detect_non_exchanges)
SHOWN = 10
"""Maximum number of exchanges that a dry run shows per file."""


@dataclass
class Source:
    """The profiles of the files at some paths, the files of another kind in folders, and the number of files with other tables of ours."""

    looks: dict[Path, FileProfile] = field(default_factory=dict)
    refused: list[InputError] = field(default_factory=list)
    other_tables: int = 0

    def found(self) -> Found:
        """Return the readable files and the refused ones."""
        return Found(list(self.looks), self.refused)

    def layouts(self, redactor: Redactor) -> dict[Path, Layout]:
        """Return the layout of each file.

        Raises InputError if a required field has no column, or two files have the same traces.
        """
        exports = {one.export for one in self.looks.values()}
        if {LANGFUSE, LANGFUSE_TRACES} <= exports:
            raise InputError("Langfuse's traces and observations hold the same exchanges", hint="Import only one of the two.")
        return {path: one.layout(redactor) for path, one in self.looks.items()}


def looked_at(paths: Iterable[Path], given: Fields | None, redactor: Redactor, *, whole: bool = True) -> Source:
    """Profile the files at the paths, by the rules of this module.

    Raises InputError for a refused path, or if no file is left. Unless `whole`, a table may lack columns of required fields.
    """
    looked, paths = Source(), list(paths)
    files = dict.fromkeys(file for path in paths for file in (files_below(path, PATTERNS) if path.is_dir() else [path]))
    for file in files:
        is_named = file in paths
        try:
            require(file, EXCHANGE_FORMAT)
            found = profile_file(file, given)
            if found.own_table not in (None, EXCHANGES) and not is_named:
                looked.other_tables += 1
                continue
            if whole:
                found.layout(redactor)
        except InputError as error:
            if is_named:
                raise
            looked.refused.append(error)
        else:
            looked.looks[file] = found
    if not looked.looks:
        raise looked.refused[0] if looked.refused else InputError("no file with exchanges", hint=f"Give {WORDS}.")
    return looked


def exchange_source(layouts: Mapping[Path, Layout], labels: Labels) -> FileSource:
    """Return the source that file_format each file by its layout; `labels` maps labels to the span attributes that hold them."""

    def read(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
        return read_exchange_file(path, context, layouts[path], labels)

    return FileSource(
        name=NAME,
        description=EXCHANGE_FORMAT.description,
        patterns=EXCHANGE_FORMAT.patterns,
        detect_mismatch=EXCHANGE_FORMAT.detect_mismatch,
        read=read,
    )


def exchanges_in(layouts: Mapping[Path, Layout], context: ReadingContext, labels: Labels) -> Iterator[Exchange]:
    """Yield the exchanges of files as an import would read them."""
    for path, layout in layouts.items():
        for reading in read_exchange_file(path, context, layout, labels):
            yield from reading.exchanges


def first_exchanges(
    path: Path, context: ReadingContext, layout: Layout, labels: Labels
) -> tuple[Sequence[Exchange], Sequence[LineFault]]:
    """Return the first exchanges as an import would read them, and the faults in the rows read on the way."""
    exchanges: list[Exchange] = []
    faults: list[LineFault] = []
    for reading in read_exchange_file(path, context, layout, labels, rows=PROFILED_ROWS):
        exchanges += islice(reading.exchanges, SHOWN - len(exchanges))
        faults += reading.faults
    return exchanges, faults


PARALLEL_BYTES = 20_000_000
"""Minimum size of an import for worker processes, each of which takes half a second to start."""
PART_BYTES = 64_000_000
"""Size of a database above which it is read in parts, each of which is in memory as a whole."""
AHEAD_BYTES = 48_000_000
"""Bytes of files to read ahead, to keep workers busy while a batch is committed and scored."""


@dataclass
class FileRecords:
    """The result of reading a file or a part of one: encoded records, session ids, whether it was read completely, and traces without an exchange."""

    accepted: EncodedRecords = field(default_factory=EncodedRecords)
    revisable: list[Exchange] = field(default_factory=list)
    """Exchanges that may already be stored with an earlier revision."""
    open: list[PendingAnswer] = field(default_factory=list)
    session_ids: list[str] = field(default_factory=list)
    complete: bool = True
    skipped_traces: Counter[SkippedTrace] = field(default_factory=Counter)


class Part(NamedTuple):
    """A unit of reading: a file, or a range of sessions in a large database; `ends` marks the last part of the file.

    `copies` are the other files of the file's session.
    """

    path: Path
    size: int
    sessions: SessionRange
    ends: bool
    copies: tuple[Path, ...] = ()


@dataclass(frozen=True)
class FileReader:
    """Reads files into encoded records. It can be pickled for a worker process."""

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
        """Read a file of a source, whole or a range of its sessions."""
        context = dataclasses.replace(self._context, copies=part.copies) if part.copies else self._context
        return _merge_parts(self._parts(part.path, SOURCES[source].read(part.path, context, part.sessions)))

    def parts(self, source: FileSource, path: Path) -> Iterator[FileRecords]:
        """Read a file of a source, part by part."""
        return self._parts(path, source.read(path, self._context, EVERY_SESSION))

    def _parts(self, path: Path, readings: Iterable[Reading]) -> Iterator[FileRecords]:
        try:
            for reading in readings:
                yield self._admit_reading(path, reading)
        except InputError as error:  # an unreadable file does not stop the others
            part = FileRecords(complete=False)
            self._admission.add_dead_letter(
                part.accepted, RecordOrigin(str(path), 0), Refusal("import", "unreadable_file", str(error)), b""
            )
            yield part

    def _admit_reading(self, path: Path, reading: Reading) -> FileRecords:
        part = FileRecords(session_ids=reading.session_ids, complete=reading.complete, skipped_traces=reading.skipped_traces)
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
            place, refusal = RecordOrigin(str(path), fault.line), Refusal("import", fault.reason, fault.detail)
            self._admission.add_dead_letter(part.accepted, place, refusal, fault.body, size=fault.size, digest=fault.digest)
        return part


def _merge_parts(parts: Iterable[FileRecords]) -> FileRecords:
    whole = FileRecords()
    for part in parts:
        whole.accepted.extend(part.accepted)
        whole.session_ids += part.session_ids
        whole.revisable += part.revisable
        whole.open += part.open
        whole.complete &= part.complete
        whole.skipped_traces += part.skipped_traces
    return whole


def parts_of(source: TranscriptSource, session_files: SessionFiles, size: int) -> list[Part]:
    """Split a file into parts to read: all records of a large database would not fit into memory."""
    path, count = session_files.path, -(-size // PART_BYTES)
    ranges = source.ranges(path, count) if count > 1 else [EVERY_SESSION]
    last = len(ranges) - 1
    return [
        Part(path, size // len(ranges), sessions, ends=index == last, copies=session_files.copies)
        for index, sessions in enumerate(ranges)
    ]


def read_transcripts(reader: FileReader, source: str, parts: Iterable[Part]) -> Iterator[FileRecords]:
    """Yield the records of each part of a source's files, in order; several processes read a large import."""
    listed, workers = list(parts), os.cpu_count() or 1
    if workers == 1 or sum(part.size for part in listed) < PARALLEL_BYTES:
        yield from (reader.transcripts(source, part) for part in listed)
        return
    # Spawn: forked workers would inherit locks of DuckDB and polars without the threads that hold them.
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
