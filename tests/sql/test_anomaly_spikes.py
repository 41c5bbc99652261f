"""The query of anomaly spikes and the rule say the same of the same days."""

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


@pytest.mark.parametrize("seed", range(6))
def test_the_query_sees_what_the_rule_sees(seed: int) -> None:
    """Who asks in SQL for all projects at once must not be told otherwise than the incident says."""
    random = Random(seed)
    histories = {f"p{number:02}": _history(random) for number in range(8)}
    as_of = datetime.combine(START + timedelta(days=39), time(23, 59), UTC)
    with Store(None) as store:
        put(store, "scores", [one for name, known in histories.items() for one in _scores(name, known)])
        rows = query_rows(store.cursor(), "anomaly_spikes", {"project": None, "as_of": as_of})
    found = {name: one for name, known in histories.items() if (one := anomaly_spike(known, as_of.date())) is not None}
    assert found.keys() == {row["project"] for row in rows}
    for row in rows:
        told = _row(found[row["project"]])
        assert told == {name: pytest.approx(row[name]) if isinstance(row[name], float) else row[name] for name in told}


def _history(random: Random) -> list[Day]:
    """Forty days, some without exchanges, half of the time with a spike at the end."""
    rate, since, times = random.choice((0.0, 0.05, 0.1)), random.randrange(25, 40), random.choice((1, 5))
    known = [Day(START + timedelta(days=number), 0, random.randrange(0, 30)) for number in range(40)]
    rates = [rate * times if number >= since else rate for number in range(40)]
    return [
        one._replace(anomalies=sum(random.random() < share for _ in range(one.exchanges)))
        for one, share in zip(known, rates, strict=True)
    ]


def _scores(project: str, known: Sequence[Day]) -> list[Score]:
    noons = {one: datetime.combine(one.day, time(12), UTC) for one in known}
    return [
        score(
            f"{project}-{one.day}-{number}",
            1,
            project=project,
            exchange_at=noon,
            scored_at=noon,
            anomaly=number < one.anomalies,
        )
        for one, noon in noons.items()
        for number in range(one.exchanges)
    ]


def _row(found: Spike) -> dict[str, Any]:
    """What both tell, in the words of the query."""
    told = asdict(found) | {"confirmed": found.is_confirmed}
    return {name: value for name, value in told.items() if name not in ("is_confirmed", "start")}
