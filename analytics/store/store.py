"""The DuckDB file: append-only tables, stage states and watermarks, which change atomically.

One process owns the file (`analytics.store.connection`). In it, one `Store` writes and any number of cursors read. Every change
is part of a `Transaction`, which commits the rows of a batch together with the states of the stage that made them, its watermark
and the progress of imports. A kill at any moment therefore loses no committed record, and a restarted stage writes none twice.

The `Outbox` keeps alerts until they are delivered, also across restarts.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Self

from analytics.deletion.deleting import (
    ERASURES,
    delete_at,
    delete_derived,
    delete_flushed,
    delete_states,
    delete_sums,
    delete_tables,
    drop_erased,
    find_days,
    read_erasures,
)
from analytics.identity.duplicate_matching import CONTENT_COLUMNS, KnownIdentities, RecentMatches, find_new_rows
from analytics.queries import query_records, query_rows
from analytics.store.connection import FileLock, connect, fetch, store_error
from analytics.store.positions import (
    COLD,
    COMPACTION,
    END,
    RETENTION,
    RUN_NUMBERS,
    WRITE_AHEAD_LOG,
    find_next_position,
    move_watermarks,
    read_ends,
    read_states,
    read_watermarks,
)
from analytics.store.tables import (
    BATCH,
    COMMENT,
    DIGEST,
    LOG,
    PARTITION,
    column_types,
    full_name,
    insert,
    insert_at,
    literal,
    migration_statements,
    quote,
    replace,
)
from analytics.sums.kept import ALL_SUMS
from analytics.sums.list_sums import (
    delete_stale_numbers,
    delete_stale_outlines,
    number_all_runs,
    number_runs,
    rebuild_outlines,
    write_outlines,
)
from analytics.sums.search_index import SEARCH, delete_words, delete_words_from
from schemas.codec.arrow import INDEX, decode_batch, decode_own
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from schemas.records import Alert, ImportProgress, Incident, ProjectCheck, StageState, Watermark
from schemas.registry import current_schemas, schema_of, topics

__all__ = ["BATCH", "CONTENT_COLUMNS", "AppendResult", "Outbox", "Store", "Transaction", "fetch"]
ALL_STAGES = ""
SINK_PARTITION = -1
"""Partition of dead letters that the Kafka sink made from records it could not store. They are on no topic."""
Partition = tuple[str, int]
"""The topic and number of a partition."""
_DIAGNOSIS = "Diagnosis"
_INCIDENT = "Incident"
_EXCHANGE = "Exchange"
_PERMANENT_CONSUMERS = (
    WRITE_AHEAD_LOG,
    END,
    RETENTION,
    COLD,
    COMPACTION,
    RUN_NUMBERS,
    SEARCH,
    *(sums.consumer for sums in ALL_SUMS),
)
"""Consumers whose watermarks stay when all derived rows are rebuilt."""


@dataclass
class AppendResult:
    """The result of an append: the rows written per table, and the number of records that the topic already had (`known`).

    `conflicts` are the indexes of messages that were not written because their identity is stored with other content. `differing`
    names the fields that differ from the stored record. `frames` has the written rows by record type: the record's fields, the index
    of the message (INDEX) and `_offset`.
    """

    written: dict[str, int] = field(default_factory=dict)
    known: int = 0
    conflicts: list[int] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)
    differing: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)


class Transaction:
    """Changes that are committed together. `Store.transaction` creates it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, ends: dict[str, int], recent_matches: RecentMatches) -> None:
        self._connection = connection
        self._ends = ends
        self._recent_matches = recent_matches
        self.changed_stages: set[str] = set()
        """The stages whose states the transaction changes, except by states from the log. ALL_STAGES stands for every stage."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The transaction's connection, for statements that derive rows inside the database."""
        return self._connection

    def append(
        self,
        topic: str,
        messages: Sequence[bytes],
        *,
        skip_known: bool = False,
        are_own: bool = False,
    ) -> AppendResult:
        """Append encoded records to a topic. With `skip_known`, skip records that the topic already has.

        A record is known by its identity and its revision, if it has one. If CONTENT_COLUMNS has its type, a record with other content
        under a known identity is a conflict and is skipped too; of several such messages the first counts. `are_own` skips the checks
        of messages that this process encoded.

        Raises RecordError for a message that does not decode.
        """
        result = AppendResult()
        if not messages:
            return result
        batch = decode_own(messages) if are_own else decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        batch.frames.update(self._drop_erased(batch.frames))
        if skip_known:
            for name, frame in batch.frames.items():
                batch.frames[name], conflicts = find_new_rows(
                    self._connection, schema_of(name), frame, topic, recent_matches=self._recent_matches
                )
                result.differing |= conflicts
            result.conflicts += sorted(result.differing)
        result.known = len(messages) - sum(frame.height for frame in batch.frames.values()) - len(result.conflicts)
        self._write(topic, batch.frames, result)
        return result

    def _write(self, topic: str, frames: Mapping[str, pl.DataFrame], result: AppendResult) -> None:
        """Write rows at the end of a topic, in the order of INDEX, and add them to the result."""
        positions = pl.concat([frame[INDEX] for frame in frames.values()]).sort()
        for name, frame in frames.items():
            offsets = positions.search_sorted(frame[INDEX]).cast(pl.Int64) + self._ends[topic]
            result.written[schema_of(name).table] = insert_at(
                self._connection, schema_of(name), frame.drop(INDEX), topic, offsets
            )
            if frame.height:
                result.frames[name] = frame.with_columns(offsets.alias("_offset"))
        self._ends[topic] += len(positions)
        self._derive(result.frames)

    def append_at(self, topic: str, start: int, messages: Sequence[bytes], *, are_own: bool = False) -> None:
        """Append encoded records at consecutive offsets from `start`; `are_own` as for `append`.

        Records of erased sessions are skipped, and their offsets stay unused. Raises StoreError if an offset was assigned before.
        """
        if start < self._ends[topic]:
            raise StoreError(f"{topic}: offset {start} is already assigned; the next one is {self._ends[topic]}")
        batch = decode_own(messages) if are_own else decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        frames = self._drop_erased(batch.frames)
        written: dict[str, pl.DataFrame] = {}
        for name, frame in frames.items():
            offsets = frame[INDEX] + start
            insert_at(self._connection, schema_of(name), frame.drop(INDEX), topic, offsets)
            if frame.height:
                written[name] = frame.with_columns(offsets.alias("_offset"))
        self._ends[topic] = start + len(messages)
        if sum(frame.height for frame in frames.values()) < len(messages):
            self.set_watermark(END, topic, self._ends[topic])
        self._derive(written)

    def flush(self, topic: str, frames: Mapping[str, pl.DataFrame], seen: KnownIdentities) -> AppendResult:
        """Write decoded records of another log at their positions there (columns INDEX, `_partition` and `_offset`).

        Known records are skipped and conflicts are reported, as in `append`. `seen` must have read the topic to its end.
        """
        result = AppendResult()
        for name, frame in self._drop_erased(frames).items():
            schema = schema_of(name)
            fresh, conflicts = find_new_rows(self._connection, schema, frame, topic, seen)
            result.known += frame.height - fresh.height - len(conflicts)
            result.conflicts += conflicts
            result.written[schema.table] = insert(
                self._connection, schema, fresh.drop(INDEX).with_columns(pl.lit(topic).alias("_topic"))
            )
            if fresh.height:
                result.frames[name] = fresh
                self._ends[topic] = max(self._ends[topic], 1 + _last_offset(fresh))
        result.conflicts.sort()
        self._derive(result.frames)
        return result

    def number_all_runs(self) -> None:
        """Number the runs of a file that was written before run numbers existed."""
        self._store_next_numbers(number_all_runs(self._connection))

    def _drop_erased(self, frames: Mapping[str, pl.DataFrame]) -> Mapping[str, pl.DataFrame]:
        return drop_erased(self._connection, frames) if self._ends[ERASURES] else frames

    def outline_all_incidents(self) -> None:
        """Build the outlines of the incidents of a file that was written before outlines existed."""
        rebuild_outlines(self._connection)

    def _derive(self, written: Mapping[str, pl.DataFrame]) -> None:
        """Derive run numbers and incident outlines from the written rows."""
        if _DIAGNOSIS in written:
            self._store_next_numbers(number_runs(self._connection, written[_DIAGNOSIS]))
        if _INCIDENT in written:
            write_outlines(self._connection, written[_INCIDENT])

    def _store_next_numbers(self, following: Mapping[str, int]) -> None:
        self.set_watermarks(RUN_NUMBERS, {(project, PARTITION): number for project, number in following.items()})

    def delete_from(self, topic: str, starts: Mapping[int, int]) -> None:
        """Delete a topic's rows from these positions on, by partition, and the dead letters made from them."""
        delete_flushed(self._connection, topic, starts, SINK_PARTITION)
        self._delete_sums([topic])
        if topic in schema_of(_EXCHANGE).topics:
            self._delete_words_from(starts)
        if topic in schema_of(_INCIDENT).topics:
            delete_stale_outlines(self._connection)
        self._ends.update(read_ends(self._connection))

    def read_identities(self, topic: str, seen: KnownIdentities) -> None:
        """Read the identities of the topic into `seen`."""
        seen.read(self._connection, topic, self._ends[topic])

    def end_of(self, topic: str) -> int:
        """Return the position after the topic's last record."""
        return self._ends[topic]

    def watermark(self, consumer: str, topic: str) -> int:
        """Return the consumer's next position in a topic of one partition."""
        return self.watermarks(consumer).get((topic, PARTITION), 0)

    def watermarks(self, consumer: str) -> dict[Partition, int]:
        """Return the consumer's next positions, by topic and partition."""
        return read_watermarks(self._connection, consumer)

    def set_watermark(self, consumer: str, topic: str, next_position: int) -> None:
        """Move a consumer's watermark, in a topic of one partition."""
        self.set_watermarks(consumer, {(topic, PARTITION): next_position})

    def set_watermarks(self, consumer: str, positions: Mapping[Partition, int]) -> None:
        """Move watermarks of a consumer."""
        if move_watermarks(self._connection, consumer, positions):
            return
        replace(
            self._connection,
            [
                Watermark(consumer=consumer, topic=topic, partition=partition, next_position=position)
                for (topic, partition), position in positions.items()
            ],
        )

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the states of a stage for the keys that have one."""
        return read_states(self._connection, stage, keys)

    def set_states(self, stage: str, states: Mapping[str, bytes], next_position: int) -> None:
        """Replace the states of a stage for the given keys."""
        if states:
            self.changed_stages.add(stage)
        replace(
            self._connection,
            [StageState(stage=stage, key=key, next_position=next_position, state=state) for key, state in states.items()],
        )

    def set_states_of_stages(self, states: Mapping[str, Mapping[str, bytes]], next_positions: Mapping[str, int]) -> None:
        """Replace states of several stages, by stage and key, with states from the log.

        `next_positions` are by stage. States of erased sessions are skipped. An empty state deletes the stored one.
        """
        if self._ends[ERASURES]:
            erased = read_erasures(self._connection)
            states = {
                stage: {key: state for key, state in changed.items() if not erased.covers(*key.split("/", 1))}
                for stage, changed in states.items()
            }
        for stage, changed in states.items():
            deleted = [key for key, state in changed.items() if not state]
            if deleted:
                delete_states(self._connection, deleted, [stage])
        replace(
            self._connection,
            [
                StageState(stage=stage, key=key, next_position=next_positions[stage], state=state)
                for stage, changed in states.items()
                for key, state in changed.items()
                if state
            ],
        )

    def set_progress(self, progress: Sequence[ImportProgress]) -> None:
        """Record the import progress of files."""
        replace(self._connection, progress)

    def set_alerts(self, alerts: Sequence[Alert]) -> None:
        """Queue alerts, replacing their earlier versions."""
        replace(self._connection, alerts)

    def set_checks(self, checks: Sequence[ProjectCheck]) -> None:
        """Record the latest checks of projects, unless a later one is stored."""
        latest = dict(
            self._connection.execute(f"SELECT project, checked_at FROM {full_name(schema_of('ProjectCheck'))}").fetchall()
        )
        newer = [
            check
            for check in checks
            if check.project not in latest or latest[check.project] <= check.checked_at.replace(tzinfo=None)
        ]
        replace(self._connection, newer)

    def known_alerts(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that belong to an alert in the outbox."""
        rows = self._connection.execute(
            f"SELECT alert_id FROM {full_name(schema_of('Alert'))} WHERE alert_id IN (SELECT unnest(?))", [list(ids)]
        ).fetchall()
        return {alert_id for (alert_id,) in rows}

    def delete_at(self, name: str, positions: pl.DataFrame) -> int:
        """Delete the rows of a record type at these positions; return their number. Their positions are never assigned again."""
        if not positions.height:
            return 0
        self.set_watermarks(END, {(topic, PARTITION): self._ends[topic] for topic in positions["_topic"].unique().to_list()})
        cold_until = {project: position for (project, _), position in self.watermarks(COLD).items()}
        complete_since = {project: position for (project, _), position in self.watermarks(RETENTION).items()}
        days = {}
        for sums in ALL_SUMS:
            time = sums.deleted.get(name) or sums.outlived.get(name)
            if time is not None:
                frozen_until = cold_until if name in sums.deleted else _latest(cold_until, complete_since)
                deleted_days = find_days(self._connection, name, time, positions)
                days[sums] = {key for key in deleted_days if _day_microseconds(key[1]) >= frozen_until.get(key[0], 0)}
        removed = delete_at(self._connection, name, positions)
        for sums, changed in days.items():
            sums.recompute(self._connection, changed)
        if name == _EXCHANGE:
            delete_words(self._connection, positions)
        if name == _DIAGNOSIS:
            delete_stale_numbers(self._connection)
        if name == _INCIDENT:
            delete_stale_outlines(self._connection)
        return removed

    def delete_states_of(self, keys: Sequence[str], stages: Sequence[str]) -> None:
        """Delete the states of these sessions in these stages."""
        self.changed_stages.update(stages)
        delete_states(self._connection, keys, stages)

    def clear_tables(self, tables: Sequence[str]) -> None:
        """Delete all rows of derived tables, which will be rebuilt."""
        self._delete_sums(_topics_of(tables))
        if schema_of("StageState").table in tables:
            self.changed_stages.add(ALL_STAGES)
        delete_tables(self._connection, tables)
        if schema_of(_EXCHANGE).table in tables:
            self._delete_words_from({partition: 0 for _, partition in self.watermarks(SEARCH)})
        if schema_of(_INCIDENT).table in tables:
            delete_stale_outlines(self._connection)
        self._ends.update(read_ends(self._connection))

    def _delete_words_from(self, starts: Mapping[int, int]) -> None:
        """Delete the words of exchanges from these positions on, by partition, which the next refresh reads again."""
        indexed = self.watermarks(SEARCH)
        next_positions = delete_words_from(self._connection, starts)
        lowered = {
            (topic, partition): next_positions[partition]
            for (topic, partition), position in indexed.items()
            if next_positions.get(partition, position) < position
        }
        if lowered:
            self.set_watermarks(SEARCH, lowered)

    def clear_derived(self, tables: Sequence[str], but: str, stages: Sequence[str] = ()) -> None:
        """Delete the rows that stages derived, and their watermarks, except those of `stages` and of sessions with a state in `but`."""
        self._delete_sums(_topics_of(tables))
        self.changed_stages.add(ALL_STAGES)
        delete_derived(self._connection, tables, but, stages, (*_PERMANENT_CONSUMERS, *stages))
        self._ends.update(read_ends(self._connection))

    def _delete_sums(self, topics: Iterable[str]) -> None:
        """Delete the sums of these topics and count the deletion, so that a concurrent refresh does not mark its days as done."""
        deleted_topics = set(topics)
        for sums in ALL_SUMS:
            if deleted_topics.intersection(sums.topics):
                deletions = self.watermark(sums.consumer, "")
                delete_sums(self._connection, sums)
                self.set_watermark(sums.consumer, "", deletions + 1)


