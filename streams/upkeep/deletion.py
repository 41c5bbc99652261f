"""Deletion: retention and cooling once a day and on demand, erasure on request, and the scores of withdrawn exchanges.

The rules are in `analytics/deletion/README.md`. Retention keeps a record for at least the policy's number of days, and for less than one day
more. Cooling deletes details of days that are no longer hot, once the lake has them. An erasure is a record that names a session or
connection, with a state that counts the deleted rows; no record of an erased session or connection is judged or kept. Scores of withdrawn exchanges, which turned out to be part of another one, are deleted,
including scores that are computed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import msgspec

from analytics.deletion.deleting import ERASURES, STAGE, ErasureScope
from analytics.deletion.retention import (
    KEEP_FOREVER,
    TRUNCATED_STAGE,
    Cutoffs,
    ErasureRun,
    PurgeCounts,
    Retention,
    RetentionPlan,
    Unread,
    delete_withdrawn_scores,
    plan_retention,
)
from analytics.deletion.text_keys import ForgetTexts
from analytics.lake import Lake
from analytics.queries import query_rows
from analytics.store.connection import attach_files
from analytics.store.store import Outbox, Store
from analytics.store.tables import quote
from analytics.sums.daily import delete_cold_days, delete_hours, refresh_daily
from audit.anchors import ANCHORS
from audit.exchanges.sampling import drop_deferred
from audit.fingerprints import stable_id
from audit.policy import Policy
from schemas.errors import InputError, StoreError
from schemas.lazy import duckdb
from schemas.records import Erasure
from streams.engine.record_intake import RecordIntake
from streams.judging.judged_stages import EVALUATION, SCORING
from streams.log.log import SINK, is_fed_by_kafka
from streams.log.sink import database_errors, note_fatal
from streams.replay.plan import folder_of
from streams.stage_batches import decode_exchange
from streams.stage_progress import stage_progress
from streams.steps.intake import IntakeState
from streams.topology import stage_named
from streams.watch.rules import LOOK_BACK_DAYS

INTAKE, DIAGNOSIS = stage_named("intake"), stage_named("diagnosis")
KEPT_SPANS = timedelta(days=1)
"""How long spans are kept, for late spans of the same trace."""
CHECK_SECONDS = 60.0
"""Seconds between checks for a new day, or for an erasure that was requested elsewhere."""
_SESSIONS_PER_QUERY = 1_000
_deletion_lock = threading.Lock()
_DECODER = msgspec.msgpack.Decoder(IntakeState)
log = logging.getLogger(__name__)


def cutoff(now: datetime, days: int | None) -> datetime:
    """Return the time before which records with this retention in days are deleted; None keeps them indefinitely."""
    if days is None:
        return KEEP_FOREVER
    return datetime.combine(now.astimezone(UTC).date() - timedelta(days=days), time(), UTC)


@dataclass(frozen=True)
class HotDays:
    """How many days a database keeps details, and the lake that has those of earlier days."""

    days: int
    lake: Lake


def purge(store: Store, policy: Policy, now: datetime, days: int | None = None, hot: HotDays | None = None) -> PurgeCounts:
    """Delete records past the retention of their project or, if `days` is given, all records older than that. With `hot`, cool then.

    Writers continue meanwhile, with short waits. Raises LakeError if the lake cannot be read; retention is done then.
    """

    def kept_from(project: str) -> datetime:
        return cutoff(now, days if days is not None else policy.for_project(project).settings.retention_days)

    def sums_kept_from(project: str) -> datetime:
        window = policy.for_project(project).settings.baseline_window_days
        return min(kept_from(project), cutoff(now, max(LOOK_BACK_DAYS, window)))

    with _deletion_lock:
        # A day's totals outlive its scores, so refresh them while all scores are there.
        refresh_daily(store)
        unread = None if is_fed_by_kafka(store) else _read_positions(store)
        purged = Retention(store, Cutoffs(kept_from, kept_from(""), now - KEPT_SPANS), unread).run()
        if unread is not None:
            _drop_deferred(store, kept_from)
        Outbox(store).delete_settled(kept_from(""))
        delete_hours(store, sums_kept_from)
        delete_cold_days(store, kept_from)
        if purged.rows.total():
            store.checkpoint()
            log.info("retention: %d exchanges, %d scores and what belongs to them deleted", purged.exchanges, purged.scores)
        # Cooling comes last: a lake that cannot be read must not keep retention from its end.
        if hot is not None:
            _cool(store, hot, now, kept_from)
    return purged


def _cool(store: Store, hot: HotDays, now: datetime, kept_from: Callable[[str], datetime]) -> None:
    """Delete details of earlier days that the lake has. The sums of these days, and what lists need, stay."""
    border = cutoff(now, hot.days)

    def hot_from(project: str) -> datetime:
        return border if border > kept_from(project) else KEEP_FOREVER

    with store.transaction() as transaction:
        partitions = list(transaction.watermarks(SINK))
    hot.lake.require()
    hot.lake.reload()
    # The topics may have lost records before the lake's first sink started, so its position alone does not say what it has.
    starts, ends = hot.lake.starts(partitions), hot.lake.positions(partitions)
    in_lake = {partition: range(start, ends[partition]) for partition, start in starts.items() if partition in ends}
    cooled = Retention(store, Cutoffs(hot_from, KEEP_FOREVER, KEEP_FOREVER), None, in_lake).run()
    if cooled.rows.total():
        store.checkpoint()
        log.info(
            "cooling: %d exchanges, %d scores and what belongs to them are in the lake only", cooled.exchanges, cooled.scores
        )


def plan_purge(store: Store, policy: Policy, now: datetime, days: int | None = None) -> RetentionPlan:
    """Count the records that `purge` would delete with the same arguments, and delete nothing."""

    def kept_from(project: str) -> datetime:
        return cutoff(now, days if days is not None else policy.for_project(project).settings.retention_days)

    unread = Unread() if is_fed_by_kafka(store) else _read_positions(store)
    return plan_retention(store, Cutoffs(kept_from, kept_from(""), now - KEPT_SPANS), unread)


class RetentionTask:
    """Runs retention at the start and on each new day, as soon as the engine accepts records."""

    name = "retention"
    interval = CHECK_SECONDS

    def __init__(self, engine: RecordIntake, hot: HotDays | None = None) -> None:
        self._engine = engine
        self._hot = hot
        self._last_run_day: datetime | None = None

    async def run(self) -> None:
        """Run once a day. It waits until the tables have all records, because related records could still be missing."""
        now = self._engine.now()
        today = cutoff(now, 0)
        if today == self._last_run_day or not self._engine.state().ready:
            return
        await asyncio.to_thread(purge, self._engine.store, self._engine.policy, now, hot=self._hot)
        self._last_run_day = today


def _read_positions(store: Store) -> Unread:
    return Unread(*(stage_progress(store, stage).position for stage in (INTAKE, SCORING, DIAGNOSIS, EVALUATION)))


def _drop_deferred(store: Store, kept_from: Callable[[str], datetime]) -> None:
    """Remove deleted exchanges from the states of open sessions, so that they are not scored at the end of the session."""
    rows = store.cursor().execute("SELECT key FROM log.stage_state WHERE stage = ? ORDER BY key", [TRUNCATED_STAGE]).fetchall()
    for start in range(0, len(rows), _SESSIONS_PER_QUERY):
        with store.transaction() as transaction:
            states = transaction.states(INTAKE.name, [key for (key,) in rows[start : start + _SESSIONS_PER_QUERY]])
            pruned = {key: _remove_expired(state, kept_from) for key, state in states.items()}
            changed = {key: state for key, state in pruned.items() if state != states[key]}
            transaction.set_states(INTAKE.name, changed, transaction.watermark(INTAKE.name, INTAKE.source))


def _remove_expired(state: bytes, kept_from: Callable[[str], datetime]) -> bytes:
    """Return a session's state without its deferred exchanges that are too old."""
    session = _DECODER.decode(state)
    for deferred in session.sampling.deferred:
        exchange = decode_exchange(deferred.record)
        if exchange.occurred_at < kept_from(exchange.project):
            session.sampling = drop_deferred(session.sampling, deferred.exchange_id)
    return msgspec.msgpack.encode(session)


