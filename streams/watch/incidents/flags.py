"""Flags of Tier 1 since a change, compared with the time before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb

from analytics.queries import query_rows
from streams.watch.rules.findings import Finding

QUERY = "flag_change"
FLAGS = "flags"
"""The key of the changed flags in the evidence of an incident."""
NAMES: Mapping[str, str] = {
    "constraint_disclosure": "unexplained refusals",
    "silent_refusal": "empty answers",
    "self_identification": "denials of being an AI",
}
"""Everyday names of the answers that a check flags; a check of a methodology goes by its id."""
MOST = 8
"""Checks that an incident lists."""
FEWEST = 3
"""Flagged exchanges since the change that are worth a word."""
_CERTAIN = 3.0
"""Standard errors from which on a share is said to have risen."""
Row = Mapping[str, Any]


def changed_flags(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[dict[str, Any]]:
    """Count the exchanges that each check flagged before a change and since it, the largest change first."""
    (before, until), (since, end) = finding.before, finding.after
    values = {"project": project, "before_since": before, "before_until": until, "after_since": since, "after_until": end}
    return query_rows(cursor, QUERY, values)[:MOST]


def in_words(rows: Iterable[Row]) -> str | None:
    """The shares that rose by more than chance; None where none did."""
    risen = [
        f"{_per_cent(row['share_after'])} are {NAMES.get(row['flag']) or 'flagged by ' + row['flag']} ({_per_cent(row['share_before'])} before)"
        for row in rows
        if _has_risen(row)
    ]
    return f"Of all exchanges since, {', '.join(risen)}." if risen else None


def _has_risen(row: Row) -> bool:
    before, after = row["share_before"], row["share_after"]
    if before is None or after is None or row["after"] < FEWEST:
        return False
    common = (row["before"] + row["after"]) / (row["all_before"] + row["all_after"])
    error = math.sqrt(common * (1 - common) * (1 / row["all_before"] + 1 / row["all_after"]))
    return bool(after - before > _CERTAIN * error)


def _per_cent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
