# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""History in tables: those of a database, or the same as Parquet files. It is read beside others who read, and never changed."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

from analytics.store.connection import connect, fetch, store_error
from analytics.store.file_lock import FileLock
from analytics.store.inserting import BATCH, registered
from analytics.store.tables import LOG, columns_of, default_of, literal, quote
from schemas.codec.rows import rows_as_records
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.records import Judgement
from schemas.registry import RecordSchema, schema_of, topics
from streams.judging.recorded_judgements import Subject
from streams.replay.history.history import WINDOW_RECORDS, Window
from streams.replay.plan import Origin, Part, Scope, Segment
from streams.stage_batches import OFFSET, StageBatch

TABLES, PARQUET = "tables", "parquet"
EXCHANGES, JUDGEMENTS, SCORES = "exchanges", "judgements", "scores"
RECORDS = (*topics()[EXCHANGES], "Judgement", "Score")
"""Record types that a replay reads."""
_SHARE = "md5_number_lower(connection || '/' || session_id) % $divisor = $remainder"
"""The condition that a session belongs to the part. MD5, because it is the same in every version of DuckDB."""
SCORES_AT_ONCE = 20_000
"""Scores that are read at once, about."""
_BESIDE = "beside"
MANY = 100_000
"""Judgements of a history from which looking through all of their columns takes longer than looking for their places first."""
_FAR = 100_000
"""Positions between judgements that are read by themselves; DuckDB leaves out groups of rows of this size."""
_PLACES = "_driftline_places"
"""Name under which places are registered."""
_PLACE = "_partition, _offset"
_OF_SUBJECTS = (
    f"JOIN judged USING (_partition) SEMI JOIN {BATCH} USING (connection, subject_id) "
    "WHERE _topic = 'judgements' AND _offset < next_offset"
)
_SCOPE = (
    "($project IS NULL OR project = $project) AND ($since::TIMESTAMPTZ IS NULL OR {at}::TIMESTAMPTZ >= $since::TIMESTAMPTZ) "
    "AND ($until::TIMESTAMPTZ IS NULL OR {at}::TIMESTAMPTZ < $until::TIMESTAMPTZ)"
)


class Contents(NamedTuple):
    """The contents of tables: exchanges in a scope, projects, and the times of the first and the last exchange."""

    exchanges: int
    projects: list[str]
    first: str | None
    last: str | None


