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
from audit.drift.segments import standardise
from audit.drift.series import Cells, Floats
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
    """Standard deviation by which the logarithm of each share differs from day to day, with a memory of 0.8."""
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
        walk = 0.8 * walk + 0.6 * mix.wander * rng.normal(size=len(walk))
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


def cut_cells(cells: Cells, day: int) -> Cells:
    """Return the cells up to the end of a day."""
    is_seen = cells.last < np.datetime64((FIRST + timedelta(days=day + 1)).isoformat(), "us")
    last, *columns = cells
    return Cells(last[is_seen], *(column[is_seen] for column in columns))


def date_of(day: int) -> date:
    """Return a day of the simulation."""
    return FIRST + timedelta(days=day)


def find_standardised(strata: list[Cells], day: int) -> Change | None:
    """Return the change of the standardised series at the end of a day."""
    standardised = standardise([cut_cells(cells, day) for cells in strata])
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
    return rows
