"""The list of a project's incidents, and the page of one: the change, its certainty, the exchanges with most effect, and the decisions."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from audit.drift.consecutive_days import DAYS
from audit.drift.incident_evidence import Day, Evidence
from audit.drift.incident_evidence import Query as NamedQuery
from audit.drift.watched_series import lower_first, name_series
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.charts import build_annotation_form
from service.pages.incident_figures import (
    RULE_EXPLANATIONS,
    RULE_NAMES,
    Figure,
    describe_cause,
    draw_incident_chart,
    list_figures,
)
from service.pages.periods import ListPeriod, compared, range_control
from service.pages.project_charts import read_counts
from service.pages.rendering import number, page
from service.pages.viewing import ShownProject, Viewer
from service.read.incident_actions import (
    IncidentFacts,
    describe_slices,
    format_slice_counts,
    format_slice_means,
    format_slice_rates,
)
from service.read.incidents import ANY, LIVE_STATES, IncidentType, history_of, incident_records, people_of
from service.read.project import describe_check, manual_check_date, read_project, with_remarks
from service.read.runs import RunFilter, worst_runs
from service.read.why import MAX_RELATED_DISTANCE, explain_facts, find_related, find_suspected_cause
from service.text.answers import Place, after, page_of
from service.text.window import Window, bounds, last_period, listed_window
from service.text.words import WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.incident_changes import GivenStatus
from service.web.models import Cursor, Id
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.incidents import MIN_GROWTH_FACTOR
from streams.watch.lifecycle import (
    STATUSES,
    assignee_of,
    confidence_of,
    current_status,
    describe_snooze,
    is_live,
    is_snoozed,
)

router = APIRouter(include_in_schema=False)
INCIDENTS_PER_PAGE = 50
MAX_OPEN_EXCHANGES = 10
"""Exchanges shown before the rest is unfolded."""
MAX_REASON_LENGTH = 300
TYPES = ("drift", "anomaly_spike")
SNOOZES = {"1d": "for a day", "3d": "for 3 days", "7d": "for a week", "30d": "for 30 days", "worse": "until it gets worse"}
"""Snoozes to choose from, as the API reads them, in words."""
COMMON_REASONS = {
    True: (
        "We are looking into it.",
        "The agent was changed; this is the effect.",
        "The change is intended.",
        "It is fixed.",
        "False alarm.",
        "The judge changed, not the agent.",
        "Test traffic.",
    ),
    False: ("It has come back.", "It is more serious than we thought.", "Decided by mistake."),
}
"""Suggested reasons for a decision, by whether the incident is live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
    """The finding of one rule in an incident."""

    rule: str
    name: str
    explanation: str
    title: str
    since: date
    until: date
    figures: list[Figure]
    days: list[Day]
    leads: bool
    """Whether this rule raised the incident."""


