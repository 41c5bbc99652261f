"""Versions side by side: how soon a canary that is worse is named, and how many equal versions are.

A canary has a small part of an agent's sessions from its first day on. It is compared at the end of each day.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np

from audit.drift.series import Cells, Floats
from audit.drift.versions import CONFIRMED, SUSPECTED, compare_versions
from benchmarks.drift.bars import Row, build_cells, share_row
from benchmarks.drift.segments import date_of

START = 14
"""The first day of the canary."""
QUIET_DAYS = 28
RUNS = 200
QUIET_RUNS = 2000
Shape = Callable[[np.random.Generator, int, float, float], Floats]


def normal(rng: np.random.Generator, count: int, shift: float, day_effect: float) -> Floats:
    """Return scores of mean 0.6 and sigma 0.1."""
    return np.clip(rng.normal(0.6 + 0.1 * (shift + day_effect), 0.1, count), 0, 1)


def thirds(rng: np.random.Generator, count: int, shift: float, day_effect: float) -> Floats:
    """Return the share of three checks that pass, each with 94 %."""
    fires = np.clip(0.06 - (shift + day_effect) * math.sqrt(0.06 * 0.94 / 3), 0, 1)
    return 1 - rng.binomial(3, fires, count) / 3


def flags(rng: np.random.Generator, count: int, shift: float, day_effect: float) -> Floats:
    """Return scores that are 1 but for one in 100, which is 2/3."""
    return 1 - (rng.random(count) < np.clip(0.01 - 0.0033 * (shift + day_effect), 0, 1)) / 3


def skewed(rng: np.random.Generator, count: int, shift: float, day_effect: float) -> Floats:
    """Return scores of mean 0.94 with a long tail downwards."""
    return np.clip(rng.beta(9, 0.6, count) + 0.07 * (shift + day_effect), 0, 1)


def errors(rng: np.random.Generator, count: int, shift: float, day_effect: float) -> Floats:
    """Return the share of a tool's ten calls in a session that fail: 2 %."""
    return rng.binomial(10, np.clip(0.02 + (shift + day_effect) * math.sqrt(0.02 * 0.98 / 10), 0, 1), count) / 10


class Canary(NamedTuple):
    """A version beside the others of its agent; sizes are in sigma."""

    name: str
    part: float = 0.05
    """Its part of the sessions."""
    rate: float = 50.0
    """Sessions of the agent a day."""
    shift: float = 0.0
    common: float = 0.0
    """Standard deviation of a day's effect on all versions."""
    own: float = 0.0
    """Standard deviation of a day's effect on the canary alone."""
    length: int = 1
    """Scores of a session of the canary; the others have one."""
    shape: Shape = normal
    within: int = 4
    """Days within which it is to be confirmed; 0: it is like the others."""
    bar: float = 0.9


CANARIES = (
    Canary("5 % of 50 a day, 2.5 sigma worse", shift=-2.5),
    Canary("the same, days differ by a sigma", shift=-2.5, common=1.0, bar=0.85),
    Canary("the same, and the canary's days by another 0.2", shift=-2.5, common=0.5, own=0.2, bar=0.85),
    Canary("5 % of 50 a day, 2.5 sigma better", shift=2.5),
    Canary("5 % of 200 a day, 1 sigma worse", rate=200, shift=-1, within=7),
    Canary("half of 50 a day, 1 sigma worse", part=0.5, shift=-1, within=5),
    Canary("5 % of 50 a day, thirds, 2.5 sigma worse", shift=-2.5, shape=thirds, within=10),
    Canary("a quarter of 26 a day, errors of a tool 2 to 8 %", part=0.25, rate=26, shift=1.355, shape=errors, within=14),
    Canary("2 of 22 a day, errors of a tool 2 to 20 %", part=1 / 11, rate=22, shift=4.066, shape=errors, within=14),
)
EQUAL = (
    Canary("5 % of 50 a day"),
    Canary("half of 50 a day", part=0.5),
    Canary("half of 500 a day", part=0.5, rate=500),
    Canary("5 % of 50 a day, days differ by a sigma", common=1.0),
    Canary("half of 50 a day, days differ by a sigma", part=0.5, common=1.0),
    Canary("half of 500 a day, its days differ by 0.15 sigma", part=0.5, rate=500, own=0.15),
    Canary("half of 500 a day, its days differ by 0.3 sigma", part=0.5, rate=500, own=0.3),
    Canary("5 % of 50 a day, thirds", shape=thirds),
    Canary("5 % of 50 a day, flags of one in 100", shape=flags),
    Canary("half of 50 a day, flags of one in 100", part=0.5, shape=flags),
    Canary("5 % of 50 a day, skewed", shape=skewed),
    Canary("sessions of five scores beside those of one", length=5),
    Canary("2 of 22 a day, errors of a tool 2 %", part=1 / 11, rate=22, shape=errors),
    Canary("a quarter of 26 a day, errors of a tool 2 %", part=0.25, rate=26, shape=errors),
)


