"""Twins of an incident: others of its project that began with it, perhaps from the same cause.

Rules open one incident per kind of change: a drift of scores and a spike of anomalies of one fall are two. Only a drift is asked for its
cause, so a twin's cause is the one to suspect first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

from audit.drift.incident_evidence import evidence_of
from schemas.records import Incident

APART = timedelta(days=2)
"""The first days of twins are at most so far apart: both are estimates."""


def twins_of(incident: Incident, others: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that began within two days of another one and overlap it, of the same agents as far as these are known."""
    return [one for one in others if one.incident_id != incident.incident_id and _are_twins(incident, one)]


def suspected_cause(incident: Incident, twins: Sequence[Incident]) -> Incident | None:
    """Return the twin whose cause an incident without one probably has; None if it has one, or twins disagree."""
    if incident.cause is not None:
        return None
    telling = [one for one in twins if one.cause is not None]
    return telling[0] if len({one.cause for one in telling}) == 1 else None


def _are_twins(one: Incident, other: Incident) -> bool:
    first, second = _first_day(one), _first_day(other)
    if one.project != other.project or first is None or second is None or abs(first - second) > APART:
        return False
    return first <= _last_day(other) and second <= _last_day(one) and _may_share_agents(_agents(one), _agents(other))


def _first_day(incident: Incident) -> date | None:
    """Return the first day; that of the evidence in records of versions before."""
    if incident.first_day is not None:
        return incident.first_day.astimezone(UTC).date()
    return next((one.since for one in evidence_of(incident).moved), None)


def _last_day(incident: Incident) -> date:
    """Return the last day; the day of the last check while it goes on."""
    return (incident.last_day or incident.checked_at or datetime.max.replace(tzinfo=UTC)).astimezone(UTC).date()


def _may_share_agents(agents: set[str], others: set[str]) -> bool:
    return not agents or not others or bool(agents & others)


def _agents(incident: Incident) -> set[str]:
    """Return the agent of an incident, or those of the exchanges that moved it; none if the evidence names none."""
    if incident.agent is not None:
        return {incident.agent}
    return {one.agent for one in evidence_of(incident).exchanges if one.agent is not None}
