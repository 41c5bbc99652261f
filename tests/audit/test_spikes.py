"""Anomaly spikes: twice and three times the baseline's rate, and what small numbers do not say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.spikes import anomaly_spike


def severity(anomalies: int, scores: int, baseline_rate: float, baseline_scores: int = 100) -> str | None:
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
    assert severity(1, 1, 0.01) is None
    assert "critical" == severity(2, 2, 0.01)


def test_a_clean_baseline_does_not_say_that_the_rate_is_zero() -> None:
    """None in a hundred fits one in a hundred, of which two in eighty are not three times as many."""
    assert severity(2, 100, 0.0) is None
    assert "warning" == severity(2, 80, 0.0)
    assert "critical" == severity(4, 100, 0.0)


def test_nothing_to_compare_with_is_no_spike() -> None:
    """A new project has no baseline."""
    assert severity(5, 5, 0.0, 0) is None


def test_the_numbers_are_told() -> None:
    """They go into the incident as its evidence; a ratio to 0 is none."""
    found = anomaly_spike(anomalies=5, scores=20, baseline_rate=0.05, baseline_scores=200)
    clean = anomaly_spike(anomalies=5, scores=20, baseline_rate=0.0, baseline_scores=200)

    assert found is not None
    assert clean is not None
    assert (5, 20, 0.25, 0.05, 5.0) == (found.anomalies, found.scores, found.rate, found.baseline_rate, found.ratio)
    assert clean.ratio is None


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0, 1), st.integers(1, 1000))
def test_more_anomalies_are_never_less_of_a_spike(anomalies: int, more: int, rate: float, baseline_scores: int) -> None:
    """Of as many scores."""
    ranks = [None, "warning", "critical"]
    few, many = (severity(count, 100, rate, baseline_scores) for count in (anomalies, min(100, anomalies + more)))

    assert ranks.index(few) <= ranks.index(many)
