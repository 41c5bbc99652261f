"""The DuckDB file: append-only tables, stage state and watermarks, changed together or not at all.

One process owns the file (`analytics.store.connection`); within it one `Store` writes, and any number of cursors read. Every change
happens in a transaction: the rows of a batch, the states of the stage that made them and the watermark of what it read are committed
together, so that a kill at any moment loses nothing that was committed and doubles nothing when the work is taken up again.
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
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import current_schemas, schema_of, topics

_WAITED = 60.0
"""Seconds that a checkpoint waits for writes to be over."""
_GATHERED = "256MB"
"""Size of the write-ahead log from which it is folded in; DuckDB's own setting is a sixteenth of that."""
_HAS_LOG = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"
__all__ = ["Appended", "Store", "Transaction", "fetch"]


class Store:
    """An open DuckDB file, or a database in memory when `path` is None.

    StoreError when the file cannot be opened: in use, damaged, or written by a newer version.
    """

    def __init__(self, path: Path | None, *, is_browsed: bool = True) -> None:
        """`is_browsed` is False for a working file of ours: it needs no comments, no macros for sums, and no compression."""
        self.path = path
        self._has_macros = is_browsed
        self._is_browsed = is_browsed and path is not None
        self._lock = threading.RLock()
        self._cursors = threading.Lock()
        self._ends: dict[str, int] = {}
        self.commits = 0
        """How many transactions were committed: for caches of what the tables hold."""
        self._state_changes: Counter[str] = Counter()
        self.met = Met()
        """Recently matched duplicates, for callers that ask what a record is before they write it."""
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
        """Close the file; what is committed stays."""
        # DuckDB does not close a connection while another thread is inside a call of it: a cursor may be asked for at any time.
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
        """Everything done with the transaction is committed together at the end, or not at all when an exception leaves it."""
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
                with contextlib.suppress(duckdb.Error):  # after a fatal error there is nothing to roll back
                    self._connection.rollback()
                with contextlib.suppress(duckdb.Error):  # a commit can fail and yet be durable: ask
                    self._ends = stored_ends(self._connection)
                raise

    def state_changes(self, stages: Iterable[str]) -> int:
        """Count the transactions that changed states of these stages otherwise than from the log, per stage: for caches of states."""
        return sum(self._state_changes[stage] for stage in (*stages, ALL_STAGES))

    def give_memory_back(self) -> None:
        """Have memory that statements have freed given back to the system in the background: for a process that stays."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute("SET GLOBAL allocator_background_threads = true")

    def gather_writes(self) -> None:
        """Fold the write-ahead log into the file less often: for many large commits in a row.

        Each folding writes the last rows of every table again, so it costs less if more of them have come.
        """
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute(f"SET GLOBAL checkpoint_threshold = '{_GATHERED}'")

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the file once no write is under way: DuckDB refuses while one is, and each is over soon."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed  # noqa: PLC0415 - most commands only read

        refused = retry_if_exception_type(duckdb.TransactionException)
        for attempt in Retrying(retry=refused, stop=stop_after_delay(_WAITED), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                self.try_checkpoint()

    def try_checkpoint(self) -> None:
        """Fold the write-ahead log into the file; duckdb.TransactionException while a write is under way."""
        with self._lock:
            self._connection.execute("CHECKPOINT")

    def count(self, table: str) -> int:
        """Count the things that a record type's view shows: each once, in its latest revision."""
        row = self.cursor().execute(f"SELECT count(*) FROM main.{quote(table)}").fetchone()
        return int(row[0]) if row else 0

    def end_of(self, topic: str) -> int:
        """The position after the last record of the topic that is committed; never waits."""
        return self._ends[topic]

    def read(self, topic: str, start: int, limit: int) -> dict[str, pl.DataFrame]:
        """Up to `limit` positions of a topic from `start`: one frame a record type, with `_offset`, in order.

        All frames are of one moment: no record is missing that was committed before one that is there.
        """
        if limit <= 0:
            return {}
        with contextlib.closing(self.cursor()) as cursor:
            cursor.begin()
            return _read(cursor, topic, start, limit)

    def next_position(self, topic: str, start: int) -> int:
        """The position of the first record from `start` on, or the topic's end: what lies between was deleted."""
        end = self.end_of(topic)
        with contextlib.closing(self.cursor()) as cursor:
            following = next_stored(cursor, topic, start)
        return end if following is None else min(following, end)

    def _migrate(self) -> None:
        # What there is, and where it ends, are questions that take as long as making the tables of a new file.
        is_new = not self._connection.execute(_HAS_LOG, [LOG]).fetchall()
        existing = {} if is_new else _existing(self._connection)
        made = None
        with contextlib.suppress(duckdb.CatalogException):  # a file of before it said so
            ((made,),) = self._connection.execute(f"SELECT {LOG}.{DIGEST}()").fetchall()
        # Comments are for who browses a file, and take most of the time that making the tables does.
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
            # A schema change in the write-ahead log costs the next start; fold it in while nothing else is there.
            self.try_checkpoint()
        self._ends = dict.fromkeys(topics(), 0) if is_new else stored_ends(self._connection)


def _existing(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """Each table of the log that there is, with its columns and their types."""
    try:
        rows = connection.execute(
            " UNION ALL ".join(
                f"SELECT {literal(schema.table)}, name, type FROM pragma_table_info({literal(full_name(schema))})"
                for schema in current_schemas().values()
            )
        ).fetchall()
    except duckdb.CatalogException:  # one is not there; to ask for what is there has DuckDB make all views of its own
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
        # The topic's own name is compared too: a table can take records from two topics.
        statement = (
            f"SELECT {columns}, _offset FROM {full_name(schema)} "
            "WHERE _offset >= $start AND _offset < $end AND _topic = $topic ORDER BY _offset"
        )
        values = {"start": start, "end": start + limit, "topic": topic}
        frame = fetch(cursor, statement, values)
        if frame.height:
            # DuckDB calls the zone Etc/UTC, everything else calls it UTC.
            frames[name] = frame.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))
    return frames
