"""The inbox: incidents of the whole fleet, or of a project, that match filters, a page at a time in one of several orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from analytics.queries import query_rows
from schemas.codec.single_object import record_from
from schemas.lazy.duckdb import duckdb
from schemas.records import Incident
from schemas.registry import schema_of
from service.text.cursors import Place
from streams.watch.lifecycle import LIVE, STATUSES, confidence_of

Sort = Literal["worst", "newest", "oldest", "since", "project", "state", "assignee"]
SORTS: tuple[Sort, ...] = get_args(Sort)
"""The orders of the list: worst is live, confirmed, critical and unacknowledged first, of equals the one that moved farthest
(`log.incident_worst`, which orders the fleet, too)."""
ME, NOBODY = "me", "nobody"
"""Words for an assignee: the caller, and none. A person may not be called so."""
SEVERITIES = ("critical", "warning")
TYPES = ("drift", "anomaly_spike")
ANY = "any"
"""The word for every state, where a list begins with those that wait for somebody."""
MAX_TEXT = 200
"""Characters of a text that is searched for."""
LIVE_STATES = tuple(one for one in STATUSES if one in LIVE)
_SEPARATOR = "\n"
"""Between the text of an order and the id in a cursor: neither a project nor a person has it in the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Filters of a list of incidents; None or nothing is any."""

    project: str | None = None
    statuses: Sequence[str] = ()
    kind: str | None = None
    confirmed: bool | None = None
    severity: str | None = None
    agent: str | None = None
    assignee: str | None = None
    """A person's name, or `nobody`."""
    text: str | None = None
    since: datetime | None = None
    """Found at this time or later."""
    until: datetime | None = None
    """Found before this time."""
    sort: Sort = "worst"


class Listed(NamedTuple):
    """An incident of a list, and its place in the order."""

    incident: Incident
    place: Place


class Inbox(NamedTuple):
    """Some incidents of a list, and how many the whole list has."""

    listed: list[Listed]
    total: int


class OpenIncidents(NamedTuple):
    """Counts of the incidents that are open or acknowledged: all of them, and those that are confirmed."""

    total: int
    confirmed: int


class Choices(NamedTuple):
    """Return the values of each filter, with the number of incidents that wait for a decision."""

    projects: Mapping[str, int]
    agents: Mapping[str, int]
    assignees: Mapping[str, int]


def inbox(
    cursor: duckdb.DuckDBPyConnection, wanted: InboxFilter, after: Place | None, limit: int, *, outlined: bool = False
) -> Inbox:
    """Return up to `limit` incidents that match, from a place on; the total is 0 if none is left there.

    If `outlined`, their evidence has nothing but what moved and what the rules saw: lists and charts need no more.
    """
    text, identity = _split(after)
    values = {
        "project": wanted.project,
        "statuses": list(wanted.statuses) or None,
        "type": wanted.kind,
        "confidence": confidence_of(confirmed=wanted.confirmed),
        "severity": wanted.severity,
        "agent": wanted.agent,
        "assignee": "" if wanted.assignee == NOBODY else wanted.assignee,
        "text": wanted.text.lower() if wanted.text else None,
        "since": wanted.since,
        "until": wanted.until,
        "sort": wanted.sort,
        "after_number": None if after is None else after.number,
        "after_text": text,
        "after_at": None if after is None else after.at,
        "after_id": identity,
        "limit": limit,
        "outlined": outlined,
    }
    rows = query_rows(cursor, "inbox", values)
    return Inbox([Listed(_record(row), _place(row)) for row in rows], rows[0]["total"] if rows else 0)


def choices(cursor: duckdb.DuckDBPyConnection, project: str | None) -> Choices:
    """Return what the incidents of a project (None: all) can be narrowed to."""
    found: dict[str, dict[str, int]] = {"project": {}, "agent": {}, "assignee": {}}
    for row in query_rows(cursor, "inbox_choices", {"project": project}):
        found[row["kind"]][row["value"]] = row["live"]
    return Choices(found["project"], found["agent"], found["assignee"])


def open_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None) -> OpenIncidents:
    """Count the incidents of a project (None: all) that are open or acknowledged, as the inbox lists them without filters."""
    rows = query_rows(cursor, "open_incidents", {"project": project})
    return OpenIncidents(sum(row["incidents"] for row in rows), sum(row["confirmed"] for row in rows))


def _record(row: Mapping[str, Any]) -> Incident:
    return record_from(Incident, {field["name"]: row[field["name"]] for field in schema_of("Incident").fields})


def _place(row: Mapping[str, Any]) -> Place:
    return Place(row["detected_at"], f"{row['sort_text']}{_SEPARATOR}{row['incident_id']}", row["sort_number"])


def _split(place: Place | None) -> tuple[str | None, str | None]:
    """Return the text of the order and the id of a place."""
    if place is None:
        return None, None
    text, _, identity = place.id.rpartition(_SEPARATOR)
    return text, identity
