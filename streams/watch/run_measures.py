"""Measures of a project's finished runs, by agent: trust, share of unsafe runs, share of each failure type.

1. A run counts on the day on which it ended, in its latest revision; a run without evidence has no trust and does not count.
2. Diagnoses by other rules or other thresholds are another measure. Of each agent only those are compared that were made as most of its
   runs of the last seven days were.
3. Types of failure that a stretch of time hardly has are no series: what occurs once cannot have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

import duckdb
import polars as pl

from analytics.queries import run_query
from audit.drift.change_detector import Unit
from audit.drift.consecutive_days import DAYS
from streams.watch.measured import commonest, midnight

QUERY = "watched_runs"
MADE_BY = ("rule_version", "threshold_profile", "threshold_changes")
TRUST, UNSAFE, FAILURE = "trust", "unsafe", "failure:"
FEWEST_FAILURES = 2
"""So many runs have a type of failure where it is a series."""


class AgentRuns:
    """The comparable runs of one agent, from rows of the query `watched_runs`."""

    def __init__(self, agent: str | None, rows: pl.DataFrame, as_of: datetime) -> None:
        self.agent = agent
        lately = rows.filter(pl.col("day") > as_of.date() - timedelta(days=DAYS))
        made_by = zip(*(lately[name].to_list() for name in MADE_BY), strict=True)
        most = commonest(zip(made_by, lately["runs"].to_list(), lately["last_at"].to_list(), strict=True))
        self.made_by = dict(zip(MADE_BY, most, strict=False))
        """What the runs of the last days were diagnosed by; nothing without any."""
        self._rows = (
            rows.filter(*(pl.col(name) == value for name, value in self.made_by.items())) if self.made_by else rows.clear()
        )

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The series that these runs have."""
        if self._rows.is_empty():
            return ()
        found = self._rows["failures"].explode().drop_nulls().value_counts().sort("failures")
        types = [name for name, count in found.iter_rows() if count >= FEWEST_FAILURES]
        return (TRUST, UNSAFE, *(f"{FAILURE}{name}" for name in types))

    def units(self, series: str) -> list[Unit]:
        """The runs as units of a series, oldest first; times are UTC and naive."""
        values = self._rows.select("last_at", "runs", _total(series))
        return [Unit(at, runs, float(runs), float(total)) for at, runs, total in values.iter_rows()]

    def days(self, series: str) -> dict[date, tuple[float, int]]:
        """The mean of a series on each day with runs, oldest first, and of how many runs it is."""
        sums = self._rows.group_by("day").agg(_total(series).sum(), pl.col("runs").sum()).sort("day")
        return {day: (total / runs, runs) for day, total, runs in sums.iter_rows()}

    @property
    def first_day(self) -> date | None:
        """The first day with comparable runs."""
        found = self._rows["day"].min()
        return found if isinstance(found, date) else None


@dataclass(frozen=True, slots=True)
class ProjectRuns:
    """The runs of one project."""

    project: str
    as_of: datetime
    agents: tuple[AgentRuns, ...]
    """Those with comparable runs of the last seven days."""

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
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of}
    rows = run_query(cursor, QUERY, values)
    agents: dict[str, list[AgentRuns]] = {}
    for (project, agent), part in rows.partition_by("project", "agent", as_dict=True, maintain_order=True).items():
        runs = AgentRuns(str(agent) or None, part, as_of)
        if runs.made_by:
            agents.setdefault(str(project), []).append(runs)
    return {project: ProjectRuns(project, as_of, tuple(found)) for project, found in agents.items()}, values


def _total(series: str) -> pl.Expr:
    """The sum of a series over the runs of a row."""
    if series.startswith(FAILURE):
        return pl.col("failures").list.count_matches(series.removeprefix(FAILURE)).alias("total")
    return pl.col(series).alias("total")
