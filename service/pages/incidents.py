"""The incidents of a project, and one of them: the change, its time, its certainty, its exchanges, and decisions on it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from audit.drift.consecutive_days import DAYS
from audit.drift.incident_evidence import Day, Evidence
from audit.drift.incident_evidence import Query as NamedQuery
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.incident_figures import (
    RULE_EXPLANATIONS,
    RULE_NAMES,
    Figure,
    describe_cause,
    draw_incident_chart,
    list_figures,
    tier_name,
)
from service.pages.periods import ListPeriod, compared, range_control
from service.pages.project_charts import counts_of
from service.pages.rendering import number, page
from service.pages.viewing import ShownProject, Viewer
from service.read.incident_actions import Facts, slice_counts, slice_means, slice_rates, which_part_words
from service.read.incidents import IncidentType, history_of, incident_records, people_of
from service.read.project import check_by_hand, check_words, read_project, with_blind_spots
from service.read.runs import RunFilter, worst_runs
from service.read.why import APART, suspected_cause, twins_of, why_of
from service.text.answers import Place, after, page_of
from service.text.window import Window, bounds, last_period, listed_window
from service.text.words import WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.incident_changes import GivenStatus
from service.web.models import Cursor, Id
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.lifecycle import STATUSES, assignee_of, confidence_of, current_status, is_live

router = APIRouter(include_in_schema=False)
PAGE = 50
"""Incidents per page."""
FIRST_MOVED, MAX_REASON = 10, 300
"""Maximum number of exchanges shown initially, and maximum length of a reason there."""
TYPES = ("drift", "anomaly_spike")
USUAL = {
    True: (
        "We are looking into it.",
        "The agent was changed; this is the effect.",
        "The change is intended.",
        "It is fixed.",
        "The judge changed, not the agent.",
        "Test traffic.",
    ),
    False: ("It has come back.", "It is more serious than we thought.", "Decided by mistake."),
}
"""Common reasons of a decision, on a live incident and on a decided one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The finding of one rule in an incident."""

    rule: str
    name: str
    explained: str
    title: str
    since: date
    until: date
    figures: list[Figure]
    days: list[Day]
    leads: bool
    """Whether this rule found the incident."""


@router.get("/projects/{project}/incidents")
async def incidents(
    request: Request,
    viewer: Viewer,
    project: ShownProject,
    services: Services,
    time: ListPeriod,
    *,
    status: Annotated[list[GivenStatus] | None, Query()] = None,
    confirmed: Annotated[bool | None, Query()] = None,
    kind: Annotated[IncidentType | None, Query(alias="type")] = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the incidents of a project, newest first."""
    wanted = [current_status(one) for one in status or ()]

    now = services.engine.now()
    window = listed_window(time, now)

    def read(reading: duckdb.DuckDBPyConnection) -> tuple[list[Incident], Window | None, list[dict[str, Any]]]:
        listed_of = partial(
            incident_records,
            reading,
            project,
            statuses=wanted,
            kind=kind,
            confidence=confidence_of(confirmed=confirmed),
            outlined=True,
        )
        records, last = listed_of(before=after(cursor), between=bounds(window), limit=PAGE + 1), None
        if window is not None and not records and cursor is None:
            older = listed_of(between=(None, window.start), limit=1)
            last = last_period(window, older[0].detected_at if older else None)
        return records, last, counts_of(reading, project, window)

    engine = services.engine
    checked = await services.ask(lambda reading: read_project(reading, engine.policy, now, project))
    records, last, counts = await services.ask(read)
    shown, following = page_of(records, PAGE, lambda one: Place(one.detected_at, one.incident_id))
    values = {
        "project": project,
        "range": range_control(request, window, now, has_all=True, last=last),
        "told": f"{number(counts[0]['incidents'])} began, {compared(counts[0]['incidents'], counts[1]['incidents'], number)}"
        if counts
        else None,
        "incidents": [(one, since_of(one)) for one in shown],
        "following": following,
        "is_first": cursor is None,
        "asked": {"status": wanted, "type": kind, "confirmed": None if confirmed is None else f"{confirmed}".lower()},
        "statuses": STATUSES,
        "types": TYPES,
        "rules": RULE_NAMES,
        "may_check": "admin" in viewer.scopes,
        "check": check_words(checked),
        "check_by_hand": check_by_hand(checked),
        "checked_days": DAYS,
    }
    return page(request, "incidents.html", values)


