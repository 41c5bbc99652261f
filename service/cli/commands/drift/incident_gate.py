"""The gate of `driftline check-drift --fail-on`: the incidents that fail a build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum

from audit.drift.watched_series import CRITICAL
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.incidents import incident_records
from service.text.plain import plain
from streams.watch.lifecycle import ACKNOWLEDGED, CONFIRMED, OPEN

MOST = 100_000
"""Maximum number of incidents to search."""
_SHOWN = 10
"""Incidents that a failing gate names."""


class FailOn(StrEnum):
    """Kinds of incidents that can fail a check; all of them wait for a decision."""

    OPEN = "open"
    LIVE = "live"
    CONFIRMED = "confirmed"
    CRITICAL = "critical"


_FAILS: Mapping[FailOn, Callable[[Incident], bool]] = {
    FailOn.OPEN: lambda incident: incident.status == OPEN,
    FailOn.LIVE: lambda _: True,
    FailOn.CONFIRMED: lambda incident: incident.confidence == CONFIRMED,
    FailOn.CRITICAL: lambda incident: incident.severity == CRITICAL,
}
"""Which open or acknowledged incidents each kind means."""
HELP = (
    "Fail if there is such an incident, new or old; may be repeated. open: not acknowledged; live: open or acknowledged; "
    "confirmed, critical: a live one that is."
)


def failing(cursor: duckdb.DuckDBPyConnection, project: str | None, kinds: Collection[FailOn]) -> list[Incident]:
    """Return the incidents of one project or all that fail a check, newest first."""
    if not kinds:
        return []
    live = incident_records(cursor, project, statuses=(OPEN, ACKNOWLEDGED), limit=MOST)
    return [incident for incident in live if any(_FAILS[kind](incident) for kind in kinds)]


def gate_lines(found: Collection[Incident], kinds: Collection[FailOn]) -> Iterator[str]:
    """Describe the incidents that fail the check, and what to do about them."""
    asked = " or ".join(kinds)
    for incident in list(found)[:_SHOWN]:
        yield f"FAIL {plain(incident.project, 64)} {incident.incident_id}: {plain(incident.title)} ({incident.status})"
    if len(found) > _SHOWN:
        yield f"… and {len(found) - _SHOWN} more"
    number = "1 incident is" if len(found) == 1 else f"{len(found)} incidents are"
    yield f"{number} {asked}. `driftline incidents show ID` says why; `driftline incidents resolve ID` closes one."
