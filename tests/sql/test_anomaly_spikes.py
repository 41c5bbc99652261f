"""The SQL query and the Python rule find the same anomaly spikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from typing import Any

import pytest
from support.builders import score
from support.watch_histories import put

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.drift.anomaly_rate import Day, Spike, anomaly_spike
from schemas.records import Score

START = date(2026, 9, 1)
DAYS = 40


@pytest.mark.parametrize("seed", range(6))
def test_the_query_finds_the_same_spikes_as_the_rule(seed: int) -> None:
    """Analysts read spikes by SQL and incidents come from the rule, so both must agree."""
    random = Random(seed)
    histories = {f"p{number:02}": _random_history(random) for number in range(8)}
    as_of = datetime.combine(START + timedelta(days=DAYS - 1), time(23, 59), UTC)
    with Store(None) as store:
        for project, days in histories.items():
            put(store, "scores", _build_scores(project, days))
        rows = query_rows(store.cursor(), "anomaly_spikes", {"project": None, "as_of": as_of})
    spikes = {project: anomaly_spike(days, as_of.date()) for project, days in histories.items()}

    assert {row["project"] for row in rows} == {project for project, spike in spikes.items() if spike is not None}
    for row in rows:
        spike = spikes[row["project"]]
        assert spike is not None
        for column, value in _expected_row(spike).items():
            assert row[column] == (pytest.approx(value) if isinstance(value, float) else value), column


def _random_history(random: Random) -> list[Day]:
    """Return `DAYS` days, some without exchanges, half of the time with a spike at the end."""
    usual_rate = random.choice((0.0, 0.05, 0.1))
    spike_start = random.randrange(25, DAYS)
    spike_factor = random.choice((1, 5))
    exchange_counts = [random.randrange(0, 30) for _ in range(DAYS)]
    history = []
    for number, exchanges in enumerate(exchange_counts):
        rate = usual_rate * spike_factor if number >= spike_start else usual_rate
        anomalies = sum(random.random() < rate for _ in range(exchanges))
        history.append(Day(START + timedelta(days=number), anomalies, exchanges))
    return history


def _build_scores(project: str, days: Sequence[Day]) -> list[Score]:
    scores = []
    for day in days:
        noon = datetime.combine(day.day, time(12), UTC)
        for number in range(day.exchanges):
            session = f"{project}-{day.day}-{number}"
            is_anomaly = number < day.anomalies
            scores.append(score(session, 1, project=project, exchange_at=noon, scored_at=noon, anomaly=is_anomaly))
    return scores


def _expected_row(spike: Spike) -> dict[str, Any]:
    """Return the columns of the query for a spike."""
    row = asdict(spike) | {"confirmed": spike.is_confirmed}
    return {column: value for column, value in row.items() if column not in ("is_confirmed", "start")}
