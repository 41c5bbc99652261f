"""A check looks back for longer than scores are kept: what it reads are sums, and they stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.watch_histories import END, history, put

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.policy import Policy
from schemas.records import Incident
from streams.log.sink import StorePublisher
from streams.upkeep.deletion import purge
from streams.watch.watching import Watch

POLICY = Policy()
DAYS = 250


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def ramp(back: int) -> float:
    """Return a quality that is constant for two months and then falls by one standard deviation, 0.1, over a year."""
    return 0.85 - 0.1 * max(0, DAYS - 60 - back) / 365


def opened(store: Store) -> list[Incident]:
    """Return the incidents that a check opens."""
    refresh_daily(store)
    watch = Watch(StorePublisher(store, POLICY, lambda: END))
    return [incident for check_result in asyncio.run(watch.check(["ops"])) for incident in check_result.opened]


def test_a_ramp_over_a_year_is_found_with_scores_of_ninety_days(store: Store) -> None:
    """Ninety days of it are a quarter of a standard deviation, which is invisible among ten scores per day."""
    put(store, "scores", history(ramp, DAYS))
    purge(store, POLICY, END)
    ((stored_count, first),) = store.cursor().execute("SELECT count(*), min(exchange_at)::DATE FROM log.scores").fetchall()
    assert stored_count == 910
    assert first == END.date() - timedelta(days=90)

    (incident,) = opened(store)

    assert incident.tier == "tier2"
    assert incident.direction == "down"
    assert incident.rule == "sequential"


def test_without_daily_sums_the_ramp_is_not_found(store: Store) -> None:
    """It shows that the finding above comes from the sums alone."""
    put(store, "scores", history(ramp, DAYS))
    purge(store, POLICY, END)
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.hourly_scores WHERE hour < ?", [END - timedelta(days=91)])

    assert opened(store) == []
