"""The evidence of two stretches: what it is on paper, what it is on average, and what a single odd score can make of it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.changepoints import NOTHING, SPREAD, Contrast, Sums, contrast

values = st.lists(st.floats(0, 1).map(lambda value: round(value, 3)), min_size=3, max_size=30)


def summed(scores: Sequence[float], weight: float = 1.0) -> Sums:
    """Scores as units of their own."""
    sums = NOTHING
    for score in scores:
        sums = sums.with_unit(1, weight, weight * score)
    return sums


def compared(before: Sequence[float], after: Sequence[float], weight: float = 1.0) -> Contrast:
    """The contrast of two stretches of scores."""
    both = [*before, *after]
    return contrast(summed(before, weight), summed(both, weight), min(both), max(both))


def test_it_is_the_bayes_factor_of_the_two_sample_t_test() -> None:
    """By the formula of Gönen and others for t, reckoned from the samples; the bounds are so wide that the deviance is a square."""
    rng = random.Random(1)
    before, after = [rng.gauss(0, 1) for _ in range(40)], [rng.gauss(1, 1) for _ in range(12)]
    n0, n1 = len(before), len(after)
    free = n0 + n1 - 2
    pooled = ((n0 - 1) * statistics.variance(before) + (n1 - 1) * statistics.variance(after)) / free
    t2 = (statistics.fmean(after) - statistics.fmean(before)) ** 2 / (pooled * (1 / n0 + 1 / n1))
    wide = 1 + SPREAD**2 * n0 * n1 / (n0 + n1)
    expected = -math.log(wide) / 2 + (free + 1) / 2 * (math.log1p(t2 / free) - math.log1p(t2 / (free * wide)))

    found = contrast(summed(before), summed([*before, *after]), -1e5, 1e5)

    assert expected == pytest.approx(found.log_evidence, rel=1e-3)
    assert pooled * free / (n0 + n1) == pytest.approx(found.variance_within)


@pytest.mark.parametrize(("before", "after"), [(10, 3), (40, 3), (40, 40)])
def test_without_a_change_it_is_one_on_average(before: int, after: int) -> None:
    """That is what makes a sum of many of them, looked at as often as one likes, reach the alarm so rarely."""
    rng = random.Random(7)
    drawn = [
        compared([rng.gauss(0.8, 0.1) for _ in range(before)], [rng.gauss(0.8, 0.1) for _ in range(after)]).log_evidence
        for _ in range(4000)
    ]

    assert 0.75 < statistics.fmean(map(math.exp, drawn)) < 1.1


@given(values, values)
def test_up_is_down_in_a_mirror(before: list[float], after: list[float]) -> None:
    """Neither direction is treated better."""
    mirrored = compared([1 - value for value in before], [1 - value for value in after])

    assert compared(before, after).log_evidence == pytest.approx(mirrored.log_evidence, abs=1e-6)


@given(values, values, st.floats(0.5, 50), st.floats(-5, 5), st.floats(0.1, 10))
def test_neither_the_scale_of_the_scores_nor_that_of_the_weights_matters(
    before: list[float], after: list[float], factor: float, offset: float, weight: float
) -> None:
    """Tier 3 goes from 1 to 5 and the others from 0 to 1; only ratios of weights mean anything."""
    expected = compared(before, after)
    scaled = compared([factor * value + offset for value in before], [factor * value + offset for value in after], weight)

    assert expected.log_evidence == pytest.approx(scaled.log_evidence, abs=1e-5)
    assert expected.precision == pytest.approx(scaled.precision)


@given(st.floats(0, 1), st.integers(3, 500), st.integers(3, 500))
def test_scores_that_are_all_the_same_say_nothing(value: float, before: int, after: int) -> None:
    """A variance of 0 is no certainty."""
    assert 0.0 == compared([value] * before, [value] * after).log_evidence


@given(st.floats(0, 0.99), st.integers(10, 5000))
def test_one_odd_score_is_worth_no_more_than_the_number_of_those_before(odd: float, before: int) -> None:
    """What has not been seen in n scores may well have a probability of one in n, however far off it is."""
    assert compared([1.0] * before, [1.0, 1.0, odd]).log_evidence < math.log(before)


def test_days_that_differ_make_every_session_count_for_less() -> None:
    """Where a good day follows a bad one anyway, a bad day is no change; days that do not differ cost nothing."""
    rng = random.Random(5)
    days = [[rng.gauss(mean, 0.1) for _ in range(10)] for mean in (0.7, 0.9) * 10]
    plain = summed([value for day in days for value in day])
    with_days = plain
    for day in days:
        with_days = with_days.with_day(len(day), math.fsum(day))
    both, last = plain, [rng.gauss(0.7, 0.1) for _ in range(40)]
    for value in last:
        both = both.with_unit(1, 1.0, value)

    assert contrast(plain, both, 0, 1).log_evidence > math.log(50)
    assert contrast(with_days, both, 0, 1).log_evidence < math.log(5)


def test_sessions_count_by_how_they_differ() -> None:
    """Ten scores of one session that say the same are no ten witnesses."""
    rng = random.Random(3)
    before = [rng.gauss(0.8, 0.1) for _ in range(60)]
    after = [rng.gauss(0.7, 0.1) for _ in range(4)]
    single = compared(before, after)
    tenfold = compared(before, after, weight=10.0)
    pretended = compared(before, [value for value in after for _ in range(10)])

    assert single.log_evidence == pytest.approx(tenfold.log_evidence)
    assert single.log_evidence < pretended.log_evidence
