"""Drift of behaviour: how soon errors of one tool are named among all series of a project, and how often quiet projects raise an alarm.

Each line simulates the turns of agents with all of their series and asks `streams.watch.behaviour_rules` at the end of each day.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np
import polars as pl

from audit.drift.change_detector import CHECKED_DAYS
from audit.drift.series import Cells, Unit, cells_of
from audit.drift.watched_series import SIZES, TOOL_ERRORS
from benchmarks.drift.causes import Row, exact_interval
from streams.watch.behaviour_rules import LOOK_BACK, AgentSeries, BehaviourRuleInput, ProjectBehaviour, find_behaviour_changes

START = date(2026, 1, 5)
CHANGE = 44
"""The first day of the change."""
TOOL = f"{TOOL_ERRORS}search"
SHARES = {"failed": 0.02, "empty": 0.01, "abandoned": 0.05, "refusals": 0.005, "repeats": 0.1}
"""The quiet level of each share of turns."""
RUNS = 200


class Line(NamedTuple):
    """A project to simulate, and the bar for its alarms."""

    name: str
    within: int | None
    """Days within which the errors are to be named; None: nothing changes, and every alarm is false."""
    bar: float
    after: float = 0.08
    """The share of failed calls from `CHANGE` on; 2 % before."""
    agents: int = 2
    tools: int = 3
    sessions: int = 10
    """Sessions a day and agent, with ten calls of each tool."""
    alike: float = 0.0
    """The correlation of two calls of one session."""
    daily: float = 0.0
    """Standard deviation of a day's effect on the logarithm of every share."""


LINES = (
    Line("errors of one tool 2 to 8 % at 100 calls a day, 22 series: named within 5 days", 5, 0.9),
    Line("the same, calls of a session correlated by 0.1: within 8 days", 8, 0.9, alike=0.1),
    Line("the same among 275 series of 25 agents: within 8 days", 8, 0.9, agents=25),
    Line("quiet, 22 series: projects with an alarm in 60 days", None, 0.05, after=0.02),
    Line("quiet, 275 series of 25 agents: the same", None, 0.05, after=0.02, agents=25, sessions=4),
    Line("quiet, 22 series, calls of a session correlated by 0.3: the same", None, 0.05, after=0.02, alike=0.3),
    Line("quiet, 22 series, days differ by 20 %: the same", None, 0.05, after=0.02, daily=0.2),
)
Histories = Mapping[AgentSeries, Sequence[Unit]]


def measure(pool: Pool, seed: int, share: float) -> list[Row]:
    """Return every line over a share of its simulated projects."""
    runs = max(2, round(share * RUNS))
    tasks = [(line, repr((seed, line.name, number))) for line in LINES for number in range(runs)]
    found = pool.starmap(_is_found, tasks, chunksize=2)
    return [_row(line, sum(found[place * runs : (place + 1) * runs]), runs) for place, line in enumerate(LINES)]


def _row(line: Line, hits: int, runs: int) -> Row:
    share, (low, high) = hits / runs, exact_interval(hits, runs)
    if line.within is None:
        return Row(line.name, share, low, high, f"at most {line.bar:.0%}", share <= line.bar)
    return Row(line.name, share, low, high, f"at least {line.bar:.0%}", share >= line.bar)


def _is_found(line: Line, seed: str) -> bool:
    """Tell whether the errors are named in time, or whether a quiet project raises an alarm."""
    rng = random.Random(seed)
    if line.within is None:
        history = _simulate(line, rng, CHANGE + 60)
        return any(_find_series(history, day) for day in range(CHANGE, CHANGE + 60, CHECKED_DAYS))
    history = _simulate(line, rng, CHANGE + line.within)
    expected = AgentSeries("agent-0", TOOL)
    return any(expected in _find_series(history, CHANGE + day) for day in range(line.within))


def _find_series(history: Histories, day: int) -> set[AgentSeries]:
    """Return the series in which the rule finds a change at the end of a day."""
    as_of = datetime.combine(START + timedelta(days=day), time(23, 59, 59), UTC)
    cells = {
        series: cells_of(unit for unit in units if unit.at <= as_of and unit.at >= as_of - LOOK_BACK)
        for series, units in history.items()
    }
    behaviour = ProjectBehaviour("project", _build_rows(cells), as_of.date() - LOOK_BACK, as_of)
    data = BehaviourRuleInput(behaviour, {}, {}, lambda _, wanted: {series: cells[series] for series in wanted})
    return {
        AgentSeries(finding.key.agent or "", (finding.key.tier or "").removeprefix("behaviour:"))
        for finding in find_behaviour_changes(data)
    }


def _build_rows(cells: Mapping[AgentSeries, Cells]) -> pl.DataFrame:
    frames = [
        pl.DataFrame({
            "agent": agent, "series": series, "day": column.last.astype("datetime64[D]"), "hour": column.last.astype("datetime64[h]").astype(np.int64) % 24, "units": column.units, "weight": column.weight,
            "total": column.total, "squares": column.squares, "mixed": column.mixed, "totals": column.totals,
        })
        for (agent, series), column in sorted(cells.items())
    ]  # fmt: skip
    return pl.concat(frames)


def _simulate(line: Line, rng: random.Random, days: int) -> dict[AgentSeries, list[Unit]]:
    history: dict[AgentSeries, list[Unit]] = {}
    for number in range(line.agents):
        agent = f"agent-{number}"
        for day in range(days):
            factor = rng.lognormvariate(0, line.daily)
            for session in range(line.sessions):
                minute = round((session + rng.random()) * 1439 / line.sessions)
                at = datetime.combine(START + timedelta(days=day), time(), UTC) + timedelta(minutes=minute)
                turns = 1 + rng.randrange(4)
                for series, level in SHARES.items():
                    having = sum(rng.random() < level * factor for _ in range(turns))
                    history.setdefault(AgentSeries(agent, series), []).append(Unit(at, turns, turns, having))
                for series in SIZES:
                    total = sum(rng.gauss(6.0, 0.7) for _ in range(turns))
                    history.setdefault(AgentSeries(agent, series), []).append(Unit(at, turns, turns, total))
                for tool in range(line.tools):
                    changed = number == 0 and tool == 0 and day >= CHANGE
                    failed = _count_failures(rng, min(1.0, factor * (line.after if changed else 0.02)), line.alike)
                    name = TOOL if tool == 0 else f"{TOOL_ERRORS}tool-{tool}"
                    history.setdefault(AgentSeries(agent, name), []).append(Unit(at, 10, 10, failed))
    return history


def _count_failures(rng: random.Random, share: float, alike: float) -> int:
    """Return how many of ten calls failed."""
    if alike:
        size = 1 / alike - 1
        share = rng.betavariate(max(share * size, 1e-9), max((1 - share) * size, 1e-9))
    return sum(rng.random() < share for _ in range(10))
