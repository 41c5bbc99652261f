"""Input files of commands: finding, checking and reading them, in this process or in several.

1. Each path is a file or a folder. A folder stands for the files of the command's kind below it, by name, without hidden files and
   symbolic links.
2. A named file that is missing, empty or of another kind is rejected before anything is written.
3. A file of another kind in a folder is reported and skipped, and the exit code is 1. An empty file is skipped silently.
4. Each file of exchanges is profiled first, to find the layout by which it is read.
5. Reading files takes most of the time of an import, and files are independent, so a large import reads them in worker processes.
   Results are used in the order of the files, so the log is the same as with one process.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
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
from streams.sources.exchange_files.rows import FORMAT_NAMES, PATTERNS, detect_non_exchanges
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
SESSION_FORMAT = FileFormat("sessions, event JSON lines or a transcript", EVENT_FILES.patterns, detect_non_json)
EXCHANGE_FORMAT = FileFormat(f"exchanges as {FORMAT_NAMES}", PATTERNS, detect_non_exchanges)
MAX_PREVIEWED_EXCHANGES = 10
"""Maximum number of exchanges that a dry run shows per file."""


class InputFiles(NamedTuple):
    """The files to read, and the errors of files in folders that cannot be read."""

    files: list[Path]
    rejected: list[InputError]


def find_input_files(paths: Iterable[Path], file_format: FileFormat) -> InputFiles:
    """Return the files at the paths, each once. Raises InputError for a rejected path, or if no file is left."""
    paths = list(paths)
    return check_input_files(_expand_folders(paths, file_format.patterns), paths, file_format)


def check_input_files(
    files: Iterable[Path], paths: Sequence[Path], file_format: FileFormat, *, allow_empty: bool = False
) -> InputFiles:
    """Return the readable files. An unreadable file raises an InputError if it is one of the paths, and is skipped otherwise.

    Raises InputError as well if all files are empty, unless that is allowed.
    """
    inputs = InputFiles([], [])
    named = set(paths)
    has_empty = False
    for file in files:
        if file not in named and _is_empty(file):
            has_empty = True
            continue
        try:
            check_input_file(file, file_format, allow_empty=allow_empty)
        except InputError as error:
            if file in named:
                raise
            inputs.rejected.append(error)
        else:
            inputs.files.append(file)
    if inputs.rejected and not inputs.files:
        raise inputs.rejected[0]
    if has_empty and not inputs.files and not allow_empty:
        folders = ", ".join(map(str, paths))
        raise InputError(f"{folders}: all files are empty", hint=f"Give {file_format.description}, or a folder of them.")
    return inputs


def _expand_folders(paths: Iterable[Path], patterns: Sequence[str]) -> list[Path]:
    """Replace each folder by its matching files, and drop repeated files."""
    files: dict[Path, None] = {}
    for path in paths:
        files |= dict.fromkeys(find_files_below(path, patterns) if path.is_dir() else [path])
    return list(files)


def find_files_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files below a folder that match the patterns, by name. Raises InputError if no file matches."""
    files = visible_files(folder, patterns)
    if not files:
        raise InputError(
            f"{folder}: contains no {_join_patterns(patterns)}", hint="Give a file, or a folder with matching files."
        )
    return files


def check_input_file(file: Path, file_format: FileFormat, *, allow_empty: bool = False) -> None:
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
        _check_kind(str(file), head, file_format)


def check_input_stream(stream: BinaryIO, file_format: FileFormat) -> None:
    """Wait for the first bytes of standard input, without consuming them.

    Raises InputError if it is empty or of another kind.
    """
    peek = getattr(stream, "peek", None)
    if peek is not None:
        _check_kind("standard input", peek(HEAD)[:HEAD], file_format)


def _check_kind(name: str, head: bytes, file_format: FileFormat) -> None:
    kind = file_format.detect_mismatch(head)
    if kind is not None:
        expected = f", not {file_format.description}" if head.strip() else ""
        raise InputError(f"{name}: is {kind.name}{expected}", hint=kind.hint)


def _is_empty(file: Path) -> bool:
    return file.is_file() and not file.stat().st_size


def _join_patterns(patterns: Sequence[str]) -> str:
    """Join patterns into a text such as `*.jsonl, *.json or *.ndjson`."""
    return f"{', '.join(patterns[:-1])} or {patterns[-1]}"