COPIES = "Backups, copies of the database, exported Parquet files and result files of evaluations: delete them yourself."
FREE_SPACE = (
    "Deleted records are still in the free space of the database file until it is compacted, at the next start of the server."
)
TOPICS = (
    "Records on Kafka's topics and the workers' state of open sessions: let the topics' retention.ms delete them, or delete "
    "those before an offset with kafka-delete-records. If they are read again, they are dropped."
)


ENCRYPTED_TOPICS = (
    "Records on Kafka's topics that were produced before texts were encrypted, or by other producers; and, for up to two hours, the keys that "
    "the brokers still have to delete: keep no copies of the brokers' disks."
)


class CompletedErasure(msgspec.Struct, frozen=True):
    """The record of a completed erasure in this database."""

    erased_at: datetime
    deleted: Mapping[str, int]
    """Rows deleted or redacted, by table, for all sessions that were erased together."""
    replays: Sequence[str]
    """Labels of the replays that were deleted because they held erased sessions."""


@dataclass(frozen=True)
class ErasureStatus:
    """An erasure, and its completion in this database; None if it is pending."""

    erasure: Mapping[str, Any]
    done: CompletedErasure | None


def erasure(connection: str, session_id: str | None, requested_by: str, comment: str | None, now: datetime) -> Erasure:
    """Return the record that requests an erasure: the same for repeated requests of a session or connection.

    Raises InputError for the whole connection of anchors: without anchors, no project's judge could be watched any more.
    """
    if connection == ANCHORS and session_id is None:
        raise InputError(
            f"connection: {ANCHORS} is reserved for judging anchors", hint="Withdraw the anchors, or name a session."
        )
    return Erasure(
        erasure_id=stable_id("erasure", connection, session_id or "", "connection" if session_id is None else "session"),
        connection=connection,
        session_id=session_id,
        requested_by=requested_by,
        comment=comment,
        occurred_at=now,
        ingested_at=now,
    )


