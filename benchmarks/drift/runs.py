"""Drift of runs: how often quiet agents raise a false alarm, and how soon one whose runs get worse is found.

Each line simulates the finished runs of agents with several types of failure and asks `streams.watch.rules.run_rules`, week by week, as
checks do: a check looks again at the seven days before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from audit.drift.change_detector import CHECKED_DAYS, WINDOW_DAYS
from benchmarks.drift.causes import Row, exact_interval
from streams.watch.rules.run_rules import RunCase, by_runs
from streams.watch.run_measures import AgentRuns, ProjectRuns, RunRow

START = datetime(2026, 1, 5)  # noqa: DTZ001 - as the database gives times: UTC and naive
TYPES = ("infinite_tool_loop", "cost_explosion", "memory_degradation")
YEAR = 365


class Agent(NamedTuple):
    """A simulated agent."""

    a_day: float
    """Runs a day."""
    before: float
    """Share of runs with a failure; half of these are unsafe."""
    after: float
    change: int
    """The day from which the share is `after`."""
    days: int


class Line(NamedTuple):
    """An agent to simulate, and the bar for its alarms."""

    name: str
    agent: Agent
    within: int | None
    """Days within which the change is to be found; None: there is none, and every alarm is false."""
    bar: float


LINES = (
    Line(
        "quiet for a year, 2 runs a day, 10 % with a failure: false alarms an agent",
        Agent(2, 0.1, 0.1, YEAR, YEAR),
        None,
        0.125,
    ),
    Line(
        "quiet for a year, 8 runs a day, 30 % with a failure: false alarms an agent",
        Agent(8, 0.3, 0.3, YEAR, YEAR),
        None,
        0.125,
    ),
    Line("2 runs a day, failures 5 % to 90 %: found within 7 days", Agent(2, 0.05, 0.9, 30, 37), 7, 0.8),
    Line("2 runs a day, failures 10 % to 50 %: found within 35 days", Agent(2, 0.1, 0.5, 30, 65), 35, 0.8),
    Line("8 runs a day, failures 10 % to 30 %: found within 28 days", Agent(8, 0.1, 0.3, 30, 58), 28, 0.8),
)


def measure(seed: int, runs: int) -> list[Row]:
    """Every line over so many simulated agents."""
    return [_measured(line, seed, runs) for line in LINES]


def _measured(line: Line, seed: int, runs: int) -> Row:
    hits = sum(_is_found(line, random.Random(repr((seed, line.name, number)))) for number in range(runs))
    share, (low, high) = hits / runs, exact_interval(hits, runs)
    if line.within is None:
        return Row(line.name, share, low, high, f"at most {line.bar:.3g}", share <= line.bar)
    return Row(line.name, share, low, high, f"at least {line.bar:.0%}", share >= line.bar)


def _is_found(line: Line, rng: random.Random) -> bool:
    """Tell whether a check raises an alarm: at all, or after the change."""
    rows = _rows(line.agent, rng)
    first = 2 * CHECKED_DAYS if line.within is None else line.agent.change
    checks = range(first, line.agent.days + CHECKED_DAYS, CHECKED_DAYS)
    return any(_alarms(rows, START + timedelta(days=min(day, line.agent.days))) for day in checks)


def _alarms(rows: Sequence[RunRow], as_of: datetime) -> bool:
    seen = [row for row in rows if as_of - timedelta(days=WINDOW_DAYS) <= row.last_at < as_of]
    if not seen:
        return False
    at = (as_of - timedelta(seconds=1)).replace(tzinfo=UTC)
    agent = AgentRuns("agent", seen, at)
    return any(by_runs(RunCase(ProjectRuns("project", at, (agent,)), {}, {})))


def _rows(agent: Agent, rng: random.Random) -> list[RunRow]:
    """The runs as the query `watched_runs` gives them."""
    rows: list[RunRow] = []
    at = START
    while (at := at + timedelta(days=rng.expovariate(agent.a_day))) < START + timedelta(days=agent.days):
        share = agent.after if (at - START).days >= agent.change else agent.before
        failed = rng.random() < share
        unsafe = failed and rng.random() < 0.5
        trust = 100 if not failed else rng.choice((88, 90, 92, 95))
        failures = rng.sample(TYPES, rng.choice((1, 1, 2))) if failed else []
        rows.append(RunRow("project", "agent", at.date(), "", "", "r", "p", "", at, 1, trust, int(unsafe), failures))
    return rows
