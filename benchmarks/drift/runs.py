"""Drift of runs: how often quiet agents raise a false alarm, and how soon one whose runs get worse is found.

Each line simulates the finished runs of agents with several types of failure and asks `streams.watch.run_rules`, week by week, as
checks do: a check looks again at the seven days before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

from audit.drift.change_detector import CHECKED_DAYS, WINDOW_DAYS
from benchmarks.drift.causes import Row, exact_interval
from streams.watch.measures import AgentRuns, ProjectRuns, RunRow
from streams.watch.run_rules import RunRuleInput, find_run_changes

START = datetime(2026, 1, 5)  # noqa: DTZ001 - as the database gives times: UTC and naive
TYPES = ("infinite_tool_loop", "cost_explosion", "memory_degradation")
YEAR = 365


class Agent(NamedTuple):
    """A simulated agent."""

    a_day: float
    """Runs a day."""
    before: float
    """Share of runs with a failure; `is_unsafe` says how many of these are unsafe."""
    after: float
    change: int
    """The day from which the share is `after`."""
    days: int
    alike: float = 0.0
    """The correlation of two runs of one day: the share of each day is drawn from a beta distribution."""
    together: int = 1
    """So many runs of an hour fail together, or none of them."""
    is_unsafe: float = 0.5
    """The share of runs with a failure that are unsafe."""


class Line(NamedTuple):
    """An agent to simulate, and the bar for its alarms."""

    name: str
    agent: Agent
    within: int | None
    """Days within which the change is to be found; None: there is none, and every alarm is false."""
    bar: float
    is_confirmed: bool = False
    """Whether only confirmed alarms count."""


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
    *(
        Line(
            f"quiet for a year, {a_day} runs a day, {share:.0%} unsafe, {how}: falsely confirmed",
            Agent(a_day, share, share, YEAR, YEAR, alike, together, 1.0),
            None,
            0.1,
            is_confirmed=True,
        )
        for how, alike, together in (
            ("independent", 0.0, 1),
            ("days correlated by 0.3", 0.3, 1),
            ("three runs of an hour fail together", 0.0, 3),
        )
        for share in (0.01, 0.05)
        for a_day in (3, 10)
    ),
    Line("2 runs a day, failures 5 % to 90 %: found within 7 days", Agent(2, 0.05, 0.9, 30, 37), 7, 0.8),
    Line("2 runs a day, failures 10 % to 50 %: found within 35 days", Agent(2, 0.1, 0.5, 30, 65), 35, 0.8),
    Line("8 runs a day, failures 10 % to 30 %: found within 28 days", Agent(8, 0.1, 0.3, 30, 58), 28, 0.8),
)


def measure(pool: Pool, seed: int, agents: int) -> list[Row]:
    """Return every line over so many simulated agents."""
    tasks = [(line, repr((seed, line.name, number))) for line in LINES for number in range(agents)]
    found = pool.starmap(_is_found, tasks, chunksize=5)
    return [_row(line, sum(found[place * agents : (place + 1) * agents]), agents) for place, line in enumerate(LINES)]


def _row(line: Line, hits: int, runs: int) -> Row:
    share, (low, high) = hits / runs, exact_interval(hits, runs)
    if line.within is None:
        return Row(line.name, share, low, high, f"at most {line.bar:.3g}", share <= line.bar)
    return Row(line.name, share, low, high, f"at least {line.bar:.0%}", share >= line.bar)


def _is_found(line: Line, seed: str) -> bool:
    """Tell whether a check raises an alarm: at all, or after the change."""
    rng = random.Random(seed)
    rows = _rows(line.agent, rng)
    first = 2 * CHECKED_DAYS if line.within is None else line.agent.change
    checks = range(first, line.agent.days + CHECKED_DAYS, CHECKED_DAYS)
    ends = (START + timedelta(days=min(day, line.agent.days)) for day in checks)
    return any(_alarms(rows, end, is_confirmed=line.is_confirmed) for end in ends)


def _alarms(rows: Sequence[RunRow], as_of: datetime, *, is_confirmed: bool) -> bool:
    window_rows = [row for row in rows if as_of - timedelta(days=WINDOW_DAYS) <= row.last_at < as_of]
    if not window_rows:
        return False
    at = (as_of - timedelta(seconds=1)).replace(tzinfo=UTC)
    agent = AgentRuns("agent", window_rows, at)
    changes = find_run_changes(RunRuleInput(ProjectRuns("project", at, (agent,)), {}, {}))
    return any(finding.confirmed or not is_confirmed for finding in changes)


def _rows(agent: Agent, rng: random.Random) -> list[RunRow]:
    """Return the runs as the query `watched_runs` gives them."""
    rows: list[RunRow] = []
    shares: dict[int, float] = {}
    failed, at, pause = False, START, agent.together / agent.a_day
    while (at := at + timedelta(days=rng.expovariate(1 / pause))) < START + timedelta(days=agent.days):
        day = (at - START).days
        failed = rng.random() < shares.setdefault(day, _share(agent, day, rng))
        rows += [_run(at + timedelta(minutes=10 * number), agent, rng, failed=failed) for number in range(agent.together)]
    return sorted(rows, key=lambda row: row.last_at)


def _run(at: datetime, agent: Agent, rng: random.Random, *, failed: bool) -> RunRow:
    unsafe = failed and rng.random() < agent.is_unsafe
    trust = 100 if not failed else rng.choice((88, 90, 92, 95))
    failures = rng.sample(TYPES, rng.choice((1, 1, 2))) if failed else []
    return RunRow("project", "agent", at.date(), "", "", "r", "p", "", at, 1, trust, int(unsafe), failures)


def _share(agent: Agent, day: int, rng: random.Random) -> float:
    """Return the share of a day."""
    return drawn_share(agent.after if day >= agent.change else agent.before, agent.alike, rng)


def drawn_share(share: float, alike: float, rng: random.Random) -> float:
    """Draw the share of a day, so that two runs of it are correlated by `alike`."""
    if not alike:
        return share
    weight = 1 / alike - 1
    return rng.betavariate(share * weight, (1 - share) * weight)
