"""A project's page: its open incidents, and its figures by day or hour with their baselines. The browser then loads further details."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from analytics.queries import query_records
from analytics.sums.daily import is_failure_behind
from audit.drift.consecutive_days import DAYS
from schemas.lazy import duckdb, pl
from schemas.records import Baseline, Incident
from service.pages.charts import Mark, build_annotation_form, find_judge_changes, marks_within, share_bar
from service.pages.incident_figures import find_shown_incidents, merge_labels
from service.pages.incidents import find_first_day
from service.pages.periods import Period, compared, compared_means, range_control
from service.pages.project_charts import (
    SPIKE,
    SPLITS,
    TIERS,
    ChartWindow,
    Split,
    build_chart_window,
    compute_anomaly_shares,
    compute_mean,
    draw_anomalies,
    draw_costs,
    draw_exchanges,
    draw_parts,
    draw_session_scores,
    draw_tier_trends,
    find_newest_event,
    read_costs,
    read_points,
    read_sampling,
    read_split,
    select_tier,
    sum_costs_by_model,
    sum_known_costs,
)
from service.pages.projects.agent_health import compare_behaviour, limit_behaviour
from service.pages.projects.fleet import describe_silence, explain_health
from service.pages.rendering import links_of, number, page, usd
from service.pages.viewing import ShownProject, Viewer
from service.read.annotations import Annotation, read_annotations
from service.read.behaviour import ToolDescription, read_descriptions
from service.read.evaluations import SessionScore, session_scores
from service.read.failures import read_failures
from service.read.incidents import LIVE_STATES, InboxFilter, inbox, incident_records
from service.read.project import describe_check, format_banner, manual_check_date, read_project, with_remarks
from service.read.runs import run_page
from service.read.scores import ProjectSummary, newest_score, project_summary
from service.read.sessions import open_answers
from service.read.versions import agent_versions, sort_by_verdict
from service.read.why import find_related, find_suspected_cause
from service.text.links import Links
from service.text.window import Window, kept_of, last_period, quarter_to, window_of
from service.text.words import TERMS, WORDS
from service.web.context import ApiContext, Services
from streams.watch.lifecycle import is_live

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_MAX_OPEN_INCIDENTS = 100
_MAX_LATEST_INCIDENTS = 30
"""Latest incidents, open or not, whose days the charts mark."""
_MAX_LISTED_INCIDENTS = 8
"""Open incidents in the list."""
_MAX_RUNS = 8
_MAX_FAILURES = 5
_MAX_ANNOTATIONS = 20
_MAX_VERSIONS = 5
"""Agents whose versions are compared; their own page has all."""
_MAX_BEHAVIOUR = 60
"""Measures of agents, and descriptions of tools, in the tables; the API has all."""


@dataclass(frozen=True, slots=True)
class _WindowData:
    """Records of the window that a project's page shows."""

    window: Window
    points: Sequence[Row]
    previous: Sequence[Row] | None
    """The points of the preceding period; None if it is not shown."""
    baselines: Sequence[Baseline]
    """Oldest first."""
    last: Window | None
    """For a window without scores, the last period of the same length with scores."""
    newest_event: date | None
    """The day of the newest event if exchanges have stopped and events have not."""
    marks: Sequence[Mark]
    annotations: Sequence[Annotation]
    """The newest ones, one more than are listed."""
    sums: pl.DataFrame | None
    """The sums of each agent, version or model; None if charts are not split, or without scores."""
    active_days: Sequence[datetime]
    """Days with exchanges in the quarter before a silence, to tell whether it is usual; empty without a silence."""