@dataclass
class ProfiledFiles:
    """The profiles of the files at some paths, the errors of rejected files, and the number of skipped files with our other tables."""

    profiles: dict[Path, FileProfile] = field(default_factory=dict)
    rejected: list[InputError] = field(default_factory=list)
    other_tables: int = 0

    def layouts(self, redactor: Redactor) -> dict[Path, Layout]:
        """Return the layout of each file.

        Raises InputError if a required field has no column, or two files have the same traces.
        """
        exports = {profile.export for profile in self.profiles.values()}
        if {LANGFUSE, LANGFUSE_TRACES} <= exports:
            raise InputError(
                "Langfuse's traces and observations contain the same exchanges", hint="Import only one of the two."
            )
        return {path: profile.layout(redactor) for path, profile in self.profiles.items()}


def profile_files(
    paths: Iterable[Path],
    fields: Fields | None,
    redactor: Redactor,
    *,
    columns_by_field: Mapping[str, str] = {},
    require_columns: bool = True,
) -> ProfiledFiles:
    """Profile the files at the paths, by the rules of this module. `columns_by_field` overrides fields of the mapping.

    Raises InputError for a rejected path, or if no file is left. Unless `require_columns`, a table may lack columns of required
    fields.
    """
    profiled = ProfiledFiles()
    paths = list(paths)
    for file in _expand_folders(paths, PATTERNS):
        is_named = file in paths
        try:
            check_input_file(file, EXCHANGE_FORMAT)
            profile = profile_file(file, fields, columns_by_field)
            if profile.own_table not in (None, EXCHANGES) and not is_named:
                profiled.other_tables += 1
                continue
            if require_columns:
                profile.layout(redactor)
        except InputError as error:
            if is_named:
                raise
            profiled.rejected.append(error)
        else:
            profiled.profiles[file] = profile
    if profiled.profiles:
        return profiled
    if profiled.rejected:
        raise profiled.rejected[0]
    raise InputError("no file with exchanges", hint=f"Give {FORMAT_NAMES}.")


