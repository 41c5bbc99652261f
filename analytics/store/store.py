"""The DuckDB file: append-only tables, stage state and watermarks, changed together or not at all.

One process owns the file (`analytics.store.connection`); within it one `Store` writes, and any number of cursors read. Every change
happens in a `Transaction`: the rows of a batch, the states of the stage that made them, its watermark and the progress of imports are
committed together. A kill at any moment therefore loses no committed record, and the restarted stage writes none twice.

The `Outbox` keeps alerts until they are delivered, across restarts.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from analytics.deletion.deleting import (
    ERASURES,
    days_at,
    delete_derived,
    delete_landed,
    delete_places,
    delete_states,
    delete_sums,
    delete_tables,
    erased_in,
    without_erased,
)
from analytics.identity.duplicate_matching import CONTENT, KnownIdentities, Met, unknown
from analytics.queries import query_records
from analytics.store.connection import FileLock, connect, fetch, store_error
from analytics.store.positions import (
    AHEAD,
    COMPACTION,
    END,
    RETENTION,
    RUN_NUMBERS,
    move_watermarks,
    next_stored,
    stored_ends,
    stored_states,
    watermarks_of,
)
from analytics.store.tables import (
    BATCH,
    COMMENT,
    DIGEST,
    LOG,
    PARTITION,
    columns_of,
    full_name,
    insert,
    insert_at,
    literal,
    migration_statements,
    quote,
    replace,
)
from analytics.sums.kept import KEPT
from analytics.sums.list_sums import forget_numbers, forget_outlines, number_all, number_runs, outline, outline_all
from schemas.codec.arrow import INDEX, decode_batch, decode_own
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from schemas.records import Alert, ImportProgress, Incident, ProjectCheck, StageState, Watermark
from schemas.registry import current_schemas, schema_of, topics

__all__ = ["BATCH", "CONTENT", "Appended", "Outbox", "Store", "Transaction", "fetch"]
ALL_STAGES = ""
MADE_HERE = -1
"""Partition of dead letters that another log's sink made from records it could not store: they are on no topic."""
Partition = tuple[str, int]
"""Topic and number of a partition."""
_RUNS = "Diagnosis"
_INCIDENTS = "Incident"
_LASTING = (AHEAD, END, RETENTION, COMPACTION, RUN_NUMBERS, *(sums.consumer for sums in KEPT))
"""Consumers whose watermarks stay when everything that stages derived is rebuilt."""


@dataclass
class Appended:
    """The result of an append: rows written per table, and the number of records that the topic already had.

    `conflicts` are the indexes of messages that were left out because their identity is stored with other content. `differing` names
    the fields that differ, for conflicts with a record in the log. `frames` has the written rows by record type: the records' fields,
    INDEX for the index of the message, and `_offset`.
    """

    written: dict[str, int] = field(default_factory=dict)
    known: int = 0
    conflicts: list[int] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)
    differing: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)