async def request_erasure(engine: RecordIntake, request: Erasure) -> None:
    """Make the request durable and, unless records go through Kafka, erase at once."""
    published = await engine.publish(ERASURES, [request])
    again = [request.erasure_id] if published.known else []
    await _erase(engine, again=again)


async def _erase(engine: RecordIntake, *, again: Collection[str] = (), all_again: bool = False) -> None:
    """Erase in a thread. A fatal database error is noted here, because no later flush might notice it."""
    try:
        await asyncio.to_thread(
            erase, engine.store, engine.now(), again=again, all_again=all_again, forget_texts=engine.forget_texts
        )
    except database_errors() as error:
        note_fatal(error, engine.broken)
        raise


def erasures(store: Store) -> list[ErasureStatus]:
    """Return every erasure, newest first."""
    with contextlib.closing(store.cursor()) as cursor:
        rows = query_rows(cursor, "erasures")
    return [
        ErasureStatus(row, None if row["state"] is None else msgspec.msgpack.decode(row["state"], type=CompletedErasure))
        for row in rows
    ]


def remains(store: Store, *, are_encrypted: bool = False) -> list[str]:
    """Return the copies that an erasure does not reach, each with advice. `are_encrypted`: the texts on the topics are."""
    topics = [ENCRYPTED_TOPICS if are_encrypted else TOPICS] if is_fed_by_kafka(store) else []
    return [FREE_SPACE, COPIES, *topics]