class Tables:
    """The tables of a history as views of one connection, all of them there whatever the source has."""

    def __init__(self, origin: Origin) -> None:
        """StoreError when a database cannot be opened, InputError when files are no export of a log."""
        with contextlib.ExitStack() as opening:
            if origin.kind == TABLES:
                opening.enter_context(FileLock(Path(origin.place), shared=True))
            self.connection = opening.enter_context(connect(None))
            if origin.kind == TABLES:
                self._attach(Path(origin.place), "history")
            for name in RECORDS:
                self._view(schema_of(name), origin)
            self._opened = opening.pop_all()

    def close(self) -> None:
        """Close the connection."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def segments(self, topic: str) -> list[Segment]:
        """Return the topic's segment of each partition."""
        tables = [schema_of(name).table for name in topics()[topic] if name in RECORDS]
        places = " UNION ALL ".join(f"SELECT _partition, _offset FROM {table} WHERE _topic = $topic" for table in tables)
        statement = f"SELECT _partition, min(_offset), max(_offset) + 1 FROM ({places}) GROUP BY ALL ORDER BY ALL"
        rows = self.rows(statement, {"topic": topic})
        return [Segment(*row) for row in rows]

    def has(self, name: str, topic: str) -> bool:
        """Tell whether there are any records of a type on a topic."""
        return bool(self.rows(f"SELECT 1 FROM {schema_of(name).table} WHERE _topic = $topic LIMIT 1", {"topic": topic}))

    def contents(self, scope: Scope) -> Contents:
        """Return the contents, with the exchanges of the scope counted."""
        within = _SCOPE.format(at="occurred_at")
        statement = f"SELECT count(*) FILTER (revision = 0 AND {within}), min(occurred_at)::VARCHAR, max(occurred_at)::VARCHAR FROM exchanges"
        ((count, first, last),) = self.rows(statement, _values(scope))
        projects = [name for (name,) in self.rows("SELECT DISTINCT project FROM exchanges ORDER BY ALL")]
        return Contents(count, projects, first, last)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return self.connection.execute(statement, dict(values or {})).fetchall()

    def frame(self, name: str, where: str, values: Mapping[str, Any], order: str) -> pl.DataFrame:
        """Rows of a record type with `_partition` and `_offset`, times in UTC."""
        columns = ", ".join(
            f"{quote(column)}::{kind} AS {quote(column)}"
            for column, kind in columns_of(schema_of(name), timestamp="TIMESTAMPTZ").items()
        )
        statement = f"SELECT {columns}, _partition, _offset FROM {schema_of(name).table} {where} ORDER BY {order}"
        frame = fetch(self.connection, statement, values)
        # DuckDB calls the zone Etc/UTC, everything else calls it UTC.
        return frame.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))

    def scores(self, scope: Scope, part: Part | None = None) -> Iterator[pl.DataFrame]:
        """The source's own scores in a scope, of a part's sessions alone where one is given, some thousands at a time."""
        within, values = of_scores(scope, part)
        where = f"WHERE {within} AND _partition = $partition AND _offset >= $start AND _offset < $end"
        for segment in self.segments(SCORES):
            for start in range(segment.start, segment.end, SCORES_AT_ONCE):
                places = {"partition": segment.partition, "start": start, "end": min(start + SCORES_AT_ONCE, segment.end)}
                yield self.frame("Score", where, values | places, "_offset")

    @contextlib.contextmanager
    def beside(self, path: Path) -> Iterator[str]:
        """The name of another database meanwhile, in which statements find the tables of its log."""
        self._attach(path, _BESIDE)
        try:
            yield _BESIDE
        finally:
            self.connection.execute(f"DETACH {_BESIDE}")

    def _attach(self, path: Path, name: str) -> None:
        try:
            self.connection.execute(f"ATTACH {literal(str(path))} AS {name} (READ_ONLY)")
        except duckdb.Error as error:
            raise store_error(path, error) from error

    def _view(self, schema: RecordSchema, origin: Origin) -> None:
        """The table of a record type under its own name; what was written before a column existed has its default."""
        rows = f"history.{LOG}.{quote(schema.table)}"
        if origin.kind == PARQUET:
            file = Path(origin.place) / f"{schema.table}.parquet"
            if not file.exists():
                self._empty(schema)
                return
            rows = f"read_parquet({literal(str(file))})"
        try:
            there = {name for name, *_ in self.rows(f"DESCRIBE SELECT * FROM {rows}")}
        except duckdb.Error as error:
            raise _no_export(origin, schema, str(error).splitlines()[0]) from error
        wanted = [*(field["name"] for field in schema.fields), "_topic", "_partition", "_offset"]
        defaults = {field["name"]: field for field in schema.fields if "default" in field}
        missing = [name for name in wanted if name not in there and name not in defaults]
        if missing:
            raise _no_export(origin, schema, f"column {', '.join(missing)} is missing")
        columns = ", ".join(
            quote(name) if name in there else f"{default_of(defaults[name])} AS {quote(name)}" for name in wanted
        )
        self.connection.execute(f"CREATE VIEW {schema.table} AS SELECT {columns} FROM {rows}")

    def _empty(self, schema: RecordSchema) -> None:
        columns = ", ".join(f"{quote(name)} {kind}" for name, kind in columns_of(schema).items())
        self.connection.execute(f"CREATE TABLE {schema.table} ({columns}, _topic VARCHAR, _partition INTEGER, _offset BIGINT)")


