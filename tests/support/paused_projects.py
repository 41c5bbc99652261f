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
    """Return the number of sessions of a project in the days up to today."""
    return sum(ago < days for ago in DAYS_AGO[project])


def put_paused(store: Store, now: datetime) -> None:
    """Store both projects, relative to a present time."""
    for project, days_ago in DAYS_AGO.items():
        for ago in days_ago:
            put_session(store, project, f"{project}-{ago}", now - timedelta(days=ago))
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", sum(map(len, DAYS_AGO.values())))


def put_session(store: Store, project: str, session: str, time: datetime) -> None:
    """Store one session of a project whose records all have one time."""
    of_project = {"project": project}
    evaluation = evaluated(Made(CLAUDE, REFUND, session, (9.0, 9.0, 9.0), project=project)).evaluation
    records: dict[str, Iterable[object]] = {
        "exchanges": [exchange(session, 1, occurred_at=time, ingested_at=time, **of_project)],
        "scores": [
            score(session, 1, exchange_at=time, scored_at=time, anomaly=True, anomaly_reasons=("odd",), **JUDGED, **of_project)
        ],
        "judgements": [judgement(session, 1, judged_at=time, **of_project)],
        "diagnoses": [diagnosed(session, ended_at=time, closed_at=time, **of_project)],
        "incidents": [incident(incident_id=session, status="resolved", detected_at=time, resolved_at=time, **of_project)],
        "evaluations": [msgspec.structs.replace(evaluation, evaluated_at=time)],
    }
    for topic, topic_records in records.items():
        put(store, topic, topic_records)  # type: ignore[arg-type]
