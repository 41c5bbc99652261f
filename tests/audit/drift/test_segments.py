"""Segments: the series of a project does not move with the mix of its agents, and moves with all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random

import numpy as np
import pytest

from audit.drift.change_detector import Change, find_change
from audit.drift.segments import TOLD_DAYS, find_mix_change, find_new_segments, merge_cells, standardise
from audit.drift.series import Cells, Floats, Unit, cells_of

START = date(2026, 1, 5)
CHANGE = 30
DAYS = 45
AS_OF = START + timedelta(days=DAYS - 1)
Number = Callable[[int], float]


def always(number: float) -> Number:
    """Return the same number for each day."""
    return lambda _: number


def step(before: float, after: float) -> Number:
    """Return a number that changes on the day of the change."""
    return lambda day: before if day < CHANGE else after


def ramp(before: float, after: float) -> Number:
    """Return a number that changes over the days after the change."""
    return lambda day: before + (after - before) * min(1.0, max(0.0, (day - CHANGE) / (DAYS - CHANGE)))


def stratum(a_day: Number, level: Number, seed: int) -> Cells:
    """Return the sessions of an agent, whose scores vary by 0.1."""
    chance = Random(seed)
    units = []
    for day in range(DAYS):
        start = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=day)
        count = round(a_day(day))
        for number in range(count):
            score = chance.gauss(level(day), 0.1)
            units.append(Unit(start + timedelta(hours=24 * number / count), 1, 1.0, score))
    return cells_of(units)


def find_standardised(strata: Sequence[Cells]) -> Change | None:
    """Return the change of the standardised series."""
    standardised = standardise(strata)
    assert standardised is not None
    change = find_change(standardised.cells, AS_OF)
    return None if change is None else standardised.discount(change)


def find_raw(strata: Sequence[Cells]) -> Change | None:
    """Return the change of the scores as they are: with equal levels there is nothing to standardise."""
    columns = zip(*strata, strict=True)
    return find_change(cells_of(_units_of(columns)), AS_OF)


def _units_of(columns: object) -> list[Unit]:
    last, _, scores, weight, total, *_ = ([value for part in column for value in part.tolist()] for column in columns)  # type: ignore[attr-defined]
    return [Unit(*row) for row in zip(last, scores, weight, total, strict=True)]


SHIFTS = {"at once": step, "slowly": ramp}


@pytest.mark.parametrize("change", SHIFTS.values(), ids=SHIFTS)
def test_a_change_of_the_mix_alone_is_no_change(change: Callable[[float, float], Number]) -> None:
    """No agent got worse, so nobody may be told that quality fell, although the mean of all scores did."""
    for seed in range(5):
        strata = [stratum(change(40, 15), always(0.9), seed), stratum(change(10, 35), always(0.7), 100 + seed)]
        raw = find_raw(strata)
        assert raw is not None
        assert raw.direction == "down"
        assert find_standardised(strata) is None


def test_a_rise_of_all_agents_is_found_although_the_mean_falls() -> None:
    """Simpson's paradox: each agent got better, and more traffic goes to the weaker one."""
    for seed in range(5):
        strata = [stratum(step(40, 15), step(0.85, 0.9), seed), stratum(step(10, 35), step(0.65, 0.7), 100 + seed)]
        change = find_standardised(strata)
        assert change is not None
        assert change.direction == "up"
        assert change.size == pytest.approx(0.05, abs=0.03)
        assert abs((change.first_day - START).days - CHANGE) <= 1


def test_a_fall_of_all_agents_is_found_although_the_mean_stays() -> None:
    """A mix that improves must not hide that each agent fell."""
    for seed in range(5):
        strata = [stratum(step(25, 45), step(0.9, 0.82), seed), stratum(step(25, 5), step(0.7, 0.62), 100 + seed)]
        change = find_standardised(strata)
        assert change is not None
        assert change.direction == "down"


def test_a_new_agent_changes_nothing_and_is_listed_with_its_level() -> None:
    """A weaker agent that joins is news of its own, and no fall of the others."""
    for seed in range(5):
        strata = [stratum(step(40, 20), always(0.85), seed), stratum(step(0, 20), always(0.65), 100 + seed)]
        assert find_standardised(strata) is None
        standardised = standardise([strata[0], strata[1]])
        assert standardised is not None
        new = standardised.levels[1]
        assert new.level == pytest.approx(0.65, abs=0.03)
        assert new.reference_share == pytest.approx(160 / 1520, abs=0.05)
        assert new.recent_share == pytest.approx(0.5)


def test_the_series_of_one_stratum_is_its_cells() -> None:
    """A project with one agent and one judge has the same numbers and the same delays as without strata."""
    cells = stratum(always(10), always(0.8), 1)
    empty = cells_of([])
    for strata in ([cells], [cells, empty], [empty, cells]):
        standardised = standardise(strata)
        assert standardised is not None
        assert standardised.cells is cells
        assert standardised.outside == ()
        assert standardised.inflation(START + timedelta(days=CHANGE)) == 1.0


def test_no_sessions_have_no_series() -> None:
    """A project without scores has nothing to compare."""
    assert standardise([]) is None
    assert standardise([cells_of([])]) is None


def test_strata_without_common_days_are_not_compared() -> None:
    """Scores of a judge that replaced another are not comparable until both judge on the same days; the recent ones are used."""
    old = stratum(step(20, 0), always(0.9), 1)
    new = stratum(step(0, 20), always(0.6), 2)
    standardised = standardise([old, new])
    assert standardised is not None
    assert [level.stratum for level in standardised.levels] == [1]
    assert standardised.outside == (0,)
    assert standardised.cells is new


