"""Runs of days: what starts one, what ends it, and its severity."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.consecutive_days import DailyAverage, consecutive_days

AS_OF = date(2026, 10, 31)
MEAN, SIGMA = 0.8, 0.1
OFFSETS = {"H": 2.5, "h": 1.5, ".": 0.0, "l": -1.5, "L": -2.5}

weeks = st.text("HhlL. _", min_size=0, max_size=12)


def week(marks: str, mean: float = MEAN, sigma: float = SIGMA) -> list[DailyAverage]:
    """Return days up to the check: high and low ones, in capitals beyond two sigma, and `_` without scores."""
    first_day = AS_OF - timedelta(days=len(marks) - 1)
    offsets = [OFFSETS.get(mark) for mark in marks]
    return [
        DailyAverage(first_day + timedelta(days=index), None if offset is None else mean + offset * sigma)
        for index, offset in enumerate(offsets)
    ]


def find_runs(days: list[DailyAverage], mean: float = MEAN, stddev: float = SIGMA) -> list[tuple[str, str, int]]:
    """Return direction, severity and number of days of each run."""
    return [(run.direction, run.severity, len(run.days)) for run in consecutive_days(days, mean, stddev, AS_OF)]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("", []),
        ("ll", []),
        ("lll", [("down", "warning", 3)]),
        ("hhh", [("up", "warning", 3)]),
        ("lLl", [("down", "critical", 3)]),
        ("lll....", [("down", "warning", 3)]),
        ("lllllll", [("down", "warning", 7)]),
        ("llhll", []),
        ("ll.ll", []),
        ("lllhhh", [("down", "warning", 3), ("up", "warning", 3)]),
        ("lll.lll", [("down", "warning", 3), ("down", "warning", 3)]),
        ("l__l__l", [("down", "warning", 3)]),
        ("LL_L___", [("down", "critical", 3)]),
        ("_______", []),
    ],
)
def test_a_run_is_three_days_with_scores_on_one_side(marks: str, expected: list[tuple[str, str, int]]) -> None:
    """A day without scores shows nothing, so it neither adds to a run nor ends it."""
    assert find_runs(week(marks)) == expected


def test_only_the_last_seven_days_count() -> None:
    """A drift that is over for a week is history."""
    assert find_runs(week("lllll.....")) == []
    assert find_runs(week("lllllllllll")) == [("down", "warning", 7)]
    assert find_runs([DailyAverage(one.day + timedelta(days=3), one.average) for one in week("lll")]) == []


def test_a_run_keeps_all_its_days_and_the_largest_deviation() -> None:
    """A person needs the whole run, not only the three days that started it."""
    days = week("..lLll")
    (run,) = consecutive_days(days, MEAN, SIGMA, AS_OF)

    assert tuple(days[2:]) == run.days
    assert run.deviation == pytest.approx(2.5)


@pytest.mark.parametrize(("offset", "expected"), [(0.25, []), (0.26, [("up", "warning", 3)]), (0.5, [("up", "warning", 3)])])
def test_one_sigma_is_not_beyond_the_limit(offset: float, expected: list[tuple[str, str, int]]) -> None:
    """More than one sigma is a run and more than two are critical, tested with numbers that floats represent exactly."""
    days = [DailyAverage(AS_OF - timedelta(days=number), 0.5 + offset) for number in range(3)]

    assert find_runs(days, 0.5, 0.25) == expected


def test_a_constant_baseline_has_a_minimum_sigma() -> None:
    """With a sigma of 0 everything would be drift, so a smallest sigma is assumed."""
    for drop, expected in ((0.009, []), (0.015, "warning"), (0.03, "critical")):
        days = [DailyAverage(AS_OF - timedelta(days=number), 1 - drop) for number in range(3)]

        assert find_runs(days, 1.0, 0.0) == (expected and [("down", expected, 3)])


@given(weeks, st.randoms())
def test_the_order_of_the_days_does_not_matter(marks: str, rng: object) -> None:
    """A query may return days in any order."""
    days = week(marks)
    shuffled = list(days)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]

    assert consecutive_days(days, MEAN, SIGMA, AS_OF) == consecutive_days(shuffled, MEAN, SIGMA, AS_OF)


@given(weeks)
def test_both_directions_are_treated_equally(marks: str) -> None:
    """A rise of scores is reported like a fall."""
    mirrored = marks.translate(str.maketrans("HhlL", "LlhH"))
    swapped = [({"up": "down", "down": "up"}[side], bad, days) for side, bad, days in find_runs(week(mirrored))]

    assert find_runs(week(marks)) == swapped
