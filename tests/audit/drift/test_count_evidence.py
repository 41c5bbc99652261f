"""Shares of few runs: evidence by counts is an e-value whatever the share is, and a change is confirmed by no more than it supports."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.change_detector import CONFIRMED, SUSPECTED, Change, find_change, looks_of
from audit.drift.series import (
    ASSUMED_CORRELATION,
    Counts,
    Days,
    Off,
    Series,
    Unit,
    cells_of,
    day_correlation,
    log_count_evidence,
    rows_of,
)

START = datetime(2026, 8, 3, tzinfo=UTC)
FIRST = date(2026, 8, 3)
sizes = st.integers(0, 12)
stretches = st.integers(1, 40).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))
Pair = tuple[int, int]
DAYS_BETWEEN = 3
"""The days on which the change of `runs` may have begun by its counts, with as much evidence each."""


def evidence(before: Pair, after: Pair) -> float:
    """The e-value of counts, each given with what they are of."""
    return math.exp(float(log_count_evidence(*(Counts(*(np.array([one]) for one in pair)) for pair in (before, after)))[0]))


def binomial(having: int, of: int, share: float) -> float:
    """How probable a count is."""
    return math.comb(of, having) * share**having * (1 - share) ** (of - having)


def off_of(units: Sequence[Unit], usual: float) -> Off:
    """All of the units as those off a value."""
    return Off.of(rows_of(cells_of(units)).sum(axis=1), usual)


def runs(before: Sequence[int], after: Sequence[int], *, hours: float = 6) -> list[Unit]:
    """Runs of three weeks, and then one every few hours from the next day on; 1 has it, 0 has not."""
    apart = timedelta(days=20) / max(1, len(before))
    units = [Unit(START + place * apart, 1, 1.0, float(has)) for place, has in enumerate(before)]
    begin = START + timedelta(days=21)
    return units + [Unit(begin + place * timedelta(hours=hours), 1, 1.0, float(has)) for place, has in enumerate(after)]


def change(before: Sequence[int], after: Sequence[int], *, hours: float = 6) -> Change | None:
    """The change of a share that a check finds after the last run."""
    units = runs(before, after, hours=hours)
    return find_change(units, units[-1].at.date(), is_share=True)


@given(sizes, sizes, st.floats(0, 1))
def test_whatever_the_share_is_it_is_1_on_average(before: int, after: int, share: float) -> None:
    """That is what makes a sum of e-values keep its promise; a Bayes factor with a prior on the common share does not at small shares."""
    mean = sum(
        binomial(first, before, share) * binomial(later, after, share) * evidence((first, before), (later, after))
        for first in range(before + 1)
        for later in range(after + 1)
    )
    assert mean <= 1 + 1e-9


@given(stretches, stretches)
def test_it_is_the_order_of_runs_against_every_other_order(before: Pair, after: Pair) -> None:
    """By the formula of the module, in whole numbers."""
    (k0, n0), (k1, n1) = before, after
    averaged = math.gamma(k1 + 0.5) * math.gamma(n1 - k1 + 0.5) / math.gamma(n1 + 1) / math.pi
    assert evidence(before, after) == pytest.approx(averaged * math.comb(n0 + n1, k0 + k1) / math.comb(n0, k0), rel=1e-9)


@given(stretches, stretches)
def test_having_and_not_having_are_alike(before: Pair, after: Pair) -> None:
    """The share of safe runs falls as surely as that of unsafe ones rises."""
    others = [(of - having, of) for having, of in (before, after)]
    assert evidence(before, after) == pytest.approx(evidence(*others), rel=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("before", [10, 30])
@pytest.mark.parametrize("alarm", [100.0, SUSPECTED])
def test_looking_after_every_run_does_not_make_it_likelier(share: float, before: int, alarm: float) -> None:
    """The probability that it ever reaches a level within 120 runs, added up over all histories: at most one by that level."""
    reached = 0.0
    for first in range(before + 1):
        alive, weight = np.array([1.0]), binomial(first, before, share)
        for after in range(1, 121):
            alive = np.append(alive * (1 - share), 0.0) + np.append(0.0, alive * share)
            having = np.arange(after + 1)
            counts = Counts(np.full(after + 1, first), np.full(after + 1, before)), Counts(having, np.full(after + 1, after))
            over = log_count_evidence(*counts) >= math.log(alarm)
            reached += weight * float(alive[over].sum())
            alive[over] = 0.0
    assert reached <= 1 / alarm


def test_two_of_two_after_none_of_thirty_is_no_alarm() -> None:
    """Fisher's exact test has 1 in 496 for it; without any spread before, the normal approximation had 10 to the power of 20."""
    assert evidence((0, 30), (2, 2)) == pytest.approx(186)
    assert change([0] * 30, [1] * 2) is None


