# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""History in tables: those of a database, or their export as Parquet files. They are opened read-only, shared with other readers."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from analytics.store.connection import FileLock, connect, fetch, store_error
from analytics.store.tables import BATCH, LOG, column_types, default_literal, literal, quote, registered
from audit.file_kinds import HEAD, binary_kind, detect_non_json
from audit.file_kinds import PARQUET as PARQUET_FILE
from schemas.codec.arrow import rows_as_records
from schemas.errors import InputError
from schemas.lazy import duckdb, pl
from schemas.records import Judgement
from schemas.registry import RecordSchema, schema_of, topics
from streams.judging.judged_stages import Subject
from streams.replay.plan import Origin, Part, Scope, Segment
from streams.stage_batches import OFFSET, StageBatch

TABLES = "tables"
PARQUET = "parquet"
EXCHANGES = "exchanges"
JUDGEMENTS = "judgements"
SCORES = "scores"
RECORDS = (*topics()[EXCHANGES], "Judgement", "Score")
"""Record types that a replay reads."""
WINDOW_RECORDS = 4_000
"""Approximate number of records that are read, scored and committed together; each can hold a megabyte of text."""
_SCORES_PER_FRAME = 20_000
_SHARE = "md5_number_lower(connection || '/' || session_id) % $divisor = $remainder"
"""The condition that a session belongs to the part. It uses MD5, because that is the same in every version of DuckDB."""
_SCOPE = (
    "($project IS NULL OR project = $project) AND ($since::TIMESTAMPTZ IS NULL OR {at}::TIMESTAMPTZ >= $since::TIMESTAMPTZ) "
    "AND ($until::TIMESTAMPTZ IS NULL OR {at}::TIMESTAMPTZ < $until::TIMESTAMPTZ)"
)
_RECORDED = (
    "SEMI JOIN (SELECT _partition, _offset FROM judgements JOIN judged USING (_partition) "
    f"SEMI JOIN {BATCH} USING (connection, subject_id) WHERE _topic = 'judgements' AND _offset < next_offset) "
    "USING (_partition, _offset) WHERE _topic = 'judgements'"
)
"""The judgements of the registered subjects. The offsets are looked up first, which reads few columns; then only the rows around them are read."""


class Contents(NamedTuple):
    """The contents of tables: the number of exchanges in a scope, the projects, and the times of the first and the last exchange."""

    exchanges: int
    projects: list[str]
    first: str | None
    last: str | None


