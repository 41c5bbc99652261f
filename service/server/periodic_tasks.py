"""The periodic tasks of the server process, and the code of two of them: token use, and the watchdog of silent sessions.

The watchdog detects silent sessions, and raises alerts about them:

1. Any record of a session is a sign of life at its time of intake, unless it was more than a day old then. So a backfill raises no
   alarm, and a sender with a wrong clock or time zone still counts as alive.
2. A session whose last turn has ended is idle. It waits for its user, so no sign of life is overdue. A session is in progress if it
   has a turn without its exchange, for example events after the last exchange, or if it sends heartbeats.
3. A session is watched until it is closed, or until it has been silent for longer than the session gap, which closes it.
4. Silence counts only while this server is listening: a session that seemed silent while the server was down may have been active.
5. Each level of a silence raises one alert. The outbox sends it to people once, across restarts; the log has it once per process.
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
from service.export.otlp import read_collector
from service.read.telemetry import OpenSession, listening_of, note_listening, open_sessions
from service.setup.access import AccessStore
from service.setup.kafka import hot_days_of
from service.setup.settings import Settings
from service.web.context import ApiContext
from streams.engine.record_intake import RecordIntake
from streams.process import LoadedCode
from streams.upkeep.anchors import AnchorRounds
from streams.upkeep.assembling import TraceAssembler
from streams.upkeep.deletion import ErasureTask, RetentionTask, WithdrawalTask
from streams.upkeep.periodic_tasks import PeriodicTask
from streams.upkeep.session_judging import SessionJudging
from streams.watch.rounds import WatchRounds

TOKEN_USE_INTERVAL = 60.0
"""Seconds between two writes. The last use of a token is recorded to the minute."""


class TokenUse:
    """The periodic task `token use`. It writes once per interval, because each write invalidates the cached tokens of every server."""

    name = "token use"
    interval = TOKEN_USE_INTERVAL

    def __init__(self, access: AccessStore) -> None:
        self._access = access

    async def run(self) -> None:
        """Record the uses since the last run."""
        await asyncio.to_thread(self._access.record_use)


MAX_CHECK_INTERVAL = 30.0
"""Maximum number of seconds between two checks."""
MAX_SINGLE_ALERTS = 100
"""Maximum number of sessions of a project that get separate alerts at one check. If there are more, they share an alert."""
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
        self._min_interval = min(intervals.values())
        self.interval = min(self._min_interval.total_seconds() / 3, MAX_CHECK_INTERVAL)
        self._last_check: datetime | None = None
        gap = timedelta(minutes=engine.policy.session_gap_minutes)
        if any(STOPPED * interval >= gap for interval in intervals.values()):
            names = ", ".join(name or "every other" for name, interval in intervals.items() if STOPPED * interval >= gap)
            log.warning(
                "sessionGapMinutes ends sessions before they miss %d intervals of heartbeatInterval: %.500s", STOPPED, names
            )
        self._alerted: dict[tuple[str, str], str] = {}
        """The last cause of an alert, by connection and session id."""

    async def run(self) -> None:
        """Check the sessions once."""
        now = self._engine.now()
        ready = self._engine.state().ready
        patience = timedelta(seconds=2 * self.interval + MAX_CHECK_INTERVAL)
        listening = listening_since(listening_of(self._engine), self._last_check, now, ready=ready, patience=patience)
        note_listening(self._engine, listening)
        self._last_check = now
        if now - listening <= self._min_interval:
            return
        await self._engine.flush()
        silent = await asyncio.to_thread(self._find_silent, now, listening)
        new = self._select_unalerted(silent)
        await self._alerts.raise_alerts(list(_open_notices(new)))
        self._alerted |= {(session.connection, session.session_id): _cause_of(session) for session in new}
        _log_silence(new)

    def _find_silent(self, now: datetime, listening: datetime) -> list[OpenSession]:
        """Return the sessions with an overdue sign of life."""
        engine = self._engine
        with contextlib.closing(engine.store.cursor()) as cursor:
            listed = open_sessions(cursor, engine.policy, now, listening, silent_since=now - self._min_interval)
        sessions = [item.session for item in listed if item.session.missed_intervals]
        return [session for session in sessions if engine.policy.for_project(session.project).settings.enabled]

    def _select_unalerted(self, silent: Sequence[OpenSession]) -> list[OpenSession]:
        """Return the sessions whose level has raised no alert yet, and forget sessions that are no longer silent."""
        keys = {(session.connection, session.session_id) for session in silent}
        self._alerted = {key: cause for key, cause in self._alerted.items() if key in keys}
        return [
            session for session in silent if self._alerted.get((session.connection, session.session_id)) != _cause_of(session)
        ]


def _list_intervals(policy: Policy) -> dict[str, timedelta]:
    """Return the interval of each project in the policy. The empty name is every other project."""
    names = ("", *policy.projects)
    return {name: timedelta(milliseconds=policy.for_project(name).settings.heartbeat_interval) for name in names}


def _open_notices(sessions: Sequence[OpenSession]) -> Iterator[Notice]:
    """Yield alerts about sessions that have reached a level: one per session, or one per project if there are many."""
    groups: dict[tuple[str, str], list[OpenSession]] = {}
    for session in sessions:
        if session.level in _ALERTED:
            groups.setdefault((session.project, session.level), []).append(session)
    for group in groups.values():
        if len(group) > MAX_SINGLE_ALERTS:
            yield fleet_notice(group)
        else:
            yield from map(silence_notice, group)


def _log_silence(sessions: Sequence[OpenSession]) -> None:
    for session in sessions[:MAX_SINGLE_ALERTS]:
        message = "session %s of connection %s (%s): no heartbeat or record for %d s, %d intervals missed"
        seconds = session.elapsed_ms / 1000
        level = _LOG_LEVELS[session.level or "info"]
        log.log(level, message, session.session_id, session.connection, session.project, seconds, session.missed_intervals)
    if len(sessions) > MAX_SINGLE_ALERTS:
        log.warning("%d more sessions are silent", len(sessions) - MAX_SINGLE_ALERTS)


def _cause_of(session: OpenSession) -> str:
    """Return the text that identifies a silence and its level."""
    return f"{session.last_received.isoformat()} {session.level}"


def periodic_tasks_of(
    engine: RecordIntake, settings: Settings, context: ApiContext, *, watches: bool = True
) -> list[PeriodicTask]:
    """Return the periodic tasks of a server over this engine. They share watch, tokens, metrics and receivers with its endpoints.

    Drift checks are among them only if the server `watches`.
    """
    alerts = open_alerts(engine, settings)
    context.alert_receivers = [receiver.answer for receiver in alerts.receivers]
    context.try_receivers = alerts.try_receivers
    watch_tasks: list[PeriodicTask] = []
    if watches:
        watch_tasks.append(WatchRounds(context.watch, engine.store, engine.now, lambda: engine.state().ready))
    return [
        *watch_tasks,
        AnchorRounds(engine),
        SessionJudging(engine),
        Delivery(alerts),
        SilenceWatchdog(engine, alerts),
        ErasureTask(engine),
        RetentionTask(engine, hot_days_of(settings, engine.policy)),
        TraceAssembler(engine, lambda count: context.metrics.spans({"late": count})),
        WithdrawalTask(engine),
        TokenUse(context.access),
        LoadedCode(),
        *_export_scores(engine, settings),
    ]


def _export_scores(engine: RecordIntake, settings: Settings) -> list[PeriodicTask]:
    """Return the task that sends scores to a collector, if one is configured."""
    collector = read_collector(settings, os.environ)
    if collector is None:
        return []
    from service.export.otlp import ScoreEvents  # noqa: PLC0415 - the collector's format takes a while to load, and most have none

    return [ScoreEvents(engine.store, collector)]