def test_five_of_five_after_none_of_thirty_is_confirmed() -> None:
    """A real break of an agent must still be told: one run a day, 80 000 to 1 by the counts."""
    assert evidence((0, 30), (5, 5)) == pytest.approx(79_890, rel=1e-4)
    found = change([0] * 30, [1] * 5, hours=24)
    assert found is not None
    assert found.confirmed_at is not None
    assert math.log(SUSPECTED) <= found.log_evidence <= math.log(DAYS_BETWEEN * evidence((0, 30), (5, 5)))


def correlation(*days: Pair) -> float:
    """How much alike runs of one day are, measured over days with so many runs that have it of so many."""
    counts = Counts(np.array([sum(one for one, _ in days)]), np.array([sum(of for _, of in days)]))
    sums = Days(
        *(np.array([float(sum(part))]) for part in zip(*((of * of, of * one, one * one) for one, of in days), strict=True))
    )
    return float(day_correlation([(counts, sums)])[0])


def test_where_nothing_failed_runs_of_a_day_are_taken_to_be_a_little_alike() -> None:
    """No failure says nothing of whether they come together, and neither does a single day."""
    assert correlation(*[(0, 10)] * 30) == pytest.approx(ASSUMED_CORRELATION)
    assert correlation((6, 10)) == pytest.approx(ASSUMED_CORRELATION)


def test_failures_that_come_together_count_for_less_and_those_that_come_alone_for_what_they_are() -> None:
    """Three failures of one day are hardly more than one; three on three days tell that days are not alike."""
    together, alone = correlation((3, 3), *[(0, 3)] * 29), correlation(*[(1, 3)] * 3, *[(0, 3)] * 27)
    assert together > 2 * ASSUMED_CORRELATION > ASSUMED_CORRELATION > 2 * alone


@given(st.lists(st.integers(1, 8).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))), min_size=1, max_size=20))
def test_runs_are_alike_whichever_way_they_are_counted(days: list[Pair]) -> None:
    """Having it and not having it are alike, and no correlation is below 0 or above 1."""
    found = correlation(*days)
    assert 0 <= found <= 1
    if 2 * sum(one for one, _ in days) != sum(of for _, of in days):
        assert found == pytest.approx(correlation(*((of - one, of) for one, of in days)), abs=1e-9)


def test_one_day_of_failures_confirms_nothing() -> None:
    """An hour in which three runs failed together is one event, and not three: agents wait for the same service."""
    rng = random.Random(5)
    units = [
        Unit(START + timedelta(days=number, hours=rng.uniform(0, 24)), 1, 1.0, 0.0) for number in range(100) for _ in range(3)
    ]
    at = START + timedelta(days=100, hours=12)
    units += [Unit(at + place * timedelta(minutes=9), 1, 1.0, 1.0) for place in range(3)]
    found = find_change(units, at.date(), is_share=True)
    assert found is None or found.confirmed_at is None


def test_the_levels_of_a_share_are_its_plain_counts() -> None:
    """Weekends have unsafe runs and weekdays none: what is told of the time before is all of it, as people count it."""
    before = [int((START + place * timedelta(hours=16)).weekday() == 5 and place % 3 == 0) for place in range(30)]
    found = change(before, [1] * 12)
    assert found is not None
    kept = before[: found.units_before]
    assert 28 <= len(kept) <= 30
    assert sum(kept) > 0
    assert found.mean_before == pytest.approx(sum(kept) / len(kept))
    assert found.mean_after == pytest.approx((sum(before) - sum(kept) + 12) / found.units_after)
    assert found.size == pytest.approx(found.mean_after - found.mean_before)


