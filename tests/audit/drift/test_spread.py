"""A change of spread: found at any volume, and not caused by fewer sessions, a change of the mean or the order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.drift.series import Reference, Unit, cells_of
from audit.drift.spread import DAYS, find_spread

START = date(2026, 1, 5)
CHANGE = 60


def sessions(sigma: Callable[[int], float], a_day: Callable[[int], int], days: int = 75, seed: int = 1) -> list[Unit]:
    """Return sessions of one score around 0.8, with a standard deviation and a number of sessions by day."""
    chance = Random(seed)
    return [
        Unit(
            datetime(2026, 1, 5, 8, tzinfo=UTC) + timedelta(days=day, minutes=600 * number / a_day(day)),
            1,
            1.0,
            chance.gauss(0.8, sigma(day)),
        )
        for day in range(days)
        for number in range(a_day(day))
    ]


def doubling_sigma(day: int) -> float:
    """Return a standard deviation that doubles on the day of the change."""
    return 0.1 if day < CHANGE else 0.2


def constant_sigma(_day: int) -> float:
    """Return a constant standard deviation."""
    return 0.1


def date_of(day: int) -> date:
    """Return a day of the history."""
    return START + timedelta(days=day)


@pytest.mark.parametrize(("a_day", "within"), [(10, 14), (50, 3), (600, 3)])
def test_a_doubled_spread_is_found_with_its_first_day(a_day: int, within: int) -> None:
    """More sessions a day find the change sooner."""
    cells = cells_of(sessions(doubling_sigma, lambda _: a_day))
    assert find_spread(cells, date_of(CHANGE - 1)) is None
    change = find_spread(cells, date_of(CHANGE + within - 1))
    assert change is not None
    assert change.direction == "up"
    assert abs((change.first_day - date_of(CHANGE)).days) <= 2
    assert change.before == pytest.approx(0.1, rel=0.35)
    assert change.after == pytest.approx(0.2, rel=0.35)


def test_a_halved_spread_is_found_as_well() -> None:
    """A judge that gives everything the same score has stopped discriminating."""
    change = find_spread(cells_of(sessions(lambda day: 0.1 if day < CHANGE else 0.04, lambda _: 20)), date_of(CHANGE + 10))
    assert change is not None
    assert change.direction == "down"


def sessions_of(length: Callable[[int], int], factor: Callable[[int], float], alike: float, seed: int) -> list[Unit]:
    """Return twenty sessions a day with this many scores around a session mean, which varies by `alike`; scores vary by 0.1."""
    chance, units = Random(seed), []
    for day in range(85):
        for number in range(20):
            count, spread = length(day), factor(day)
            mean = chance.gauss(0.7, alike * spread)
            total = sum(chance.gauss(mean, 0.1 * spread) for _ in range(count))
            units.append(Unit(datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=day, hours=number), count, float(count), total))
    return units


@pytest.mark.parametrize("alike", [0.0, 0.05, 0.1])
@pytest.mark.parametrize(("before", "after"), [(5, 1), (1, 5), (2, 8)])
def test_longer_or_shorter_sessions_are_no_change_of_spread(before: int, after: int, alike: float) -> None:
    """The mean of five scores varies less than a single score, without any change of the agent."""
    cells = cells_of(sessions_of(lambda day: before if day < CHANGE else after, lambda _: 1.0, alike, 1))

    assert [change for day in range(CHANGE + 1, 85, 4) if (change := find_spread(cells, date_of(day))) is not None] == []


@pytest.mark.parametrize(("length", "factor", "direction"), [(5, 2.0, "up"), (5, 0.5, "down"), (1, 2.5, "up")])
def test_a_spread_that_changes_is_found_whatever_the_length_of_sessions(length: int, factor: float, direction: str) -> None:
    """A change is found in longer sessions, and also if sessions get shorter, unless that explains it."""
    cells = cells_of(
        sessions_of(lambda day: 5 if day < CHANGE else length, lambda day: 1.0 if day < CHANGE else factor, 0.05, 2)
    )
    change = find_spread(cells, date_of(84))

    assert change is not None
    assert change.direction == direction


@pytest.mark.parametrize("a_day", [lambda day: 400 if day < CHANGE else 8, lambda day: 8 if day < CHANGE else 400])
@pytest.mark.parametrize("seed", range(5))
def test_more_or_fewer_sessions_are_no_change_of_spread(a_day: Callable[[int], int], seed: int) -> None:
    """The variance of a few sessions is too uncertain to report."""
    cells = cells_of(sessions(constant_sigma, a_day, seed=seed))
    assert [day for day in range(CHANGE, CHANGE + 15) if find_spread(cells, date_of(day)) is not None] == []


@pytest.mark.parametrize("share", [0.002, 0.01, 0.03])
@pytest.mark.parametrize("a_day", [3, 10, 50])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_rare_makes_no_change_of_spread(share: float, a_day: int, seed: int) -> None:
    """If most days have no failure, their variance is 0; a day with one failure is not a change."""
    chance = Random(seed)
    times = [item.at for item in sessions(constant_sigma, lambda _: a_day, 200)]
    cells = cells_of(Unit(at, 1, 1.0, 0.2 if chance.random() < share else 1.0) for at in times)
    assert [day for day in range(30, 200) if find_spread(cells, date_of(day)) is not None] == []


def test_scores_that_are_all_the_same_have_no_spread_that_changes() -> None:
    """Without data nothing is found, and nothing is divided by zero."""
    cells = cells_of(sessions(lambda _: 0.0, lambda _: 10))
    assert find_spread(cells, date_of(70)) is None
    assert find_spread(cells_of([]), date_of(70)) is None


def test_after_four_weeks_a_spread_is_how_the_series_is() -> None:
    """A change that has been reported for a month is not reported again."""
    cells = cells_of(sessions(doubling_sigma, lambda _: 20, CHANGE + DAYS + 20))
    assert find_spread(cells, date_of(CHANGE + DAYS + 15)) is None


def test_days_that_a_decision_cut_out_do_not_count() -> None:
    """A change that a person decided on is not found again."""
    cells = cells_of(sessions(doubling_sigma, lambda _: 20))
    decided = Reference(cut=((date_of(CHANGE - 2), date_of(CHANGE + 30)),))
    assert find_spread(cells, date_of(CHANGE + 10), reference=decided) is None


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(random: Random) -> None:
    """Sessions arrive in any order."""
    units = sessions(doubling_sigma, lambda _: 10)
    mixed = list(units)
    random.shuffle(mixed)
    assert find_spread(cells_of(units), date_of(CHANGE + 12)) == find_spread(cells_of(mixed), date_of(CHANGE + 12))
