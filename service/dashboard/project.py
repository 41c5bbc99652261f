"""A project: what is open, how it did day by day beside what is normal for it, what was judged and why, and what that cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import duckdb
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_records, query_rows
from schemas.records import Baseline, Incident
from service.api.context import Services
from service.api.errors import ApiError
from service.api.projects import EMPTY_PROJECT, RECENT_DAYS, project_rows
from service.banner import banner_text
from service.dashboard.change_days import marked_days, telling
from service.dashboard.charts import share_bar
from service.dashboard.exchange_words import REASONS
from service.dashboard.project_charts import (
    SPIKE,
    TIERS,
    anomaly_days,
    anomaly_shares,
    cost_days,
    exchange_days,
    known_sum,
    model_costs,
    tier_trends,
)
from service.dashboard.project_incidents import since_of
from service.dashboard.project_words import REMEDIES, SAMPLING_REASONS, reason_words
from service.dashboard.rendering import page
from service.dashboard.viewing import ShownProject, Viewer
from service.dashboard.window import LENGTHS, Asked, AskedDays, Window, window_of
from service.dashboard.words import TERMS
from service.documents import Document, project_summary
from service.project_health import health_of
from service.runs import run_page
from service.watched import incident_records

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_OPEN, _LATEST, _LISTED = 100, 30, 8
"""How many open incidents are read, of how many of the latest ones the days are marked too, and how many open ones are listed."""
_RUNS = 8
_NAMELESS = "no exchange, run or incident is of it, and no connection and no policy names it."
_EVER = 36_500
"""Days that hold every exchange."""


@dataclass(frozen=True, slots=True)
class _Days:
    """What days hold."""

    window: Window
    """The days of the exchanges."""
    paid: Window
    """The days of the costs: what was said long ago may have been judged today."""
    trends: Sequence[Row]
    costs: Sequence[Row]
    sampling: Sequence[Row]
    baselines: Sequence[Baseline]
    """Those that held, oldest first."""


@router.get("/projects/{project}")
async def project(request: Request, *, viewer: Viewer, project: ShownProject, services: Services, asked: Asked) -> HTMLResponse:
    """Where a project stands."""
    today = services.engine.now().date()
    rows, days, summary, (opened, latest), runs = await asyncio.gather(
        project_rows(services, project),
        services.ask(lambda reading: _days(reading, project, asked, today)),
        services.ask(lambda reading: project_summary(reading, project)),
        services.ask(lambda reading: _incidents(reading, project)),
        services.ask(lambda reading: run_page(reading, project, None, _RUNS)),
    )
    row = rows[0] if rows else EMPTY_PROJECT
    if not (rows or latest or days.costs or days.baselines or project in services.engine.policy.projects):
        raise ApiError(404, "not_found", f"Nothing is known of a project {project}: {_NAMELESS}")
    settings = services.engine.policy.for_project(project).settings
    values = {
        "project": project,
        "enabled": settings.enabled,
        "health": health_of(row),
        "why": reason_words(row, RECENT_DAYS, has_judge=services.engine.has_judge),
        "critical": row["critical_incidents"],
        "banner": banner_text(settings, summary["openIncidents"], services.engine.judge_name),
        "has_data": bool(summary["exchanges"]["total"] or summary["scores"]["total"] or days.costs),
        "summary": summary,
        "opened": row["open_incidents"],
        "unknown_asked": asked.unknown,
        "listed": _listed(opened),
        "has_decided": any(one.status != "open" for one in latest),
        "runs": runs,
        "wraps": settings.wrap_quality_scoring,
        "unscored": _unscored(summary),
        "can_rejudge": "admin" in viewer.scopes,
        "has_judge": services.engine.has_judge,
        **_window_values(days.window, today),
        **_day_values(days, list({one.incident_id: one for one in [*opened, *latest]}.values())),
    }
    return page(request, "project.html", values)


def _window_values(window: Window, today: date) -> dict[str, Any]:
    return {
        "window": window,
        "lengths": LENGTHS,
        "later": window.later(today),
        "is_stale": not window.is_pinned and window.last < today,
    }


def _day_values(days: _Days, incidents: Sequence[Incident]) -> dict[str, Any]:
    """What the template shows of the days."""
    window, shares = days.window, anomaly_shares(days.trends)
    trends = tier_trends(window, days.trends, days.baselines, incidents)
    spikes = marked_days(SPIKE, incidents, shares)
    return {
        "baselines": days.baselines,
        "trends": trends,
        "without": [TERMS[tier] for tier in TIERS if tier not in {trend.name for trend in trends}],
        "has_drift": any(trend.drift_days for trend in trends),
        "anomaly_chart": anomaly_days(window, days.trends, spikes),
        "spikes": len(spikes),
        "spiked": telling(SPIKE, incidents, shares, spikes),
        "exchange_chart": exchange_days(window, days.trends),
        "anomalies": sum(row["anomaly_count"] for row in days.trends),
        "exchanges": sum(row["exchange_count"] for row in days.trends),
        "cost_chart": cost_days(days.paid, days.costs) if days.costs else None,
        "paid": days.paid,
        "models": model_costs(days.costs),
        "cost": known_sum(days.costs),
        "simulated": sum(row["simulated"] for row in days.costs),
        "sampling": [_sampling(row) for row in days.sampling],
    }


def _days(cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, today: date) -> _Days:
    """What the window that is asked for holds. Where nothing came lately it ends with the newest day that has a score."""
    paid = window_of(asked, today)
    window, trends = paid, _trends(cursor, project, paid, paid.count)
    if not trends and not paid.is_pinned:
        ever = _trends(cursor, project, paid, _EVER)
        window = window_of(asked, today, ever[-1]["day"] if ever else None)
        trends = [row for row in ever if row["day"] >= window.first]
    return _Days(
        window,
        paid,
        trends,
        query_rows(cursor, "daily_costs", {"project": project, "as_of": paid.end, "days": paid.count}),
        query_rows(cursor, "project_sampling", {"project": project, "from": window.start, "to": window.end}),
        list(query_records(cursor, "held_baselines", Baseline, {"project": project, "from": window.start, "to": window.end})),
    )


def _trends(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, days: int) -> list[dict[str, Any]]:
    return query_rows(cursor, "trends", {"project": project, "as_of": window.end, "days": days})


def _incidents(cursor: duckdb.DuckDBPyConnection, project: str) -> tuple[list[Incident], list[Incident]]:
    """The open incidents, and the latest of all."""
    return incident_records(cursor, project, status="open", limit=_OPEN), incident_records(cursor, project, limit=_LATEST)


def _listed(opened: Sequence[Incident]) -> list[tuple[Incident, str | None, list[Incident]]]:
    """The worst of the open incidents, each with its first day and the others that began on it: what moved together may have one cause."""
    since = {one.incident_id: since_of(one) for one in opened}
    worst = sorted(opened, key=lambda one: one.severity != "critical")[:_LISTED]
    return [(one, since[one.incident_id], _beside(one, worst, since)) for one in worst]


def _beside(incident: Incident, others: Sequence[Incident], since: Mapping[str, str | None]) -> list[Incident]:
    day = since[incident.incident_id]
    return [
        one for one in others if day and one is not incident and since[one.incident_id] == day and one.tier != incident.tier
    ]


def _sampling(row: Row) -> dict[str, Any]:
    words = SAMPLING_REASONS.get(row["sampling_reason"], row["sampling_reason"])
    return {**row, "words": words, "bar": share_bar(row["share"], "" if row["disposition"] == "scored" else "left")}


def _unscored(summary: Document) -> list[dict[str, Any]]:
    """Why exchanges have no score of the judge, the most frequent reason first, and what helps."""
    found = summary["exchanges"]["unscoredReasons"]
    return [
        {"reason": reason, "exchanges": count, "words": REASONS.get(reason, reason), "remedy": REMEDIES.get(reason, "")}
        for reason, count in sorted(found.items(), key=lambda one: (-one[1], one[0]))
    ]
