"""The prefilter never rules out a series in which the detector finds a change, and rules out nearly all others."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from audit.drift.change_detector import SUSPECTED, WINDOW_DAYS, find_change, take_looks
from audit.drift.prefilter import bound_evidence, may_have_changed
from audit.drift.series import Cells, Reference, Series, Unit, cells_of

START = date(2025, 3, 3)


def draw_series(chance: Random, days: int) -> Cells:
    """Return a series of a random kind: traffic, lengths, weekends, gaps, day effects, and a change of a random size near the end."""
    a_day = chance.choice([0.5, 2, 8, 30])
    length = chance.choice([1, 1, 4])
    weekend = chance.choice([0, 0.1, 1])
    by_day = chance.choice([0, 0.3])
    shift = chance.choice([0, 0, -0.1, 0.3, 3])
    change = days - chance.randrange(1, 20)
    first = chance.choice([0, 0, max(0, days - 30)])
    rare = chance.random() < 0.2
    units = []
    for day in range(first, days):
        if chance.random() < 0.1:
            continue
        mean = 0.7 + by_day * chance.gauss(0, 0.1) + (shift if day >= change else 0)
        rate = a_day * (weekend if day % 7 >= 5 else 1)
        for _ in range(int(rate) + (chance.random() < rate % 1)):
            at = datetime(2025, 3, 3, tzinfo=UTC) + timedelta(days=day + chance.random())
            weight = float(chance.randrange(1, length + 1))
            score = float(chance.random() < 0.02) if rare else chance.gauss(mean, 0.1)
            units.append(Unit(at, int(weight), weight, weight * score))
    return cells_of(units)


@pytest.mark.parametrize("days", [40, 120, 430])
def test_the_bound_is_never_below_the_evidence(days: int) -> None:
    """A series that is ruled out wrongly is a change that nobody hears of."""
    chance = Random(days)
    as_of = START + timedelta(days=days - 1)
    many = [draw_series(chance, days) for _ in range(130)]
    references = [
        Reference(since=START + timedelta(days=days // 4)) if number % 5 == 0
        else Reference(cut=((START + timedelta(days=9), START + timedelta(days=12)),), days=7) if number % 5 == 1
        else Reference()
        for number in range(len(many))
    ]  # fmt: skip
    bounds = bound_evidence(many, as_of, references)
    for cells, reference, bound in zip(many, references, bounds.tolist(), strict=True):
        series = Series(cells, as_of - timedelta(days=WINDOW_DAYS - 1), as_of, reference)
        looks = take_looks(series, range(max(0, series.length - 7), series.length))
        evidence = float(looks.log_evidence.max()) if looks.log_evidence.size else -math.inf
        assert evidence <= 0 or bound >= evidence
    changed = [find_change(cells, as_of, reference=reference) for cells, reference in zip(many, references, strict=True)]
    is_found = [change is not None for change in changed]
    assert sum(is_found) > 10
    passed = may_have_changed(many, as_of, references)
    assert all(is_passed or not is_changed for is_passed, is_changed in zip(passed, is_found, strict=True))


def test_nearly_all_quiet_series_are_ruled_out() -> None:
    """The detector costs fifteen times as much, so that few series may need it."""
    chance = Random(1)
    many = []
    for _ in range(100):
        units = [
            Unit(datetime(2025, 3, 3, tzinfo=UTC) + timedelta(days=day + chance.random()), 1, 1.0, chance.gauss(0.7, 0.1))
            for day in range(90)
            for _ in range(10)
        ]
        many.append(cells_of(units))
    as_of = START + timedelta(days=89)
    assert may_have_changed(many, as_of).mean() <= 0.2
    family = math.log(SUSPECTED * len(many))
    assert (bound_evidence(many, as_of) >= family).sum() <= 1


def test_series_without_sessions_are_ruled_out() -> None:
    """A tier that has not been judged yet has no change."""
    empty = cells_of([])
    assert bound_evidence([], START).tolist() == []
    assert bound_evidence([empty], START).tolist() == [-math.inf]
    chance = Random(1)
    old = draw_series(chance, 20)
    assert not may_have_changed([empty, old], START + timedelta(days=200)).any()


def test_a_bound_does_not_depend_on_the_other_series() -> None:
    """Series are computed together only for speed."""
    chance = Random(3)
    many = [draw_series(chance, 60) for _ in range(20)]
    as_of = START + timedelta(days=59)
    together = bound_evidence(many, as_of)
    alone = [float(bound_evidence([cells], as_of)[0]) for cells in many]
    assert together.tolist() == pytest.approx(alone, abs=0.02)
