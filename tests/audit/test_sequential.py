"""The rule for small changes: what it finds and how soon, what it leaves alone, and that looking more often or later changes nothing."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.looks import HISTORY_DAYS, REFERENCE_DAYS, History
from audit.sequential import ALARM, WINDOW_DAYS, Change, Unit, find_change, standing

START = datetime(2026, 8, 3, tzinfo=UTC)
CHANGE = 44
"""Days before the change: 14 and another 30."""

Draw = Callable[[random.Random, bool], float]
"""Draws a score, before or after the change."""


def day(number: int) -> date:
    """The date of a day of the series."""
    return START.date() + timedelta(days=number)


def series(draw: Draw, rate: int, days: int, change: int = CHANGE, seed: int = 1) -> list[Unit]:
    """So many sessions of one score on each day, evenly over it."""
    rng = random.Random(f"{seed} {rate}")
    return [
        unit(draw(rng, number >= change), START + timedelta(days=number, hours=24 * (place + 0.5) / rate))
        for number in range(days)
        for place in range(rate)
    ]


def unit(score: float, at: datetime, weight: float = 1.0) -> Unit:
    """A session of one score."""
    return Unit(at, 1, weight, weight * score)


def falls(sigmas: float) -> Draw:
    """Scores of mean 0.85 and sigma 0.1 that fall by so many sigma, cut to 0..1."""
    return lambda rng, is_after: min(1.0, max(0.0, rng.gauss(0.85 - 0.1 * sigmas * is_after, 0.1)))


def alarm(units: Iterable[Unit]) -> float | None:
    """Days from the change to the first alarm at or after it, looked at after every unit; None when there is none."""
    history = History(units, day(0), day(CHANGE + 60))
    for number in range(CHANGE, len(history.days)):
        for look in history.looks(number):
            if history.log_evidence(look) >= math.log(ALARM):
                return (look.at - START) / timedelta(days=1) - CHANGE
    return None


def must(change: Change | None) -> Change:
    """The change that is there."""
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("sigmas", "rate", "bar"),
    [(1.0, 3, 12), (1.0, 10, 4), (1.0, 50, 2), (0.5, 10, 16), (0.5, 50, 4), (2.0, 3, 6), (-1.0, 10, 4)],
)
def test_a_change_is_found_in_time(sigmas: float, rate: int, bar: float) -> None:
    """Half of the changes are found within the bar, and none is missed within 60 days."""
    delays = [alarm(series(falls(sigmas), rate, CHANGE + 60, seed=seed)) for seed in range(9)]
    found = [delay for delay in delays if delay is not None]

    assert len(delays) == len(found)
    assert statistics.median(found) <= bar


def test_quiet_years_are_quiet() -> None:
    """Twenty quiet years of one tier: at one false alarm in eight years at most, more than six have a probability below 2 %."""
    alarms = 0
    for seed in range(20):
        history = History(series(falls(0), 3, 14 + 365, seed=seed), day(0), day(14 + 365))
        alarms += any(
            history.log_evidence(look) >= math.log(ALARM)
            for number in range(len(history.days))
            for look in history.looks(number)
        )

    assert alarms <= 6


def test_a_change_tells_since_when_and_how_large() -> None:
    """A person wants the day, the size, and how sure both are."""
    found = must(find_change(series(falls(1), 10, CHANGE + 6), day(CHANGE + 5)))

    assert "down" == found.direction
    assert found.earliest_day <= day(CHANGE) <= found.latest_day
    assert abs((found.first_day - day(CHANGE)).days) <= 1
    assert found.size_interval.low <= found.size <= found.size_interval.high
    assert found.size == pytest.approx(found.mean_after - found.mean_before)
    assert -0.1 == pytest.approx(found.size, abs=0.05)
    assert 0.1 == pytest.approx(found.sigma, abs=0.02)
    assert 10 * (CHANGE + 6) == found.scores_before + found.scores_after == found.units_before + found.units_after
    assert START + timedelta(days=CHANGE) <= found.alarm_at <= found.seen_at
    assert found.log_evidence >= math.log(ALARM)


def test_severity_is_by_the_size_in_sigma() -> None:
    """Beyond two sigma it is critical."""
    severities = [must(find_change(series(falls(size), 10, CHANGE + 7), day(CHANGE + 6))).severity for size in (1, 4)]

    assert ["warning", "critical"] == severities


def test_the_level_rises_to_an_alarm() -> None:
    """The display shows how far it is: nothing while it is quiet, 1 and more with an alarm."""
    units = series(falls(1), 10, CHANGE + 10)
    levels = [standing(units, day(number)) for number in (CHANGE - 1, CHANGE + 9)]

    assert levels[0].level < 1 <= levels[1].level
    assert [None, "down"] == [one.change and one.change.direction for one in levels]


@pytest.mark.parametrize("days", [0, 1, REFERENCE_DAYS])
def test_without_a_reference_there_is_no_change(days: int) -> None:
    """A project's first two weeks are what it is compared with."""
    assert find_change(series(falls(4), 10, days, change=days // 2), day(days)) is None


def test_a_change_that_was_decided_on_is_the_new_normal() -> None:
    """After a person has accepted it, the days before it are not compared with any more."""
    units = series(falls(2), 10, CHANGE + 30)

    assert find_change(units, day(CHANGE + 29)) is not None
    assert find_change(units, day(CHANGE + 29), since=day(CHANGE)) is None


def test_after_two_months_a_change_has_become_normal() -> None:
    """The window moves on, so an incident nobody decided on does not stay for ever."""
    units = series(falls(1), 10, CHANGE + HISTORY_DAYS + 10)

    assert find_change(units, day(CHANGE + 40)) is not None
    assert find_change(units, day(CHANGE + HISTORY_DAYS + 9)) is None


@pytest.mark.parametrize("usual", [1.0, 0.75])
@pytest.mark.parametrize("odd", [0.0, 2 / 3])
def test_one_odd_session_in_a_constant_series_is_no_change(usual: float, odd: float) -> None:
    """Where Tier 1 was always 1, one flagged exchange is an anomaly of its own; five in a row are a change."""
    units = series(lambda _rng, _after: usual, 10, 40)
    one, five = ([*units[:-count], *(unit(odd, given.at) for given in units[-count:])] for count in (1, 5))

    assert find_change(units, day(39)) is None
    assert find_change(one, day(39)) is None
    assert find_change(five, day(39)) is not None


def test_another_mix_of_sampled_turns_is_no_change() -> None:
    """First turns score lower; when every later turn is scored instead of every third, the plain mean rises and the quality does not."""
    rng = random.Random(4)
    units, plain = [], []
    for number in range(60):
        share, weight = (9, 1.0) if number >= CHANGE else (3, 3.0)
        for place in range(6):
            scores = [(rng.gauss(0.7, 0.1), 1.0) for _ in range(5)] + [(rng.gauss(0.9, 0.1), weight) for _ in range(share)]
            at = START + timedelta(days=number, hours=4 * place)
            units.append(Unit(at, len(scores), sum(w for _, w in scores), sum(x * w for x, w in scores)))
            plain.append(Unit(at, len(scores), len(scores), sum(x for x, _ in scores)))

    assert find_change(units, day(59)) is None
    assert "up" == must(find_change(plain, day(59))).direction


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_neither_the_order_nor_what_lies_outside_the_window_matters(seed: int, rng: random.Random) -> None:
    """Also where sessions end at the same time; a late check and a rerun see the same."""
    as_of = day(WINDOW_DAYS + 5)
    units = [unit(one.total, one.at.replace(hour=12, minute=0)) for one in series(falls(1), 4, WINDOW_DAYS + 10, 75, seed)]
    first = as_of - timedelta(days=WINDOW_DAYS - 1)
    inside = [one for one in units if first <= one.at.date() <= as_of]
    rng.shuffle(units)

    assert standing(inside, as_of) == standing(units, as_of)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 59))