@router.get("/projects/{project}")
async def project(
    request: Request,
    *,
    viewer: Viewer,
    project: ShownProject,
    services: Services,
    period: Period,
    split: Annotated[Split | None, Query(description="Charts with a line for each agent, version or model.")] = None,
) -> HTMLResponse:
    """Show a project."""
    now = services.engine.now()
    window = window_of(period, now)
    gap = timedelta(minutes=services.engine.policy.session_gap_minutes)
    summary, data, (open_incidents, latest), still_open = await asyncio.gather(
        services.ask(lambda reading: read_project(reading, services.engine.policy, now, project)),
        services.ask(lambda reading: _read_window(reading, project, window, now, split)),
        services.ask(lambda reading: _read_incidents(reading, project)),
        services.ask(lambda reading: open_answers(reading, project, now, gap)),
    )
    policy = services.engine.policy.for_project(project)
    settings = policy.settings
    has_data = bool(summary.exchanges or summary.scores) or await _has_costs(services, project, data.window)
    incidents = list({incident.incident_id: incident for incident in [*open_incidents, *latest]}.values())
    live = summary.open_incidents + summary.suspected_incidents + summary.notice_incidents
    marks = [*data.marks, *find_judge_changes(incidents, data.window.start, data.window.end)]
    values = {
        "project": project,
        "enabled": settings.enabled,
        "health": summary.health,
        "reasons": explain_health(summary, has_judge=services.engine.has_judge),
        "critical": summary.critical_incidents,
        "banner": format_banner(settings, summary.open_incidents, services.engine.judge_name, describe_check(summary)),
        "check": describe_check(summary),
        "remarks": (await services.ask(lambda reading: with_remarks(reading, [summary], project)))[0].check.remarks,
        "manual_check_date": manual_check_date(summary),
        "checked_days": DAYS,
        "has_data": has_data,
        "is_empty": not (has_data or summary.runs or live),
        "still_open": still_open,
        "counts": summary,
        "details": Links(data.window.params).details(project),
        "open_count": summary.open_incidents,
        "suspected_count": summary.suspected_incidents,
        "notice_count": summary.notice_incidents,
        "live_count": live,
        "unknown_params": [name for name in period.unknown if name != "split"],
        "split": split,
        "splits": [(name, f"{links_of(request).project(project, split=name)}#days", name == split) for name in (None, *SPLITS)],
        "listed": _list_worst(open_incidents),
        "has_decided": any(not is_live(incident) for incident in latest),
        "wraps": policy.expects_wrap_up,
        "newest_event": data.newest_event,
        "window": data.window,
        "window_exchanges": Links(data.window.params).exchanges(project),
        "range": range_control(request, window, now, last=data.last),
        "silence": describe_silence(data.active_days, summary.last_exchange_at, now),
        "annotations": data.annotations[:_MAX_ANNOTATIONS],
        "more_annotations": len(data.annotations) > _MAX_ANNOTATIONS,
        **build_annotation_form(viewer, project),
        **_build_day_values(build_chart_window(project, data.window, marks, split), data, incidents, split),
    }
    return page(request, "project.html", values)


def _build_day_values(
    chart_window: ChartWindow, data: _WindowData, incidents: Sequence[Incident], split: Split | None
) -> dict[str, Any]:
    """Return the template's values about the window."""
    shares = compute_anomaly_shares(data.window, data.points)
    trends = draw_tier_trends(chart_window, data.points, data.baselines, incidents, data.previous)
    spike_incidents = find_shown_incidents(SPIKE, incidents, shares)
    spike_labels = merge_labels(spike_incidents)
    parts = None if split is None or data.sums is None else draw_parts(chart_window, data.sums, split)
    if parts is not None:
        trends = [replace(trend, chart=parts.charts[trend.name]) for trend in trends if trend.name in parts.charts]
    return {
        "parts_shown": parts,
        "baselines": data.baselines,
        "trends": trends,
        "tiers_without_scores": [TERMS[tier] for tier in TIERS if tier not in {trend.name for trend in trends}],
        "has_drift": any(trend.drift_days for trend in trends),
        "anomaly_chart": parts.anomalies if parts else draw_anomalies(chart_window, data.points, spike_labels, data.previous),
        "spike_days": len({label[: len("2026-11-26")] for label in spike_labels}),
        "spike_incidents": [entry.incident for entry in spike_incidents],
        "exchange_chart": parts.exchanges if parts else draw_exchanges(chart_window, data.points, data.previous),
        "figures": _build_day_figures(data),
        "means": {tier: _describe_mean(data, tier) for tier in TIERS},
        "anomalies": sum(row["anomaly_count"] for row in data.points),
        "exchanges": sum(row["exchange_count"] for row in data.points),
    }


def _build_day_figures(data: _WindowData) -> list[dict[str, Any]]:
    """Return the counts of the period, compared with the preceding period if requested."""
    columns = {"Exchanges": "exchange_count", "Judged": "judged_count", "Anomalies": "anomaly_count"}
    figures = []
    for label, column in columns.items():
        count = sum(row[column] for row in data.points)
        note = None
        if data.previous is not None:
            note = compared(count, sum(row[column] for row in data.previous), number)
        kind = "bad" if column == "anomaly_count" and count else ""
        figures.append({"label": label, "value": number(count), "note": note, "kind": kind})
    return figures


def _describe_mean(data: _WindowData, tier: str) -> str | None:
    """Describe the mean of a tier compared with the preceding period; None if the page does not compare them."""
    if data.previous is None:
        return None
    current = compute_mean(select_tier(data.points, tier))
    previous = compute_mean(select_tier(data.previous, tier))
    return f"mean {number(current, 2)}, {compared_means(current, previous)}"