class TableHistory:
    """One part of a history in tables; see `streams.replay.history.history.History`."""

    def __init__(self, origin: Origin, part: Part, scope: Scope) -> None:
        self.tables = Tables(origin)
        """What the history is read from."""
        self._part = part
        self._is_all = scope.is_all
        values = {"divisor": part.divisor, "remainder": part.remainder}
        if not scope.is_all:
            # Sampling wants to know all of a session that has anything in the scope, and nothing of the others.
            self.tables.connection.execute(
                "CREATE TEMP TABLE wanted AS SELECT DISTINCT connection, session_id FROM exchanges WHERE "
                f"{_SCOPE.format(at='occurred_at')} AND {_SHARE}",
                _values(scope) | values,
            )
        self._mine = (f"AND {_SHARE}", values) if scope.is_all else ("", {})
        self._has_judgements = bool(part.judgements)
        self._are_many = sum(part.judgements.values()) > MANY
        self.tables.connection.execute("CREATE TEMP TABLE judged (_partition INTEGER, next_offset BIGINT)")
        for partition, end in part.judgements.items():
            self.tables.connection.execute("INSERT INTO judged VALUES (?, ?)", [partition, end])
        self._there = [name for name in topics()[EXCHANGES] if self.tables.has(name, EXCHANGES)]

    @cached_property
    def withdrawn(self) -> Collection[Subject]:
        """See `History`."""
        ends = {segment.partition: segment.end for segment in self._part.segments}
        statement = "SELECT connection, exchange_id, _partition, _offset FROM exchanges WHERE withdrawn"
        rows = self.tables.rows(statement)
        return {(connection, exchange_id) for connection, exchange_id, number, offset in rows if offset < ends.get(number, 0)}

    async def windows(self, start: int) -> AsyncGenerator[Window]:
        """See `History`."""
        position, step = start, WINDOW_RECORDS * self._part.divisor
        while (found := self._part.at(position)) is not None:
            rest, base = found
            end = min(rest.start + step, rest.end)
            frames = {name: self._read(name, Segment(rest.partition, rest.start, end), base) for name in self._there}
            position = base + end
            yield Window(StageBatch.of(EXCHANGES, {name: frame for name, frame in frames.items() if frame.height}), position)

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """See `History`."""
        found: dict[Subject, list[Judgement]] = defaultdict(list)
        if not subjects or not self._has_judgements:
            return found
        wanted = pl.DataFrame(subjects, schema=("connection", "subject_id"), orient="row")
        with registered(self.tables.connection, wanted):
            frames = self._scattered() if self._are_many else [self.tables.frame("Judgement", _OF_SUBJECTS, {}, _PLACE)]
        for one in chain.from_iterable(rows_as_records("Judgement", frame) for frame in frames):
            if isinstance(one, Judgement):
                found[one.connection, one.subject_id].append(one)
        return found

    def _scattered(self) -> list[pl.DataFrame]:
        """The judgements of the registered subjects: first their places, which takes few columns, then the rows around these."""
        places = fetch(self.tables.connection, f"SELECT {_PLACE} FROM judgements {_OF_SUBJECTS} ORDER BY {_PLACE}")
        is_far = (pl.col("_offset").diff() > _FAR) | (pl.col("_partition").diff() != 0)
        near = places.with_columns(is_far.fill_null(value=False).cum_sum().alias("group")).partition_by(
            "group", maintain_order=True
        )
        return [self._at(one.drop("group")) for one in near]

    def _at(self, places: pl.DataFrame) -> pl.DataFrame:
        """The judgements at places of one partition, in their order."""
        within = {"partition": places["_partition"][0], "first": places["_offset"][0], "last": places["_offset"][-1]}
        where = (
            f"SEMI JOIN {_PLACES} USING (_partition, _offset) WHERE _topic = 'judgements' AND _partition = $partition "
            "AND _offset BETWEEN $first AND $last"
        )
        with registered(self.tables.connection, places, _PLACES):
            return self.tables.frame("Judgement", where, within, _PLACE)

    def close(self) -> None:
        """See `History`."""
        self.tables.close()

    def _read(self, name: str, segment: Segment, base: int) -> pl.DataFrame:
        sessions = "" if self._is_all else "SEMI JOIN wanted USING (connection, session_id)"
        mine, values = self._mine
        where = (
            f"{sessions} WHERE _topic = 'exchanges' AND _partition = $partition AND _offset >= $start AND _offset < $end {mine}"
        )
        places = {"partition": segment.partition, "start": segment.start, "end": segment.end}
        frame = self.tables.frame(name, where, places | values, "_offset")
        return frame.drop("_partition").with_columns(pl.col(OFFSET) + base)


def origin_of_tables(database: Path) -> Origin:
    """The tables of a database."""
    return Origin(TABLES, str(database.resolve()))


def parts_of_tables(tables: Tables, number: int) -> tuple[Part, ...]:
    """The history in so many parts, each with the sessions whose keys' hashes leave one remainder."""
    segments = tuple(tables.segments(EXCHANGES))
    judgements = {one.partition: one.end for one in tables.segments(JUDGEMENTS)}
    return tuple(Part(place, segments, number, place, judgements) for place in range(number))


def of_scores(scope: Scope, part: Part | None) -> tuple[str, dict[str, Any]]:
    """The condition for a source's own scores in a scope, of a part's sessions alone where one is given, and its values."""
    share = {"divisor": part.divisor if part else 1, "remainder": part.remainder if part else 0}
    return f"_topic = 'scores' AND {_SCOPE.format(at='exchange_at')} AND {_SHARE}", _values(scope) | share


def _values(scope: Scope) -> dict[str, Any]:
    return {"project": scope.project, "since": scope.since, "until": scope.until}


def _no_export(origin: Origin, schema: RecordSchema, what: str) -> InputError:
    return InputError(
        f"{origin.place}: table {schema.table}: {what}",
        hint="Open the database once with this version (`driftline doctor`), or export it again with `driftline export`.",
    )