def _latest(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return the higher position of each project."""
    return {project: max(first.get(project, 0), second.get(project, 0)) for project in first.keys() | second.keys()}


def _day_microseconds(day: date) -> int:
    """Return the beginning of a UTC day in microseconds since 1970."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000


def _topics_of(tables: Sequence[str]) -> Iterator[str]:
    """Return the topics whose records are stored in these tables."""
    return (topic for schema in current_schemas().values() if schema.table in tables for topic in schema.topics)


def _last_offset(frame: pl.DataFrame) -> int:
    """Return the highest position in a frame that is not empty."""
    return int(frame["_offset"].max())  # type: ignore[arg-type]  # a column of integers


_CHECKPOINT_TIMEOUT = 60.0
"""Maximum number of seconds that a checkpoint waits for writes."""
_LARGE_CHECKPOINT = "256MB"
"""Size of the write-ahead log that triggers a checkpoint during bulk writes: 16 times DuckDB's default."""
_HAS_LOG = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"


class Store:
    """An open DuckDB file, or a database in memory when `path` is None.

    Raises StoreError if the file cannot be opened: in use, damaged, or written by a newer version.
    """

    def __init__(self, path: Path | None, *, is_browsed: bool = True) -> None:
        """`is_browsed` is False for an internal file, which needs no comments, no macros for sums and no compression."""
        self.path = path
        self._has_macros = is_browsed
        self._is_browsed = is_browsed and path is not None
        self._lock = threading.RLock()
        self._cursors = threading.Lock()
        self._ends: dict[str, int] = {}
        self.commits = 0
        """The number of committed transactions, by which caches detect changes."""
        self._state_changes: Counter[str] = Counter()
        self.recent_matches = RecentMatches()
        """Recent pairs of duplicates, for callers that classify a record before they write it."""
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
        # DuckDB does not close a connection that another thread is using, and a thread may open a cursor at any time.
        with self._lock, self._cursors:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Open a connection for one thread to read with."""
        with self._cursors:
            return self._connection.cursor()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Start a transaction. It commits when the context exits, or rolls back if an exception leaves the context."""
        with self._lock:
            ends = dict(self._ends)
            self._connection.begin()
            try:
                transaction = Transaction(self._connection, ends, self.recent_matches)
                yield transaction
                self._connection.commit()
                self._ends = ends
                self.commits += 1
                self._state_changes.update(transaction.changed_stages)
            except BaseException:
                with contextlib.suppress(duckdb.Error):  # a fatal error leaves nothing to roll back
                    self._connection.rollback()
                with contextlib.suppress(duckdb.Error):  # a failed commit may still be durable: check
                    self._ends = read_ends(self._connection)
                raise

    def state_changes(self, stages: Iterable[str]) -> int:
        """Return the number of transactions that changed states of these stages from outside the log, for caches of states."""
        return sum(self._state_changes[stage] for stage in (*stages, ALL_STAGES))

    def release_memory(self) -> None:
        """Return freed memory to the system in the background. Long-running processes need it."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute("SET GLOBAL allocator_background_threads = true")

    def checkpoint_rarely(self) -> None:
        """Checkpoint less often, for many large commits in a row.

        Each checkpoint rewrites the last rows of every table, so fewer and larger checkpoints cost less.
        """
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute(f"SET GLOBAL checkpoint_threshold = '{_LARGE_CHECKPOINT}'")

    def checkpoint_as_usual(self) -> None:
        """Undo `checkpoint_rarely`."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute("RESET GLOBAL checkpoint_threshold")

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the file. Waits for writes in progress, during which DuckDB refuses a checkpoint."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed  # noqa: PLC0415 - most commands only read

        refused = retry_if_exception_type(duckdb.TransactionException)
        for attempt in Retrying(retry=refused, stop=stop_after_delay(_CHECKPOINT_TIMEOUT), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                self.try_checkpoint()

    def try_checkpoint(self) -> None:
        """Fold the write-ahead log into the file. Raises duckdb.TransactionException while a write is in progress."""
        with self._lock:
            self._connection.execute("CHECKPOINT")

    def count(self, table: str) -> int:
        """Return the number of rows of a record type's view, which has the current revision of each identity."""
        row = self.cursor().execute(f"SELECT count(*) FROM main.{quote(table)}").fetchone()
        return int(row[0]) if row else 0

    def end_of(self, topic: str) -> int:
        """Return the position after the topic's last committed record. Never waits."""
        return self._ends[topic]

    def read(self, topic: str, start: int, limit: int) -> dict[str, pl.DataFrame]:
        """Return the records at up to `limit` positions of a topic from `start`: one ordered frame per record type, with `_offset`.

        All frames come from one snapshot, so they include every record committed before any of their records.
        """
        if limit <= 0:
            return {}
        with contextlib.closing(self.cursor()) as cursor:
            cursor.begin()
            return _read(cursor, topic, start, limit)

    def next_position(self, topic: str, start: int) -> int:
        """Return the position of the first record at or after `start`, or the topic's end if there is none."""
        end = self.end_of(topic)
        with contextlib.closing(self.cursor()) as cursor:
            following = find_next_position(cursor, topic, start)
        return end if following is None else min(following, end)

    def _migrate(self) -> None:
        # Skip reading tables and ends of a new file, which would take as long as creating the tables.
        is_new = not self._connection.execute(_HAS_LOG, [LOG]).fetchall()
        existing = {} if is_new else _read_tables(self._connection)
        digest = None
        with contextlib.suppress(duckdb.CatalogException):  # earlier versions stored no digest
            ((digest,),) = self._connection.execute(f"SELECT {LOG}.{DIGEST}()").fetchall()
        # Only people who browse a file need comments, which take most of the time of creating the tables.
        migration = migration_statements(existing, digest, has_macros=self._has_macros)
        statements = [statement for statement in migration if self._is_browsed or not statement.startswith(COMMENT)]
        if statements:
            with self.transaction() as transaction:
                for statement in [f"CREATE SCHEMA IF NOT EXISTS {LOG}", *statements]:
                    self._connection.execute(statement)
                if schema_of("RunNumber").table not in existing:
                    transaction.number_all_runs()
                if "sessions" not in existing.get(schema_of("IncidentOutline").table, ()):
                    transaction.outline_all_incidents()
            # A schema change in the write-ahead log slows down the next start, so checkpoint while the log holds nothing else.
            self.try_checkpoint()
        self._ends = dict.fromkeys(topics(), 0) if is_new else read_ends(self._connection)


def _read_tables(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """Return the existing tables of the log, each with its columns and their types."""
    try:
        rows = connection.execute(
            " UNION ALL ".join(
                f"SELECT {literal(schema.table)}, name, type FROM pragma_table_info({literal(full_name(schema))})"
                for schema in current_schemas().values()
            )
        ).fetchall()
    except duckdb.CatalogException:
        # A table is missing, so read the catalog. That is slower, because DuckDB then builds all of its own views.
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
            for column, kind in column_types(schema, timestamp="TIMESTAMPTZ").items()
        )
        # A table can hold records of two topics, so filter by topic too.
        statement = (
            f"SELECT {columns}, _offset FROM {full_name(schema)} "
            "WHERE _offset >= $start AND _offset < $end AND _topic = $topic ORDER BY _offset"
        )
        values = {"start": start, "end": start + limit, "topic": topic}
        frame = fetch(cursor, statement, values)
        if frame.height:
            # DuckDB names the time zone Etc/UTC; other libraries name it UTC.
            frames[name] = frame.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))
    return frames


WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given_up"
ALERT_STATUSES = (WAITING, DELIVERED, GIVEN_UP)


_DELETE_SETTLED = (
    "DELETE FROM log.alerts WHERE status <> ? AND settled_at < ? "
    "AND subject_id NOT IN (SELECT incident_id FROM main.incidents WHERE status IN ('open', 'acknowledged'))"
)


class Outbox:
    """The alerts of a store. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, alerts: Sequence[Alert], settled: Sequence[Alert] = ()) -> int:
        """Queue alerts whose id is not in the outbox; return their number. In the same transaction, replace `settled` ones."""
        if not alerts and not settled:
            return 0
        first = {alert.alert_id: alert for alert in reversed(alerts)}
        with self._store.transaction() as transaction:
            known_ids = transaction.known_alerts(list(first))
            fresh = [alert for alert_id, alert in first.items() if alert_id not in known_ids]
            transaction.set_alerts([*fresh[::-1], *settled])
        return len(fresh)

    def settle(self, alerts: Sequence[Alert]) -> None:
        """Replace alerts with newer versions."""
        with self._store.transaction() as transaction:
            transaction.set_alerts(alerts)

    def delete_settled(self, before: datetime) -> None:
        """Delete alerts that were settled before a time. Alerts about live incidents stay, because otherwise they would be sent again."""
        with self._store.transaction() as transaction:
            transaction.connection.execute(_DELETE_SETTLED, [WAITING, before.astimezone(UTC).replace(tzinfo=None)])

    def due(self, now: datetime) -> list[Alert]:
        """Return the alerts to deliver now, oldest first."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "due_alerts", Alert, {"as_of": now}))

    def find_unalerted(self, since: datetime, now: datetime) -> list[Incident]:
        """Return live incidents checked since a time that are not snoozed and have no alert at their current severity and confidence."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "untold_incidents", Incident, {"since": since, "now": now}))

    def find_ended(self, since: datetime) -> list[dict[str, Any]]:
        """Return the alerts whose incidents ended since a time and whose receivers were not told so, as rows of `ended_alerts`."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_rows(cursor, "ended_alerts", {"since": since}))
