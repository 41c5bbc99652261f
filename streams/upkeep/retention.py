"""Retention: records past the policy's retention are deleted, once a day and on demand.

The rules are in `analytics/deletion/README.md`. A record is kept for at least the policy's number of days, and for less than one day
more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta

import msgspec

from analytics.deletion.retention import CUT, FOR_EVER, Cutoffs, Purged, Retention, RetentionPlan, Unread, plan_retention
from analytics.store.outbox import Outbox
from analytics.store.store import Store
from analytics.sums.daily import forget_hours, refresh_daily
from audit.exchanges.sampling import without
from audit.policy import Policy
from streams.engine.record_intake import RecordIntake
from streams.judging.judged_stages import EVALUATION, SCORING
from streams.log.ownership import is_fed_by_kafka
from streams.stage_batches import encoded_exchange
from streams.stage_progress import stage_progress
from streams.steps.intake import IntakeState
from streams.topology import stage_named
from streams.watch.rules import LOOK_BACK

INTAKE, DIAGNOSIS = stage_named("intake"), stage_named("diagnosis")
KEPT_SPANS = timedelta(days=1)
"""How long spans are kept, for the sake of late spans of the same trace."""
CHECK_SECONDS = 60.0
"""Seconds between two checks whether a new day has begun."""
_AT_ONCE = 1_000
_one_at_a_time = threading.Lock()
_DECODER = msgspec.msgpack.Decoder(IntakeState)
log = logging.getLogger(__name__)


def cutoff(now: datetime, days: int | None) -> datetime:
    """Return the time before which records with this retention in days are deleted; None keeps them for ever."""
    if days is None:
        return FOR_EVER
    return datetime.combine(now.astimezone(UTC).date() - timedelta(days=days), time(), UTC)


def purge(store: Store, policy: Policy, now: datetime, days: int | None = None) -> Purged:
    """Delete records past the retention of their project or, if `days` is given, all that are older.

    Writers continue meanwhile, with short waits.
    """

    def kept_from(project: str) -> datetime:
        return cutoff(now, days if days is not None else policy.for_project(project).settings.retention_days)

    def sums_kept_from(project: str) -> datetime:
        window = policy.for_project(project).settings.baseline_window_days
        return min(kept_from(project), cutoff(now, max(LOOK_BACK, window)))

    with _one_at_a_time:
        # A day's totals outlive its scores, so refresh them while all scores are there.
        refresh_daily(store)
        unread = None if is_fed_by_kafka(store) else _unread(store)
        purged = Retention(store, Cutoffs(kept_from, kept_from(""), now - KEPT_SPANS), unread).run()
        if unread is not None:
            _unpark(store, kept_from)
        Outbox(store).forget(kept_from(""))
        forget_hours(store, sums_kept_from)
        if purged.rows.total():
            store.checkpoint()
    if purged.rows.total():
        log.info("retention: %d exchanges, %d scores and what belongs to them deleted", purged.exchanges, purged.scores)
    return purged


def plan_purge(store: Store, policy: Policy, now: datetime, days: int | None = None) -> RetentionPlan:
    """Count the records that `purge` would delete with the same arguments, and delete nothing."""

    def kept_from(project: str) -> datetime:
        return cutoff(now, days if days is not None else policy.for_project(project).settings.retention_days)

    unread = Unread() if is_fed_by_kafka(store) else _unread(store)
    return plan_retention(store, Cutoffs(kept_from, kept_from(""), now - KEPT_SPANS), unread)


class RetentionTask:
    """Runs retention at the start and on each new day, as soon as the engine accepts records."""

    name = "retention"
    interval = CHECK_SECONDS

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine
        self._done: datetime | None = None

    async def run(self) -> None:
        """Run unless today's run is done. It waits until the tables have everything, because related records could still be missing."""
        now = self._engine.now()
        today = cutoff(now, 0)
        if today == self._done or not self._engine.state().ready:
            return
        await asyncio.to_thread(purge, self._engine.store, self._engine.policy, now)
        self._done = today


def _unread(store: Store) -> Unread:
    return Unread(*(stage_progress(store, stage).position for stage in (INTAKE, SCORING, DIAGNOSIS, EVALUATION)))


def _unpark(store: Store, kept_from: Callable[[str], datetime]) -> None:
    """Remove deleted exchanges from the states of open sessions, so that they are not scored at the end of the session."""
    rows = store.cursor().execute("SELECT key FROM log.stage_state WHERE stage = ? ORDER BY key", [CUT]).fetchall()
    for start in range(0, len(rows), _AT_ONCE):
        with store.transaction() as transaction:
            states = transaction.states(INTAKE.name, [key for (key,) in rows[start : start + _AT_ONCE]])
            changed = {key: left for key, state in states.items() if (left := _without_gone(state, kept_from)) != state}
            transaction.set_states(INTAKE.name, changed, transaction.watermark(INTAKE.name, INTAKE.source))


def _without_gone(state: bytes, kept_from: Callable[[str], datetime]) -> bytes:
    """A session's state without its deferred exchanges that are too old."""
    session = _DECODER.decode(state)
    for parked in session.sampling.parked:
        exchange = encoded_exchange(parked.record)
        if exchange.occurred_at < kept_from(exchange.project):
            session.sampling = without(session.sampling, parked.exchange_id)
    return msgspec.msgpack.encode(session)
