"""Shares of few runs: the evidence of counts is an e-value for any share, and confirms no change that the counts do not support."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.change_detector import CONFIRMED, SUSPECTED, Change, find_change, take_looks
from audit.drift.series import (
    ASSUMED_CORRELATION,
    Counts,
    DaySums,
    DeviantUnits,
    Series,
    Unit,
    cells_of,
    day_correlation,
    log_count_evidence,
    rows_of,
)

START = datetime(2026, 8, 3, tzinfo=UTC)
FIRST = date(2026, 8, 3)
SIZES = st.integers(0, 12)
STRETCHES = st.integers(1, 40).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))
Pair = tuple[int, int]
DAYS_BETWEEN = 3
"""The days on which the change of `run_units` may have begun, each with the same evidence."""


def e_value(before: Pair, after: Pair) -> float:
    """Return the e-value of two counts, each a pair of runs with the property and all runs."""
    return math.exp(float(log_count_evidence(*(Counts(*(np.array([count]) for count in pair)) for pair in (before, after)))[0]))


def binomial(count: int, total: int, share: float) -> float:
    """Return the binomial probability of a count."""
    return math.comb(total, count) * share**count * (1 - share) ** (total - count)


def count_off(units: Sequence[Unit], usual: float) -> DeviantUnits:
    """Return the counts of units off the usual value."""
    return DeviantUnits.from_sums(rows_of(cells_of(units)).sum(axis=1), usual)


def run_units(before: Sequence[int], after: Sequence[int], *, hours: float = 6) -> list[Unit]:
    """Return runs over three weeks, followed by one every few hours; 1 is a run with the property, 0 one without."""
    interval = timedelta(days=20) / max(1, len(before))
    units = [Unit(START + number * interval, 1, 1.0, float(has_property)) for number, has_property in enumerate(before)]
    change_at = START + timedelta(days=21)
    return units + [
        Unit(change_at + number * timedelta(hours=hours), 1, 1.0, float(has_property))
        for number, has_property in enumerate(after)
    ]


def find_share_change(before: Sequence[int], after: Sequence[int], *, hours: float = 6) -> Change | None:
    """Return the change of a share that a check finds after the last run."""
    units = run_units(before, after, hours=hours)
    return find_change(units, units[-1].at.date(), is_share=True)


@given(SIZES, SIZES, st.floats(0, 1))
def test_the_evidence_is_one_on_average_for_any_share(before: int, after: int, share: float) -> None:
    """The false alarm rate rests on this; a Bayes factor with a prior on the common share exceeds 1 at small shares."""
    mean = sum(
        binomial(having_before, before, share)
        * binomial(having_after, after, share)
        * e_value((having_before, before), (having_after, after))
        for having_before in range(before + 1)
        for having_after in range(after + 1)
    )
    assert mean <= 1 + 1e-9


@given(STRETCHES, STRETCHES)
def test_the_evidence_compares_the_order_of_runs_with_every_other_order(before: Pair, after: Pair) -> None:
    """Computed by the module's formula in exact integers."""
    (k0, n0), (k1, n1) = before, after
    averaged = math.gamma(k1 + 0.5) * math.gamma(n1 - k1 + 0.5) / math.gamma(n1 + 1) / math.pi
    assert e_value(before, after) == pytest.approx(averaged * math.comb(n0 + n1, k0 + k1) / math.comb(n0, k0), rel=1e-9)


