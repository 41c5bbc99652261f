"""Measures of a project's finished runs, by agent: trust, share of unsafe runs, share of each failure type.

1. A run counts on the day on which it ended, in its latest revision; a run without evidence has no trust and does not count.
2. Diagnoses by other rules or other thresholds are another measure. Of each agent only those are compared that were made as most of its
   runs of the last seven days were.
3. Types of failure that a stretch of time hardly has are no series: what occurs once cannot have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from itertools import chain, groupby
from typing import Any, NamedTuple

from analytics.queries import query_tuples
from audit.drift.change_detector import Unit
from audit.drift.consecutive_days import DAYS
from schemas.lazy.duckdb import duckdb
from streams.watch.measured import commonest, midnight

QUERY = "watched_runs"
MADE_BY = ("rule_version", "threshold_profile", "threshold_changes")
TRUST, UNSAFE, FAILURE = "trust", "unsafe", "failure:"
MOST_AGENTS = 20
"""So many agents of a project are watched, those with the most runs."""
FEWEST_FAILURES = 2
"""So many runs have a type of failure where it is a series."""


class RunRow(NamedTuple):
    """A row of the query `watched_runs`; times are UTC and naive."""

    project: str
    agent: str
    day: date
    connection: str
    session_id: str
    rule_version: str
    threshold_profile: str
    threshold_changes: str
    last_at: datetime
    runs: int
    trust: int
    unsafe: int
    failures: Sequence[str]

    @property
    def made_by(self) -> tuple[str, ...]:
        """Return what the runs were diagnosed by, in the order of `MADE_BY`."""
        return self.rule_version, self.threshold_profile, self.threshold_changes

    def total(self, series: str) -> int:
        """Return the sum of a series over the runs."""
        if series.startswith(FAILURE):
            return self.failures.count(series.removeprefix(FAILURE))
        return self.trust if series == TRUST else self.unsafe


class AgentRuns:
    """The comparable runs of one agent, from its rows, oldest first."""

    def __init__(self, agent: str | None, rows: Sequence[RunRow], as_of: datetime) -> None:
        self.agent = agent
        first = as_of.date() - timedelta(days=DAYS)
        most = commonest((row.made_by, row.runs, row.last_at) for row in rows if row.day > first)
        self.made_by = dict(zip(MADE_BY, most, strict=False))
        """What the runs of the last days were diagnosed by; nothing without any."""
        self._rows = [row for row in rows if row.made_by == most]

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The series that these runs have."""
        if not self._rows:
            return ()
        found = Counter(chain.from_iterable(row.failures for row in self._rows))
        types = sorted(name for name, count in found.items() if count >= FEWEST_FAILURES)
        return (TRUST, UNSAFE, *(f"{FAILURE}{name}" for name in types))

    def units(self, series: str) -> list[Unit]:
        """The runs as units of a series, oldest first; times are UTC and naive."""
        return [Unit(row.last_at, row.runs, float(row.runs), float(row.total(series))) for row in self._rows]

    def units_below(self, trust: int) -> list[Unit]:
        """The runs as units of the share whose trust is below a level; times are UTC and naive."""
        return [
            Unit(row.last_at, row.runs, float(row.runs), float(row.runs * (row.trust < trust * row.runs))) for row in self._rows
        ]

    def usual_trust(self, until: datetime) -> int | None:
        """The trust that at least half of the runs before a moment have exactly; None if there is none."""
        found = Counter(row.trust / row.runs for row in self._rows if row.last_at < until)
        ((trust, count),) = found.most_common(1) or [(0.0, 0)]
        return int(trust) if count and 2 * count >= found.total() and trust == int(trust) else None

    def days(self, series: str) -> dict[date, tuple[float, int]]:
        """The mean of a series on each day with runs, oldest first, and of how many runs it is."""
        sums: dict[date, tuple[int, int]] = {}
        for row in self._rows:
            total, runs = sums.get(row.day, (0, 0))
            sums[row.day] = total + row.total(series), runs + row.runs
        return {day: (total / runs, runs) for day, (total, runs) in sorted(sums.items())}

    @property
    def first_day(self) -> date | None:
        """The first day with comparable runs."""
        return min((row.day for row in self._rows), default=None)


@dataclass(frozen=True, slots=True)
class ProjectRuns:
    """The runs of one project."""

    project: str
    as_of: datetime
    agents: tuple[AgentRuns, ...]
    """Those with comparable runs of the last seven days."""
    watched_agents: int
    """The number of agents with runs in the window, at most `MOST_AGENTS`."""

    @property
    def reach(self) -> int:
        """The number of UTC days, the as-of's included, over which comparable runs reach back; 0 without any."""
        firsts = [one.first_day for one in self.agents if one.first_day is not None]
        return (self.as_of.date() - min(firsts)).days + 1 if firsts else 0


def measure_runs(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectRuns], dict[str, Any]]:
    """Measure the runs of some projects from a day on, until a moment; return the query's parameters, too.

    A project without runs of the last seven days is left out.
    """
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of, "most_agents": MOST_AGENTS}
    rows = [RunRow(*row) for row in query_tuples(cursor, QUERY, values)]
    agents: dict[str, list[AgentRuns]] = {}
    watched = Counter(project for project, _ in {(row.project, row.agent) for row in rows})
    for (project, agent), part in groupby(rows, lambda row: (row.project, row.agent)):
        runs = AgentRuns(agent or None, list(part), as_of)
        if runs.made_by:
            agents.setdefault(project, []).append(runs)
    return {project: ProjectRuns(project, as_of, tuple(found), watched[project]) for project, found in agents.items()}, values
