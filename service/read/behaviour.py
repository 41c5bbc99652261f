"""What agents do, by agent and version, without a judge: shares of turns and calls, and typical sizes per turn, with their days.

With the descriptions of tools that the agents were sent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import Annotated

import msgspec

from analytics.queries import query_rows
from audit.drift.watched_series import BEHAVIOUR, format_level, is_size, name_behaviour
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment
from streams.watch.behaviour_rules import LOOK_BACK


class BehaviourDay(Answer, frozen=True):
    """A UTC day of a measure."""

    day: date
    level: float
    count: Annotated[int, msgspec.Meta(description="Turns, or calls of the tool.")]


class Behaviour(Answer, frozen=True):
    """A measure of what one version of an agent did in a period."""

    agent: Annotated[str, msgspec.Meta(description="Empty if the source tells no agent.")]
    version: Annotated[str, msgspec.Meta(description="Value of the label agent_version; empty without one.")]
    series: Annotated[str, msgspec.Meta(examples=["failed", "tool_errors:search", "output_tokens"])]
    name: str
    is_share: Annotated[
        bool, msgspec.Meta(description="Whether levels are shares. Otherwise they are sizes of the typical turn.")
    ]
    level: Annotated[float, msgspec.Meta(description="Share of the turns or calls, or geometric mean of the sizes of turns.")]
    count: Annotated[int, msgspec.Meta(description="Turns, or calls of the tool.")]
    sessions: Annotated[int, msgspec.Meta(description="Sessions, each counted once per UTC day.")]
    days: list[BehaviourDay]


class ToolDescription(Answer, frozen=True):
    """A description of a tool that an agent was sent. Descriptions are told apart by their digests."""

    agent: Annotated[str, msgspec.Meta(description="Empty if the source tells no agent.")]
    tool: str
    description: Annotated[str, msgspec.Meta(description="The first 16 hexadecimal digits of its SHA-256.")]
    previous: Annotated[
        str | None, msgspec.Meta(description="The description that came before it; null for the first one of 91 days.")
    ]
    first_at: Moment
    last_at: Moment
    sessions: Annotated[int, msgspec.Meta(description="Sessions, each counted once per UTC day.")]
    connection: str
    session_id: Annotated[str, msgspec.Meta(description="The first session with it.")]


class BehaviourList(Answer, frozen=True):
    """What agents did, by agent, version and measure."""

    behaviour: list[Behaviour]
    count: int
    descriptions: Annotated[
        list[ToolDescription],
        msgspec.Meta(description="The descriptions of tools that were seen in the period, by agent and tool."),
    ]


def read_behaviour(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> list[Behaviour]:
    """Return what the agents of a project did in a period of whole hours, by agent, version and measure."""
    values = {"projects": [project], "since": start, "until": end, "by_version": True, "hours_since": None}
    by_series = defaultdict(list)
    for row in query_rows(cursor, "behaviour_days", values):
        by_series[row["agent"], row["version"], row["series"]].append(row)
    behaviours = []
    for (agent, version, series), rows in by_series.items():
        size = is_size(BEHAVIOUR + series)
        count = sum(row["weight"] for row in rows)
        behaviours.append(
            Behaviour(
                agent=agent,
                version=version,
                series=series,
                name=name_behaviour(series),
                is_share=not size,
                level=_unscale(sum(row["total"] for row in rows) / count, is_size=size),
                count=count,
                sessions=sum(row["units"] for row in rows),
                days=[
                    BehaviourDay(
                        day=row["day"], level=_unscale(row["total"] / row["weight"], is_size=size), count=row["weight"]
                    )
                    for row in rows
                ],
            )
        )
    return behaviours


def read_descriptions(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> list[ToolDescription]:
    """Return the descriptions of tools that the agents of a project were sent in a period, by agent and tool, oldest first."""
    values = {"projects": [project], "since": start - LOOK_BACK, "until": end, "changed_since": None}
    rows = (row for row in query_rows(cursor, "tool_descriptions", values) if row["last_at"] >= start)
    return [ToolDescription(**{name: row[name] for name in ToolDescription.__struct_fields__}) for row in rows]


def format_behaviour(behaviour: Behaviour) -> str:
    """Return the level of a measure for people."""
    series = BEHAVIOUR + behaviour.series
    return format_level(series, behaviour.level if behaviour.is_share else math.log1p(behaviour.level))


def _unscale(mean: float, *, is_size: bool) -> float:
    return math.expm1(mean) if is_size else mean


def list_days(behaviour: Behaviour, first: date, days: int) -> list[float | None]:
    """Return the levels of a number of days, oldest first; None for a day without turns."""
    levels = {day.day: day.level for day in behaviour.days}
    return [levels.get(first + timedelta(days=number)) for number in range(days)]
