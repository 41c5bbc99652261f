"""Reasons that the rules and the judge gave before a change and since it, as counts for the evidence of an incident.

1. Counts are of the times that the rule compared: the same as those of the slices and of the sampling.
2. A share has risen, or a dimension has moved, if the difference is more than three standard errors. It then coincides with the
   change, which is all that counts can say.
3. Of dimensions, sessions are the units: the turns of one session are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from analytics.queries import query_rows
from audit.drift.watched_series import DOWN, SPREAD, UP
from schemas.lazy.duckdb import duckdb
from streams.watch.rules.findings import Finding

REASONS, DIMENSIONS, FAILURES, USUAL = "reasons", "dimensions", "failures", "usual"
"""The keys in the evidence: counts of reasons, means of dimensions, counts of failures, exchanges from before the change."""
FEWEST = 3
"""Exchanges or runs since the change that are worth a word."""
FEWEST_SESSIONS = 3
"""Sessions on each side that it takes to know how much a dimension varies."""
MOST = 12
"""Reasons, dimensions or failures that an incident lists."""
USUAL_DAYS = timedelta(days=7)
"""The time before the change from which it takes its usual exchanges."""
USUAL_SHOWN = 2
_LEAST = 1e-9
CERTAIN = 3.0
"""Standard errors from which on a share has risen, or a dimension has moved."""
Row = Mapping[str, Any]
_OPPOSITE = {UP: DOWN, DOWN: UP}


def changed_reasons(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Count what was found wrong before a change and since it; return it with the parameters of the query `reason_change`."""
    values = _times(project, finding)
    rows = query_rows(cursor, "reason_change", values)
    anomalies = [row for row in rows if row["kind"] == "anomaly"]
    return [*(row for row in rows if row["kind"] != "anomaly"), *anomalies[:MOST]], values


def changed_dimensions(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compare the dimensions of a tier, the largest move first; return them with the parameters of the query `dimension_change`."""
    values = {**_times(project, finding), "tier": finding.key.tier}
    rows = query_rows(cursor, "dimension_change", values)
    return sorted(rows, key=lambda row: (-abs(errors_off(row) or 0.0), row["dimension"]))[:MOST], values


def changed_failures(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding, agent: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Count the failures of the runs of an agent ('' for none named; None: any); return them with the parameters of the query `failure_change`.

    Of a finding about runs they are those that its rule compared: diagnosed alike, without the days of changes that are over.
    """
    made_with = finding.numbers.get("madeWith")
    values = {
        **_times(project, finding),
        "agent": agent,
        "made_with": list(made_with.values()) if made_with else None,
        "cut": _cut(finding) if made_with else None,
    }
    return query_rows(cursor, "failure_change", values)[:MOST], values


def usual_exchanges(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding, agent: str | None
) -> list[dict[str, Any]]:
    """Return a few exchanges of the last days before a change on the good side of what was expected, of the agent if there are any.

    They are to be read beside those that moved the mean. There are none for a change of the spread.
    """
    (before, until), direction = finding.before, finding.key.direction
    if finding.kind == SPREAD or direction not in _OPPOSITE or finding.expected is None or before >= until:
        return []
    values = {
        "project": project,
        "tier": finding.key.tier,
        "since": max(before, until - USUAL_DAYS),
        "until": until,
        # Where there were no anomalies before, every exchange is below the smallest rate.
        "expected": finding.expected or _LEAST,
        "direction": _OPPOSITE[direction],
        "limit": 10 * USUAL_SHOWN,
    }
    rows = query_rows(cursor, "incident_exchanges", values)
    return sorted(rows, key=lambda row: row["agent"] != agent)[:USUAL_SHOWN]


def has_risen(row: Row, *, fewest: int = FEWEST) -> bool:
    """Tell whether the share of `after` in `all_after` is above that of `before` in `all_before` by more than chance.

    False where there is no time before, and for fewer than `fewest` since.
    """
    before, after, all_before, all_after = (row[name] for name in ("before", "after", "all_before", "all_after"))
    if not all_before or not all_after or after < fewest:
        return False
    common = (before + after) / (all_before + all_after)
    error = math.sqrt(common * (1 - common) * (1 / all_before + 1 / all_after))
    return bool(after / all_after - before / all_before > CERTAIN * error)


def errors_off(row: Row) -> float | None:
    """Return by how many standard errors the mean of a dimension moved; None with too few sessions to know."""
    before, after = row["mean_before"], row["mean_after"]
    if before is None or after is None or min(row["sessions_before"], row["sessions_after"]) < FEWEST_SESSIONS:
        return None
    error = math.hypot(row["error_before"] or 0.0, row["error_after"] or 0.0)
    return float((after - before) / max(error, 1e-4))


def moved_dimensions(rows: Iterable[Row], direction: str | None) -> list[Row]:
    """Return the dimensions that moved in a direction (None: in any) by more than chance, the largest move in points first."""
    sides = {UP: (1,), DOWN: (-1,)}.get(direction or "", (1, -1))
    certain = [
        row for row in rows if (off := errors_off(row)) is not None and abs(off) > CERTAIN and math.copysign(1, off) in sides
    ]
    return sorted(certain, key=lambda row: (-abs(row["mean_after"] - row["mean_before"]), row["dimension"]))


def _cut(finding: Finding) -> list[str]:
    """Return the days within the time before a change that its rule left out."""
    start, end = (at.date() for at in finding.before)
    cut = ((max(first, start), min(last, end)) for first, last in finding.cut)
    return [f"{first + timedelta(days=number)}" for first, last in cut for number in range((last - first).days + 1)]


def _times(project: str, finding: Finding) -> dict[str, Any]:
    (start, end), (before, until) = finding.after, finding.before
    if before >= until:
        before = until = start
    return {"project": project, "before_since": before, "before_until": until, "after_since": start, "after_until": end}
