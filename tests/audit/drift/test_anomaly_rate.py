"""Anomaly spikes: the baseline is the days before the spike, for the two weeks that it may last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.anomaly_rate import CONFIRMED, DAYS, HISTORY_DAYS, REFERENCE_DAYS, SUSPECTED, Day, anomaly_spike

START = date(2026, 9, 1)
HISTORY = 30


def days(*counts: tuple[int, int]) -> list[Day]:
    """Return consecutive days, each given by its anomalies and its exchanges."""
    return [Day(START + timedelta(days=number), *counts_of_day) for number, counts_of_day in enumerate(counts)]


def last_day(history: Sequence[Day]) -> date:
    """Return the date of the last day."""
    return max(day.day for day in history)


COUNTS = st.lists(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=40)


@given(COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_days_does_not_matter(counts: list[tuple[int, int]], random: Random) -> None:
    """A query may return days in any order."""
    history = days(*counts)
    mixed = list(history)
    random.shuffle(mixed)

    assert anomaly_spike(history, last_day(history)) == anomaly_spike(mixed, last_day(history))


@given(COUNTS, st.integers(0, 39))
def test_later_days_do_not_matter(counts: list[tuple[int, int]], number: int) -> None:
    """A check as of a past day gives the same result as a check on that day."""
    history, as_of = days(*counts), START + timedelta(days=number)

    assert anomaly_spike(history, as_of) == anomaly_spike([day for day in history if day.day <= as_of], as_of)


@pytest.mark.parametrize("since", range(1, DAYS))
def test_a_spike_never_becomes_its_own_baseline(since: int) -> None:
    """While the spike lasts, its baseline is the days before its first day."""
    history = days(*[(2, 40)] * HISTORY, *[(16, 40)] * since)
    spike = anomaly_spike(history, last_day(history))

    assert spike is not None
    assert spike.first_day == START + timedelta(days=HISTORY)
    assert spike.rate_before == 0.05
    assert spike.start == START
    assert spike.severity == "critical"
    assert spike.anomalies == 16 * since
    assert spike.exchanges == 40 * since


def test_a_rate_that_lasts_over_two_weeks_is_no_spike() -> None:
    """After two weeks, the higher rate is the new baseline."""
    history = days(*[(2, 40)] * HISTORY, *[(16, 40)] * (DAYS * 3))
    assert anomaly_spike(history, last_day(history)) is None


def test_a_constant_rate_is_no_spike() -> None:
    """A constant rate is not a spike, however high it is."""
    history = days(*[(10, 40)] * HISTORY)
    assert anomaly_spike(history, last_day(history)) is None


def test_a_new_project_has_no_spike() -> None:
    """With less than a week of history, there is no baseline."""
    history = days(*[(0, 40)] * (REFERENCE_DAYS - 1), (40, 40))
    assert anomaly_spike(history, last_day(history)) is None
    assert anomaly_spike([], START) is None


def test_a_single_exchange_is_no_spike() -> None:
    """A single anomalous exchange is listed as an anomaly, not as a spike."""
    history = days(*[(0, 5000)] * HISTORY, (1, 1))
    assert anomaly_spike(history, last_day(history)) is None


def test_the_ratio_to_a_rate_of_zero_is_undefined() -> None:
    """Without an anomaly in the baseline, the ratio is undefined."""
    history = days(*[(0, 40)] * HISTORY, (8, 40))
    spike = anomaly_spike(history, last_day(history))

    assert spike is not None
    assert spike.ratio is None
    assert spike.rate_before == 0.0
    assert spike.severity == "critical"


def test_clustered_anomalies_are_weaker_evidence() -> None:
    """A session that fails has several anomalies at once, so a history of bunches is weaker evidence."""
    even, bunched = [(2, 40)] * HISTORY, [(0, 40), (0, 40), (0, 40), (8, 40)] * 7 + [(2, 40)] * 2
    spikes = [anomaly_spike(days(*before, (14, 40)), START + timedelta(days=HISTORY)) for before in (even, bunched)]

    assert spikes[0] is not None
    assert spikes[1] is None or spikes[1].log_evidence < spikes[0].log_evidence


def test_a_day_without_exchanges_is_ignored() -> None:
    """Days without exchanges, such as weekends, are ignored."""
    history = days(*[(2, 40)] * HISTORY, (16, 40))
    gap = [*history[:10], history[10]._replace(anomalies=0, exchanges=0), *history[11:]]
    assert anomaly_spike([*history[:10], *history[11:]], last_day(history)) == anomaly_spike(gap, last_day(history))


@given(COUNTS, st.integers(1, 50))
def test_the_evidence_increases_with_the_anomalies_of_the_last_day(counts: list[tuple[int, int]], more: int) -> None:
    """Evidence is monotonic in the anomalies of the last day."""
    anomalies, exchanges = counts[-1]
    history, worse = (
        days(*counts[:-1], days_of_case)
        for days_of_case in ((anomalies, exchanges), (min(exchanges, anomalies + more), exchanges))
    )
    smaller, larger = (anomaly_spike(days_of_case, last_day(days_of_case)) for days_of_case in (history, worse))
    assert smaller is None or (larger is not None and smaller.log_evidence <= larger.log_evidence + 1e-9)


@given(COUNTS, st.lists(st.integers(0, 60), max_size=20))
def test_days_older_than_the_history_are_ignored(counts: list[tuple[int, int]], older: list[int]) -> None:
    """Scores may be kept for years, but only `HISTORY_DAYS` days are the baseline."""
    history = days(*counts)
    outside = [
        Day(last_day(history) - timedelta(days=HISTORY_DAYS + number), anomalies, 60) for number, anomalies in enumerate(older)
    ]
    assert anomaly_spike(history, last_day(history)) == anomaly_spike([*outside, *history], last_day(history))


def test_evidence_decides_between_suspected_and_confirmed() -> None:
    """A small rise is only suspected; people are alerted once it is practically certain."""
    few_anomalies, many_anomalies = (days(*[(4, 80)] * HISTORY, *[(late, 80)] * 2) for late in (13, 40))
    suspected, confirmed = (
        anomaly_spike(few_anomalies, last_day(few_anomalies)),
        anomaly_spike(many_anomalies, last_day(many_anomalies)),
    )
    assert suspected is not None
    assert confirmed is not None
    assert suspected.is_confirmed is False
    assert confirmed.is_confirmed is True
    assert math.log(SUSPECTED) <= suspected.log_evidence < math.log(CONFIRMED) <= confirmed.log_evidence