def test_strata_are_connected_through_a_third() -> None:
    """Two agents that never worked on the same day are comparable if both worked beside a third."""
    early = stratum(step(20, 0), always(0.9), 1)
    late = stratum(step(0, 20), always(0.6), 2)
    beside = stratum(always(20), always(0.75), 3)
    standardised = standardise([early, late, beside])
    assert standardised is not None
    assert [level.level for level in standardised.levels] == pytest.approx([0.9, 0.6, 0.75], abs=0.03)
    assert standardised.outside == ()
    assert find_standardised([early, late, beside]) is None


def test_a_short_overlap_makes_a_later_change_uncertain() -> None:
    """If other strata have all the traffic after a change, the offset from a few common days is all that connects both sides."""
    old = stratum(lambda day: 20 if day < CHANGE else 0, always(0.9), 1)
    new = stratum(lambda day: 0 if day < CHANGE - 3 else 20, always(0.8), 2)
    standardised = standardise([old, new])
    assert standardised is not None
    assert standardised.inflation(START + timedelta(days=CHANGE)) > 3
    assert standardised.inflation(START + timedelta(days=CHANGE - 10)) < 30


def test_the_level_is_that_of_the_reference_mix() -> None:
    """The mean before a change stays what people saw, and both means agree while the mix is the usual one."""
    strata = [stratum(step(40, 15), always(0.9), 1), stratum(step(10, 35), always(0.7), 2)]
    standardised = standardise([_until(cells, CHANGE + 7) for cells in strata])
    assert standardised is not None
    raw, at_reference_mix = (_daily_means(cells) for cells in (merge_cells(strata), standardised.cells))
    assert at_reference_mix[:CHANGE] == pytest.approx(raw[:CHANGE], abs=1e-9)
    assert raw[CHANGE:].mean() == pytest.approx(0.76, abs=0.02)
    assert at_reference_mix[CHANGE:].mean() == pytest.approx(0.86, abs=0.02)


def test_one_huge_day_does_not_decide_the_levels() -> None:
    """On a day with a batch of thousands the strata may differ for a reason of that day."""
    odd_day = 10
    strata = [
        stratum(lambda day: 2000 if day == odd_day else 20, lambda day: 0.5 if day == odd_day else 0.9, 1),
        stratum(lambda day: 2000 if day == odd_day else 20, always(0.7), 2),
    ]
    standardised = standardise(strata)
    assert standardised is not None
    better, worse = standardised.levels
    assert better.level - worse.level == pytest.approx(0.2, abs=0.05)


def test_a_change_of_the_mix_is_told_with_its_day_and_its_shares() -> None:
    """People are told which agent has more traffic since when, and that no agent changed."""
    strata = [stratum(step(25, 5), always(0.9), 1), stratum(step(10, 35), always(0.7), 2), stratum(always(15), always(0.8), 3)]
    assert find_mix_change([_until(cells, CHANGE) for cells in strata], START + timedelta(days=CHANGE - 1)) is None
    change = find_mix_change(strata, AS_OF)
    assert change is not None
    assert change.is_confirmed
    assert abs((change.first_day - START).days - CHANGE) <= 1
    assert [(share.stratum, round(share.before, 1), round(share.after, 2)) for share in change.moved] == [
        (1, 0.2, 0.64),
        (0, 0.5, 0.09),
    ]


def test_a_constant_mix_is_not_told() -> None:
    """More traffic for all agents, or a level that falls, is no change of the mix."""
    strata = [stratum(step(20, 40), step(0.9, 0.6), 1), stratum(step(10, 20), always(0.7), 2)]
    assert find_mix_change(strata, AS_OF) is None
    assert find_mix_change(strata[:1], AS_OF) is None
    assert find_mix_change([], AS_OF) is None


def test_a_share_that_comes_and_goes_is_not_told() -> None:
    """An agent that has had a third of the traffic every few days may have it for three days in a row."""
    strata = [
        stratum(always(30), always(0.9), 1),
        stratum(lambda day: 30 if day % 4 == 0 or day >= DAYS - 3 else 2, always(0.7), 2),
    ]
    assert find_mix_change(strata, AS_OF) is None


def test_a_new_segment_is_told_beside_its_siblings() -> None:
    """A new agent has no past to compare with, so its level is shown beside that of the others."""
    strata = [stratum(always(20), always(0.85), 1), stratum(step(0, 10), always(0.65), 2)]
    (new,) = find_new_segments([_until(cells, CHANGE + 5) for cells in strata], START + timedelta(days=CHANGE + 4))
    assert new.stratum == 1
    assert new.day == START + timedelta(days=CHANGE)
    assert new.sessions == 50
    assert new.level == pytest.approx(0.65, abs=0.05)
    assert new.sibling_level == pytest.approx(0.85, abs=0.05)
    later = START + timedelta(days=CHANGE + TOLD_DAYS)
    assert find_new_segments(strata, later) == []


def _daily_means(cells: Cells) -> Floats:
    starts = np.flatnonzero(np.diff(cells.days, prepend=-1))
    means: Floats = np.add.reduceat(cells.total, starts) / np.add.reduceat(cells.weight, starts)
    return means


def _until(cells: Cells, day: int) -> Cells:
    is_seen = cells.days < (START + timedelta(days=day) - date(1970, 1, 1)).days
    last, *columns = cells
    return Cells(last[is_seen], *(column[is_seen] for column in columns))