@given(st.integers(0, 3), st.integers(6, 14), st.randoms(use_true_random=False))
def test_the_interval_of_a_share_stays_on_its_scale(few: int, after: int, rng: random.Random) -> None:
    """A change of 0.998 to 1.002 is none that there can be."""
    before = [1] * few + [0] * (30 - few)
    rng.shuffle(before)
    found = change(before, [1] * after)
    if found is not None:
        assert -1 <= found.size_interval.low < found.size < found.size_interval.high + 1e-9 <= 1 + 2e-9
        assert found.size_interval.high - found.size_interval.low > 0.05


@pytest.mark.parametrize(("level", "drop"), [(0.99, 0.9), (0.02, 0.97)])
def test_the_interval_of_bounded_scores_stays_on_their_scale(level: float, drop: float) -> None:
    """Scores end at 0 and 1, so the difference of two means ends at 1 as well."""
    rng = random.Random(3)
    scores = [min(1.0, max(0.0, rng.gauss(level, 0.01))) for _ in range(60)]
    later = [min(1.0, max(0.0, rng.gauss(abs(level - drop), 0.3))) for _ in range(3)]
    units = runs([], [])
    units = [Unit(START + place * timedelta(hours=8), 1, 1.0, score) for place, score in enumerate(scores)]
    units += [Unit(START + timedelta(days=21, hours=8 * place), 1, 1.0, score) for place, score in enumerate(later)]
    found = find_change(units, units[-1].at.date(), bounds=(0.0, 1.0))
    assert found is not None
    assert -1 <= found.size_interval.low <= found.size <= found.size_interval.high <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 50)), min_size=1, max_size=40), st.sampled_from([0.0, 1.0]))
def test_no_more_units_count_as_off_than_are(drawn: list[tuple[float, float]], usual: float) -> None:
    """However far each of them is off, and however much each weighs: evidence rests on the count."""
    scores = [(round(score, 3), weight) for score, weight in drawn]
    units = [Unit(START + timedelta(minutes=place), 1, weight, weight * score) for place, (score, weight) in enumerate(scores)]
    actual = sum(score != usual for score, _ in scores)
    assert off_of(units, usual).least <= actual + 1e-3


def test_units_that_are_off_alike_are_counted_exactly() -> None:
    """Six sessions at 0.67 among 30 at 1 are six."""
    units = [Unit(one.at, 1, 1.0, 1.0 - one.total / 3) for one in runs([0] * 24, [1] * 6)]
    assert float(off_of(units, 1.0).least) == pytest.approx(6.0)


def test_scores_that_never_varied_say_nothing_of_how_far_the_next_may_lie() -> None:
    """Tier 1 is often 1 for weeks: two sessions at 0.67 are two of two, and no certainty; six are found."""
    units = [Unit(one.at, 1, 1.0, 1.0 - one.total / 3) for one in runs([0] * 30, [1] * 6)]
    two, six = units[:32], units
    assert find_change(two, two[-1].at.date()) is None
    found = find_change(six, six[-1].at.date())
    assert found is not None
    assert found.log_evidence < math.log(DAYS_BETWEEN * evidence((0, 30), (8, 8)))


def test_quiet_years_of_rare_failures_confirm_nothing() -> None:
    """One run a day, 1 % with a failure: of a hundred such years thirteen were confirmed as changes by the normal approximation."""
    for seed in range(12):
        rng = random.Random(seed)
        units = [
            Unit(START + timedelta(days=number, hours=rng.uniform(0, 24)), 1, 1.0, float(rng.random() < 0.01))
            for number in range(365)
        ]
        series = Series(cells_of(units), FIRST, FIRST + timedelta(days=364), is_share=True)
        assert looks_of(series, range(14, series.length), math.log(SUSPECTED)).log_evidence.max() < math.log(CONFIRMED)
