"""Blind spots of a check: what the rules could not compare, and why.

The absence of incidents is good news only where something was compared. A new judge has no past; of two judges side by side only the one
with most scores is compared; a change needs six days with data before it; only the runs of the agents with most runs are watched; an agent
that stopped has no scores that could fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from analytics.queries import query_rows
from audit.drift.reference import REFERENCE_DAYS
from audit.drift.score_history import FEWEST_DAYS
from schemas.lazy.duckdb import duckdb
from schemas.records import BlindSpot
from streams.watch.measured import JudgeUse, Measured, midnight
from streams.watch.run_measures import MOST_AGENTS, ProjectRuns

NEW_JUDGE, OTHER_JUDGES, FEW_DAYS = "new_judge", "other_judges", "few_days"
AGENTS_BEYOND_LIMIT, AGENT_STOPPED = "agents_beyond_limit", "agent_stopped"
OTHER_SHARE = 0.1
"""Share of the judged scores of the last seven days from which on other judges are worth a word."""
AGENTS_NAMED = 5
"""Agents of each reason that are named; the others are counted with the last of them."""
Stopped = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of the query `stopped_agents`, by project."""


def stopped_agents(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime) -> Stopped:
    """Read the agents that stopped, by project."""
    stopped: dict[str, list[Mapping[str, Any]]] = {}
    for row in query_rows(cursor, "stopped_agents", {"projects": list(projects), "as_of": as_of}):
        stopped.setdefault(row["project"], []).append(row)
    return stopped


def blind_spots(
    cursor: duckdb.DuckDBPyConnection,
    measured: Measured | None,
    runs: ProjectRuns | None,
    stopped: Sequence[Mapping[str, Any]],
) -> tuple[BlindSpot, ...]:
    """Return what was not compared of a project, the reasons that concern most first."""
    spots: list[BlindSpot] = []
    if measured is not None:
        spots += _of_judges(measured)
        spots += _of_days(measured)
    if runs is not None:
        spots += _of_agents(cursor, runs)
    spots += [
        BlindSpot(
            reason=AGENT_STOPPED,
            subject=row["agent"],
            since=midnight(row["last_day"] + timedelta(days=1)),
            count=row["days"],
            of=REFERENCE_DAYS,
        )
        for row in stopped[:AGENTS_NAMED]
    ]
    return tuple(spots)


def _of_judges(measured: Measured) -> list[BlindSpot]:
    uses = {use.judge: use for use in measured.judges(2 * REFERENCE_DAYS)}
    current = uses.pop(measured.judge_key, None)
    if current is None or not uses:
        return []
    spots = []
    is_new = current.days < FEWEST_DAYS or (measured.as_of.date() - current.first_day).days < REFERENCE_DAYS
    if is_new and any(use.first_day < current.first_day for use in uses.values()):
        spots.append(
            BlindSpot(
                reason=NEW_JUDGE,
                subject=current.name,
                since=midnight(current.first_day),
                count=current.days,
                of=REFERENCE_DAYS,
            )
        )
    beside = [use for use in uses.values() if use.last_day > current.first_day and use.recent]
    judged = current.recent + sum(use.recent for use in beside)
    others = sum(use.recent for use in beside)
    if beside and others >= OTHER_SHARE * judged:
        spots.append(BlindSpot(reason=OTHER_JUDGES, subject=_named(beside), since=None, count=others, of=judged))
    return spots


def _named(uses: Sequence[JudgeUse]) -> str:
    return ", ".join(sorted({use.name for use in uses})[:AGENTS_NAMED])


def _of_days(measured: Measured) -> list[BlindSpot]:
    days = measured.days_with_data
    if measured.reach <= REFERENCE_DAYS or days >= FEWEST_DAYS:
        return []
    return [BlindSpot(reason=FEW_DAYS, subject="", since=None, count=days, of=FEWEST_DAYS)]


def _of_agents(cursor: duckdb.DuckDBPyConnection, runs: ProjectRuns) -> list[BlindSpot]:
    """The agents beyond the limit; that there are any is asked only where the limit is reached."""
    if runs.watched_agents < MOST_AGENTS:
        return []
    watched = {one.agent for one in runs.agents}
    names = [row["agent"] for row in query_rows(cursor, "agents_with_runs", {"project": runs.project})]
    others = [name or "" for name in names if name not in watched]
    if len(names) <= MOST_AGENTS:
        return []
    return [
        BlindSpot(
            reason=AGENTS_BEYOND_LIMIT,
            subject=", ".join(filter(None, others[:AGENTS_NAMED])),
            since=None,
            count=len(names) - MOST_AGENTS,
            of=len(names),
        )
    ]