def _read_window(
    cursor: duckdb.DuckDBPyConnection, project: str, window: Window, now: datetime, split: Split | None
) -> _WindowData:
    window = window.in_steps()
    points = read_points(cursor, project, window)
    values = {"project": project, "from": window.start, "to": window.end}
    newest = None if points else newest_score(cursor, project, window.start)
    last = last_period(window, newest)
    # A gap at the end of a past period is no silence.
    silent_since = None if window.is_pinned else newest
    event_day = None if silent_since is None else find_newest_event(cursor, project, silent_since, now)
    quarter = read_points(cursor, project, quarter_to(silent_since)) if silent_since is not None else []
    active_days = [row["period"] for row in quarter if row["exchange_count"]]
    baselines = list(query_records(cursor, "held_baselines", Baseline, values))
    previous = read_points(cursor, project, window.before) if window.compare else None
    return _WindowData(
        window=window,
        points=points,
        previous=previous,
        baselines=baselines,
        last=last,
        newest_event=event_day,
        marks=marks_within(cursor, project, window.start, window.end, window.step),
        annotations=read_annotations(cursor, project, window.start, window.end, limit=_MAX_ANNOTATIONS + 1),
        sums=None if split is None else read_split(cursor, project, window, split),
        active_days=active_days,
    )


async def _has_costs(services: ApiContext, project: str, window: Window) -> bool:
    """Return whether the project has judging costs, which it can have even without exchanges."""
    return bool(await services.ask(lambda reading: read_costs(reading, project, window)))


def _read_incidents(cursor: duckdb.DuckDBPyConnection, project: str) -> tuple[list[Incident], list[Incident]]:
    """Return the live incidents in the inbox's order, worst first, and the latest incidents."""
    live = inbox(cursor, InboxFilter(project=project, statuses=LIVE_STATES), None, _MAX_OPEN_INCIDENTS, outlined=True)
    return [entry.incident for entry in live.listed], incident_records(
        cursor, project, limit=_MAX_LATEST_INCIDENTS, outlined=True
    )


def _list_worst(open_incidents: Sequence[Incident]) -> list[tuple[Incident, str | None, list[Incident], Incident | None]]:
    """Return the worst open incidents, each with its first day, its related incidents, and the one whose cause it probably shares."""
    worst = open_incidents[:_MAX_LISTED_INCIDENTS]
    rows = []
    for incident in worst:
        related = find_related(incident, worst)
        rows.append((incident, find_first_day(incident), related, find_suspected_cause(incident, related)))
    return rows


@router.get("/projects/{project}/details")
async def details(request: Request, *, viewer: Viewer, project: ShownProject, services: Services, period: Period) -> Response:
    """Return the parts of a project's page that take longer. A browser that opens them by themselves gets the page."""
    if request.headers.get("sec-fetch-dest") == "document":
        return RedirectResponse(Links(kept_of(request.query_params)).project(project), HTTPStatus.SEE_OTHER)
    now = services.engine.now()
    window = window_of(period, now).in_steps()
    quarter = quarter_to(window.end - timedelta(microseconds=1), is_pinned=window.is_pinned)
    (
        summary,
        current,
        previous,
        marks,
        runs,
        (scores, behaviour, descriptions, comparison, failures, is_behind),
    ) = await asyncio.gather(
        services.ask(lambda reading: project_summary(reading, project)),
        services.ask(lambda reading: _read_period(reading, project, window)),
        services.ask(lambda reading: _read_period(reading, project, window.before if window.compare else None)),
        services.ask(lambda reading: marks_within(reading, project, window.start, window.end, window.step)),
        services.ask(lambda reading: run_page(reading, project, None, _MAX_RUNS, between=(window.start, window.end))),
        services.ask(
            lambda reading: (
                session_scores(reading, project, (window.start, window.end)),
                compare_behaviour(reading, project, window),
                read_descriptions(reading, project, window.start, window.end),
                agent_versions(reading, project, quarter.start, quarter.end),
                read_failures(reading, project, window.start, window.end),
                is_failure_behind(reading),
            )
        ),
    )
    judged_sessions = (
        await services.ask(lambda reading: _compare_judged_sessions(reading, project, window, marks, scores)) if scores else {}
    )
    values = {
        "project": project,
        "summary": summary,
        "has_data": bool(summary.exchanges.exchanges or summary.scores.scores or current.costs),
        "window": window,
        "quarter": quarter,
        "figures": _build_period_figures(current, previous if window.compare else None),
        "costs_link": links_of(request).costs(project, **window.params),
        "versions": [entry for entry in sort_by_verdict(comparison.agents) if entry.previous is not None][:_MAX_VERSIONS],
        "failures": failures[:_MAX_FAILURES],
        "failures_count": len(failures),
        "is_failure_behind": is_behind,
        "runs": runs,
        "session_scores": (),
        **judged_sessions,
        **limit_behaviour(behaviour, _MAX_BEHAVIOUR),
        **_list_changed_descriptions(descriptions, window),
        "sampling": [_build_sampling(row) for row in current.sampling],
        "unscored": _list_unscored(summary),
        "can_rejudge": "admin" in viewer.scopes,
        "has_judge": services.engine.has_judge,
        **_build_cost_values(
            build_chart_window(project, window, marks), current.costs, previous.costs if window.compare else None
        ),
    }
    return page(request, "project_details.html", values)