@given(STRETCHES, STRETCHES)
def test_the_complement_of_a_share_has_the_same_evidence(before: Pair, after: Pair) -> None:
    """A fall of the share of safe runs has the same evidence as the rise of the share of unsafe runs."""
    complements = [(of - having, of) for having, of in (before, after)]
    assert e_value(before, after) == pytest.approx(e_value(*complements), rel=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("before", [10, 30])
@pytest.mark.parametrize("alarm", [100.0, SUSPECTED])
def test_repeated_looks_do_not_raise_the_false_alarm_rate(share: float, before: int, alarm: float) -> None:
    """The probability of reaching a level within 120 runs, summed over all histories, is at most 1 / level."""
    reached = 0.0
    for having_before in range(before + 1):
        probabilities, weight = np.array([1.0]), binomial(having_before, before, share)
        for after in range(1, 121):
            probabilities = np.append(probabilities * (1 - share), 0.0) + np.append(0.0, probabilities * share)
            having = np.arange(after + 1)
            counts = (
                Counts(np.full(after + 1, having_before), np.full(after + 1, before)),
                Counts(having, np.full(after + 1, after)),
            )
            is_alarm = log_count_evidence(*counts) >= math.log(alarm)
            reached += weight * float(probabilities[is_alarm].sum())
            probabilities[is_alarm] = 0.0
    assert reached <= 1 / alarm


def test_two_of_two_after_none_of_thirty_is_no_alarm() -> None:
    """Fisher's exact test gives 1 in 496; the normal approximation would give 10^20 to 1, because there was no variance before."""
    assert e_value((0, 30), (2, 2)) == pytest.approx(186)
    assert find_share_change([0] * 30, [1] * 2) is None


def test_five_of_five_after_none_of_thirty_is_confirmed() -> None:
    """An agent that really breaks must be reported: with one run a day, the counts give 80 000 to 1."""
    assert e_value((0, 30), (5, 5)) == pytest.approx(79_890, rel=1e-4)
    change = find_share_change([0] * 30, [1] * 5, hours=24)
    assert change is not None
    assert change.confirmed_at is not None
    assert math.log(SUSPECTED) <= change.log_evidence <= math.log(DAYS_BETWEEN * e_value((0, 30), (5, 5)))


def measured_correlation(*days: Pair) -> float:
    """Return the correlation measured over days, each given by its runs with the property and all its runs."""
    counts = Counts(np.array([sum(having for having, _ in days)]), np.array([sum(of for _, of in days)]))
    sums = DaySums(
        *(
            np.array([float(sum(part))])
            for part in zip(*((of * of, of * having, having * having) for having, of in days), strict=True)
        )
    )
    return float(day_correlation([(counts, sums)])[0])


def test_without_failures_runs_of_a_day_are_assumed_to_be_slightly_correlated() -> None:
    """Neither a history without failures nor a single day shows whether failures come together."""
    assert measured_correlation(*[(0, 10)] * 30) == pytest.approx(ASSUMED_CORRELATION)
    assert measured_correlation((6, 10)) == pytest.approx(ASSUMED_CORRELATION)


def test_clustered_failures_count_less_than_separate_ones() -> None:
    """Three failures on one day are hardly more evidence than one; three on three days show that runs of a day are independent."""
    together, separate = measured_correlation((3, 3), *[(0, 3)] * 29), measured_correlation(*[(1, 3)] * 3, *[(0, 3)] * 27)
    assert together > 2 * ASSUMED_CORRELATION > ASSUMED_CORRELATION > 2 * separate


@given(st.lists(st.integers(1, 8).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))), min_size=1, max_size=20))
def test_the_correlation_is_the_same_for_the_complement(days: list[Pair]) -> None:
    """Counting runs without the property gives the same correlation, which is always between 0 and 1."""
    correlation = measured_correlation(*days)
    assert 0 <= correlation <= 1
    if 2 * sum(having for having, _ in days) != sum(of for _, of in days):
        assert correlation == pytest.approx(measured_correlation(*((of - having, of) for having, of in days)), abs=1e-9)


def test_one_day_of_failures_confirms_nothing() -> None:
    """Three runs that fail within an hour are one event, because agents depend on the same services."""
    rng = random.Random(5)
    units = [
        Unit(START + timedelta(days=number, hours=rng.uniform(0, 24)), 1, 1.0, 0.0) for number in range(100) for _ in range(3)
    ]
    failing_hour = START + timedelta(days=100, hours=12)
    units += [Unit(failing_hour + number * timedelta(minutes=9), 1, 1.0, 1.0) for number in range(3)]
    change = find_change(units, failing_hour.date(), is_share=True)
    assert change is None or change.confirmed_at is None


def test_the_levels_of_a_share_are_plain_proportions() -> None:
    """Only weekends have unsafe runs; the level before is still the plain share of all runs, which people can check."""
    before = [int((START + number * timedelta(hours=16)).weekday() == 5 and number % 3 == 0) for number in range(30)]
    change = find_share_change(before, [1] * 12)
    assert change is not None
    before_change = before[: change.units_before]
    assert 28 <= len(before_change) <= 30
    assert sum(before_change) > 0
    assert change.mean_before == pytest.approx(sum(before_change) / len(before_change))
    assert change.mean_after == pytest.approx((sum(before) - sum(before_change) + 12) / change.units_after)
    assert change.size == pytest.approx(change.mean_after - change.mean_before)