@router.get("/projects/{project}/incidents/{incident_id}")
async def incident(
    request: Request, viewer: Viewer, project: ShownProject, services: Services, incident_id: Annotated[Id, Path()]
) -> HTMLResponse:
    """Show one incident."""
    record = await services.watch.incident(project, incident_id)
    if record is None:
        raise ApiError(404, "not_found", "The project has no incident with this id.")
    now = services.engine.now()
    facts = Facts(record)
    evidence = facts.evidence
    runs = _select_runs(evidence)

    def read_values(cursor: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        return {
            "history": history_of(cursor, incident_id),
            "alerts": query_rows(cursor, "alerts_about", {"project": project, "subject": incident_id}),
            "blind": _list_blind_spots(cursor, services, project),
            "has_runs": bool(worst_runs(cursor, project, runs, None, 1)) if runs else False,
            "first": next(iter(query_rows(cursor, "first_of_incident", {"project": project, "incident": incident_id})), None),
        }

    # Reading the evidence of twins takes longest.
    twins, chart, more = await asyncio.gather(
        services.ask(lambda cursor: _read_twins(cursor, record)),
        services.ask(lambda cursor: draw_incident_chart(cursor, record, now)),
        services.ask(read_values),
    )
    values = {
        "project": project,
        "incident": record,
        "assignee": assignee_of(record),
        "blind": more["blind"] if is_live(record) else [],
        "people": people_of(services.access, project),
        "has_decisions": any(event.kind == "decision" for event in more["history"]),
        "evidence": evidence,
        **_explain_slices(facts),
        "again": found_again(record, evidence),
        "may_ask": "query" in viewer.scopes and viewer.project is None,
        "runs": runs,
        "usual": USUAL[is_live(record)],
        "is_live": is_live(record),
        "series": evidence.moved,
        "sightings": _list_sightings(record, evidence),
        "since": facts.since,
        "cause": describe_cause(record.cause, evidence),
        "tier": None if record.tier is None else tier_name(record.tier),
        "agent": record.agent,
        "deployed": evidence.deployments,
        "sampling": WORDS["sampling"],
        "may_review": "review" in viewer.scopes,
        "max_comment": MAX_COMMENT,
        "suspected_cause": suspected_cause(record, twins),
        "latest_comment": next((event for event in reversed(more["history"]) if event.comment), None),
        "first_moved": FIRST_MOVED,
        "max_reason": MAX_REASON,
        "twins": twins,
        "chart": chart,
        **more,
    }
    return page(request, "incident.html", values)


def _explain_slices(facts: Facts) -> dict[str, Any]:
    """Return the template's values about the reasons of an incident and the changed slice of the traffic."""
    return {
        "why": why_of(facts),
        "which_part": facts.which_part,
        "which_part_words": which_part_words,
        "slice_counts": slice_counts,
        "slice_level": slice_rates if facts.is_spike else slice_means,
        "versions": facts.compared,
        "extent": facts.extent,
        "unit": facts.unit,
        "is_rate": facts.is_spike,
    }


def _read_twins(cursor: duckdb.DuckDBPyConnection, incident: Incident) -> list[Incident]:
    """Return an incident's twins, among the incidents that were open at its time; they may have the same cause."""
    if incident.first_day is None:
        return []
    time = (incident.first_day - APART, incident.first_day + APART + timedelta(days=1))
    return twins_of(incident, incident_records(cursor, incident.project, between=time))


def since_of(incident: Incident) -> str | None:
    """Return the first day of an incident according to its rule; None if the evidence has none."""
    return Facts(incident).since


def _select_runs(evidence: Evidence) -> RunFilter | None:
    """Return the filter for runs of an incident's agents that ended in its days; None if the evidence names no agents."""
    seen = evidence.rules.values()
    named = [*(one.agent for one in evidence.exchanges), *(one.agent for one in evidence.runs)]
    agents = sorted({agent for agent in named if agent is not None})
    if not seen or not agents:
        return None
    return RunFilter(agents=agents, since=min(one.since for one in seen), until=max(one.until for one in seen))


def _list_sightings(incident: Incident, evidence: Evidence) -> list[Sighting]:
    """Return the findings of the rules, the one that raised the incident first."""
    made = [
        Sighting(
            rule=rule,
            name=RULE_NAMES.get(rule, rule),
            explained=RULE_EXPLANATIONS.get(rule, ""),
            title=seen.title or "",
            since=seen.since,
            until=seen.until,
            figures=list_figures(rule, seen),
            days=seen.days or [],
            leads=rule == incident.rule,
        )
        for rule, seen in evidence.rules.items()
    ]
    return sorted(made, key=lambda one: (not one.leads, one.rule))


def _list_blind_spots(cursor: duckdb.DuckDBPyConnection, services: ApiContext, project: str) -> list[str]:
    """Describe a project's blind spots."""
    [summary] = with_blind_spots(
        cursor, [read_project(cursor, services.engine.policy, services.engine.now(), project)], project
    )
    return summary.check.not_compared


TITLES: Mapping[str, str] = {
    "daily_averages": "Averages by day",
    "incident_exchanges": "Exchanges with the largest effect",
    "sampling_change": "Sampling before and after",
    "drift_runs": "Days flagged by the rule of consecutive days",
    "drift_units": "Sessions that the sequential rule compared",
    "watched_hours": "Hours that the rule compared",
    "slices": "Which part changed",
    "reason_change": "Anomaly reasons before and after",
    "dimension_change": "Dimensions before and after",
    "failure_change": "Failures of runs before and after",
    "anomaly_spikes": "Rates that the rule of rates compared",
    "run_days": "Runs by day",
    "incident_runs": "Runs with the largest effect",
    "watched_runs": "Runs that the rule compared",
}
TIERS = ("tier1", "tier2", "tier2_5", "tier3")
_WEIGHTED = {tier: f"sum({tier} * weight) / sum(weight) FILTER ({tier} IS NOT NULL)" for tier in TIERS} | {
    "tier1": "avg(tier1)"
}
_MEANS = """SELECT
    day, count({tier}) AS scores, avg({tier}) AS average,
    {weighted} AS weighted_average
FROM turns
WHERE project = $project AND {tier} IS NOT NULL
    AND day >= $first::DATE AND exchange_at < $as_of::TIMESTAMP
GROUP BY day
ORDER BY day"""
_ANOMALIES = """SELECT
    day, count(*) FILTER (anomaly) AS anomalies, count(*) AS exchanges,
    anomalies / exchanges AS rate
FROM turns
WHERE project = $project
    AND day BETWEEN $first::DATE AND $last::DATE AND exchange_at < $as_of::TIMESTAMP
GROUP BY day
ORDER BY day"""
_MOVED = """SELECT
    exchange_at, agent, session_id, turn_number, exchange_id, score_id, {score} AS score, {counts},
    round({weight} * ({distance}), 6) AS moved, sampling_reason
FROM turns
WHERE project = $project
    AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    AND {distance} > 0
ORDER BY moved DESC, exchange_at DESC, score_id
LIMIT {limit}"""
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Again:
    """A query behind an incident: its purpose, an equivalent statement, and the command for the query itself."""

    title: str
    sql: str
    """Over the analysts' views; empty if they lack the columns."""
    parameters: Mapping[str, str]
    command: str
    text: str
    """The text of the query itself."""


def found_again(incident: Incident, evidence: Evidence) -> list[Again]:
    """Return the queries named in an incident's evidence."""
    reproduced = [_reproduce_query(incident, evidence, query) for query in evidence.queries]
    return sorted(reproduced, key=lambda one: not one.sql)


def _reproduce_query(incident: Incident, evidence: Evidence, query: NamedQuery) -> Again:
    name, values = query.name, query.parameters
    try:
        sql, parameters = next(_write_statements(incident, evidence, query), ("", {}))
    except (KeyError, TypeError, ValueError):
        sql, parameters = "", {}
    return Again(TITLES.get(name, name), sql, parameters, command(name, values), query.sql)


def command(name: str, values: Values) -> str:
    """Return the command that runs a query with these values, quoted for a shell."""
    settings = " ".join(f"--set {shlex.quote(f'{key}={_write_value(value)}')}" for key, value in values.items())
    return f"driftline sql {shlex.quote(name)} {settings}".rstrip()


def _write_value(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value)


def _write_statements(incident: Incident, evidence: Evidence, query: NamedQuery) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the statement equivalent to a query, with its values; empty if the views cannot answer it."""
    name, values = query.name, query.parameters
    if name == "daily_averages" and incident.tier in TIERS:
        yield _write_means(incident.tier, values)
    elif name == "incident_exchanges" and values["tier"] in (None, *TIERS):
        yield _write_moved(values)
    elif name == "anomaly_spikes":
        seen = evidence.rules["rate_ratio"]
        days = {"first": f"{seen.since}", "last": f"{seen.until}", "as_of": values["as_of"]}
        yield _ANOMALIES, {"project": values["project"], **days}


def _write_means(tier: str, values: Values) -> tuple[str, dict[str, str]]:
    until = datetime.fromisoformat(values["as_of"]) - timedelta(microseconds=1)
    first = until.date() - timedelta(days=int(values["days"]) - 1)
    params = {"project": values["project"], "first": f"{first}", "as_of": values["as_of"]}
    return _MEANS.format(tier=tier, weighted=_WEIGHTED[tier]), params


def _write_moved(values: Values) -> tuple[str, dict[str, str]]:
    tier = values["tier"]
    score = tier or "anomaly::INTEGER"
    weight = "1.0" if tier in (None, "tier1") else "weight"
    counts = "weight" if weight == "weight" else f"{weight} AS weight"
    up, down = f"{score} - $expected::DOUBLE", f"$expected::DOUBLE - {score}"
    distance = {"up": up, "down": down}.get(values["direction"], f"abs({up})")
    params = {name: str(values[name]) for name in ("project", "since", "until", "expected")}
    return _MOVED.format(score=score, weight=weight, counts=counts, distance=distance, limit=int(values["limit"])), params