class Tables:
    """The tables of a history as views of one connection. All of them exist, even if the source lacks some."""

    def __init__(self, origin: Origin) -> None:
        """Raise StoreError if the database cannot be opened, or InputError if the files are not an export."""
        with contextlib.ExitStack() as resources:
            if origin.kind == TABLES:
                resources.enter_context(FileLock(Path(origin.place), shared=True))
            self.connection = resources.enter_context(connect(None))
            if origin.kind == TABLES:
                try:
                    self.connection.execute(f"ATTACH {literal(origin.place)} AS history (READ_ONLY)")
                except duckdb.Error as error:
                    raise store_error(Path(origin.place), error) from error
            for name in RECORDS:
                self._create_view(schema_of(name), origin)
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close the connection."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def segments(self, topic: str) -> list[Segment]:
        """Return the topic's segment of each partition."""
        tables = [schema_of(name).table for name in topics()[topic] if name in RECORDS]
        offsets = " UNION ALL ".join(f"SELECT _partition, _offset FROM {table} WHERE _topic = $topic" for table in tables)
        statement = f"SELECT _partition, min(_offset), max(_offset) + 1 FROM ({offsets}) GROUP BY ALL ORDER BY ALL"
        return [Segment(*row) for row in self.rows(statement, {"topic": topic})]

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the topic's last record in each partition."""
        return {segment.partition: segment.end for segment in self.segments(topic)}

    def contents(self, scope: Scope) -> Contents:
        """Return the contents; exchanges are counted in the scope only."""
        in_scope = _SCOPE.format(at="occurred_at")
        statement = f"SELECT count(*) FILTER (revision = 0 AND {in_scope}), min(occurred_at)::VARCHAR, max(occurred_at)::VARCHAR FROM exchanges"
        ((count, first, last),) = self.rows(statement, _scope_parameters(scope))
        projects = [name for (name,) in self.rows("SELECT DISTINCT project FROM exchanges ORDER BY ALL")]
        return Contents(count, projects, first, last)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return self.connection.execute(statement, dict(values or {})).fetchall()

    def frame(self, name: str, where: str, values: Mapping[str, Any]) -> pl.DataFrame:
        """Return rows of a record type with `_partition` and `_offset`, in this order; times in UTC."""
        columns = ", ".join(
            f"{quote(column)}::{kind} AS {quote(column)}"
            for column, kind in column_types(schema_of(name), timestamp="TIMESTAMPTZ").items()
        )
        table = schema_of(name).table
        statement = f"SELECT {columns}, _partition, _offset FROM {table} {where} ORDER BY _partition, _offset"
        frame = fetch(self.connection, statement, values)
        # DuckDB names the zone Etc/UTC, all other code UTC.
        return frame.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))

    def scores(self, scope: Scope, part: Part) -> Iterator[pl.DataFrame]:
        """Yield the scores of a part's sessions in a scope, a few thousand at a time."""
        where = (
            f"WHERE _topic = 'scores' AND {_SCOPE.format(at='exchange_at')} AND {_SHARE} "
            "AND _partition = $partition AND _offset >= $start AND _offset < $end"
        )
        for segment in self.segments(SCORES):
            for start in range(segment.start, segment.end, _SCORES_PER_FRAME):
                chunk = Segment(segment.partition, start, min(start + _SCORES_PER_FRAME, segment.end))
                yield self.frame("Score", where, _scope_parameters(scope) | _share_parameters(part) | _offset_parameters(chunk))

    def _create_view(self, schema: RecordSchema, origin: Origin) -> None:
        """Create the view of a record type's table; a column that the source lacks has its default."""
        rows = f"history.{LOG}.{quote(schema.table)}"
        if origin.kind == PARQUET:
            file = Path(origin.place) / f"{schema.table}.parquet"
            if not file.exists():
                columns = ", ".join(f"{quote(name)} {kind}" for name, kind in column_types(schema).items())
                self.connection.execute(
                    f"CREATE TABLE {schema.table} ({columns}, _topic VARCHAR, _partition INTEGER, _offset BIGINT)"
                )
                return
            rows = f"read_parquet({literal(str(file))})"
        try:
            source_columns = {row[0] for row in self.rows(f"DESCRIBE SELECT * FROM {rows}")}
        except duckdb.Error as error:
            raise _format_error(origin, schema, str(error).splitlines()[0]) from error
        defaults = {field["name"]: default_literal(field) for field in schema.fields if "default" in field}
        names = [*(field["name"] for field in schema.fields), "_topic", "_partition", "_offset"]
        missing = [name for name in names if name not in source_columns and name not in defaults]
        if missing:
            raise _format_error(origin, schema, f"column {', '.join(missing)} is missing")
        columns = ", ".join(quote(name) if name in source_columns else f"{defaults[name]} AS {quote(name)}" for name in names)
        self.connection.execute(f"CREATE VIEW {schema.table} AS SELECT {columns} FROM {rows}")


class Window(NamedTuple):
    """Consecutive records of a part; every record's `_offset` is its position in the part."""

    batch: StageBatch
    end: int
    """The position after the window, where reading continues."""


