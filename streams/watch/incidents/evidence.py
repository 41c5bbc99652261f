"""The evidence of an incident: what it was measured against, what moved it, and the queries that reproduce it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analytics.queries import queries, query_rows
from audit.drift.watched_series import DOWN, SPREAD
from audit.times import iso_time, time_text
from schemas.lazy.duckdb import duckdb
from schemas.records import Baseline
from streams.watch.incidents.reasons import (
    DIMENSIONS,
    FAILURES,
    REASONS,
    USUAL,
    changed_dimensions,
    changed_failures,
    changed_reasons,
    usual_exchanges,
)
from streams.watch.incidents.slices import QUERY, began_with, parameters_of, which_part
from streams.watch.measured import Measured
from streams.watch.rules.findings import Finding

EXCHANGES = 10
"""The number of exchanges that an incident carries, those that moved it most."""
REASON = 300
"""Characters of the judge's words that it carries of each; the score has them whole."""
POLICY_CHANGED = "The policy differs before and after: a change of gates or sampling can also move a tier."
_DIMENSIONS = {"tier2": "tier2_dimensions", "tier3": "tier3_dimensions"}
Row = Mapping[str, Any]


def gather(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, measured: Measured, baseline: Baseline | None
) -> dict[str, Any]:
    """Gather the evidence of an incident of this finding, as JSON, except what the rules saw."""
    project, (start, end) = measured.project, finding.after
    before = finding.before if finding.before[0] < finding.before[1] else (start, start)
    exchanges = {
        "project": project,
        "tier": finding.key.tier,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction if finding.kind != SPREAD else None,
        "limit": EXCHANGES,
    }
    mix = {
        "project": project,
        "before_since": before[0],
        "before_until": before[1],
        "after_since": start,
        "after_until": end,
    }
    parts = parameters_of(project, finding.key.tier, before, finding.after)
    policies = {
        "before": measured.policies(before[0].date(), before[1].date()),
        "after": measured.policies(start.date(), end.date()),
    }
    of_exchanges = finding.key.agent is None
    moved_most = query_rows(cursor, "incident_exchanges", exchanges) if of_exchanges else []
    reasons, reasons_asked = changed_reasons(cursor, project, finding)
    failures, failures_asked = changed_failures(cursor, project, finding, finding.key.agent)
    has_dimensions = of_exchanges and finding.key.tier in _DIMENSIONS
    dimensions, dimensions_asked = changed_dimensions(cursor, project, finding) if has_dimensions else ([], {})
    agent = moved_most[0]["agent"] if moved_most else None
    usual = usual_exchanges(cursor, project, finding, agent) if of_exchanges else []
    return {
        "rule": finding.rule,
        "note": None if not policies["before"] or policies["before"] == policies["after"] else POLICY_CHANGED,
        "baseline": None if baseline is None else _baseline(baseline, finding.key.tier),
        "madeWith": measured.made_with,
        "policies": policies,
        "samplingMix": query_rows(cursor, "sampling_change", mix),
        "slices": which_part(cursor, parts) if of_exchanges else None,
        "deployments": began_with(cursor, project, finding),
        "exchanges": [_exchange(row, finding) for row in moved_most],
        REASONS: reasons,
        FAILURES: failures,
        DIMENSIONS: dimensions,
        USUAL: [_exchange(row, finding) for row in usual],
        "queries": [
            *_daily(finding, measured),
            named_query(finding.looked.query, finding.looked.parameters),
            *([named_query("incident_exchanges", exchanges)] if of_exchanges else []),
            named_query("sampling_change", mix),
            *([named_query(QUERY, parts)] if of_exchanges else []),
            named_query("reason_change", reasons_asked),
            *([named_query("failure_change", failures_asked)] if failures else []),
            *([named_query("dimension_change", dimensions_asked)] if has_dimensions else []),
        ],
    }


def _baseline(baseline: Baseline, tier: str | None) -> dict[str, Any]:
    known = None if tier is None else getattr(baseline, tier, None)
    numbers = {} if known is None else {"mean": known.mean, "stddev": known.stddev, "count": known.count}
    return {
        "id": baseline.baseline_id,
        "computedAt": iso_time(baseline.computed_at),
        "windowStart": iso_time(baseline.window_start),
        "windowEnd": iso_time(baseline.window_end),
        "exchangeCount": baseline.exchange_count,
        "anomalyRate": baseline.anomaly_rate,
        **numbers,
    }


def _exchange(row: Row, finding: Finding) -> dict[str, Any]:
    return {
        "scoreId": row["score_id"],
        "exchangeId": row["exchange_id"],
        "connection": row["connection"],
        "agent": row["agent"],
        "sessionId": row["session_id"],
        "turnNumber": row["turn_number"],
        "exchangeTimestamp": iso_time(row["exchange_at"]),
        "score": row["score"],
        "weight": row["weight"],
        "moved": row["moved"],
        "samplingReason": row["sampling_reason"],
        "reason": _reason(row, finding)[:REASON],
    }


def _reason(row: Row, finding: Finding) -> str:
    """Return what was said of an exchange on the subject of the change; an empty text if nothing was."""
    tier = finding.key.tier
    if tier is None:
        return "; ".join(row["anomaly_reasons"])
    if tier == "tier1":
        return ", ".join(row["tier1_flags"])
    if tier == "tier2_5":
        return row["tier2_5_reasoning"] or ""
    flag = row["tier2_flag_reason"] if tier == "tier2" else None
    return flag or _farthest(row[_DIMENSIONS[tier]], finding.key.direction)


def _farthest(dimensions: Sequence[Row], direction: str | None) -> str:
    """The dimension that is lowest, or highest where scores rose, with the judge's words on it."""
    sign = 1 if direction == DOWN else -1
    ordered = sorted(dimensions, key=lambda one: (sign * one["score"], one["dimension"]))
    return next((f"{one['dimension']} {one['score']:g}: {one['reasoning'] or ''}".rstrip(": ") for one in ordered), "")


def _daily(finding: Finding, measured: Measured) -> list[dict[str, Any]]:
    """The query of a tier's daily averages around a change: what people look at first."""
    if finding.key.tier is None or finding.key.agent is not None:
        return []  # series of runs have no daily averages of scores
    days = (measured.as_of.date() - finding.before[0].date()).days + 1
    return [named_query("daily_averages", {"project": measured.project, "as_of": measured.as_of, "days": days})]


def named_query(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A named query with the parameters that reproduce the finding, as evidence carries it."""
    return {
        "name": name,
        "parameters": {key: time_text(value) for key, value in parameters.items()},
        "sql": queries()[name].text,
    }
