"""A project: open incidents, and daily figures beside their normal range. The browser then loads the less urgent details."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_records
from audit.drift.consecutive_days import DAYS
from schemas.lazy import duckdb
from schemas.records import Baseline, Incident
from service.pages.charts import Mark, judge_moves, marks_within, share_bar
from service.pages.incident_figures import find_shown_incidents, merge_labels
from service.pages.incidents import find_first_day
from service.pages.periods import Period, compared, compared_means, range_control
from service.pages.project_charts import (
    SPIKE,
    TIERS,
    Stretch,
    anomaly_days,
    anomaly_shares,
    cost_days,
    costs_of,
    exchange_days,
    known_sum,
    mean_of,
    model_costs,
    newest_event,
    points_of,
    sampling_of,
    stretch_of,
    tier_points,
    tier_trends,
)
from service.pages.projects.fleet import reason_words, silence_words
from service.pages.rendering import links_of, number, page, usd
from service.pages.viewing import ShownProject, Viewer
from service.read.incidents import LIVE_STATES, InboxFilter, inbox, incident_records
from service.read.project import banner_text, check_by_hand, check_words, read_project, with_blind_spots
from service.read.runs import run_page
from service.read.scores import ProjectSummary, newest_score, project_summary
from service.read.why import find_related, find_suspected_cause
from service.text.links import Links
from service.text.window import RangeRequest, Window, last_period, quarter_to, window_of
from service.text.words import TERMS, WORDS
from service.web.context import ApiContext, Services
from streams.watch.lifecycle import is_live

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_OPEN, _LATEST, _LISTED = 100, 30, 8
"""Maximum numbers of open incidents to read, of latest incidents whose days are marked too, and of open incidents to list."""


@dataclass(frozen=True, slots=True)
class _Days:
    """The data of the shown days."""

    window: Window
    points: Sequence[Row]
    before: Sequence[Row] | None
    """The points of the preceding period; None if it is not to be shown."""
    baselines: Sequence[Baseline]
    """The baselines in force, oldest first."""
    last: Window | None
    """For a window without scores, the last period of the same length with scores."""
    acted: date | None
    """The day of the newest event, if there were events but no exchanges since then."""
    marks: Sequence[Mark]
    heard: Sequence[datetime]
    """The days with exchanges in the quarter before a silence, to tell whether the silence is usual; empty without a silence."""


@router.get("/projects/{project}")
async def project(request: Request, _: Viewer, project: ShownProject, services: Services, period: Period) -> HTMLResponse:
    """Show the state of a project."""
    now = services.engine.now()
    summary, days, (opened, latest) = await asyncio.gather(
        services.ask(lambda reading: read_project(reading, services.engine.policy, now, project)),
        services.ask(lambda reading: _read_days(reading, project, period, now)),
        services.ask(lambda reading: _list_incidents(reading, project)),
    )
    settings = services.engine.policy.for_project(project).settings
    has_data = bool(summary.exchanges or summary.scores) or await _has_costs(services, project, days.window)
    incidents = list({one.incident_id: one for one in [*opened, *latest]}.values())
    marks = [*days.marks, *judge_moves(incidents, days.window.start, days.window.end)]
    values = {
        "project": project,
        "enabled": settings.enabled,
        "health": summary.health,
        "why": reason_words(summary, has_judge=services.engine.has_judge),
        "critical": summary.critical_incidents,
        "banner": banner_text(settings, summary.open_incidents, services.engine.judge_name, check_words(summary)),
        "check": check_words(summary),
        "blind": (await services.ask(lambda reading: with_blind_spots(reading, [summary], project)))[0].check.not_compared,
        "check_by_hand": check_by_hand(summary),
        "checked_days": DAYS,
        "has_data": has_data,
        "is_empty": not (has_data or summary.runs or summary.open_incidents or summary.suspected_incidents),
        "counts": summary,
        "details": Links(days.window.asked).details(project),
        "opened": summary.open_incidents,
        "suspected": summary.suspected_incidents,
        "unknown_asked": period.unknown,
        "listed": _list_first(opened),
        "has_decided": any(not is_live(one) for one in latest),
        "wraps": settings.wrap_quality_scoring,
        "acted": days.acted,
        "window": days.window,
        "window_exchanges": Links(days.window.asked).exchanges(project),
        "range": range_control(request, days.window, now, last=days.last),
        "silence": silence_words(days.heard, summary.last_exchange_at, now),
        **_build_day_values(stretch_of(project, days.window, marks), days, incidents),
    }
    return page(request, "project.html", values)


def _build_day_values(stretch: Stretch, days: _Days, incidents: Sequence[Incident]) -> dict[str, Any]:
    """Return the template's values about the days."""
    shares = anomaly_shares(days.window, days.points)
    trends = tier_trends(stretch, days.points, days.baselines, incidents, days.before)
    spiked = find_shown_incidents(SPIKE, incidents, shares)
    spikes = merge_labels(spiked)
    return {
        "baselines": days.baselines,
        "trends": trends,
        "without": [TERMS[tier] for tier in TIERS if tier not in {trend.name for trend in trends}],
        "has_drift": any(trend.drift_days for trend in trends),
        "anomaly_chart": anomaly_days(stretch, days.points, spikes, days.before),
        "spikes": len({label[: len("2026-11-26")] for label in spikes}),
        "spiked": [one.incident for one in spiked],
        "exchange_chart": exchange_days(stretch, days.points, days.before),
        "figures": _build_day_figures(days),
        "means": {tier: _compute_mean(days, tier) for tier in TIERS},
        "anomalies": sum(row["anomaly_count"] for row in days.points),
        "exchanges": sum(row["exchange_count"] for row in days.points),
    }


