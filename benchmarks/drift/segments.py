"""Mixes of agents: what the series of a project at a constant mix says of them, and when the mix is said to have changed.

Agents have levels of their own and shares of the traffic that may change. The standardised series is checked at the end of each day.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from datetime import date, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np

from audit.drift.change_detector import Change, find_change
from audit.drift.segments import find_mix_change, standardise
from audit.drift.series import Cells, Floats, select_until
from benchmarks.drift.bars import FIRST, Row, build_cells, delay_row, share_row

CHANGE = 44
SIGMA = 0.1
RUNS = 200
UP, DOWN = "up", "down"
Shares = Callable[[int, np.random.Generator], Floats]


class Mix(NamedTuple):
    """A project of several agents."""

    name: str
    levels: tuple[float, ...]
    """The level of each agent, in points of the score."""
    before: tuple[float, ...]
    """The share of each agent's traffic."""
    after: tuple[float, ...]
    rate: float = 50.0
    """Sessions a day."""
    days: int = CHANGE + 60
    ramp: int = 1
    """Days that the mix takes to change."""
    shift: float = 0.0
    """By how much all agents change, in points."""
    wander: float = 0.0
    """Standard deviation by which the logarithm of each share differs from day to day."""
    memory: float = 0.8
    """Correlation of a day's share with that of the day before."""
    daily: float = 0.0
    """Standard deviation of a day's effect on all agents, in points."""
    own: float = 0.0
    """Standard deviation of a day's effect on each agent, in points."""
    is_found: str | None = None
    """The direction of the change that is to be found; None: nothing."""
    within: int = 60


WEAKER = (0.9, 0.7)
MIXES = (
    Mix("a weaker agent goes from 20 to 70 %", WEAKER, (0.8, 0.2), (0.3, 0.7)),
    Mix("the same over 30 days", WEAKER, (0.8, 0.2), (0.3, 0.7), ramp=30),
    Mix("the same from 5 to 95 %", WEAKER, (0.95, 0.05), (0.05, 0.95)),
    Mix("the same, days differ by half a sigma", WEAKER, (0.8, 0.2), (0.3, 0.7), daily=0.05),
    Mix("the same, each agent's days differ by half a sigma", WEAKER, (0.8, 0.2), (0.3, 0.7), own=0.05),
    Mix("the same, 500 a day", WEAKER, (0.8, 0.2), (0.3, 0.7), rate=500),
    Mix("a new agent at 0.65 with half of the traffic", (0.85, 0.65), (1, 0), (0.5, 0.5)),
    Mix("an agent at 0.65 with half of the traffic leaves", (0.85, 0.65), (0.5, 0.5), (1, 0)),
    Mix("eight agents of wandering shares", tuple(0.6 + 0.04 * agent for agent in range(8)), (0.125,) * 8, (0.125,) * 8, wander=0.7),
    Mix("eight agents whose shares wander slowly", tuple(0.6 + 0.04 * agent for agent in range(8)), (0.125,) * 8, (0.125,) * 8, wander=0.4, memory=0.95),
    Mix("eight agents whose shares wander a little", tuple(0.6 + 0.04 * agent for agent in range(8)), (0.125,) * 8, (0.125,) * 8, wander=0.3, memory=0.5),
    Mix("both rise by 0.05 while the weaker grows", WEAKER, (0.8, 0.2), (0.3, 0.7), shift=0.05, is_found=UP, within=7),
    Mix("both fall by 0.08 while the weaker shrinks", WEAKER, (0.3, 0.7), (0.8, 0.2), shift=-0.08, is_found=DOWN, within=7),
)  # fmt: skip
LONE = tuple(
    Mix(f"a lone stratum falls by a sigma, {rate} a day", (0.6,), (1,), (1,), rate=rate, shift=-SIGMA, is_found=DOWN)
    for rate in (3, 10, 50)
)


def draw_strata(mix: Mix, seed: int, run: int) -> list[Cells]:
    """Return the cells of each agent."""
    rng = np.random.default_rng([seed, run, zlib.crc32(repr(mix).encode())])
    before, after = np.array(mix.before, dtype=float), np.array(mix.after, dtype=float)
    walk = np.zeros(len(before))
    times: list[list[Floats]] = [[] for _ in before]
    values: list[list[Floats]] = [[] for _ in before]
    for day in range(mix.days):
        progress = min(1.0, max(0.0, (day - CHANGE + 1) / mix.ramp))
        walk = mix.memory * walk + math.sqrt(1 - mix.memory**2) * mix.wander * rng.normal(size=len(walk))
        shares = (before + (after - before) * progress) * np.exp(walk)
        common = mix.daily * rng.normal() + (mix.shift if day >= CHANGE else 0.0)
        for agent, count in enumerate(rng.poisson(mix.rate * shares / shares.sum())):
            times[agent].append(day + np.sort(rng.random(count)))
            mean = mix.levels[agent] + common + mix.own * rng.normal()
            values[agent].append(np.clip(rng.normal(mean, SIGMA, count), 0, 1))
    drawn = []
    for agent_times, agent_values in zip(times, values, strict=True):
        at, value = np.concatenate(agent_times), np.concatenate(agent_values)
        drawn.append(build_cells(at, np.ones_like(value), value))
    return drawn


