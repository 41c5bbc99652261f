"""Periodic tasks of the serving process, in one list."""

from __future__ import annotations

import os

from service.alerts.delivery import Delivery
from service.alerts.raising import open_alerts
from service.export.otlp_collector import collector_of
from service.server.silence_watchdog import SilenceWatchdog
from service.server.token_use import TokenUse
from service.setup.settings import Settings
from service.web.context import ApiContext
from streams.engine.record_intake import RecordIntake
from streams.process import LoadedCode
from streams.upkeep.anchors import AnchorRounds
from streams.upkeep.assembling import TraceAssembler
from streams.upkeep.erasing import ErasureTask
from streams.upkeep.periodic_tasks import PeriodicTask
from streams.upkeep.retention import RetentionTask
from streams.upkeep.withdrawing import Withdrawing
from streams.watch.rounds import WatchRounds


def periodic_tasks_of(
    engine: RecordIntake, settings: Settings, context: ApiContext, *, watches: bool = True
) -> list[PeriodicTask]:
    """Return the periodic tasks of a server over this engine; watch, tokens and figures are those that its endpoints use.

    The watch checks nothing by itself unless the server `watches`.
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
        *_score_events(engine, settings),
    ]


def _score_events(engine: RecordIntake, settings: Settings) -> list[PeriodicTask]:
    """Return the task that sends scores to a collector, if one is configured."""
    collector = collector_of(settings, os.environ)
    if collector is None:
        return []
    from service.export.otlp_export import ScoreEvents  # noqa: PLC0415 - the collector's format takes a while to load, and most have none

    return [ScoreEvents(engine.store, collector)]
