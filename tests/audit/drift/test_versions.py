"""Versions side by side: a worse canary is named within days, and what days do to all versions does not matter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from audit.drift.series import Cells, Unit, cells_of
from audit.drift.versions import VersionChange, compare_versions

START = date(2026, 1, 5)
Number = Callable[[int], float]
Draw = Callable[[Random, float], float]


def normal(chance: Random, mean: float) -> float:
    """Return a score that varies by 0.1."""
    return chance.gauss(mean, 0.1)


def draw_version(a_day: float, mean: Number, seed: int, *, first: int = 0, days: int = 14, draw: Draw = normal) -> Cells:
    """Return the sessions of a version, about so many a day."""
    chance = Random(seed)
    units = []
    for day in range(first, days):
        start = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=day)
        count = int(a_day) + (chance.random() < a_day % 1)
        units += [Unit(start + timedelta(hours=24 * chance.random()), 1, 1.0, draw(chance, mean(day))) for _ in range(count)]
    return cells_of(units)


def compare(version: Cells, others: Cells, day: int = 13) -> VersionChange | None:
    """Compare two versions at the end of a day."""
    return compare_versions(version, others, START + timedelta(days=day))


@pytest.mark.parametrize("seed", range(5))
def test_a_canary_that_is_worse_from_its_first_session_is_named_within_days(seed: int) -> None:
    """A new version has no past, so the others of the same days are what it is compared with."""
    others = draw_version(47.5, lambda _: 0.7, seed)
    canary = draw_version(2.5, lambda _: 0.45, 100 + seed, first=9)
    change = compare(canary, others)
    assert change is not None
    assert change.is_confirmed
    assert change.direction == "down"
    assert change.severity == "critical"
    assert change.first_day == START + timedelta(days=9)
    assert change.size_interval.low < -0.25 < change.size_interval.high
    assert change.sessions == round(float(canary.units.sum()))
    assert change.others_sessions > 200


def test_equal_versions_are_not_named() -> None:
    """A release that changes nothing must not be blamed."""
    for seed in range(20):
        others = draw_version(30, lambda _: 0.7, seed)
        canary = draw_version(20, lambda _: 0.7, 100 + seed, first=5)
        assert all(compare(canary, others, day) is None for day in range(14))


def test_what_days_do_to_all_versions_does_not_matter() -> None:
    """A bad day of the tools or of the judge is common to all versions, however bad it is."""
    moods = [Random(day).gauss(0.7, 0.2) for day in range(14)]
    for seed in range(10):
        others = draw_version(30, moods.__getitem__, seed)
        assert compare(draw_version(20, moods.__getitem__, 100 + seed, first=7), others) is None
        worse = compare(draw_version(20, lambda day: moods[day] - 0.2, 200 + seed, first=7), others)
        assert worse is not None
        assert worse.size == pytest.approx(-0.2, abs=0.08)


def test_one_day_confirms_no_small_difference_however_many_sessions_it_has() -> None:
    """Something that happened on one day to one version alone is no property of the version."""
    others = draw_version(2000, lambda _: 0.7, 1, days=6)
    assert compare(draw_version(2000, lambda _: 0.68, 2, first=5, days=6), others, 5) is None


def test_a_version_whose_days_differ_is_not_named_for_one_of_them() -> None:
    """The version's own days show how much they vary."""
    others = draw_version(100, lambda _: 0.7, 1)
    wild = draw_version(100, lambda day: 0.7 + (0.1 if day % 2 else -0.1) - 0.02, 2)
    assert compare(wild, others) is None


def test_rare_flags_are_counted() -> None:
    """Where nearly all scores are 1, one flag among the first sessions is no evidence, and many are."""

    def flag(chance: Random, share: float) -> float:
        return 2 / 3 if chance.random() < share else 1.0

    others = draw_version(30, lambda _: 0.003, 1, draw=flag)
    for seed in range(10):
        once = draw_version(3, lambda day: 1.0 if day == 12 else 0.0, seed, first=12, days=13, draw=flag)
        few = Cells(*(column[:1] for column in once))  # type: ignore[arg-type]
        assert compare(few, others) is None
        assert compare(draw_version(10, lambda _: 0.01, 100 + seed, first=5, draw=flag), others) is None
    assert compare(draw_version(20, lambda _: 0.3, 3, first=5, draw=flag), others) is not None


def test_without_common_days_there_is_nothing_to_compare() -> None:
    """A version that replaced the others at midnight shows in the series of its agent."""
    others = draw_version(30, lambda _: 0.7, 1, days=7)
    version = draw_version(30, lambda _: 0.3, 2, first=7)
    assert compare(version, others) is None
    assert compare(cells_of([]), others) is None
    assert compare(version, cells_of([])) is None


def test_later_sessions_do_not_change_an_earlier_comparison() -> None:
    """A late check finds the same as an early one."""
    others = draw_version(47, lambda _: 0.7, 1)
    canary = draw_version(3, lambda _: 0.4, 2, first=5)
    early = compare(draw_version(3, lambda _: 0.4, 2, first=5, days=10), draw_version(47, lambda _: 0.7, 1, days=10), 9)
    assert early is not None
    assert compare(canary, others, 9) == early
