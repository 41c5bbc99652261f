"""Anomaly spikes: what came before one is what is normal, and stays so for two weeks."""

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
    """Consecutive days with so many anomalies of so many exchanges."""
    return [Day(START + timedelta(days=number), *one) for number, one in enumerate(counts)]


def last(known: Sequence[Day]) -> date:
    """The last of some days."""
    return max(one.day for one in known)


COUNTS = st.lists(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=40)


@given(COUNTS, st.randoms(use_true_random=False))
def test_the_order_in_which_days_are_given_does_not_matter(counts: list[tuple[int, int]], random: Random) -> None:
    """Days come from a query that may say them in any order."""
    known = days(*counts)
    mixed = list(known)
    random.shuffle(mixed)

    assert anomaly_spike(known, last(known)) == anomaly_spike(mixed, last(known))


@given(COUNTS, st.integers(0, 39))
def test_later_days_do_not_matter(counts: list[tuple[int, int]], number: int) -> None:
    """What is asked of a day in the past is answered as it was then."""
    known, as_of = days(*counts), START + timedelta(days=number)

    assert anomaly_spike(known, as_of) == anomaly_spike([one for one in known if one.day <= as_of], as_of)


@pytest.mark.parametrize("since", range(1, DAYS))
def test_a_spike_never_becomes_its_own_baseline(since: int) -> None:
    """As long as it is a spike, "before" are the days before it and no other."""
    known = days(*[(2, 40)] * HISTORY, *[(16, 40)] * since)
    found = anomaly_spike(known, last(known))

    assert found is not None
    assert (found.first_day, found.rate_before, found.start) == (START + timedelta(days=HISTORY), 0.05, START)
    assert (found.severity, found.anomalies, found.exchanges) == ("critical", 16 * since, 40 * since)


def test_what_lasts_longer_than_two_weeks_is_no_spike() -> None:
    """It is how the project is now."""
    known = days(*[(2, 40)] * HISTORY, *[(16, 40)] * (DAYS * 3))
    assert anomaly_spike(known, last(known)) is None


def test_as_many_as_before_are_no_spike() -> None:
    """However many they are."""
    known = days(*[(10, 40)] * HISTORY)
    assert anomaly_spike(known, last(known)) is None


def test_a_new_project_has_no_spike() -> None:
    """Without a week before it nobody knows what is normal."""
    known = days(*[(0, 40)] * (REFERENCE_DAYS - 1), (40, 40))
    assert anomaly_spike(known, last(known)) is None
    assert anomaly_spike([], START) is None


def test_one_exchange_is_no_spike() -> None:
    """It is shown as an anomaly by itself."""
    known = days(*[(0, 5000)] * HISTORY, (1, 1))
    assert anomaly_spike(known, last(known)) is None


def test_a_ratio_to_nothing_is_none() -> None:
    """A project without an anomaly before does not say that its rate is zero."""
    known = days(*[(0, 40)] * HISTORY, (8, 40))
    found = anomaly_spike(known, last(known))

    assert found is not None
    assert (found.ratio, found.rate_before, found.severity) == (None, 0.0, "critical")


def test_anomalies_in_bunches_count_for_less() -> None:
    """A session that goes wrong brings several at once."""
    even, bunched = [(2, 40)] * HISTORY, [(0, 40), (0, 40), (0, 40), (8, 40)] * 7 + [(2, 40)] * 2
    found = [anomaly_spike(days(*before, (14, 40)), START + timedelta(days=HISTORY)) for before in (even, bunched)]

    assert found[0] is not None
    assert found[1] is None or found[1].log_evidence < found[0].log_evidence


def test_a_day_without_exchanges_says_nothing() -> None:
    """A weekend is no evidence of either."""
    known = days(*[(2, 40)] * HISTORY, (16, 40))
    gap = [*known[:10], known[10]._replace(anomalies=0, exchanges=0), *known[11:]]
    assert anomaly_spike([*known[:10], *known[11:]], last(known)) == anomaly_spike(gap, last(known))


@given(COUNTS, st.integers(1, 50))
def test_more_anomalies_on_the_last_day_are_never_less_of_a_spike(counts: list[tuple[int, int]], more: int) -> None:
    """Of as many exchanges, with the days before as they were."""
    anomalies, exchanges = counts[-1]
    known, worse = (days(*counts[:-1], one) for one in ((anomalies, exchanges), (min(exchanges, anomalies + more), exchanges)))
    few, many = (anomaly_spike(one, last(one)) for one in (known, worse))
    assert few is None or (many is not None and few.log_evidence <= many.log_evidence + 1e-9)


@given(COUNTS, st.lists(st.integers(0, 60), max_size=20))
def test_what_is_older_than_the_history_does_not_matter(counts: list[tuple[int, int]], older: list[int]) -> None:
    """Where scores are kept for years, what was two years ago is not what is normal."""
    known = days(*counts)
    gone = [Day(last(known) - timedelta(days=HISTORY_DAYS + number), some, 60) for number, some in enumerate(older)]
    assert anomaly_spike(known, last(known)) == anomaly_spike([*gone, *known], last(known))


def test_evidence_decides_between_suspected_and_confirmed() -> None:
    """A few more are worth a look; nobody is woken before it is as good as certain."""
    few, many = (days(*[(4, 80)] * HISTORY, *[(late, 80)] * 2) for late in (13, 40))
    suspected, confirmed = anomaly_spike(few, last(few)), anomaly_spike(many, last(many))
    assert suspected is not None
    assert confirmed is not None
    assert (suspected.is_confirmed, confirmed.is_confirmed) == (False, True)
    assert math.log(SUSPECTED) <= suspected.log_evidence < math.log(CONFIRMED) <= confirmed.log_evidence
