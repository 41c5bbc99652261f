"""Scores that are nearly always 1, as Tier 1's: how often a quiet project raises a false alarm, and how soon more flagged sessions are found.

A false alarm is one of the mean or of the spread.
"""

from __future__ import annotations

import math
import random
from datetime import timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

from audit.drift.series import Cells, Unit, cells_of
from audit.drift.spread import find_spread
from benchmarks.drift.bars import CHANGE, FIRST, QUIET, START, YEAR, Row, alarms, delay_row, share_row
from benchmarks.drift.runs import drawn_share

DEPTHS = (1, 1, 1, 2, 3)
"""Of three checks, how many a flagged session fails."""
WITHIN = 60
INDEPENDENT, HOUR = "independent", "three sessions of an hour are flagged together"
CORRELATED = {f"days correlated by {alike:g}": alike for alike in (0.1, 0.3)}


class Project(NamedTuple):
    """A simulated project."""

    rate: int
    """Sessions a day."""
    before: float
    """Share of the sessions that are flagged; `after` from the day `change` on."""
    after: float
    change: int
    days: int
    how: str = INDEPENDENT


class Line(NamedTuple):
    """A project to simulate, how often, and the bar: a share that is falsely confirmed, or median days until a change is found."""

    name: str
    project: Project
    runs: int
    bar: float


LINES = (
    *(
        Line(
            f"{share:.1%} flagged, {how}, {rate} a day: falsely confirmed in a year",
            Project(rate, share, share, QUIET + YEAR, QUIET + YEAR, how),
            60 if rate < 50 else 20,
            0.02 if how == INDEPENDENT else 0.2,
        )
        for how in (INDEPENDENT, *CORRELATED, HOUR)
        for share in (0.002, 0.01, 0.05)
        for rate in (3, 10, 50)
    ),
    *(
        Line(
            f"{before:.0%} to {after:.0%} flagged, {rate} a day: found",
            Project(rate, before, after, CHANGE, CHANGE + WITHIN),
            60,
            bar,
        )
        for before, after, bars in (
            (0.0, 0.1, (60, 7, 3)),
            (0.0, 0.3, (5, 3, 2)),
            (0.0, 0.9, (2, 1, 1)),
            (0.01, 0.2, (25, 5, 1)),
        )
        for rate, bar in zip((3, 10, 50), bars, strict=True)
    ),
)


def measure(pool: Pool, seed: int, share: float) -> list[Row]:
    """Return every line; `share` of the runs of each."""
    return [
        _row(line, pool.starmap(_simulate, [(line, seed, run) for run in range(max(5, round(share * line.runs)))]))
        for line in LINES
    ]


def _row(line: Line, results: list[float]) -> Row:
    if _is_quiet(line.project):
        return share_row(line.name, round(sum(results)), len(results), line.bar, is_most=True)
    return delay_row(line.name, results, line.bar)


def _is_quiet(project: Project) -> bool:
    return project.change == project.days


def _simulate(line: Line, seed: int, run: int) -> float:
    """Tell whether an alarm is confirmed, or how many days after the change the first one comes."""
    project = line.project
    cells = _draw_cells(project, random.Random(repr((seed, project, run))))
    if _is_quiet(project):
        return float(any(sure is not None for _, sure in alarms(cells, project.days)) or _is_spread(cells, project.days))
    raised = (at - project.change for at, _ in alarms(cells, project.days, project.change))
    return next((late for late in raised if late >= 0), math.inf)


def _is_spread(cells: Cells, days: int) -> bool:
    """Tell whether a change of the spread is confirmed, looked at every week."""
    looks = (find_spread(cells, FIRST + timedelta(days=day)) for day in range(QUIET, days, 7))
    return any(change is not None and change.is_confirmed for change in looks)


def _draw_cells(project: Project, rng: random.Random) -> Cells:
    units: list[Unit] = []
    shares: dict[int, float] = {}
    group_size = 3 if project.how == HOUR else 1
    time_in_days, start = 0.0, START.item()
    while (time_in_days := time_in_days + rng.expovariate(project.rate / group_size)) < project.days:
        day = math.floor(time_in_days)
        is_flagged = rng.random() < shares.setdefault(day, _share(project, day, rng))
        for number in range(group_size):
            failed = rng.choice(DEPTHS) if is_flagged else 0
            units.append(Unit(start + timedelta(days=time_in_days, minutes=10 * number), 1, 1.0, 1 - failed / 3))
    return cells_of(units)


def _share(project: Project, day: int, rng: random.Random) -> float:
    """Return the share of a day."""
    return drawn_share(project.before if day < project.change else project.after, CORRELATED.get(project.how, 0.0), rng)
