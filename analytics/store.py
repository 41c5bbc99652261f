"""The DuckDB file: append-only tables, stage state and watermarks, changed together or not at all.

One process owns the file; within it one `Store` writes, and any number of cursors read. Every change happens in a
transaction: the rows of a batch, the states of the stage that made them and the watermark of what it read are committed
together, so that a kill at any moment loses nothing that was committed and doubles nothing when the work is taken up again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import duckdb
import polars as pl
from polars import selectors

from analytics.tables import LOG, columns_of, full_name, migration_statements, quote
from schemas.arrow import INDEX, ArrowStream, decode_batch
from schemas.codec import encode
from schemas.errors import StoreError
from schemas.records import ImportProgress, Record, StageState, Watermark
from schemas.registry import RecordSchema, current_schemas, schema_of, topics

BATCH = "_driftline_batch"
"""Name under which a batch is registered. A table's name would win over it, and no table may be called so."""
PARTITION = 0
"""The embedded log has one partition a topic."""


@dataclass
class Appended:
    """What an append did: rows written per table, and how many were there already."""

    written: dict[str, int] = field(default_factory=dict)
    known: int = 0

    def add(self, other: Appended) -> None:
        """Add another append's counts to this one."""
        self.known += other.known
        for table, count in other.written.items():
            self.written[table] = self.written.get(table, 0) + count


class Store:
    """An open DuckDB file, or a database in memory when `path` is None.

    StoreError when the file cannot be opened: in use by another process, damaged, or written by a newer version.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._ends: dict[str, int] = {}
        self._connection = _connect(path)
        self._migrate()

    def close(self) -> None:
        """Close the file; what is committed stays."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for one thread to read with."""
        return self._connection.cursor()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything done with the transaction is committed together at the end, or not at all when an exception leaves it."""
        with self._lock:
            ends = dict(self._ends)
            self._connection.begin()
            try:
                yield Transaction(self._connection, self._ends)
                self._connection.commit()
            except BaseException:
                self._ends = ends
                with contextlib.suppress(duckdb.Error):  # after a fatal error there is nothing to roll back
                    self._connection.rollback()
                raise

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the file."""
        with self._lock:
            self._connection.execute("CHECKPOINT")

    def count(self, table: str) -> int:
        """How many things a record type's view shows: each once, in its latest revision."""
        row = self.cursor().execute(f"SELECT count(*) FROM main.{quote(table)}").fetchone()
        return int(row[0]) if row else 0

    def end_of(self, topic: str) -> int:
        """The position the next record of the topic will get."""
        with self._lock:
            return self._ends[topic]

    def read(self, topic: str, start: int, limit: int) -> dict[str, pl.DataFrame]:
        """Up to `limit` positions of a topic from `start`: one frame a record type, with `_offset`, in order."""
        frames = {}
        for name in topics()[topic]:
            schema = schema_of(name)
            columns = ", ".join(
                f"{quote(column)}::{kind} AS {quote(column)}"
                for column, kind in columns_of(schema, timestamp="TIMESTAMPTZ").items()
            )
            # The topic's own name is compared too: a table can take records from two topics.
            statement = (
                f"SELECT {columns}, _offset FROM {full_name(schema)} "
                "WHERE _offset >= $start AND _offset < $end AND _topic = $topic ORDER BY _offset"
            )
            values = {"start": start, "end": start + limit, "topic": topic}
            frame = fetch(self.cursor(), statement, values)
            if frame.height:
                # DuckDB calls the zone Etc/UTC, everything else calls it UTC.
                frames[name] = frame.with_columns(selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))
        return frames

    def _migrate(self) -> None:
        rows = self._connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = ?", [LOG]
        ).fetchall()
        existing: dict[str, dict[str, str]] = {}
        for table, column, kind in rows:
            existing.setdefault(table, {})[column] = kind
        statements = list(migration_statements(existing))
        if statements:
            with self.transaction():
                for statement in [f"CREATE SCHEMA IF NOT EXISTS {LOG}", *statements]:
                    self._connection.execute(statement)
            # A schema change in the write-ahead log costs the next start; fold it in while nothing else is there.
            self.checkpoint()
        for topic, names in topics().items():
            tables = " UNION ALL ".join(
                f"SELECT max(_offset) AS last FROM {full_name(schema_of(name))} WHERE _topic = $topic" for name in names
            )
            row = self._connection.execute(f"SELECT max(last) FROM ({tables})", {"topic": topic}).fetchone()
            self._ends[topic] = 0 if row is None or row[0] is None else row[0] + 1