class Transaction:
    """Changes that are committed together. Made by `Store.transaction`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, ends: dict[str, int], met: Met) -> None:
        self._connection = connection
        self._ends = ends
        self._met = met
        self.changed_stages: set[str] = set()
        """The stages whose states the transaction changes, apart from states from the log; ALL_STAGES stands for any."""

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
    ) -> Appended:
        """Append encoded records to a topic. With `skip_known`, records that the topic already has are left out.

        A record is known by its identity and, if it has one, its revision. If CONTENT names a content field, a record with other content
        under a known identity is a conflict and left out too; within the messages the first one counts. A message that does not decode
        raises its RecordError, because messages were checked before. `are_own` skips that check for messages that this process encoded.
        """
        done = Appended()
        if not messages:
            return done
        batch = decode_own(messages) if are_own else decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        batch.frames.update(self._taken(batch.frames))
        if skip_known:
            for name, frame in batch.frames.items():
                batch.frames[name], conflicts = unknown(self._connection, schema_of(name), frame, topic, met=self._met)
                done.differing |= conflicts
            done.conflicts += sorted(done.differing)
        done.known = len(messages) - sum(frame.height for frame in batch.frames.values()) - len(done.conflicts)
        self._write(topic, batch.frames, done)
        return done

    def _write(self, topic: str, frames: Mapping[str, pl.DataFrame], done: Appended) -> None:
        """Write rows at the end of a topic, in the order of INDEX, and add them to `done`."""
        positions = pl.concat([frame[INDEX] for frame in frames.values()]).sort()
        for name, frame in frames.items():
            offsets = positions.search_sorted(frame[INDEX]).cast(pl.Int64) + self._ends[topic]
            done.written[schema_of(name).table] = insert_at(
                self._connection, schema_of(name), frame.drop(INDEX), topic, offsets
            )
            if frame.height:
                done.frames[name] = frame.with_columns(offsets.alias("_offset"))
        self._ends[topic] += len(positions)
        self._derive(done.frames)

    def append_at(self, topic: str, start: int, messages: Sequence[bytes], *, are_own: bool = False) -> None:
        """Append encoded records at given offsets, from `start` on; `are_own` as for `append`.

        Records of erased sessions are left out, and their offsets stay unused. StoreError if an offset was assigned before.
        """
        if start < self._ends[topic]:
            raise StoreError(f"{topic}: offset {start} was given before; the next one is {self._ends[topic]}")
        batch = decode_own(messages) if are_own else decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        frames = self._taken(batch.frames)
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

    def land(self, topic: str, frames: Mapping[str, pl.DataFrame], seen: KnownIdentities) -> Appended:
        """Flush decoded records of another log into the tables, at their places there: columns INDEX, `_partition` and `_offset`.

        Known records are left out and conflicts reported, as in `append`. `seen` must have read the whole topic.
        """
        done = Appended()
        for name, frame in self._taken(frames).items():
            schema = schema_of(name)
            fresh, conflicts = unknown(self._connection, schema, frame, topic, seen)
            done.known += frame.height - fresh.height - len(conflicts)
            done.conflicts += conflicts
            done.written[schema.table] = insert(
                self._connection, schema, fresh.drop(INDEX).with_columns(pl.lit(topic).alias("_topic"))
            )
            if fresh.height:
                done.frames[name] = fresh
                self._ends[topic] = max(self._ends[topic], 1 + _last(fresh))
        done.conflicts.sort()
        self._derive(done.frames)
        return done

    def number_all_runs(self) -> None:
        """Number the runs of a file written before run numbers were stored."""
        self._note_numbers(number_all(self._connection))

    def _taken(self, frames: Mapping[str, pl.DataFrame]) -> Mapping[str, pl.DataFrame]:
        return without_erased(self._connection, frames) if self._ends[ERASURES] else frames

    def outline_all_incidents(self) -> None:
        """Build the outlines of incidents of a file written before outlines were stored."""
        outline_all(self._connection)

    def _derive(self, written: Mapping[str, pl.DataFrame]) -> None:
        """Derive run numbers and incident outlines from the written rows."""
        if _RUNS in written:
            self._note_numbers(number_runs(self._connection, written[_RUNS]))
        if _INCIDENTS in written:
            outline(self._connection, written[_INCIDENTS])

    def _note_numbers(self, following: Mapping[str, int]) -> None:
        self.set_watermarks(RUN_NUMBERS, {(project, PARTITION): number for project, number in following.items()})

    def drop(self, topic: str, starts: Mapping[int, int]) -> None:
        """Delete a topic's flushed rows from these positions on, by partition, and the dead letters made from them."""
        delete_landed(self._connection, topic, starts, MADE_HERE)
        self._forget_sums([topic])
        if topic in schema_of(_INCIDENTS).topics:
            forget_outlines(self._connection)
        self._ends.update(stored_ends(self._connection))

    def learn(self, topic: str, seen: KnownIdentities) -> None:
        """Let `seen` read the topic."""
        seen.read(self._connection, topic, self._ends[topic])

    def end_of(self, topic: str) -> int:
        """The position after the topic's last record."""
        return self._ends[topic]

    def watermark(self, consumer: str, topic: str) -> int:
        """The consumer's next position in a topic of one partition."""
        return self.watermarks(consumer).get((topic, PARTITION), 0)

    def watermarks(self, consumer: str) -> dict[Partition, int]:
        """The consumer's next positions, by topic and partition."""
        return watermarks_of(self._connection, consumer)

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
        """The states of a stage for the keys that have one."""
        return stored_states(self._connection, stage, keys)

    def set_states(self, stage: str, states: Mapping[str, bytes], next_position: int) -> None:
        """Replace the states of a stage for the given keys."""
        if states:
            self.changed_stages.add(stage)
        replace(
            self._connection,
            [StageState(stage=stage, key=key, next_position=next_position, state=state) for key, state in states.items()],
        )

    def set_states_of_stages(self, states: Mapping[str, Mapping[str, bytes]], next_positions: Mapping[str, int]) -> None:
        """Replace states of several stages with states from the log, by stage and key, in one statement.

        `next_positions` are by stage. States of erased sessions are left out. An empty state deletes the stored one.
        """
        if self._ends[ERASURES]:
            erased = erased_in(self._connection)
            states = {
                stage: {key: state for key, state in changed.items() if not erased.has(*key.split("/", 1))}
                for stage, changed in states.items()
            }
        for stage, changed in states.items():
            if gone := [key for key, state in changed.items() if not state]:
                delete_states(self._connection, gone, [stage])
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
        """Record when projects were checked; a later check already recorded stays."""
        latest = dict(
            self._connection.execute(f"SELECT project, checked_at FROM {full_name(schema_of('ProjectCheck'))}").fetchall()
        )
        newer = [
            one for one in checks if one.project not in latest or latest[one.project] <= one.checked_at.replace(tzinfo=None)
        ]
        replace(self._connection, newer)

    def known_alerts(self, ids: Sequence[str]) -> set[str]:
        """The ids among these that belong to present or earlier alerts."""
        rows = self._connection.execute(
            f"SELECT alert_id FROM {full_name(schema_of('Alert'))} WHERE alert_id IN (SELECT unnest(?))", [list(ids)]
        ).fetchall()
        return {alert_id for (alert_id,) in rows}

    def remove(self, name: str, places: pl.DataFrame) -> int:
        """Delete the rows of a record type at these places; return their number. Their positions are never assigned again."""
        if not places.height:
            return 0
        self.set_watermarks(END, {(topic, PARTITION): self._ends[topic] for topic in places["_topic"].unique().to_list()})
        days = {sums: days_at(self._connection, name, sums.deleted[name], places) for sums in KEPT if name in sums.deleted}
        removed = delete_places(self._connection, name, places)
        for sums, changed in days.items():
            sums.add_up(self._connection, changed)
        if name == _RUNS:
            forget_numbers(self._connection)
        if name == _INCIDENTS:
            forget_outlines(self._connection)
        return removed

    def drop_states(self, keys: Sequence[str], stages: Sequence[str]) -> None:
        """Delete the states of these sessions in these stages."""
        self.changed_stages.update(stages)
        delete_states(self._connection, keys, stages)

    def forget(self, tables: Sequence[str]) -> None:
        """Delete every row of the named tables, which are derived and will be rebuilt."""
        self._forget_sums(_topics_of(tables))
        if schema_of("StageState").table in tables:
            self.changed_stages.add(ALL_STAGES)
        delete_tables(self._connection, tables)
        if schema_of(_INCIDENTS).table in tables:
            forget_outlines(self._connection)
        self._ends.update(stored_ends(self._connection))

    def forget_derived(self, tables: Sequence[str], but: str, stages: Sequence[str] = ()) -> None:
        """Delete derived rows and watermarks of stages, except those of `stages` and of sessions that have a state in `but`."""
        self._forget_sums(_topics_of(tables))
        self.changed_stages.add(ALL_STAGES)
        delete_derived(self._connection, tables, but, stages, (*_LASTING, *stages))
        self._ends.update(stored_ends(self._connection))

    def _forget_sums(self, topics: Iterable[str]) -> None:
        """Delete the sums of these topics' records and count the deletion, so that a concurrent refresh does not mark its days as done."""
        dropped = set(topics)
        for sums in KEPT:
            if dropped.intersection(sums.topics):
                times = self.watermark(sums.consumer, "")
                delete_sums(self._connection, sums)
                self.set_watermark(sums.consumer, "", times + 1)


