"""The DuckDB file: append-only tables, stage state and watermarks, changed together or not at all.

One process owns the file (`analytics.store.connection`); within it one `Store` writes, and any number of cursors read. Every change
happens in a transaction: the rows of a batch, the states of the stage that made them and its watermark are committed together. A kill
at any moment therefore loses no committed record, and the restarted stage writes none twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from analytics.identity.duplicate_matching import Met
from analytics.store.connection import FileLock, connect, fetch, store_error
from analytics.store.positions import next_stored, stored_ends
from analytics.store.tables import COMMENT, DIGEST, LOG, columns_of, full_name, literal, migration_statements, quote
from analytics.store.transaction import ALL_STAGES, Appended, Transaction
from schemas.lazy import duckdb, pl
from schemas.registry import current_schemas, schema_of, topics

_WAITED = 60.0
"""Seconds that a checkpoint waits for writes to finish."""
_GATHERED = "256MB"
"""Size of the write-ahead log that triggers a checkpoint; DuckDB's default is a sixteenth of it."""
_HAS_LOG = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"
__all__ = ["Appended", "Store", "Transaction", "fetch"]


class Store:
    """An open DuckDB file, or a database in memory when `path` is None.

    StoreError if the file cannot be opened: in use, damaged, or written by a newer version.
    """

    def __init__(self, path: Path | None, *, is_browsed: bool = True) -> None:
        """`is_browsed` is False for an internal working file, which needs no comments, no macros for sums, and no compression."""
        self.path = path
        self._has_macros = is_browsed
        self._is_browsed = is_browsed and path is not None
        self._lock = threading.RLock()
        self._cursors = threading.Lock()
        self._ends: dict[str, int] = {}
        self.commits = 0
        """The number of committed transactions, for caches of the tables' contents."""
        self._state_changes: Counter[str] = Counter()
        self.met = Met()
        """Recently matched duplicates, for callers that classify a record before they write it."""
        with contextlib.ExitStack() as opening:
            if path is not None:
                opening.enter_context(FileLock(path))
            self._connection = opening.enter_context(contextlib.closing(connect(path)))
            try:
                if not is_browsed:
                    self._connection.execute("SET GLOBAL force_compression = 'uncompressed'")
                self._migrate()
            except duckdb.Error as error:
                raise store_error(path, error) from error
            self._opened = opening.pop_all()

    def close(self) -> None:
        """Close the file."""
        # DuckDB does not close a connection that another thread is using, and a thread may ask for a cursor at any time.
        with self._lock, self._cursors:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for one thread to read with."""
        with self._cursors:
            return self._connection.cursor()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit all changes of the transaction together at the end, or none of them if an exception leaves the context."""
        with self._lock:
            ends = dict(self._ends)
            self._connection.begin()
            try:
                transaction = Transaction(self._connection, ends, self.met)
                yield transaction
                self._connection.commit()
                self._ends = ends
                self.commits += 1
                self._state_changes.update(transaction.changed_stages)
            except BaseException:
                with contextlib.suppress(duckdb.Error):  # a fatal error leaves nothing to roll back
                    self._connection.rollback()
                with contextlib.suppress(duckdb.Error):  # a failed commit may still be durable: check
                    self._ends = stored_ends(self._connection)
                raise

    def state_changes(self, stages: Iterable[str]) -> int:
        """Count, for each stage, the transactions that changed its states from outside the log. Caches of states compare the counts."""
        return sum(self._state_changes[stage] for stage in (*stages, ALL_STAGES))

    def give_memory_back(self) -> None:
        """Return freed memory to the system in the background; for long-running processes."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute("SET GLOBAL allocator_background_threads = true")

    def gather_writes(self) -> None:
        """Checkpoint less often; for many large commits in a row.

        Each checkpoint rewrites the last rows of every table, so fewer, larger ones cost less.
        """
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute(f"SET GLOBAL checkpoint_threshold = '{_GATHERED}'")

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the file as soon as no write is in progress; DuckDB refuses during one, and writes are short."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed  # noqa: PLC0415 - most commands only read

        refused = retry_if_exception_type(duckdb.TransactionException)
        for attempt in Retrying(retry=refused, stop=stop_after_delay(_WAITED), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                self.try_checkpoint()

    def try_checkpoint(self) -> None:
        """Fold the write-ahead log into the file; duckdb.TransactionException while a write is in progress."""
        with self._lock:
            self._connection.execute("CHECKPOINT")

    def count(self, table: str) -> int:
        """Count the rows of a record type's view, which has the latest revision of each identity."""
        row = self.cursor().execute(f"SELECT count(*) FROM main.{quote(table)}").fetchone()
        return int(row[0]) if row else 0

    def end_of(self, topic: str) -> int:
        """The position after the topic's last committed record; never waits."""
        return self._ends[topic]

    def read(self, topic: str, start: int, limit: int) -> dict[str, pl.DataFrame]:
        """Up to `limit` positions of a topic from `start`: one frame per record type, with `_offset`, in order.

        All frames come from one snapshot: if a record is included, so is every record committed before it.
        """
        if limit <= 0:
            return {}
        with contextlib.closing(self.cursor()) as cursor:
            cursor.begin()
            return _read(cursor, topic, start, limit)

    def next_position(self, topic: str, start: int) -> int:
        """The position of the first record from `start` on, or the topic's end; records in between were deleted."""
        end = self.end_of(topic)
        with contextlib.closing(self.cursor()) as cursor:
            following = next_stored(cursor, topic, start)
        return end if following is None else min(following, end)

    def _migrate(self) -> None:
        # A new file is not asked for its tables and ends: these questions take as long as creating the tables.
        is_new = not self._connection.execute(_HAS_LOG, [LOG]).fetchall()
        existing = {} if is_new else _existing(self._connection)
        made = None
        with contextlib.suppress(duckdb.CatalogException):  # files of earlier versions have no digest
            ((made,),) = self._connection.execute(f"SELECT {LOG}.{DIGEST}()").fetchall()
        # Comments are for people who browse a file, and take most of the time of creating the tables.
        wanted = migration_statements(existing, made, has_macros=self._has_macros)
        statements = [one for one in wanted if self._is_browsed or not one.startswith(COMMENT)]
        if statements:
            with self.transaction() as transaction:
                for statement in [f"CREATE SCHEMA IF NOT EXISTS {LOG}", *statements]:
                    self._connection.execute(statement)
                if schema_of("RunNumber").table not in existing:
                    transaction.number_all_runs()
                if "sessions" not in existing.get(schema_of("IncidentOutline").table, ()):
                    transaction.outline_all_incidents()
            # A schema change in the write-ahead log slows down the next start, so fold it in while the log holds nothing else.
            self.try_checkpoint()
        self._ends = dict.fromkeys(topics(), 0) if is_new else stored_ends(self._connection)