def exchange_source(layouts: Mapping[Path, Layout], labels: Labels) -> FileSource:
    """Return the source that reads each file by its layout; `labels` maps labels to the span attributes that hold them."""

    def read(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
        return read_exchange_file(path, context, layouts[path], labels)

    sort = EXCHANGE_FORMAT
    return FileSource(
        name="exchanges", description=sort.description, patterns=sort.patterns, detect_mismatch=sort.detect_mismatch, read=read
    )


def read_exchanges(layouts: Mapping[Path, Layout], context: ReadingContext, labels: Labels) -> Iterator[Exchange]:
    """Yield the exchanges of files as an import would read them."""
    for path, layout in layouts.items():
        for reading in read_exchange_file(path, context, layout, labels):
            yield from reading.exchanges


def read_preview(
    path: Path, context: ReadingContext, layout: Layout, labels: Labels
) -> tuple[Sequence[Exchange], Sequence[LineFault]]:
    """Return the first exchanges as an import would read them, and the faults in the rows read so far."""
    exchanges: list[Exchange] = []
    faults: list[LineFault] = []
    for reading in read_exchange_file(path, context, layout, labels, rows=PROFILED_ROWS):
        exchanges += islice(reading.exchanges, MAX_PREVIEWED_EXCHANGES - len(exchanges))
        faults += reading.faults
    return exchanges, faults


MIN_PARALLEL_BYTES = 20_000_000
"""Minimum size of an import that is read by worker processes, each of which takes half a second to start."""
MAX_PART_BYTES = 64_000_000
"""Maximum size of a part of a database: the records of a part are in memory together."""
MAX_READ_AHEAD_BYTES = 48_000_000
"""Maximum bytes of files to read ahead. Workers stay busy while a batch is committed and scored."""


@dataclass
class FileRecords:
    """The result of reading a file or a part of one."""

    accepted: EncodedRecords = field(default_factory=EncodedRecords)
    revisable: list[Exchange] = field(default_factory=list)
    """Exchanges that may already be stored with an earlier revision."""
    open: list[PendingAnswer] = field(default_factory=list)
    session_ids: list[str] = field(default_factory=list)
    complete: bool = True
    skipped_traces: Counter[SkippedTrace] = field(default_factory=Counter)


class Part(NamedTuple):
    """A unit of reading: a file, or a range of sessions in a large database."""

    path: Path
    size: int
    sessions: SessionRange
    is_last: bool
    """Whether it is the last part of its file."""
    copies: tuple[Path, ...] = ()
    """The other files of the file's session."""


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

    def read_part(self, source: str, part: Part) -> FileRecords:
        """Read a part of a transcript source's file."""
        context = dataclasses.replace(self._context, copies=part.copies) if part.copies else self._context
        return _merge_records(self._admit_readings(part.path, SOURCES[source].read(part.path, context, part.sessions)))

    def read_file(self, source: FileSource, path: Path) -> Iterator[FileRecords]:
        """Read a file of a source, reading by reading."""
        return self._admit_readings(path, source.read(path, self._context, EVERY_SESSION))

    def _admit_readings(self, path: Path, readings: Iterable[Reading]) -> Iterator[FileRecords]:
        try:
            for reading in readings:
                yield self._admit_reading(path, reading)
        except InputError as error:  # an unreadable file does not stop the others
            records = FileRecords(complete=False)
            refusal = Refusal("import", "unreadable_file", str(error))
            self._admission.add_dead_letter(records.accepted, RecordOrigin(str(path), 0), refusal, b"")
            yield records

    def _admit_reading(self, path: Path, reading: Reading) -> FileRecords:
        records = FileRecords(session_ids=reading.session_ids, complete=reading.complete, skipped_traces=reading.skipped_traces)
        records.open = reading.open
        exchanges = reading.exchanges
        if reading.revisable:
            records.revisable = [exchange for exchange in exchanges if exchange.exchange_id in reading.revisable]
            exchanges = [exchange for exchange in exchanges if exchange.exchange_id not in reading.revisable]
        self._admission.admit(records.accepted, "exchanges", exchanges, source=str(path))
        self._admission.admit(records.accepted, "agent-events", reading.events, source=str(path))
        for fault in reading.faults:
            origin = RecordOrigin(str(path), fault.line)
            refusal = Refusal("import", fault.reason, fault.detail)
            self._admission.add_dead_letter(records.accepted, origin, refusal, fault.body, size=fault.size, digest=fault.digest)
        return records


def _merge_records(readings: Iterable[FileRecords]) -> FileRecords:
    merged = FileRecords()
    for records in readings:
        merged.accepted.extend(records.accepted)
        merged.session_ids += records.session_ids
        merged.revisable += records.revisable
        merged.open += records.open
        merged.complete &= records.complete
        merged.skipped_traces += records.skipped_traces
    return merged


def split_into_parts(source: TranscriptSource, session_files: SessionFiles, size: int) -> list[Part]:
    """Split a file into parts, because the records of a large database would not fit into memory."""
    path = session_files.path
    count = math.ceil(size / MAX_PART_BYTES)
    ranges = source.ranges(path, count) if count > 1 else [EVERY_SESSION]
    last = len(ranges) - 1
    return [
        Part(path, size // len(ranges), sessions, is_last=index == last, copies=session_files.copies)
        for index, sessions in enumerate(ranges)
    ]


def read_transcripts(reader: FileReader, source: str, parts: Sequence[Part]) -> Iterator[FileRecords]:
    """Yield the records of each part of a source's files, in order. Several processes read a large import."""
    workers = os.cpu_count() or 1
    if workers == 1 or sum(part.size for part in parts) < MIN_PARALLEL_BYTES:
        yield from (reader.read_part(source, part) for part in parts)
        return
    # Spawn: forked workers would inherit locks of DuckDB and polars without the threads that hold them.
    spawn = multiprocessing.get_context("spawn")
    pending: collections.deque[tuple[Future[FileRecords], int]] = collections.deque()
    pending_bytes = 0
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_init_worker) as pool:
        for part in parts:
            while len(pending) >= workers and pending_bytes + part.size > MAX_READ_AHEAD_BYTES:
                oldest, size = pending.popleft()
                pending_bytes -= size
                yield oldest.result()
            pending.append((pool.submit(reader.read_part, source, part), part.size))
            pending_bytes += part.size
        for future, _ in pending:
            yield future.result()


def _init_worker() -> None:
    collect_rarely()
    end_with_parent()
