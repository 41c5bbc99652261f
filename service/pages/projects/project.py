"""A project: what is open, and how it did day by day beside what is normal for it. What is less urgent, its details, the browser asks for next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import duckdb
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_records
from audit.drift.consecutive_days import DAYS
from schemas.records import Baseline, Incident
from service.banner import banner_text
from service.documents.incidents import incident_records
from service.documents.project_checks import RECENT_DAYS, check_by_hand, check_words
from service.http.context import ApiContext, Services
from service.http.routes.projects import project_rows, row_of
from service.pages.charts.projects import (
    SPIKE,
    TIERS,
    anomaly_days,
    anomaly_shares,
    exchange_days,
    tier_trends,
)
from service.pages.incidents.change_days import marked_days, telling
from service.pages.incidents.incidents import since_of
from service.pages.links import Links
from service.pages.projects.days import costs_of, deployed_within, newest_event, trends_of
from service.pages.projects.wording import reason_words
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer
from service.pages.window import LENGTHS, Asked, AskedDays, Window, window_of
from service.pages.words import TERMS
from streams.watch.incidents.states import CONFIRMED, LIVE, is_live

router = APIRouter(include_in_schema=False)
_links = Links()
Row = Mapping[str, Any]
_OPEN, _LATEST, _LISTED = 100, 30, 8
"""Open incidents that are read, latest ones whose days are marked too, and open ones that are listed."""


@dataclass(frozen=True, slots=True)
class _Days:
    """The content of days."""

    window: Window
    trends: Sequence[Row]
    baselines: Sequence[Baseline]
    """Those that held, oldest first."""
    acted: date | None
    """The day of the newest event, if there were events but no exchanges since the window ended."""
    deployed: Mapping[str, str]
    """Deployments in words, by day."""


@router.get("/projects/{project}")
async def project(request: Request, _: Viewer, project: ShownProject, services: Services, asked: Asked) -> HTMLResponse:
    """Show the state of a project."""
    now = services.engine.now()
    today = now.date()
    rows, days, (opened, latest) = await asyncio.gather(
        project_rows(services, project),
        services.ask(lambda reading: _days(reading, project, asked, now)),
        services.ask(lambda reading: _incidents(reading, project)),
    )
    row: Row = row_of(services, project, rows)
    settings = services.engine.policy.for_project(project).settings
    has_data = bool(row["exchanges"] or row["scores"]) or await _has_costs(services, project, asked, today)
    values = {
        "project": project,
        "enabled": settings.enabled,
        "health": row["health"],
        "why": reason_words(row, RECENT_DAYS, has_judge=services.engine.has_judge),
        "critical": row["critical_incidents"],
        "banner": banner_text(settings, row["open_incidents"], services.engine.judge_name, check_words(row)),
        "check": check_words(row),
        "check_by_hand": check_by_hand(row),
        "checked_days": DAYS,
        "has_data": has_data,
        "is_empty": not (has_data or row["runs"] or row["open_incidents"] or row["suspected_incidents"]),
        "counts": row,
        "details": _links.details(project) + window_of(asked, today).query,
        "opened": row["open_incidents"],
        "suspected": row["suspected_incidents"],
        "unknown_asked": asked.unknown,
        "listed": _listed(opened),
        "has_decided": any(not is_live(one) for one in latest),
        "wraps": settings.wrap_quality_scoring,
        "acted": days.acted,
        **_window_values(days.window, today),
        **_day_values(days, list({one.incident_id: one for one in [*opened, *latest]}.values())),
    }
    return page(request, "project.html", values)


def _window_values(window: Window, today: date) -> dict[str, Any]:
    return {
        "window": window,
        "lengths": LENGTHS,
        "later": window.later(today),
        "is_stale": _is_stale(window, today),
    }


def _is_stale(window: Window, today: date) -> bool:
    """Tell whether the days end before today for lack of exchanges, and not because they were requested."""
    return not window.is_pinned and window.last < today


def _day_values(days: _Days, incidents: Sequence[Incident]) -> dict[str, Any]:
    """Return the template's values about the days."""
    window, shares = days.window, anomaly_shares(days.trends)
    trends = tier_trends(window, days.trends, days.baselines, incidents, days.deployed)
    spikes = marked_days(SPIKE, incidents, shares)
    return {
        "baselines": days.baselines,
        "trends": trends,
        "without": [TERMS[tier] for tier in TIERS if tier not in {trend.name for trend in trends}],
        "has_drift": any(trend.drift_days for trend in trends),
        "anomaly_chart": anomaly_days(window, days.trends, spikes, days.deployed),
        "spikes": len(spikes),
        "spiked": telling(SPIKE, incidents, shares, spikes),
        "exchange_chart": exchange_days(window, days.trends, days.deployed),
        "anomalies": sum(row["anomaly_count"] for row in days.trends),
        "exchanges": sum(row["exchange_count"] for row in days.trends),
    }


def _days(cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, now: datetime) -> _Days:
    window, trends = trends_of(cursor, project, asked, now.date())
    values = {"project": project, "from": window.start, "to": window.end}
    acted = newest_event(cursor, project, window, now) if _is_stale(window, now.date()) else None
    baselines = list(query_records(cursor, "held_baselines", Baseline, values))
    return _Days(window, trends, baselines, acted, deployed_within(cursor, project, window))


async def _has_costs(services: ApiContext, project: str, asked: AskedDays, today: date) -> bool:
    """Tell whether the judge was asked for the project, perhaps about something other than its exchanges."""
    return bool(await services.ask(lambda reading: costs_of(reading, project, window_of(asked, today))))


def _incidents(cursor: duckdb.DuckDBPyConnection, project: str) -> tuple[list[Incident], list[Incident]]:
    """Return the live incidents, and the latest of all."""
    return incident_records(cursor, project, statuses=LIVE, limit=_OPEN), incident_records(cursor, project, limit=_LATEST)


def _listed(opened: Sequence[Incident]) -> list[tuple[Incident, str | None, list[Incident]]]:
    """Return the worst open incidents, each with its first day and the others that began on it, perhaps from one cause."""
    since = {one.incident_id: since_of(one) for one in opened}
    worst = sorted(opened, key=lambda one: (one.confidence != CONFIRMED, one.severity != "critical"))[:_LISTED]
    return [(one, since[one.incident_id], _beside(one, worst, since)) for one in worst]


def _beside(incident: Incident, others: Sequence[Incident], since: Mapping[str, str | None]) -> list[Incident]:
    day = since[incident.incident_id]
    return [
        one for one in others if day and one is not incident and since[one.incident_id] == day and one.tier != incident.tier
    ]