def _topics_of(tables: Sequence[str]) -> Iterator[str]:
    """The topics whose records are stored in these tables."""
    return (topic for schema in current_schemas().values() if schema.table in tables for topic in schema.topics)


def _last(frame: pl.DataFrame) -> int:
    """The highest position in a frame that is not empty."""
    return int(frame["_offset"].max())  # type: ignore[arg-type]  # a column of integers


_WAITED = 60.0
"""Seconds that a checkpoint waits for writes to finish."""
_GATHERED = "256MB"
"""Size of the write-ahead log that triggers a checkpoint; DuckDB's default is a sixteenth of it."""
_HAS_LOG = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"


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


WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given_up"
STATUSES = (WAITING, DELIVERED, GIVEN_UP)


_SETTLED = (
    "DELETE FROM log.alerts WHERE status <> ? AND settled_at < ? "
    "AND subject_id NOT IN (SELECT incident_id FROM main.incidents WHERE status IN ('open', 'acknowledged'))"
)


class Outbox:
    """The alerts of a store. Every change is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, alerts: Sequence[Alert]) -> int:
        """Queue alerts, except those whose id was ever queued; return the number of new ones."""
        if not alerts:
            return 0
        first = {alert.alert_id: alert for alert in reversed(alerts)}
        with self._store.transaction() as transaction:
            known_ids = transaction.known_alerts(list(first))
            fresh = [alert for alert_id, alert in first.items() if alert_id not in known_ids]
            transaction.set_alerts(fresh[::-1])
        return len(fresh)

    def settle(self, alerts: Sequence[Alert]) -> None:
        """Replace alerts with these newer versions."""
        with self._store.transaction() as transaction:
            transaction.set_alerts(alerts)

    def forget(self, before: datetime) -> None:
        """Delete alerts settled before a time. Alerts about an open incident stay, or they would be sent again."""
        with self._store.transaction() as transaction:
            transaction.connection.execute(_SETTLED, [WAITING, before.astimezone(UTC).replace(tzinfo=None)])

    def due(self, now: datetime) -> list[Alert]:
        """Return the alerts to deliver now, oldest first."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "due_alerts", Alert, {"as_of": now}))

    def untold(self, since: datetime) -> list[Incident]:
        """Live incidents seen since a time that raised no alert at their present severity and confidence."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "untold_incidents", Incident, {"since": since}))