def erase(
    store: Store,
    now: datetime,
    *,
    again: Collection[str] = (),
    all_again: bool = False,
    forget_texts: ForgetTexts | None = None,
) -> int:
    """Run the pending erasures, and repeat those with the ids `again` or all earlier ones. Return the number of erasures that were run.

    New deletions are added to the counts of earlier ones, so that a second request keeps the proof of the first.
    """
    with _deletion_lock:
        selected = [
            status for status in erasures(store) if all_again or status.done is None or status.erasure["erasure_id"] in again
        ]
        if not selected:
            return 0
        erased = ErasureScope.from_pairs([(status.erasure["connection"], status.erasure["session_id"]) for status in selected])
        deleted = ErasureRun(store, erased, forget_texts).run()
        replays = [] if store.path is None else _delete_replays(store.path, erased)
        completed = CompletedErasure(now, dict(deleted), replays)
        for status in selected:
            erasure_id = status.erasure["erasure_id"]
            if status.done is None or erasure_id in again:
                state = msgspec.msgpack.encode(_add_counts(status.done, completed))
                with store.transaction() as transaction:
                    transaction.set_states(STAGE, {erasure_id: state}, 0)
        if deleted.total() or replays:
            log.warning("erased: %s", ", ".join(f"{count} rows of {table}" for table, count in deleted.items() if count))
    return len(selected)


class ErasureTask:
    """Runs the erasures that were requested elsewhere, and at the start all earlier ones again."""

    name = "erasures"
    interval = CHECK_SECONDS

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine
        self._is_first = True

    async def run(self) -> None:
        """Erase, as soon as the tables have all records that the log had at the start."""
        if self._engine.state().ready:
            await _erase(self._engine, all_again=self._is_first)
            self._is_first = False


def _add_counts(before: CompletedErasure | None, now: CompletedErasure) -> CompletedErasure:
    if before is None:
        return now
    deleted = Counter(before.deleted)
    deleted.update(now.deleted)
    return CompletedErasure(now.erased_at, dict(deleted), [*before.replays, *now.replays])


def _delete_replays(database: Path, erased: ErasureScope) -> list[str]:
    """Delete the replays beside a database that have records of an erased session, because half a replay is useless. Return their labels."""
    labels = []
    for file in sorted(folder_of(database).glob("*.duckdb")):
        if _contains_erased(file, erased):
            file.unlink()
            labels.append(file.stem)
    return labels


def _contains_erased(file: Path, erased: ErasureScope) -> bool:
    """Return whether a file has rows of an erased session; an unreadable file counts as having some."""
    columns = (
        "SELECT schema_name, table_name FROM duckdb_columns() WHERE database_name = 'replay' "
        "AND column_name IN ('connection', 'session_id') GROUP BY ALL HAVING count(*) = 2"
    )
    try:
        with attach_files({"replay": file}) as connection:
            for schema, table in connection.execute(columns).fetchall():
                name = f"replay.{quote(schema)}.{quote(table)}"
                rows = connection.execute(f"SELECT DISTINCT connection, session_id FROM {name}")  # noqa: S608 - names of tables, quoted
                if any(erased.covers(*row) for row in rows.fetchall()):
                    return True
    except (StoreError, duckdb.Error):
        log.warning("%s cannot be read, so it may hold erased records: it is deleted", file)
        return True
    return False


INTERVAL = 60.0
"""Seconds between two runs, which repeat because an exchange may be withdrawn while its judge call is running."""


class WithdrawalTask:
    """Deletes the scores of withdrawn exchanges. A periodic task."""

    name = "withdrawing"
    interval = INTERVAL

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Delete these scores, as soon as the tables have all records that the log had at the start."""
        if self._engine.state().ready:
            await self._engine.flush("scores")
            await asyncio.to_thread(delete_withdrawn_scores, self._engine.store)
