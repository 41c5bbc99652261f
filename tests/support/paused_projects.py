"""A project whose traffic has paused: on each day one session with an exchange, an anomaly, a cost, a run, an incident and an evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from support.builders import exchange, incident, judgement, score
from support.sample_evaluations import CLAUDE, REFUND, Made, evaluated
from support.stored_sessions import diagnosed
from support.watch_histories import JUDGED, put

from analytics.store.store import Store

PAUSED, LIVE = "paused", "live"
DAYS_AGO = {PAUSED: (20, 21, 40, 80), LIVE: (1, 5, 10, 20, 60)}
"""The days on which each project had its session, counted back from today."""


def count_within(project: str, days: int) -> int:
    """The number of sessions that a project had in the days up to today."""
    return sum(ago < days for ago in DAYS_AGO[project])


def put_paused(store: Store, now: datetime) -> None:
    """Put both projects into a store, as of a present."""
    for project, days_ago in DAYS_AGO.items():
        for ago in days_ago:
            put_session(store, project, f"{project}-{ago}", now - timedelta(days=ago))
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", sum(map(len, DAYS_AGO.values())))


def put_session(store: Store, project: str, session: str, at: datetime) -> None:
    """Put one session of a project in, all of whose records are of one time."""
    of_project = {"project": project}
    evaluation = evaluated(Made(CLAUDE, REFUND, session, (9.0, 9.0, 9.0), project=project)).evaluation
    records: dict[str, Iterable[object]] = {
        "exchanges": [exchange(session, 1, occurred_at=at, ingested_at=at, **of_project)],
        "scores": [
            score(session, 1, exchange_at=at, scored_at=at, anomaly=True, anomaly_reasons=("odd",), **JUDGED, **of_project)
        ],
        "judgements": [judgement(session, 1, judged_at=at, **of_project)],
        "diagnoses": [diagnosed(session, ended_at=at, closed_at=at, **of_project)],
        "incidents": [incident(incident_id=session, status="resolved", detected_at=at, resolved_at=at, **of_project)],
        "evaluations": [msgspec.structs.replace(evaluation, evaluated_at=at)],
    }
    for topic, made in records.items():
        put(store, topic, made)  # type: ignore[arg-type]
