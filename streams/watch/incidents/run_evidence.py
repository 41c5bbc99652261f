"""The evidence of an incident about runs: which runs moved it most, what they were diagnosed by, and the queries that reproduce it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from audit.times import iso_time
from schemas.lazy.duckdb import duckdb
from streams.watch.incidents.evidence import named_query
from streams.watch.incidents.reasons import FAILURES, changed_failures
from streams.watch.rules.findings import Finding

RUNS_SHOWN = 10
"""The number of runs that an incident carries, those that moved it most."""
Row = Mapping[str, Any]


def gather_runs(cursor: duckdb.DuckDBPyConnection, finding: Finding, project: str, as_of: datetime) -> dict[str, Any]:
    """Gather the evidence of an incident of this finding about runs, as JSON, except what the rule saw."""
    start, end = finding.after
    asked = {"project": project, "agent": finding.key.agent or "", "series": finding.key.tier}
    runs = {
        **asked,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction,
        "limit": RUNS_SHOWN,
    }
    failures, failures_asked = changed_failures(cursor, project, finding, finding.key.agent or "")
    days = {**asked, "as_of": as_of, "days": (as_of.date() - finding.before[0].date()).days + 1}
    return {
        "rule": finding.rule,
        "note": None,
        "baseline": None,
        "madeWith": finding.numbers.get("madeWith", {}),
        "policies": {},
        "samplingMix": [],
        "exchanges": [],
        "runs": [_run(row) for row in query_rows(cursor, "incident_runs", runs)],
        FAILURES: failures,
        "queries": [
            named_query("run_days", days),
            named_query(finding.looked.query, finding.looked.parameters),
            named_query("incident_runs", runs),
            named_query("failure_change", failures_asked),
        ],
    }


def _run(row: Row) -> dict[str, Any]:
    return {
        "runId": row["run_id"],
        "connection": row["connection"],
        "sessionId": row["session_id"],
        "agent": row["agent"],
        "endedAt": iso_time(row["ended_at"]),
        "value": row["value"],
        "moved": row["moved"],
        "trustScore": row["trust_score"],
        "readinessLevel": row["readiness_level"],
        "primaryFailure": row["primary_failure_type"],
        "failures": list(row["failures"]),
    }