class Transaction:
    """Changes that are committed together. Made by `Store.transaction`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, ends: dict[str, int]) -> None:
        self._connection = connection
        self._ends = ends

    def append(self, topic: str, messages: Sequence[bytes], *, skip_known: bool = False) -> Appended:
        """Append encoded records to a topic. With `skip_known`, records whose identity is in the log already are left out.

        The messages have been accepted: one that does not decode is a fault of ours and raises its RecordError.
        """
        done = Appended()
        if not messages:
            return done
        batch = decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        if skip_known:
            batch.frames = {name: self._unknown(schema_of(name), frame, topic) for name, frame in batch.frames.items()}
        fresh = sum(frame.height for frame in batch.frames.values())
        done.known = len(messages) - fresh
        positions = pl.concat([frame[INDEX] for frame in batch.frames.values()]).sort()
        for name, frame in batch.frames.items():
            offsets = positions.search_sorted(frame[INDEX]).cast(pl.Int64) + self._ends[topic]
            done.written[schema_of(name).table] = self._insert(schema_of(name), frame.drop(INDEX), topic, offsets)
        self._ends[topic] += fresh
        return done

    def _unknown(self, schema: RecordSchema, frame: pl.DataFrame, topic: str) -> pl.DataFrame:
        """The rows whose identity is neither in the log nor earlier in the frame."""
        identity = list(schema.identity)
        fresh = frame.unique(subset=identity, keep="first", maintain_order=True)
        # The narrowest column that both sides share bounds what is read of a large table.
        scope = "session_id" if "session_id" in frame.columns else identity[0]
        columns = ", ".join(f"known.{quote(name)}" for name in identity)
        with self._registered(fresh.select(scope).unique()):
            statement = (
                f"SELECT {columns} FROM {full_name(schema)} AS known SEMI JOIN {BATCH} USING ({quote(scope)}) "
                "WHERE known._topic = $topic"
            )
            known = fetch(self._connection, statement, {"topic": topic})
        if not known.height:
            return fresh
        times = [name for name in identity if fresh.schema[name].is_temporal()]
        known = known.with_columns(pl.col(name).dt.replace_time_zone("UTC") for name in times)
        return fresh.join(known, on=identity, how="anti", maintain_order="left")

    def _insert(self, schema: RecordSchema, frame: pl.DataFrame, topic: str, offsets: pl.Series) -> int:
        if not frame.height:
            return 0
        placed = frame.with_columns(
            pl.lit(topic).alias("_topic"), pl.lit(PARTITION, pl.Int32).alias("_partition"), offsets.alias("_offset")
        )
        return self._insert_frame(schema, placed)

    def _insert_frame(self, schema: RecordSchema, frame: pl.DataFrame) -> int:
        with self._registered(frame):
            row = self._connection.execute(f"INSERT INTO {full_name(schema)} BY NAME SELECT * FROM {BATCH}").fetchone()
        written = int(row[0]) if row else 0
        if written != frame.height:
            raise StoreError(f"{schema.table}: {written} of {frame.height} rows were written")
        return written

    @contextlib.contextmanager
    def _registered(self, frame: pl.DataFrame) -> Iterator[None]:
        self._connection.register(BATCH, ArrowStream(frame))
        try:
            yield
        finally:
            self._connection.unregister(BATCH)

    def watermark(self, consumer: str, topic: str) -> int:
        """The position the consumer reads next."""
        row = self._connection.execute(
            f"SELECT next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = $consumer AND topic = $topic",
            {"consumer": consumer, "topic": topic},
        ).fetchone()
        return 0 if row is None else int(row[0])

    def set_watermark(self, consumer: str, topic: str, next_position: int) -> None:
        """Move a consumer's watermark."""
        self._replace([Watermark(consumer=consumer, topic=topic, partition=PARTITION, next_position=next_position)])

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage for those of the keys that have one."""
        with self._registered(pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
            rows = self._connection.execute(
                f"SELECT key, state FROM {full_name(schema_of('StageState'))} SEMI JOIN {BATCH} USING (key) WHERE stage = $stage",
                {"stage": stage},
            ).fetchall()
        return dict(rows)

    def set_states(self, stage: str, states: Mapping[str, bytes], next_position: int) -> None:
        """Replace the states of a stage for the given keys."""
        self._replace(
            [StageState(stage=stage, key=key, next_position=next_position, state=state) for key, state in states.items()]
        )

    def set_progress(self, progress: Sequence[ImportProgress]) -> None:
        """Note how far files have been imported."""
        self._replace(progress)

    def _replace(self, records: Sequence[Record]) -> None:
        """Put records of one internal type in place of those with the same identity."""
        if not records:
            return
        schema = schema_of(type(records[0]).__name__)
        frame = decode_batch([encode(record) for record in records]).frames[schema.name].drop(INDEX)
        matches = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in schema.identity)
        with self._registered(frame):
            self._connection.execute(f"DELETE FROM {full_name(schema)} AS old USING {BATCH} AS new WHERE {matches}")
        self._insert(schema, frame, "", pl.zeros(frame.height, dtype=pl.Int64, eager=True))

    def forget(self, tables: Sequence[str]) -> None:
        """Delete every row of the named tables: they are derived and will be made again."""
        by_table = {schema.table: schema for schema in current_schemas().values()}
        for table in tables:
            self._connection.execute(f"DELETE FROM {full_name(by_table[table])}")
            for topic in by_table[table].topics:
                self._ends[topic] = 0


def fetch(connection: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """The result of a query as a frame."""
    return pl.DataFrame(connection.sql(statement, params=dict(values or {})))


def _connect(path: Path | None) -> duckdb.DuckDBPyConnection:
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=settings)
    except duckdb.Error as error:
        raise StoreError(f"{path}: {str(error).splitlines()[0]}", hint=_open_hint(str(error))) from error
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _open_hint(message: str) -> str:
    if "lock" in message.lower():
        return "Another process has the file: stop it, or ask it instead (one process owns a DuckDB file)."
    if "wal" in message.lower():
        return "The write-ahead log is damaged: move the .wal file aside and import again; what is in the file stays."
    return "Check that the path is a DuckDB file of this version and that the folder can be written to."