def _build_day_figures(days: _Days) -> list[dict[str, Any]]:
    """Return the counts of the period, with the preceding period's for comparison if requested."""
    names = {"Exchanges": "exchange_count", "Judged": "judged_count", "Anomalies": "anomaly_count"}
    return [
        {
            "label": label,
            "value": number(count),
            "note": None if days.before is None else compared(count, sum(row[name] for row in days.before), number),
            "kind": "bad" if name == "anomaly_count" and count else "",
        }
        for label, name in names.items()
        for count in [sum(row[name] for row in days.points)]
    ]


def _compute_mean(days: _Days, tier: str) -> str | None:
    """Format the mean of a tier over the period beside the preceding period's; None if they are not to be compared."""
    if days.before is None:
        return None
    now, before = (mean_of(tier_points(rows, tier)) for rows in (days.points, days.before))
    return f"mean {number(now, 2)}, {compared_means(now, before)}"


def _read_days(cursor: duckdb.DuckDBPyConnection, project: str, period: RangeRequest, now: datetime) -> _Days:
    window = window_of(period, now)
    points = points_of(cursor, project, window)
    values = {"project": project, "from": window.start, "to": window.end}
    newest = None if points else newest_score(cursor, project, window.start)
    last = last_period(window, newest)
    # Report silence only for the present: a gap at the end of a past period is not silence.
    silent_since = None if window.is_pinned else newest
    acted = None if silent_since is None else newest_event(cursor, project, silent_since, now)
    quarter = points_of(cursor, project, quarter_to(silent_since)) if silent_since is not None else []
    heard = [row["period"] for row in quarter if row["exchange_count"]]
    baselines = list(query_records(cursor, "held_baselines", Baseline, values))
    before = points_of(cursor, project, window.before) if window.compare else None
    return _Days(
        window,
        points,
        before,
        baselines,
        last,
        acted,
        marks_within(cursor, project, window.start, window.end, window.step),
        heard,
    )


async def _has_costs(services: ApiContext, project: str, window: Window) -> bool:
    """Return whether the judge was asked for the project, even if not about its exchanges."""
    return bool(await services.ask(lambda reading: costs_of(reading, project, window)))


def _list_incidents(cursor: duckdb.DuckDBPyConnection, project: str) -> tuple[list[Incident], list[Incident]]:
    """Return the live incidents in the inbox's order, worst first, and the latest incidents."""
    opened = inbox(cursor, InboxFilter(project=project, statuses=LIVE_STATES), None, _OPEN, outlined=True)
    return [one.incident for one in opened.listed], incident_records(cursor, project, limit=_LATEST, outlined=True)


def _list_first(opened: Sequence[Incident]) -> list[tuple[Incident, str | None, list[Incident], Incident | None]]:
    """Return the worst open incidents, each with its first day, its twins, and the twin whose cause it may share."""
    worst = opened[:_LISTED]
    return [
        (one, find_first_day(one), twins, find_suspected_cause(one, twins))
        for one in worst
        for twins in [find_related(one, worst)]
    ]


_RUNS = 8