@given(st.integers(0, 3), st.integers(6, 14), st.randoms(use_true_random=False))
def test_the_interval_of_a_share_stays_on_its_scale(failures_before: int, after: int, rng: random.Random) -> None:
    """A share of 1.002 is impossible."""
    before = [1] * failures_before + [0] * (30 - failures_before)
    rng.shuffle(before)
    change = find_share_change(before, [1] * after)
    if change is not None:
        assert -1 <= change.size_interval.low < change.size < change.size_interval.high + 1e-9 <= 1 + 2e-9
        assert change.size_interval.high - change.size_interval.low > 0.05


@pytest.mark.parametrize(("level", "drop"), [(0.99, 0.9), (0.02, 0.97)])
def test_the_interval_of_bounded_scores_stays_on_their_scale(level: float, drop: float) -> None:
    """Scores are between 0 and 1, so the difference of two means is at most 1."""
    rng = random.Random(3)
    scores = [min(1.0, max(0.0, rng.gauss(level, 0.01))) for _ in range(60)]
    later = [min(1.0, max(0.0, rng.gauss(abs(level - drop), 0.3))) for _ in range(3)]
    units = run_units([], [])
    units = [Unit(START + number * timedelta(hours=8), 1, 1.0, score) for number, score in enumerate(scores)]
    units += [Unit(START + timedelta(days=21, hours=8 * number), 1, 1.0, score) for number, score in enumerate(later)]
    change = find_change(units, units[-1].at.date(), bounds=(0.0, 1.0))
    assert change is not None
    assert -1 <= change.size_interval.low <= change.size <= change.size_interval.high <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 50)), min_size=1, max_size=40), st.sampled_from([0.0, 1.0]))
def test_the_number_of_deviating_units_is_never_overestimated(drawn: list[tuple[float, float]], usual: float) -> None:
    """The evidence uses this count, so it must hold for any deviations and weights."""
    scores = [(round(score, 3), weight) for score, weight in drawn]
    units = [
        Unit(START + timedelta(minutes=minute), 1, weight, weight * score) for minute, (score, weight) in enumerate(scores)
    ]
    actual = sum(score != usual for score, _ in scores)
    assert count_off(units, usual).min_count <= actual + 1e-3


def test_equal_deviations_are_counted_exactly() -> None:
    """Six sessions at 0.67 among 24 at 1 are counted as six."""
    units = [Unit(unit.at, 1, 1.0, 1.0 - unit.total / 3) for unit in run_units([0] * 24, [1] * 6)]
    assert float(count_off(units, 1.0).min_count) == pytest.approx(6.0)


def test_constant_scores_do_not_predict_the_size_of_a_deviation() -> None:
    """Tier 1 is often 1 for weeks. Two sessions at 0.67 are two of two, which is not certain; six are a change."""
    units = [Unit(unit.at, 1, 1.0, 1.0 - unit.total / 3) for unit in run_units([0] * 30, [1] * 6)]
    with_two, with_six = units[:32], units
    assert find_change(with_two, with_two[-1].at.date()) is None
    change = find_change(with_six, with_six[-1].at.date())
    assert change is not None
    assert change.log_evidence < math.log(DAYS_BETWEEN * e_value((0, 30), (8, 8)))


def test_quiet_years_of_rare_failures_confirm_nothing() -> None:
    """With one run a day and 1% failures, the normal approximation confirmed changes in 13 of 100 such years."""
    for seed in range(12):
        rng = random.Random(seed)
        units = [
            Unit(START + timedelta(days=number, hours=rng.uniform(0, 24)), 1, 1.0, float(rng.random() < 0.01))
            for number in range(365)
        ]
        series = Series(cells_of(units), FIRST, FIRST + timedelta(days=364), is_share=True)
        assert take_looks(series, range(14, series.length), math.log(SUSPECTED)).log_evidence.max() < math.log(CONFIRMED)
