"""Trends of a project: daily figures, and the reasons why exchanges were judged or left out."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from msgspec import Meta

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.read.scores import newest_score
from service.text.answers import Answer, Share
from service.text.window import LENGTHS, Length, Window

TIERS = ("tier1", "tier2", "tier2_5", "tier3")
Day = date
_DIGITS = 3


class TrendDay(Answer, frozen=True):
    """A UTC day of exchanges; a mean is over the exchanges that have the tier, null if none has."""

    date: Day
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None
    weighted_tier2: Annotated[float | None, Meta(description="Each exchange is weighted by one over its sampling probability.")]
    weighted_tier2_5: float | None
    weighted_tier3: float | None
    anomaly_count: int
    exchange_count: int


class Trends(Answer, frozen=True):
    """The days with exchanges in a window, oldest first."""

    project: str
    window: str
    since: Annotated[Day, Meta(description="The first UTC day of the window.")]
    until: Annotated[Day, Meta(description="The last UTC day of the window.")]
    data_points: list[TrendDay]
    last_until: Annotated[
        Day | None,
        Meta(description="Without a data point: the newest earlier UTC day with one, to ask for as `until`; null otherwise."),
    ]


class SamplingOutcome(Answer, frozen=True):
    """Exchanges of one sampling reason and one outcome."""

    sampling_reason: Annotated[str, Meta(examples=["routine_sample"])]
    disposition: Annotated[str, Meta(examples=["scored"])]
    exchanges: int
    share: Share
    anomalies: int
    avg_tier1: float | None
    avg_tier2: float | None


class SamplingMix(Answer, frozen=True):
    """Sampled exchanges by reason, the most frequent first."""

    project: str
    mix: list[SamplingOutcome]


def trends(cursor: duckdb.DuckDBPyConnection, project: str, name: Length, window: Window) -> Trends:
    """Return a project's figures in a named window, by day of the exchange and not of the scoring."""
    rows = query_rows(cursor, "trends", {"project": project, "as_of": window.end, "days": LENGTHS[name].days})
    newest = None if rows else newest_score(cursor, project, window.start)
    days = []
    for row in rows:
        means = {f"avg_{tier}": row[f"{tier}_mean"] for tier in TIERS}
        means |= {f"weighted_{tier}": row[f"{tier}_weighted_mean"] for tier in TIERS[1:]}
        shown = {field: None if mean is None else round(mean, _DIGITS) for field, mean in means.items()}
        days.append(TrendDay.of(row, date=row["day"], **shown))
    return Trends(
        project=project,
        window=name,
        since=window.first,
        until=window.last,
        data_points=days,
        last_until=None if newest is None else newest.date(),
    )


def sampling_mix(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> SamplingMix:
    """Return the number of a project's exchanges judged or left out within a period, by reason."""
    rows = query_rows(cursor, "project_sampling", {"project": project, "from": start, "to": end})
    mix = [SamplingOutcome.of(row, avg_tier1=row["tier1_mean"], avg_tier2=row["tier2_mean"]) for row in rows]
    return SamplingMix(project=project, mix=mix)
