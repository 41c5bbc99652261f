"""Anomaly spikes: twice and three times the baseline's rate, and what small numbers do not say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.spikes import CHANCE, anomaly_spike, chance_of


def severity(anomalies: int, scores: int, baseline_rate: float, baseline_scores: int = 100_000) -> str | None:
    """How bad it is; None when it is no spike."""
    found = anomaly_spike(anomalies=anomalies, scores=scores, baseline_rate=baseline_rate, baseline_scores=baseline_scores)
    return None if found is None else found.severity


@pytest.mark.parametrize(
    ("anomalies", "scores", "rate", "expected"),
    [
        (10, 100, 0.0625, None),
        (25, 200, 0.0625, None),
        (26, 200, 0.0625, "warning"),
        (75, 400, 0.0625, "warning"),
        (76, 400, 0.0625, "critical"),
        (400, 400, 0.5, None),
        (0, 100, 0.0, None),
        (0, 0, 0.1, None),
    ],
)
def test_a_spike_is_above_twice_the_rate_and_critical_above_three_times(
    anomalies: int, scores: int, rate: float, expected: str | None
) -> None:
    """Exactly twice is not above, with rates that floating point holds exactly."""
    assert expected == severity(anomalies, scores, rate)


def test_one_exchange_is_no_spike() -> None:
    """With one exchange in three days any anomaly would be a rate of 100 %."""
    assert severity(1, 1, 0.0001) is None
    assert "critical" == severity(2, 2, 0.0001)


def test_a_few_are_no_spike_where_chance_brings_as_many() -> None:
    """Two in 24 are three times 2.6 %, and come about once in a dozen windows of a project in which nothing has changed."""
    assert severity(2, 24, 0.026, 500) is None
    assert "critical" == severity(8, 24, 0.026, 500)


def test_a_clean_baseline_does_not_say_that_the_rate_is_zero() -> None:
    """None in ten thousand fits one in ten thousand, of which two in eight thousand are not three times as many."""
    assert severity(2, 10_000, 0.0, 10_000) is None
    assert "critical" == severity(5, 100, 0.0, 1000)


@given(st.integers(0, 60), st.integers(1, 200), st.integers(0, 200), st.integers(1, 2000))
def test_the_chance_is_a_bound_of_the_binomial_tail(late: int, scores: int, before: int, baseline_scores: int) -> None:
    """Never less than it really is, and not much more where it decides."""
    total, share = late + before, scores / (scores + baseline_scores)
    tail = math.fsum(math.comb(total, n) * share**n * (1 - share) ** (total - n) for n in range(late, total + 1))
    bound = chance_of(late, scores, before, baseline_scores)

    assert bound >= tail * (1 - 1e-9)
    assert bound <= 1.5 * tail or tail > CHANCE


def test_nothing_to_compare_with_is_no_spike() -> None:
    """A new project has no baseline."""
    assert severity(5, 5, 0.0, 0) is None


def test_the_numbers_are_told() -> None:
    """They go into the incident as its evidence; a ratio to 0 is none."""
    found = anomaly_spike(anomalies=8, scores=20, baseline_rate=0.05, baseline_scores=200)
    clean = anomaly_spike(anomalies=8, scores=20, baseline_rate=0.0, baseline_scores=200)

    assert found is not None
    assert clean is not None
    assert (8, 20, 0.4, 0.05, 8.0) == (found.anomalies, found.scores, found.rate, found.baseline_rate, found.ratio)
    assert clean.ratio is None


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0, 1), st.integers(1, 1000))
def test_more_anomalies_are_never_less_of_a_spike(anomalies: int, more: int, rate: float, baseline_scores: int) -> None:
    """Of as many scores."""
    ranks = [None, "warning", "critical"]
    few, many = (severity(count, 100, rate, baseline_scores) for count in (anomalies, min(100, anomalies + more)))

    assert ranks.index(few) <= ranks.index(many)