@router.get("/projects/{project}/details")
async def details(
    request: Request, *, viewer: Viewer, project: ShownProject, services: Services, period: Period
) -> HTMLResponse:
    """Show the less urgent parts of a project, over the days that its page shows."""
    now = services.engine.now()
    window = window_of(period, now)
    summary, these, before, marks, runs = await asyncio.gather(
        services.ask(lambda reading: project_summary(reading, project)),
        services.ask(lambda reading: _read_period(reading, project, window)),
        services.ask(lambda reading: _read_period(reading, project, window.before if window.compare else None)),
        services.ask(lambda reading: marks_within(reading, project, window.start, window.end, window.step)),
        services.ask(lambda reading: run_page(reading, project, None, _RUNS, between=(window.start, window.end))),
    )
    values = {
        "project": project,
        "summary": summary,
        "has_data": bool(summary.exchanges.exchanges or summary.scores.scores or these.costs),
        "window": window,
        "figures": _build_period_figures(these, before if window.compare else None),
        "costs_link": links_of(request).costs(project, **window.asked),
        "runs": runs,
        "sampling": [_build_sampling(row) for row in these.sampling],
        "unscored": _list_unscored(summary),
        "can_rejudge": "admin" in viewer.scopes,
        "has_judge": services.engine.has_judge,
        **_build_cost_values(stretch_of(project, window, marks), these.costs, before.costs if window.compare else None),
    }
    return page(request, "project_details.html", values)


def _build_cost_values(stretch: Stretch, costs: Sequence[Row], past: Sequence[Row] | None) -> dict[str, Any]:
    return {
        "cost_chart": cost_days(stretch, costs, past) if costs else None,
        "models": model_costs(costs),
        "cost": known_sum(costs),
        "simulated": sum(row["simulated"] for row in costs),
    }


@dataclass(frozen=True, slots=True)
class _Period:
    """The data of a period besides its points."""

    costs: Sequence[Row] = ()
    sampling: Sequence[Row] = ()

    def exchanges(self, disposition: str | None = None) -> int:
        """Count the exchanges of a disposition, or all."""
        return sum(row["exchanges"] for row in self.sampling if disposition in (None, row["disposition"]))

    @property
    def anomalies(self) -> int:
        """The number of anomalous exchanges."""
        return sum(row["anomalies"] for row in self.sampling)


def _read_period(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> _Period:
    """Return the cost of judging a window's exchanges, and the reasons for judging; empty without a window."""
    if window is None:
        return _Period()
    return _Period(costs_of(cursor, project, window), sampling_of(cursor, project, window))


_COUNTS: Mapping[str, Callable[[_Period], float | None]] = {
    "Exchanges": _Period.exchanges,
    "Judged": lambda period: period.exchanges("scored"),
    "Left out by sampling": lambda period: period.exchanges("sampling_skip"),
    "Left out by the cap": lambda period: period.exchanges("skipped_cost_cap"),
    "Unscored": lambda period: period.exchanges("unscored"),
    "Anomalies": lambda period: period.anomalies,
    "Cost of judging": lambda period: known_sum(period.costs),
}
"""The figures of a period."""
_COST = "Cost of judging"


def _build_period_figures(these: _Period, before: _Period | None) -> list[dict[str, Any]]:
    """Return the figures of a period, with the preceding period's for comparison if requested."""
    return [
        {
            "label": label,
            "value": written(count(these)),
            "note": compared(count(these), count(before), written) if before else _count_unknown_costs(label, these),
            "kind": "bad" if label == "Anomalies" and count(these) else "",
        }
        for label, count in _COUNTS.items()
        for written in [usd if label == _COST else number]
    ]


def _count_unknown_costs(label: str, period: _Period) -> str | None:
    unknown = sum(row["unknown_costs"] for row in period.costs)
    return f"{number(unknown)} of unknown cost" if label == _COST and unknown else None


def _build_sampling(row: Row) -> dict[str, Any]:
    reason = WORDS["sampling_reasons"].get(row["sampling_reason"], row["sampling_reason"])
    return {**row, "words": reason, "bar": share_bar(row["share"], "" if row["disposition"] == "scored" else "left")}


def _list_unscored(summary: ProjectSummary) -> list[dict[str, Any]]:
    """Return the reasons why exchanges have no score from the judge, most frequent first, with advice."""
    return [
        {
            "reason": reason,
            "exchanges": count,
            "words": WORDS["reasons"].get(reason, reason),
            "remedy": WORDS["remedies"].get(reason, ""),
        }
        for reason, count in sorted(summary.exchanges.unscored_reasons.items(), key=lambda counted: (-counted[1], counted[0]))
    ]
