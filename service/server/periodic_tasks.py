"""The list of the serving process's periodic tasks, and two of them: token use, and the watchdog of sessions.

The watchdog detects silent sessions, and raises alerts about them:

1. Any record of a session is a sign of life at its time of intake, unless it was history then (more than a day old). So a backfill
   raises no alarm, and a sender with a wrong clock or time zone still counts as alive.
2. A session whose last turn has ended is idle: it waits for its user, and no sign of life is overdue. A session is in progress
   if it has a turn without its exchange, such as events after the last exchange, or sends heartbeats.
3. A session is watched until it is closed, or until it has been silent for longer than the session gap, which closes it.
4. Silence counts only while this server is listening: a session that seemed silent while the server was down may have been active.
5. Each level of a silence raises one alert: to people once through the outbox, across restarts; in the log once per process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from audit.policy import Policy
from audit.silence import STOPPED, listening_since
from service.alerts.delivery import Alerts, Delivery, open_alerts
from service.alerts.notices import Notice, fleet_notice, silence_notice
from service.export.otlp import collector_of
from service.read.telemetry import OpenSession, listening_of, note_listening, open_sessions
from service.setup.access import AccessStore
from service.setup.settings import Settings
from service.web.context import ApiContext
from streams.engine.record_intake import RecordIntake
from streams.process import LoadedCode
from streams.upkeep.anchors import AnchorRounds
from streams.upkeep.assembling import TraceAssembler
from streams.upkeep.deletion import ErasureTask, RetentionTask, Withdrawing
from streams.upkeep.periodic_tasks import PeriodicTask
from streams.watch.rounds import WatchRounds

INTERVAL = 60.0
"""Seconds between two writes: uses are recorded to the minute."""


class TokenUse:
    """The periodic task `token use`. It writes in batches, because each write invalidates the cached tokens of every server."""

    name = "token use"
    interval = INTERVAL

    def __init__(self, access: AccessStore) -> None:
        self._access = access

    async def run(self) -> None:
        """Record the uses since the last run."""
        await asyncio.to_thread(self._access.note_use)


LONGEST_SECONDS = 30.0
"""Longest time between two checks, in seconds."""
MANY = 100
"""The maximum number of a project's sessions that get single alerts when they reach a level together; more share one."""
_ALERTED = frozenset({"warning", "critical"})
_LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
log = logging.getLogger(__name__)


class SilenceWatchdog:
    """The periodic task `telemetry`."""

    name = "telemetry"

    def __init__(self, engine: RecordIntake, alerts: Alerts) -> None:
        self._engine = engine
        self._alerts = alerts
        intervals = _list_intervals(engine.policy)
        self._shortest = min(intervals.values())
        self.interval = min(self._shortest.total_seconds() / 3, LONGEST_SECONDS)
        self._last_look: datetime | None = None
        gap = timedelta(minutes=engine.policy.session_gap_minutes)
        if any(STOPPED * interval >= gap for interval in intervals.values()):
            names = ", ".join(name or "every other" for name, interval in intervals.items() if STOPPED * interval >= gap)
            log.warning(
                "sessions are over by sessionGapMinutes before they miss %d of heartbeatInterval: %.500s", STOPPED, names
            )
        self._told: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Check the sessions once."""
        now, ready = self._engine.now(), self._engine.state().ready
        patience = timedelta(seconds=2 * self.interval + LONGEST_SECONDS)
        listening = listening_since(listening_of(self._engine), self._last_look, now, ready=ready, patience=patience)
        note_listening(self._engine, listening)
        self._last_look = now
        if now - listening <= self._shortest:
            return
        await self._engine.flush()
        silent = await asyncio.to_thread(self._silent, now, listening)
        fresh = self._fresh(silent)
        await self._alerts.raise_alerts(list(_open_notices(fresh)))
        self._told |= {(session.connection, session.session_id): _key_cause(session) for session in fresh}
        _log(fresh)

    def _silent(self, now: datetime, listening: datetime) -> list[OpenSession]:
        """Return the sessions with an overdue sign of life."""
        engine = self._engine
        with contextlib.closing(engine.store.cursor()) as cursor:
            overdue = open_sessions(cursor, engine.policy, now, listening, silent_since=now - self._shortest)
        audited = engine.policy.for_project
        return [
            one.session for one in overdue if one.session.missed_intervals and audited(one.session.project).settings.enabled
        ]

    def _fresh(self, silent: Sequence[OpenSession]) -> list[OpenSession]:
        """Return the sessions whose level has raised no alert yet; forget sessions that are no longer silent."""
        present = {(one.connection, one.session_id) for one in silent}
        self._told = {key: cause for key, cause in self._told.items() if key in present}
        return [one for one in silent if self._told.get((one.connection, one.session_id)) != _key_cause(one)]


def _list_intervals(policy: Policy) -> dict[str, timedelta]:
    """Return the interval of each project in the policy; the empty name stands for every other project."""
    names = ("", *policy.projects)
    return {name: timedelta(milliseconds=policy.for_project(name).settings.heartbeat_interval) for name in names}


def _open_notices(sessions: Sequence[OpenSession]) -> Iterator[Notice]:
    """Return alerts about sessions that reached a level: one each, or one per project if there are many."""
    groups: dict[tuple[str, str], list[OpenSession]] = {}
    for session in sessions:
        if session.level in _ALERTED:
            groups.setdefault((session.project, session.level), []).append(session)
    for group in groups.values():
        if len(group) > MANY:
            yield fleet_notice(group)
        else:
            yield from map(silence_notice, group)


def _log(sessions: Sequence[OpenSession]) -> None:
    for session in sessions[:MANY]:
        message = "session %s of connection %s (%s): no heartbeat or record for %d s, %d intervals missed"
        seconds, level = session.elapsed_ms / 1000, _LOG_LEVELS[session.level or "info"]
        log.log(level, message, session.session_id, session.connection, session.project, seconds, session.missed_intervals)
    if len(sessions) > MANY:
        log.warning("%d more sessions are silent", len(sessions) - MANY)


def _key_cause(session: OpenSession) -> str:
    return f"{session.last_received.isoformat()} {session.level}"


def periodic_tasks_of(
    engine: RecordIntake, settings: Settings, context: ApiContext, *, watches: bool = True
) -> list[PeriodicTask]:
    """Return the periodic tasks of a server over this engine; watch, tokens and metrics are shared with its endpoints.

    The watch runs periodic checks only if the server `watches`.
    """
    alerts = open_alerts(engine, settings)
    return [
        *([WatchRounds(context.watch, engine.store, engine.now, lambda: engine.state().ready)] if watches else []),
        AnchorRounds(engine),
        Delivery(alerts),
        SilenceWatchdog(engine, alerts),
        ErasureTask(engine),
        RetentionTask(engine),
        TraceAssembler(engine, lambda count: context.metrics.spans({"late": count})),
        Withdrawing(engine),
        TokenUse(context.access),
        LoadedCode(),
        *_export_scores(engine, settings),
    ]


def _export_scores(engine: RecordIntake, settings: Settings) -> list[PeriodicTask]:
    """Return the task that sends scores to a collector, if one is configured."""
    collector = collector_of(settings, os.environ)
    if collector is None:
        return []
    from service.export.otlp import ScoreEvents  # noqa: PLC0415 - the collector's format takes a while to load, and most have none

    return [ScoreEvents(engine.store, collector)]