@router.get("/projects/{project}/incidents")
async def incidents(
    request: Request,
    viewer: Viewer,
    project: ShownProject,
    services: Services,
    time: ListPeriod,
    *,
    status: Annotated[
        list[GivenStatus | Literal["any", ""]] | None, Query(description="Open or acknowledged by default.")
    ] = None,
    confirmed: Annotated[bool | None, Query()] = None,
    kind: Annotated[IncidentType | None, Query(alias="type")] = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the incidents of a project, newest first."""
    chosen = [current_status(name) for name in status or () if name]
    statuses = [] if ANY in chosen else chosen or list(LIVE_STATES)
    now = services.engine.now()
    window = listed_window(time, now)

    def read_list(connection: duckdb.DuckDBPyConnection) -> tuple[list[Incident], Window | None, list[dict[str, Any]]]:
        read_records = partial(
            incident_records,
            connection,
            project,
            statuses=statuses,
            kind=kind,
            confidence=confidence_of(confirmed=confirmed),
            outlined=True,
        )
        records = read_records(before=after(cursor), between=bounds(window), limit=INCIDENTS_PER_PAGE + 1)
        last = None
        if window is not None and not records and cursor is None:
            older = read_records(between=(None, window.start), limit=1)
            last = last_period(window, older[0].detected_at if older else None)
        return records, last, read_counts(connection, project, window)

    engine = services.engine
    summary = await services.ask(lambda connection: read_project(connection, engine.policy, now, project))
    records, last, counts = await services.ask(read_list)
    shown, following = page_of(records, INCIDENTS_PER_PAGE, lambda record: Place(record.detected_at, record.incident_id))
    values = {
        "project": project,
        "range": range_control(request, window, now, has_all=True, last=last),
        "comparison": _describe_counts(*counts) if counts else None,
        "incidents": [(record, find_first_day(record)) for record in shown],
        "following": following,
        "is_first": cursor is None,
        "filters": {"status": chosen, "type": kind, "confirmed": None if confirmed is None else f"{confirmed}".lower()},
        "statuses": STATUSES,
        "types": TYPES,
        "rules": RULE_NAMES,
        "may_check": "admin" in viewer.scopes,
        "check": describe_check(summary),
        "manual_check_date": manual_check_date(summary),
        "checked_days": DAYS,
    }
    return page(request, "incidents.html", values)


def _describe_counts(current: Mapping[str, Any], previous: Mapping[str, Any]) -> str:
    return f"{number(current['incidents'])} began, {compared(current['incidents'], previous['incidents'], number)}"


@router.get("/projects/{project}/incidents/{incident_id}")
async def incident(
    request: Request, viewer: Viewer, project: ShownProject, services: Services, incident_id: Annotated[Id, Path()]
) -> HTMLResponse:
    """Show an incident."""
    record = await services.watch.incident(project, incident_id)
    if record is None:
        raise ApiError(404, "not_found", "The project has no incident with this id.")
    now = services.engine.now()
    facts = IncidentFacts(record)
    evidence = facts.evidence
    runs = _select_runs(evidence)

    def read_values(cursor: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        return {
            "history": history_of(cursor, incident_id),
            "alerts": query_rows(cursor, "alerts_about", {"project": project, "subject": incident_id}),
            "remarks": _list_remarks(cursor, services, project),
            "has_runs": bool(worst_runs(cursor, project, runs, None, 1)) if runs else False,
            "first": next(iter(query_rows(cursor, "first_of_incident", {"project": project, "incident": incident_id})), None),
        }

    # Reading the evidence of related incidents takes longest, so it gets a thread of its own.
    related, chart, more = await asyncio.gather(
        services.ask(lambda cursor: _read_related(cursor, record)),
        services.ask(lambda cursor: draw_incident_chart(cursor, record, now)),
        services.ask(read_values),
    )
    values = {
        "project": project,
        "incident": record,
        "assignee": assignee_of(record),
        "remarks": more["remarks"] if is_live(record) else [],
        "people": people_of(services.access, project),
        "has_decisions": any(event.kind == "decision" for event in more["history"]),
        "evidence": evidence,
        **_explain_slices(facts),
        "queries": reproduce_queries(record, evidence),
        "may_query": "query" in viewer.scopes,
        "runs": runs,
        "common_reasons": COMMON_REASONS[is_live(record)],
        "snooze": describe_snooze(record, now),
        "is_snoozed": is_snoozed(record, now),
        "maintenance": services.engine.policy.maintenance_at(project, record.detected_at),
        "snoozes": SNOOZES,
        "growth": MIN_GROWTH_FACTOR,
        "is_live": is_live(record),
        "series": evidence.moved,
        "findings": _list_findings(record, evidence),
        "since": facts.since,
        "cause": describe_cause(record.cause, evidence),
        "tier": None if record.tier is None else lower_first(name_series(record.tier)),
        "agent": record.agent,
        "deployed": evidence.deployments,
        "sampling": WORDS["sampling"],
        "may_review": "review" in viewer.scopes,
        **build_annotation_form(viewer, project),
        "max_comment": MAX_COMMENT,
        "suspected_cause": find_suspected_cause(record, related),
        "latest_comment": next((event for event in reversed(more["history"]) if event.comment), None),
        "max_open_exchanges": MAX_OPEN_EXCHANGES,
        "max_reason_length": MAX_REASON_LENGTH,
        "related": related,
        "chart": chart,
        **more,
    }
    return page(request, "incident.html", values)


def _explain_slices(facts: IncidentFacts) -> dict[str, Any]:
    """Return the template's values about the reasons of an incident and the slices of its traffic."""
    return {
        "why": explain_facts(facts),
        "slice_comparison": facts.slice_comparison,
        "describe_slices": describe_slices,
        "format_slice_counts": format_slice_counts,
        "slice_level": format_slice_rates if facts.is_spike else format_slice_means,
        "versions": facts.compared_slices,
        "sample_size": facts.sample_size,
        "unit": facts.unit,
        "is_rate": facts.is_spike,
    }


def _read_related(cursor: duckdb.DuckDBPyConnection, incident: Incident) -> list[Incident]:
    """Return the incidents that began at about the same time and may have the same cause."""
    if incident.first_day is None:
        return []
    period = (incident.first_day - MAX_RELATED_DISTANCE, incident.first_day + MAX_RELATED_DISTANCE + timedelta(days=1))
    return find_related(incident, incident_records(cursor, incident.project, between=period))


def find_first_day(incident: Incident) -> str | None:
    """Return the first day of an incident according to the rule that raised it; None if the evidence has none."""
    return IncidentFacts(incident).since


def _select_runs(evidence: Evidence) -> RunFilter | None:
    """Return the filter for runs of an incident's agents that ended in its days; None if the evidence names no agents."""
    sightings = evidence.rules.values()
    agents = {exchange.agent for exchange in evidence.exchanges} | {run.agent for run in evidence.runs}
    names = sorted(name for name in agents if name is not None)
    if not sightings or not names:
        return None
    return RunFilter(
        agents=names,
        since=min(observation.since for observation in sightings),
        until=max(observation.until for observation in sightings),
    )


def _list_findings(incident: Incident, evidence: Evidence) -> list[RuleFinding]:
    """Return the findings of the rules. The rule that raised the incident comes first."""
    findings = [
        RuleFinding(
            rule=rule,
            name=RULE_NAMES.get(rule, rule),
            explanation=RULE_EXPLANATIONS.get(rule, ""),
            title=observation.title or "",
            since=observation.since,
            until=observation.until,
            figures=list_figures(rule, observation),
            days=observation.days or [],
            leads=rule == incident.rule,
        )
        for rule, observation in evidence.rules.items()
    ]
    return sorted(findings, key=lambda finding: (not finding.leads, finding.rule))


def _list_remarks(cursor: duckdb.DuckDBPyConnection, services: ApiContext, project: str) -> list[str]:
    """Return what changed in the traffic of a project, and what the rules could not compare, in words."""
    summary = read_project(cursor, services.engine.policy, services.engine.now(), project)
    return with_remarks(cursor, [summary], project)[0].check.remarks


QUERY_TITLES: Mapping[str, str] = {
    "daily_averages": "Averages by day",
    "incident_exchanges": "Exchanges with the largest effect",
    "sampling_change": "Sampling before and after",
    "drift_runs": "Days flagged by the consecutive-days rule",
    "drift_units": "Sessions that the sequential rule compared",
    "watched_hours": "Hours that the rule compared",
    "slices": "Which part changed",
    "reason_change": "Anomaly reasons before and after",
    "dimension_change": "Dimensions before and after",
    "failure_change": "Failures of runs before and after",
    "anomaly_spikes": "Rates that the rate rule compared",
    "run_days": "Runs by day",
    "incident_runs": "Runs with the largest effect",
    "watched_runs": "Runs that the rule compared",
    "session_score_days": "Judged sessions by day",
    "incident_sessions": "Judged sessions with the largest effect",
    "watched_sessions": "Judged sessions that the rule compared",
}
TIERS = ("tier1", "tier2", "tier2_5", "tier3")
_WEIGHTED_MEANS = {tier: f"sum({tier} * weight) / sum(weight) FILTER ({tier} IS NOT NULL)" for tier in TIERS} | {
    "tier1": "avg(tier1)"
}
_MEANS_SQL = """SELECT
    day, count({tier}) AS scores, avg({tier}) AS average,
    {weighted} AS weighted_average
FROM turns
WHERE project = $project{of_agent} AND {tier} IS NOT NULL
    AND day >= $first::DATE AND exchange_at < $as_of::TIMESTAMP
GROUP BY day
ORDER BY day"""
_ANOMALIES_SQL = """SELECT
    day, count(*) FILTER (anomaly) AS anomalies, count(*) AS exchanges,
    anomalies / exchanges AS rate
FROM turns
WHERE project = $project
    AND day BETWEEN $first::DATE AND $last::DATE AND exchange_at < $as_of::TIMESTAMP
GROUP BY day
ORDER BY day"""
_EXCHANGES_SQL = """SELECT
    exchange_at, agent, session_id, turn_number, exchange_id, score_id, {score} AS score, {counts},
    round({weight} * ({distance}), 6) AS moved, sampling_reason
FROM turns
WHERE project = $project{of_agent}
    AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    AND {distance} > 0
ORDER BY moved DESC, exchange_at DESC, score_id
LIMIT {limit}"""
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReproducedQuery:
    """A query behind an incident's evidence, with the ways to run it again."""

    title: str
    sql: str
    """A statement over the analysts' views; empty if they lack the columns."""
    parameters: Mapping[str, str]
    command: str
    text: str
    """The text of the query itself."""


def reproduce_queries(incident: Incident, evidence: Evidence) -> list[ReproducedQuery]:
    """Return the queries named in an incident's evidence, those with an equivalent statement first."""
    queries = [_reproduce_query(incident, evidence, query) for query in evidence.queries]
    return sorted(queries, key=lambda query: not query.sql)


def _reproduce_query(incident: Incident, evidence: Evidence, query: NamedQuery) -> ReproducedQuery:
    name, values = query.name, query.parameters
    try:
        sql, parameters = next(_build_statements(incident, evidence, query), ("", {}))
    except (KeyError, TypeError, ValueError):
        sql, parameters = "", {}
    return ReproducedQuery(QUERY_TITLES.get(name, name), sql, parameters, format_command(name, values), query.sql)


def format_command(name: str, values: Values) -> str:
    """Return the command that runs a query with these values, quoted for a shell."""
    settings = " ".join(f"--set {shlex.quote(f'{key}={_format_value(value)}')}" for key, value in values.items())
    return f"driftline sql {shlex.quote(name)} {settings}".rstrip()


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value)