def test_a_look_never_depends_on_what_comes_later(seed: int, last: int) -> None:
    """So an alarm is the same whenever it is looked for."""
    units = series(falls(0.7), 5, 60, seed=seed)
    whole, part = History(units, day(0), day(59)), History(units, day(0), day(last))

    for number in range(last + 1):
        looks = zip(part.looks(number), whole.looks(number), strict=True)
        assert all(part.log_evidence(a) == whole.log_evidence(b) for a, b in looks)


def test_a_check_that_comes_late_still_tells_when_it_was_beyond_doubt() -> None:
    """Within the week that is looked at again, whenever the process was up."""
    units = series(falls(2), 10, CHANGE + 6)
    alarms = [must(find_change(units, day(CHANGE + late))).alarm_at for late in range(1, 6)]

    assert 1 == len(set(alarms))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 5), st.floats(-2, 2), st.booleans())
def test_scale_and_direction_of_the_scores_do_not_matter(seed: int, factor: float, offset: float, is_mirrored: bool) -> None:
    """Tier 3 goes from 1 to 5; an improvement is found as soon as a decline."""
    units = series(falls(1.5), 5, CHANGE + 8, seed=seed)
    factor = -factor if is_mirrored else factor
    other = [unit(factor * one.total + offset, one.at, 2.0) for one in units]
    known, found = (standing(given, day(CHANGE + 7)) for given in (units, other))

    assert known.level == pytest.approx(found.level, rel=1e-3, abs=1e-3)
    if known.change is not None and found.change is not None:
        assert known.change.first_day == found.change.first_day
        assert (known.change.direction != found.change.direction) == is_mirrored
        assert factor * known.change.size == pytest.approx(found.change.size, rel=1e-3, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 5), st.integers(1, 12), st.integers(1, 80), st.floats(0.1, 9))
def test_scores_that_are_all_the_same_are_no_change(score: float, rate: int, days: int, weight: float) -> None:
    """However long it lasts and however they are weighted; sums of weights are rounded."""
    units = [unit(score, one.at, weight) for one in series(lambda _rng, _after: score, rate, days)]

    assert find_change(units, day(days)) is None