def _existing(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """The existing tables of the log, each with its columns and their types."""
    try:
        rows = connection.execute(
            " UNION ALL ".join(
                f"SELECT {literal(schema.table)}, name, type FROM pragma_table_info({literal(full_name(schema))})"
                for schema in current_schemas().values()
            )
        ).fetchall()
    except (
        duckdb.CatalogException
    ):  # A table is missing. Asking the catalogue is slower, because DuckDB then builds all of its own views.
        rows = connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = ?", [LOG]
        ).fetchall()
    existing: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        existing.setdefault(table, {})[column] = kind
    return existing


def _read(cursor: duckdb.DuckDBPyConnection, topic: str, start: int, limit: int) -> dict[str, pl.DataFrame]:
    frames = {}
    for name in topics()[topic]:
        schema = schema_of(name)
        columns = ", ".join(
            f"{quote(column)}::{kind} AS {quote(column)}"
            for column, kind in columns_of(schema, timestamp="TIMESTAMPTZ").items()
        )
        # Filter by topic too: a table can hold records of two topics.
        statement = (
            f"SELECT {columns}, _offset FROM {full_name(schema)} "
            "WHERE _offset >= $start AND _offset < $end AND _topic = $topic ORDER BY _offset"
        )
        values = {"start": start, "end": start + limit, "topic": topic}
        frame = fetch(cursor, statement, values)
        if frame.height:
            # DuckDB names the zone Etc/UTC; other libraries name it UTC.
            frames[name] = frame.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))
    return frames
