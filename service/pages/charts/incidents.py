"""The chart of an incident: the tier or the anomaly rate by day, before and since the change, with the days of the change marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.hours import query_days
from audit.drift.incident_evidence import Sighting, evidence_of
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.charts.charts import Band, Chart, Point, line
from service.pages.charts.marks import Mark, judge_moves, marks_within, run_policies
from service.pages.incidents.change_days import days_of, expected_of
from service.pages.incidents.wording import tier_name
from service.pages.rendering import share
from service.text.links import Links
from service.text.window import Window
from streams.watch.lifecycle import is_live
from streams.watch.measures import TRUST
from streams.watch.rules import RUNS

BEFORE, AFTER = timedelta(days=28), timedelta(days=21)
"""Time shown before the change, and after an incident that was decided on."""
MOST_DAYS = 120
_DAY = timedelta(days=1)
_LIMITS = {"tier3": (1.0, 5.0), TRUST: (0.0, 100.0)}
_UNMARKED = Markup('<p class="soft">No deployment and no change of policy or judge is known in this time.</p>')
_WEIGHTED = "sequential"
"""The rule that weights exchanges by their sampling probability."""


@dataclass(frozen=True, slots=True)
class Row:
    """A day: its value, the number of records behind it, and half its interval."""

    value: float | None
    count: int | None = None
    half: float | None = None


def chart_of(cursor: duckdb.DuckDBPyConnection, incident: Incident, now: datetime) -> Markup | None:
    """Return the chart; None for an incident whose evidence has no times."""
    seen = evidence_of(incident).seen_by(incident.rule)
    if seen is None:
        return None
    first, last = seen.since, seen.until
    end = now if is_live(incident) else min(now, datetime.combine(last, datetime.min.time(), UTC) + AFTER)
    days = min(max((end.date() - first + BEFORE).days + 1, 1), MOST_DAYS)
    asked = {"project": incident.project, "as_of": end, "days": days}
    values = _values(cursor, asked, incident)
    known = sorted(values)
    span = [known[0] + timedelta(days=number) for number in range((known[-1] - known[0]).days + 1)] if known else []
    points = [_point(incident.project, day, values.get(day)) for day in span]
    marked = days_of(incident, {f"{day}": row.value for day, row in values.items()})
    marks = _marks(cursor, incident, span)
    drawn = line(_chart(incident, first, last, marks), points, band=_band(incident, seen), marked=marked)
    return drawn if marks or not span else drawn + _UNMARKED


def _values(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, Any], incident: Incident) -> dict[date, Row]:
    if incident.rule == RUNS:
        of_runs = {"agent": incident.agent or "", "series": incident.tier}
        return {row["day"]: Row(row["mean"], row["runs"]) for row in query_rows(cursor, "run_days", {**asked, **of_runs})}
    return _anomalies(cursor, asked) if incident.tier is None else _averages(cursor, asked, incident)


def _point(project: str, day: date, value: Row | None) -> Point:
    """Return the point of a day, with a link to its hours."""
    at = datetime.combine(day, datetime.min.time(), UTC)
    link = Links(Window("24h", at + _DAY, is_pinned=True).asked).project(project)
    found = value or Row(None)
    return Point(f"{day}", found.value, f"{day:%m-%d}", at=at, count=found.count, half=found.half, link=link)


def _marks(cursor: duckdb.DuckDBPyConnection, incident: Incident, span: list[date]) -> list[Mark]:
    """Return the marks of the days shown, including the incident's first day if the judge is its cause."""
    if not span:
        return []
    start, end = (datetime.combine(day, datetime.min.time(), UTC) for day in (span[0], span[-1] + _DAY))
    found = [*marks_within(cursor, incident.project, start, end, _DAY), *judge_moves([incident], start, end)]
    # If exchanges are scored too, their hours have already shown a change of the policy.
    if incident.rule == RUNS and not any(one.kind == "policy" for one in found):
        found += run_policies(cursor, incident.project, incident.agent or "", start, end)
    return found


def _chart(incident: Incident, first: date, last: date, marks: Sequence[Mark]) -> Chart:
    measure = "Anomalies" if incident.tier is None else tier_name(incident.tier)
    kind = "share of exchanges with an anomaly" if incident.tier is None else f"{_column(incident).lower()} of a day"
    return Chart(
        key="days",
        title=f"{measure} by day",
        words=f"{measure}, {kind}. The days that show the change are marked: its first day is {first}, the last one seen is {last}.",
        column=_column(incident),
        form=share if incident.tier is None or _is_share(incident) else None,
        limits=_LIMITS.get(incident.tier or "", (0.0, 1.0)),
        marked="shows the change",
        counted="Runs" if incident.rule == RUNS else "Exchanges" if incident.tier is None else "Scores",
        marks=marks,
        step=_DAY,
    )


def _column(incident: Incident) -> str:
    """Name the numbers: with different sampling probabilities there are two means, which differ."""
    if incident.tier is None or _is_share(incident):
        return "Share"
    if incident.tier in ("tier1", TRUST):
        return "Mean"
    return "Weighted mean" if incident.rule == _WEIGHTED else "Mean as sampled"


def _is_share(incident: Incident) -> bool:
    """Tell whether the incident is about a share of runs."""
    return incident.rule == RUNS and incident.tier != TRUST


def _averages(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, Any], incident: Incident) -> dict[date, Row]:
    column = "weighted_mean" if incident.rule == _WEIGHTED else "mean"
    rows = query_days(cursor, "daily_averages", asked)
    return {row["day"]: Row(row[column], row["count"], row["half"]) for row in rows if row["tier"] == incident.tier}


def _anomalies(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, Any]) -> dict[date, Row]:
    return {
        row["day"]: Row(row["anomaly_count"] / row["exchange_count"], row["exchange_count"])
        for row in query_days(cursor, "trends", asked)
        if row["exchange_count"]
    }


def _band(incident: Incident, seen: Sighting) -> Band | None:
    """Return the expected range."""
    expected = expected_of(incident.rule, seen)
    return None if expected is None else Band(*expected)
