"""The bounds never rule out a series in which the detector finds a change, and rule out nearly all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random

import numpy as np
import pytest

from audit.drift.change_detector import SUSPECTED, WINDOW_DAYS, find_change, take_looks
from audit.drift.discoveries import mask_candidates
from audit.drift.evidence_bounds import FamilySums, bound_log_evidence
from audit.drift.series import Cells, Floats, Reference, Series, Unit, cells_of, day_number

START = date(2025, 3, 3)


def draw_series(chance: Random, days: int, *, is_share: bool) -> Cells:
    """Return a series of a random kind: traffic, batches, lengths, weekends, gaps, day effects, and a change of a random size near the end."""
    a_day = chance.choice([0.5, 2, 8, 30])
    batch = chance.choice([1, 1, 1, 7])
    length = chance.choice([1, 1, 4])
    weekend = chance.choice([0, 0.1, 1])
    by_day = chance.choice([0, 0.3])
    usual = chance.choice([0.005, 0.05, 0.4]) if is_share else chance.choice([0.0, 0.7, 6.0])
    shift = chance.choice([0, 0, -0.1, 0.3, 3])
    change = days - chance.randrange(1, 20)
    first = chance.choice([0, 0, max(0, days - 30)])
    rare = chance.random() < 0.2
    units = []
    for day in range(first, days):
        if chance.random() < 0.1 or day % batch:
            continue
        mean = usual + by_day * chance.gauss(0, 0.1) + (shift if day >= change else 0)
        rate = a_day * batch * (weekend if day % 7 >= 5 else 1)
        for _ in range(int(rate) + (chance.random() < rate % 1)):
            at = datetime(2025, 3, 3, tzinfo=UTC) + timedelta(days=day + chance.random())
            weight = chance.randrange(1, length + 1)
            if is_share:
                total = float(sum(chance.random() < mean for _ in range(weight)))
            else:
                total = weight * (float(chance.random() < 0.02) if rare else chance.gauss(mean, 0.1))
            units.append(Unit(at, weight, float(weight), total))
    return cells_of(units)


def bound(
    many: Sequence[Cells], as_of: date, references: Sequence[Reference] | None = None, is_share: Sequence[bool] | None = None
) -> Floats:
    """Return the bounds of series, by default of means without decisions."""
    return bound_log_evidence(FamilySums.of_cells(many, references)._replace(is_share=is_share or [False] * len(many)), as_of)


@pytest.mark.parametrize("days", [40, 120, 430])
def test_a_series_whose_bound_is_below_a_threshold_has_no_change_at_that_threshold(days: int) -> None:
    """A series that is ruled out wrongly is a change that nobody hears of."""
    chance = Random(days)
    as_of = START + timedelta(days=days - 1)
    is_share = [number % 2 == 0 for number in range(80)]
    many = [draw_series(chance, days, is_share=kind) for kind in is_share]
    references = [
        Reference(since=START + timedelta(days=days // 4)) if number % 5 == 0
        else Reference(cut=((START + timedelta(days=9), START + timedelta(days=12)),), days=7) if number % 5 == 1
        else Reference()
        for number in range(len(many))
    ]  # fmt: skip
    bounds = bound(many, as_of, references, is_share)
    changed = 0
    for cells, reference, kind, limit in zip(many, references, is_share, bounds.tolist(), strict=True):
        series = Series(cells, as_of - timedelta(days=WINDOW_DAYS - 1), as_of, reference, is_share=kind)
        looks = take_looks(series, range(max(0, series.length - 7), series.length))
        evidence = float(looks.log_evidence.max()) if looks.log_evidence.size else -math.inf
        assert evidence <= 0 or limit >= evidence
        change = find_change(cells, as_of, reference=reference, is_share=kind)
        assert change is None or limit >= change.log_evidence
        changed += change is not None
    assert changed > 10
    assert (bounds < math.log(SUSPECTED)).sum() > 10


@pytest.mark.parametrize("is_share", [False, True])
def test_nearly_all_quiet_series_are_ruled_out(is_share: bool) -> None:
    """The detector costs thirty times as much, so few series may need it."""
    chance = Random(1)
    start = datetime(2025, 3, 3, tzinfo=UTC)
    many = [
        cells_of(
            Unit(
                start + timedelta(days=day + chance.random()),
                1,
                1.0,
                chance.random() < 0.02 if is_share else chance.gauss(0.7, 0.1),
            )
            for day in range(90)
            for _ in range(10)
        )
        for _ in range(100)
    ]
    bounds = bound(many, START + timedelta(days=89), is_share=[is_share] * len(many))
    assert (bounds >= math.log(SUSPECTED)).mean() <= 0.2
    assert mask_candidates(bounds).sum() <= 1


def test_series_without_sessions_are_ruled_out() -> None:
    """A tier that has not been judged yet has no change."""
    empty = cells_of([])
    assert bound([], START).tolist() == []
    assert bound([empty], START).tolist() == [-math.inf]
    old = draw_series(Random(1), 20, is_share=False)
    assert bound([empty, old], START + timedelta(days=200)).tolist() == [-math.inf] * 2


def test_a_bound_depends_neither_on_the_other_series_nor_on_the_hours_of_old_days() -> None:
    """Series are computed together only for speed, and old days may be read as one row each."""
    chance = Random(3)
    many = [draw_series(chance, 60, is_share=False) for _ in range(20)]
    as_of = START + timedelta(days=59)
    together = bound(many, as_of)
    alone = [float(bound([cells], as_of)[0]) for cells in many]
    assert together.tolist() == pytest.approx(alone, abs=0.02)
    sums = FamilySums.of_cells(many)
    is_old = sums.hour < 24 * (day_number(as_of) - 6)
    hour = np.where(is_old, sums.hour // 24 * 24, sums.hour)
    reversed_sums = sums._replace(series=sums.series[::-1], hour=hour[::-1], rows=sums.rows[:, ::-1])
    assert bound_log_evidence(reversed_sums, as_of).tolist() == pytest.approx(together.tolist())