def _list_changed_descriptions(descriptions: Sequence[ToolDescription], window: Window) -> dict[str, Any]:
    """Return the template's values about the descriptions of tools: the number of tools, and the descriptions that came in the window."""
    changed = [entry for entry in descriptions if entry.previous is not None and entry.first_at >= window.start]
    newest = sorted(changed, key=lambda entry: entry.first_at, reverse=True)
    return {
        "described_tools": len({(entry.agent, entry.tool) for entry in descriptions}),
        "changed_descriptions": newest[:_MAX_BEHAVIOUR],
        "more_descriptions": max(len(newest) - _MAX_BEHAVIOUR, 0),
    }


def _compare_judged_sessions(
    cursor: duckdb.DuckDBPyConnection, project: str, window: Window, marks: Sequence[Mark], scores: Sequence[SessionScore]
) -> dict[str, Any]:
    """Return the template's values about the sessions of a window that were judged as a whole, without a written case."""
    before = session_scores(cursor, project, (window.before.start, window.before.end)) if window.compare else []
    previous = {score.score: score.mean for score in before}
    return {
        "session_scores": [
            (score, compared_means(score.mean, previous.get(score.score)) if window.compare else None) for score in scores
        ],
        "session_chart": draw_session_scores(cursor, project, window, marks),
    }


def _build_cost_values(chart_window: ChartWindow, costs: Sequence[Row], previous: Sequence[Row] | None) -> dict[str, Any]:
    return {
        "cost_chart": draw_costs(chart_window, costs, previous) if costs else None,
        "models": sum_costs_by_model(costs),
        "cost": sum_known_costs(costs),
        "simulated": sum(row["simulated"] for row in costs),
    }


@dataclass(frozen=True, slots=True)
class _Period:
    """Costs and sampling of a period."""

    costs: Sequence[Row] = ()
    sampling: Sequence[Row] = ()

    def exchanges(self, disposition: str | None = None) -> int:
        """Return the number of exchanges with a disposition, or of all."""
        return sum(row["exchanges"] for row in self.sampling if disposition in (None, row["disposition"]))

    @property
    def anomalies(self) -> int:
        """The number of anomalous exchanges."""
        return sum(row["anomalies"] for row in self.sampling)


def _read_period(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> _Period:
    """Return the costs and sampling of a window; empty without one."""
    if window is None:
        return _Period()
    return _Period(read_costs(cursor, project, window), read_sampling(cursor, project, window))


_FIGURES: Mapping[str, Callable[[_Period], float | None]] = {
    "Exchanges": _Period.exchanges,
    "Judged": lambda period: period.exchanges("scored"),
    "Not sampled": lambda period: period.exchanges("sampling_skip"),
    "Over budget": lambda period: period.exchanges("skipped_cost_cap"),
    "Not judged": lambda period: period.exchanges("unscored"),
    "Anomalies": lambda period: period.anomalies,
    "Cost of judging": lambda period: sum_known_costs(period.costs),
}
"""Figures of a period by their labels."""
_COST = "Cost of judging"


def _build_period_figures(current: _Period, previous: _Period | None) -> list[dict[str, Any]]:
    """Return the figures of a period, compared with the preceding period if requested."""
    figures = []
    for label, compute in _FIGURES.items():
        form = usd if label == _COST else number
        value = compute(current)
        figures.append(
            {
                "label": label,
                "value": form(value),
                "note": compared(value, compute(previous), form) if previous else _count_unknown_costs(label, current),
                "kind": "bad" if label == "Anomalies" and value else "",
            }
        )
    return figures


def _count_unknown_costs(label: str, period: _Period) -> str | None:
    unknown = sum(row["unknown_costs"] for row in period.costs)
    return f"{number(unknown)} of unknown cost" if label == _COST and unknown else None


def _build_sampling(row: Row) -> dict[str, Any]:
    reason = WORDS["sampling_reasons"].get(row["sampling_reason"], row["sampling_reason"])
    return {**row, "description": reason, "bar": share_bar(row["share"], "" if row["disposition"] == "scored" else "left")}


def _list_unscored(summary: ProjectSummary) -> list[dict[str, Any]]:
    """Return the reasons why exchanges are unscored, most frequent first, with what to do."""
    return [
        {
            "reason": reason,
            "exchanges": count,
            "description": WORDS["reasons"].get(reason, reason),
            "remedy": WORDS["remedies"].get(reason, ""),
        }
        for reason, count in sorted(summary.exchanges.unscored_reasons.items(), key=lambda item: (-item[1], item[0]))
    ]