def draw_versions(canary: Canary, days: int, rng: np.random.Generator) -> tuple[Cells, Cells]:
    """Return the cells of the canary and of the others."""
    sides: tuple[list[tuple[Floats, Floats]], list[tuple[Floats, Floats]]] = ([], [])
    for day in range(START + days):
        common = canary.common * rng.normal()
        is_there = day >= START
        part = canary.part if is_there else 0.0
        own = common + canary.own * rng.normal() + canary.shift
        for side, rate, effect, length in (
            (sides[0], canary.rate * part, own, canary.length),
            (sides[1], canary.rate * (1 - part), common, 1),
        ):
            count = int(rng.poisson(rate))
            values = canary.shape(rng, count * length, 0.0, effect).reshape(count, length).mean(axis=1)
            side.append((day + np.sort(rng.random(count)), values))
    version, others = (
        (np.concatenate([times for times, _ in side]), np.concatenate([values for _, values in side])) for side in sides
    )
    return build_cells(version[0], np.full(len(version[0]), float(canary.length)), version[1]), build_cells(
        others[0], np.ones(len(others[0])), others[1]
    )


def measure_canary(task: tuple[Canary, int, int, int]) -> tuple[float, bool]:
    """Return the days to the confirmation, infinite without one, and whether the version was ever suspected, in daily checks."""
    canary, days, seed, run = task
    version, others = draw_versions(canary, days, np.random.default_rng([seed, run, zlib.crc32(repr(canary[:-3]).encode())]))
    is_suspected = False
    for day in range(START, START + days):
        change = compare_versions(version, others, date_of(day))
        if change is not None:
            is_suspected = True
            if change.is_confirmed:
                return day + 1.0 - START, True
    return math.inf, is_suspected


def measure(pool: Pool, seed: int, share: float = 1.0) -> list[Row]:
    """Return the rows of canaries that differ, and of those that do not."""
    rows = []
    for canary in CANARIES:
        tasks = [(canary, canary.within, seed, run) for run in range(max(5, round(share * RUNS)))]
        results = pool.map(measure_canary, tasks, chunksize=5)
        named = sum(delay <= canary.within for delay, _ in results)
        rows.append(share_row(f"{canary.name}: confirmed within {canary.within} days", named, len(results), canary.bar))
    for canary in EQUAL:
        tasks = [(canary, QUIET_DAYS, seed, run) for run in range(max(5, round(share * QUIET_RUNS)))]
        results = pool.map(measure_canary, tasks, chunksize=5)
        suspected = sum(is_suspected for _, is_suspected in results)
        confirmed = sum(not math.isinf(delay) for delay, _ in results)
        for verb, hits, threshold in (("suspected", suspected, SUSPECTED), ("confirmed", confirmed, CONFIRMED)):
            row = share_row(
                f"{canary.name}, equal: {verb} in {QUIET_DAYS} days", hits, len(results), 1 / threshold, is_most=True
            )
            rows.append(row._replace(measured=f"{hits} of {len(results)}", bar=f"at most 1 in {threshold:.0f}"))
    return rows