def date_of(day: int) -> date:
    """Return a day of the simulation."""
    return FIRST + timedelta(days=day)


def find_standardised(strata: list[Cells], day: int) -> Change | None:
    """Return the change of the standardised series at the end of a day."""
    standardised = standardise([select_until(cells, date_of(day)) for cells in strata])
    change = find_change(standardised.cells, date_of(day)) if standardised else None
    return standardised.discount(change) if standardised and change else None


def measure_mix(task: tuple[Mix, int, int]) -> tuple[float, bool]:
    """Return the days to the first alarm in the right direction, and whether there was a wrong one."""
    mix, seed, run = task
    strata = draw_strata(mix, seed, run)
    delay, is_wrong = math.inf, False
    for day in range(CHANGE - 7, mix.days):
        change = find_standardised(strata, day)
        if change is None:
            continue
        if change.direction != mix.is_found or day < CHANGE:
            is_wrong = True
        else:
            delay = (change.alarm_at.replace(tzinfo=None) - np.datetime64(date_of(CHANGE), "us").astype(object)) / timedelta(
                days=1
            )
            break
    return delay, is_wrong


class MixTold(NamedTuple):
    """What is said of the mix of a project in daily checks up to its last day."""

    delay: float
    """Days from the change of the mix to the end of the day on which it is told; infinite without one."""
    is_false: bool
    """True if a change was told before there was one."""
    error: float
    """Days by which the first day is wrong when it is told."""


def measure_told(task: tuple[Mix, int, int]) -> MixTold:
    """Return what is said of the mix."""
    mix, seed, run = task
    strata = draw_strata(mix, seed, run)
    is_changed = mix.before != mix.after
    # A check repeats the looks of a week, so that a check every third day misses no alarm.
    for day in range(CHANGE - 7, mix.days) if is_changed else range(CHANGE, mix.days, 3):
        change = find_mix_change([select_until(cells, date_of(day)) for cells in strata], date_of(day))
        if change is not None:
            is_false = not is_changed or day < CHANGE
            return MixTold(day + 1 - CHANGE, is_false, abs((change.first_day - date_of(CHANGE)).days))
    return MixTold(math.inf, is_false=False, error=math.inf)


TOLD = (
    (MIXES[0], 5),
    (MIXES[1], 20),
    (MIXES[6], 5),
    (MIXES[10], 0),
    (MIXES[9]._replace(name="eight agents of constant shares", wander=0.0), 0),
    (MIXES[8], None),
    (MIXES[9], None),
)
"""Mixes, each with the days in which its change is to be told; 0: none is to be told in 60 days; None: shares double for weeks, so no bar."""


def measure_mix_changes(pool: Pool, seed: int, share: float = 1.0) -> list[Row]:
    """Return how often a change of the mix is told."""
    rows = []
    for mix, within in TOLD:
        runs = max(5, round(share * RUNS))
        results = pool.map(measure_told, [(mix, seed, run) for run in range(runs)], chunksize=1)
        if not within:
            false = sum(told.is_false for told in results)
            rows.append(
                share_row(f"{mix.name}: the mix is told in 60 days", false, runs, 0.05 if within == 0 else 1.0, is_most=True)
            )
            continue
        right = sum(not told.is_false and told.delay <= within for told in results)
        rows.append(share_row(f"{mix.name}: the mix is told within {within} days", right, runs, 0.95))
        dated = sum(told.error <= 1 for told in results)
        rows.append(share_row(f"{mix.name}: its first day is right, ± 1", dated, runs, 0.9 if mix.ramp == 1 else 0.0))
    return rows


def measure(pool: Pool, seed: int, share: float = 1.0) -> list[Row]:
    """Return the rows of the mixes."""
    rows = []
    for mix in (*MIXES, *LONE):
        runs = max(5, round(share * RUNS))
        results = pool.map(measure_mix, [(mix, seed, run) for run in range(runs)], chunksize=1)
        if mix in LONE:
            rows.append(delay_row(mix.name, [delay for delay, _ in results], {3: 11, 10: 3, 50: 0.6}[int(mix.rate)]))
            continue
        right = sum(not is_wrong and (mix.is_found is None or delay <= mix.within) for delay, is_wrong in results)
        told = f"found as {mix.is_found} within {mix.within} days" if mix.is_found else "nothing is found"
        rows.append(share_row(f"{mix.name}: {told}", right, runs, 0.95))
    return rows + measure_mix_changes(pool, seed, share)
