"""Fleets: how many of the confirmed changes are false, among all series of many projects that are watched for 60 days.

A project has 25 segments of twelve series with ten sessions a day, in two families: four series of each segment for its tiers, and eight for
its behavior. `find_family_changes` decides each family, as in `streams.watch.rules`, and `find_fleet_discoveries` all of them together, as in
`streams.watch.checking`. Checks are three days apart and repeat the looks of a week, so daily ones would hardly raise another alarm. A change
that was confirmed once stays so. It is false if its series does not fall, or falls later.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import date, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np

from audit.drift.change_detector import Change, find_change
from audit.drift.discoveries import find_fleet_discoveries, log_e_value
from audit.drift.evidence_bounds import FamilySums, find_family_changes
from audit.drift.series import Cells, select_until
from benchmarks.drift.bars import FIRST, QUIET, Row, build_cells, poisson_interval, share_row
from benchmarks.drift.versions import normal, skewed, thirds

PROJECTS, SEGMENTS, DAYS, RATE = 200, 25, 60, 10
SHAPES = (thirds, *(normal,) * 8, *(skewed,) * 3)
"""The scores of the series of a segment."""
TIERS = 4
"""The number of series of a segment that are decided together with those of other tiers."""
FALLS = range(24, 50)
"""The days on which a segment may fall."""
CHECKS = range(DAYS - 1, QUIET, -3)[::-1]
MONTH = 30.0
BARS = (0.02, 0.1)
"""The highest number of false confirmed changes per project and month, and the highest share of false ones among the confirmed."""


class Fleet(NamedTuple):
    """The projects to simulate; sizes are in sigma of a score."""

    name: str
    common: float = 0.0
    """Standard deviation of a day's effect on all series; half of its variance is that of all projects, the other half that of one project."""
    falling: float = 0.0
    """The share of the segments of which all series fall by one sigma."""


FLEETS = (
    Fleet("quiet"),
    Fleet("quiet, common shocks of half a sigma", common=0.5),
    Fleet("5 % of the segments fall by a sigma", falling=0.05),
    Fleet("5 % of the segments fall by a sigma, common shocks of half a sigma", common=0.5, falling=0.05),
)


class Found(NamedTuple):
    """A change that its family believes in at the end of a day."""

    day: int
    series: int
    log_evidence: float
    is_confirmed: bool
    is_false: bool


def draw_series(fleet: Fleet, seed: int, project: int) -> list[tuple[Cells, int]]:
    """Return the cells of the series of a project, segment by segment, each with the day on which it falls; `DAYS` if it does not."""
    entropy = [seed, zlib.crc32(fleet.name.encode())]
    rng = np.random.default_rng([*entropy, 1 + project])
    days = fleet.common * 0.5**0.5 * (np.random.default_rng(entropy).normal(size=DAYS) + rng.normal(size=DAYS))
    drawn = []
    for _ in range(SEGMENTS):
        fall = int(rng.choice(FALLS)) if rng.random() < fleet.falling else DAYS
        for shape in SHAPES:
            at = np.sort(DAYS * rng.random(rng.poisson(RATE * DAYS)))
            day = at.astype(np.int64)
            drawn.append((build_cells(at, np.ones_like(at), shape(rng, len(at), 0.0, days[day] - (day >= fall))), fall))
    return drawn


def watch_project(task: tuple[Fleet, int, int]) -> list[Found]:
    """Return the changes in which the families of a project believe at the end of each day."""
    series = draw_series(*task)
    is_tier = [number % len(SHAPES) < TIERS for number in range(len(series))]
    found = []
    for day in CHECKS:
        as_of = FIRST + timedelta(days=day)
        cells = [select_until(whole, as_of) for whole, _ in series]
        for family in (True, False):
            members = {number: cells[number] for number in range(len(series)) if is_tier[number] == family}
            changes = _find_changes(members, as_of)
            found += [
                Found(day, number, change.log_evidence, change.confirmed_at is not None, day < series[number][1])
                for number, change in changes.items()
            ]
    return found


def _find_changes(family: dict[int, Cells], as_of: date) -> dict[int, Change]:
    changes, _ = find_family_changes(
        [*family],
        FamilySums.of_cells([*family.values()]),
        as_of,
        lambda number, log_penalty: find_change(family[number], as_of, log_penalty=log_penalty),
    )
    return changes


def confirm_changes(projects: Sequence[Sequence[Found]]) -> dict[tuple[int, int], Found]:
    """Return the first confirmation of each series of all projects."""
    confirmed: dict[tuple[int, int], Found] = {}
    for day in CHECKS:
        today = [(project, change) for project, found in enumerate(projects) for change in found if change.day == day]
        is_named = find_fleet_discoveries(
            [log_e_value(change.log_evidence) for _, change in today], len(projects) * SEGMENTS * len(SHAPES)
        )
        for (project, change), named in zip(today, is_named.tolist(), strict=True):
            if named and change.is_confirmed:
                confirmed.setdefault((project, change.series), change)
    return confirmed


def measure(pool: Pool, seed: int, share: float = 1.0) -> list[Row]:
    """Return the rows of the fleets; `share` of the projects of each."""
    rows = []
    count = max(2, round(share * PROJECTS))
    months = count * (DAYS - QUIET) / MONTH
    for fleet in FLEETS:
        projects = pool.map(watch_project, [(fleet, seed, project) for project in range(count)], chunksize=1)
        confirmed = confirm_changes(projects).values()
        false = sum(change.is_false for change in confirmed)
        name = f"{count} projects, {fleet.name}"
        if fleet.falling:
            rows.append(share_row(f"{name}: false ones of the confirmed", false, len(confirmed), BARS[1], is_most=True))
            continue
        low, high = (bound / months for bound in poisson_interval(false))
        suspected = len({(project, change.series) for project, found in enumerate(projects) for change in found})
        rows.append(
            Row(
                f"{name}: confirmed a project and month",
                f"{false / months:.4f} ({false} in {months:.0f} months, {suspected} suspected)",
                f"{low:.4f} to {high:.4f}",
                f"at most {BARS[0]:g}",
                false / months <= BARS[0],
            )
        )
    return rows