def _build_statements(incident: Incident, evidence: Evidence, query: NamedQuery) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the statement equivalent to a query, with its parameters; nothing if the views cannot answer it."""
    name, values = query.name, query.parameters
    if name == "daily_averages" and incident.tier in TIERS:
        yield _build_means_statement(incident.tier, values)
    elif name == "incident_exchanges" and values["tier"] in (None, *TIERS):
        yield _build_exchanges_statement(values)
    elif name == "anomaly_spikes":
        observation = evidence.rules["rate_ratio"]
        days = {"first": f"{observation.since}", "last": f"{observation.until}", "as_of": values["as_of"]}
        yield _ANOMALIES_SQL, {"project": values["project"], **days}


def _build_means_statement(tier: str, values: Values) -> tuple[str, dict[str, str]]:
    until = datetime.fromisoformat(values["as_of"]) - timedelta(microseconds=1)
    first = until.date() - timedelta(days=int(values["days"]) - 1)
    params = {"project": values["project"], "first": f"{first}", "as_of": values["as_of"], **_agent_parameter(values)}
    return _MEANS_SQL.format(tier=tier, weighted=_WEIGHTED_MEANS[tier], of_agent=_filter_agent(values)), params


def _agent_parameter(values: Values) -> dict[str, str]:
    """Return the agent of a query as a parameter; nothing for a query about the whole project."""
    agent = values.get("agent")
    return {} if agent is None else {"agent": agent}


def _filter_agent(values: Values) -> str:
    return "" if values.get("agent") is None else " AND coalesce(agent, '') = $agent"


def _build_exchanges_statement(values: Values) -> tuple[str, dict[str, str]]:
    tier = values["tier"]
    score = tier or "anomaly::INTEGER"
    weight = "1.0" if tier in (None, "tier1") else "weight"
    counts = "weight" if weight == "weight" else f"{weight} AS weight"
    up = f"{score} - $expected::DOUBLE"
    down = f"$expected::DOUBLE - {score}"
    distance = {"up": up, "down": down}.get(values["direction"], f"abs({up})")
    params = {name: str(values[name]) for name in ("project", "since", "until", "expected")} | _agent_parameter(values)
    statement = _EXCHANGES_SQL.format(
        score=score,
        weight=weight,
        counts=counts,
        distance=distance,
        limit=int(values["limit"]),
        of_agent=_filter_agent(values),
    )
    return statement, params
