"""Flags of Tier 1 since a change, compared with the time before it."""

from __future__ import annotations

from typing import Any

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from streams.watch.rules.findings import Finding

QUERY = "flag_change"
FLAGS = "flags"
"""The key of the changed flags in the evidence of an incident."""
MOST = 8
"""Checks that an incident lists."""


def changed_flags(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[dict[str, Any]]:
    """Count the exchanges that each check flagged before a change and since it, the largest change first."""
    (before, until), (since, end) = finding.before, finding.after
    values = {"project": project, "before_since": before, "before_until": until, "after_since": since, "after_until": end}
    return query_rows(cursor, QUERY, values)[:MOST]
