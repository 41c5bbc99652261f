"""Queries that reproduce an incident's days and exchanges: SQL over the analysts' views, and the exact command.

The statement is answered from a snapshot beside the server. The original query behind the evidence reads the log itself, which only a
command can do, while no server has the file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from audit.drift.incident_evidence import Evidence, Query
from schemas.records import Incident

TITLES: Mapping[str, str] = {
    "daily_averages": "Averages by day",
    "incident_exchanges": "Exchanges with the largest effect",
    "sampling_change": "Sampling before and after",
    "drift_runs": "Days that the rule of consecutive days found",
    "drift_units": "Sessions that the sequential rule compared",
    "watched_hours": "Hours that the rule compared",
    "slices": "Which part changed",
    "reason_change": "What was found wrong before and after",
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
    found = [_again(incident, evidence, query) for query in evidence.queries]
    return sorted(found, key=lambda one: not one.sql)


def _again(incident: Incident, evidence: Evidence, query: Query) -> Again:
    name, values = query.name, query.parameters
    try:
        sql, parameters = next(_statements(incident, evidence, query), ("", {}))
    except (KeyError, TypeError, ValueError):
        sql, parameters = "", {}
    return Again(TITLES.get(name, name), sql, parameters, command(name, values), query.sql)


def command(name: str, values: Values) -> str:
    """Return the command that runs a query with these values, quoted for a shell."""
    given = " ".join(f"--set {shlex.quote(f'{key}={_written(value)}')}" for key, value in values.items())
    return f"driftline sql {shlex.quote(name)} {given}".rstrip()


def _written(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value)


def _statements(incident: Incident, evidence: Evidence, query: Query) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the statement equivalent to a query, with its values; empty if the views cannot answer it."""
    name, values = query.name, query.parameters
    if name == "daily_averages" and incident.tier in TIERS:
        yield _means(incident.tier, values)
    elif name == "incident_exchanges" and values["tier"] in (None, *TIERS):
        yield _moved(values)
    elif name == "anomaly_spikes":
        seen = evidence.rules["rate_ratio"]
        days = {"first": f"{seen.since}", "last": f"{seen.until}", "as_of": values["as_of"]}
        yield _ANOMALIES, {"project": values["project"], **days}


def _means(tier: str, values: Values) -> tuple[str, dict[str, str]]:
    until = datetime.fromisoformat(values["as_of"]) - timedelta(microseconds=1)
    first = until.date() - timedelta(days=int(values["days"]) - 1)
    asked = {"project": values["project"], "first": f"{first}", "as_of": values["as_of"]}
    return _MEANS.format(tier=tier, weighted=_WEIGHTED[tier]), asked


def _moved(values: Values) -> tuple[str, dict[str, str]]:
    tier = values["tier"]
    score = tier or "anomaly::INTEGER"
    weight = "1.0" if tier in (None, "tier1") else "weight"
    counts = "weight" if weight == "weight" else f"{weight} AS weight"
    up, down = f"{score} - $expected::DOUBLE", f"$expected::DOUBLE - {score}"
    distance = {"up": up, "down": down}.get(values["direction"], f"abs({up})")
    asked = {name: str(values[name]) for name in ("project", "since", "until", "expected")}
    return _MOVED.format(score=score, weight=weight, counts=counts, distance=distance, limit=int(values["limit"])), asked