class History:
    """One part of a history in tables: windows of its records, the judgements of its exchanges, and the source's own scores."""

    def __init__(self, tables: Tables, part: Part, scope: Scope) -> None:
        self._tables = tables
        self._part = part
        self._scope = scope
        # Sampling needs all exchanges of each session that has an exchange in the scope, and no other session.
        tables.connection.execute(
            "CREATE TEMP TABLE wanted AS SELECT DISTINCT connection, session_id FROM exchanges "
            f"WHERE {_SCOPE.format(at='occurred_at')} AND {_SHARE}",
            _scope_parameters(scope) | _share_parameters(part),
        )
        tables.connection.execute("CREATE TEMP TABLE judged (_partition INTEGER, next_offset BIGINT)")
        for partition, end in part.judgements.items():
            tables.connection.execute("INSERT INTO judged VALUES (?, ?)", [partition, end])

    @cached_property
    def withdrawn(self) -> Collection[Subject]:
        """The withdrawn exchanges, which are part of another one and have no score. In topics, they are found only while reading."""
        ends = {segment.partition: segment.end for segment in self._part.segments}
        rows = self._tables.rows("SELECT connection, exchange_id, _partition, _offset FROM exchanges WHERE withdrawn")
        return {(connection, exchange_id) for connection, exchange_id, number, offset in rows if offset < ends.get(number, 0)}

    async def windows(self, start: int) -> AsyncGenerator[Window]:
        """Yield each record from a position on once, with those of a session in order."""
        position = start
        while position < self._part.positions:
            segment, base = self._part.remaining_segment(position)
            # A part has 1 of `divisor` sessions, so a window scans that many times more records.
            end = min(segment.start + WINDOW_RECORDS * self._part.divisor, segment.end)
            frames = {
                name: self._read(name, Segment(segment.partition, segment.start, end), base) for name in topics()[EXCHANGES]
            }
            position = base + end
            yield Window(StageBatch.of(EXCHANGES, frames), position)

    def _read(self, name: str, segment: Segment, base: int) -> pl.DataFrame:
        where = (
            "SEMI JOIN wanted USING (connection, session_id) "
            "WHERE _topic = 'exchanges' AND _partition = $partition AND _offset >= $start AND _offset < $end"
        )
        frame = self._tables.frame(name, where, _offset_parameters(segment))
        return frame.drop("_partition").with_columns(pl.col(OFFSET) + base)

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """Return the judgements by exchange, in the order of recording; exchanges without any are missing."""
        judgements: dict[Subject, list[Judgement]] = defaultdict(list)
        if subjects and self._part.judgements:
            batch = pl.DataFrame(subjects, schema=("connection", "subject_id"), orient="row")
            with registered(self._tables.connection, batch):
                frame = self._tables.frame("Judgement", _RECORDED, {})
            for judgement in rows_as_records("Judgement", frame):
                if isinstance(judgement, Judgement):
                    judgements[judgement.connection, judgement.subject_id].append(judgement)
        return judgements

    def scores(self) -> Iterator[pl.DataFrame]:
        """Return the source's own scores in the scope, a few thousand at a time."""
        return self._tables.scores(self._scope, self._part)

    def close(self) -> None:
        """Close files and connections."""
        self._tables.close()


def origin_of_tables(database: Path) -> Origin:
    """Return the origin for the tables of a database."""
    return Origin(TABLES, str(database.resolve()))


def origin_of_parquet(folder: Path) -> Origin:
    """Return the origin for Parquet files from `driftline export`. Raises InputError if the folder has no exchanges."""
    if folder.is_file():
        raise InputError(
            f"--from: {folder} is a file", hint="Use tables, topics, or the folder that `driftline export` has written."
        )
    files = [folder / f"{schema_of(name).table}.parquet" for name in RECORDS]
    for file in filter(Path.is_file, files):
        _require_parquet(file)
    if not (folder / "exchanges.parquet").is_file():
        raise InputError(
            f"--from: {folder} has no exchanges.parquet",
            hint="Use tables, topics, or a folder that `driftline export` has written.",
        )
    state = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
    return Origin(PARQUET, str(folder.resolve()), hashlib.sha256(repr(state).encode()).hexdigest()[:16])


def _require_parquet(file: Path) -> None:
    """Raise InputError if a file is not one that `driftline export` has written."""
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    if binary_kind(head) is not PARQUET_FILE:
        kind = detect_non_json(head)
        raise InputError(
            f"--from: {file} is {kind.name if kind else 'JSON'}{', not a Parquet file' if head else ''}",
            hint="Export the folder again with `driftline export`.",
        )


def parts_of_tables(tables: Tables, count: int) -> tuple[Part, ...]:
    """Return the history in `count` parts, each with the sessions whose keys' hashes leave the same remainder."""
    segments = tuple(tables.segments(EXCHANGES))
    judgements = tables.ends(JUDGEMENTS)
    return tuple(Part(number, segments, count, number, judgements) for number in range(count))


def _scope_parameters(scope: Scope) -> dict[str, Any]:
    return {"project": scope.project, "since": scope.since, "until": scope.until}


def _share_parameters(part: Part) -> dict[str, Any]:
    return {"divisor": part.divisor, "remainder": part.remainder}


def _offset_parameters(segment: Segment) -> dict[str, Any]:
    return {"partition": segment.partition, "start": segment.start, "end": segment.end}


def _format_error(origin: Origin, schema: RecordSchema, problem: str) -> InputError:
    return InputError(
        f"{origin.place}: table {schema.table}: {problem}",
        hint="Open the database once with this version (`driftline doctor`), or export it again with `driftline export`.",
    )
