"""What agents do, by agent and version, without a judge: shares of turns and calls, and typical sizes per turn, with their days."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import Annotated

import msgspec

from analytics.queries import query_rows
from audit.drift.watched_series import BEHAVIOUR, format_level, is_size, name_behaviour
from schemas.lazy import duckdb
from service.text.answers import Answer


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


class BehaviourList(Answer, frozen=True):
    """What agents did, by agent, version and measure."""

    behaviour: list[Behaviour]
    count: int


def read_behaviour(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> list[Behaviour]:
    """Return what the agents of a project did in a period of whole hours, by agent, version and measure."""
    values = {"projects": [project], "since": start, "until": end, "by_version": True}
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
