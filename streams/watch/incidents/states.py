"""The states of an incident, what people decide on it, and what each decision changes.

| state | it is | counts as red | changes |
| --- | --- | --- | --- |
| open | it is not acknowledged | where it is confirmed | nothing |
| acknowledged | a person works on it, by name | where it is confirmed | nothing: no baseline, no reference |
| resolved | over, or the new normal | no | its days are cut out of the reference, or the reference begins with its first day |
| dismissed | no change that matters | no | its days are cut out once it is over; it opens nothing again for what was seen |

`resolution` says why one is resolved: it recovered by itself, it was only suspected and vanished, a person says that it is fixed, or that
what it found is the new normal. Records of versions before had `accepted`, which moved the reference: they are read as the new normal
(`analytics.store.tables`), and the decision may still be called so.

The assignee is the person whose incident it is, in every state. Acknowledging assigns it to oneself if it has no assignee, or if its
assignee got it by acknowledging; assigning it acknowledges nothing. Older records have no assignee: the person who acknowledged one has it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import msgspec

from schemas.records import Incident

OPEN, ACKNOWLEDGED, RESOLVED, DISMISSED = "open", "acknowledged", "resolved", "dismissed"
STATUSES = (OPEN, ACKNOWLEDGED, RESOLVED, DISMISSED)
LIVE = frozenset({OPEN, ACKNOWLEDGED})
"""The states in which a change goes on and no decision was made about it."""
NEW_NORMAL, ACCEPTED = "new_normal", "accepted"
"""Decisions that resolve an incident and move the reference: today's word, and the one of versions before."""
DECISIONS = (OPEN, ACKNOWLEDGED, RESOLVED, NEW_NORMAL, DISMISSED)
"""The decisions that a person may make."""
RECOVERED, VANISHED, FIXED = "recovered", "vanished", "fixed"
"""The reasons why an incident is resolved, other than that it is the new normal."""
SUSPECTED, CONFIRMED = "suspected", "confirmed"
DAY = timedelta(days=1)
SYSTEM = "driftline"
"""The name recorded for the resolver of an incident that resolved itself."""


def is_live(incident: Incident) -> bool:
    """Tell whether it goes on and waits for a decision."""
    return incident.status in LIVE


def recovered_since(incident: Incident) -> date | None:
    """Return the first day on which an incident that recovered by itself was back; None of another."""
    if incident.resolution != RECOVERED or incident.last_day is None:
        return None
    return incident.last_day.astimezone(UTC).date() + DAY


def current(incident: Incident) -> Incident:
    """The record as it is read today: `accepted` is resolved as the new normal."""
    if incident.status != ACCEPTED:
        return incident
    return msgspec.structs.replace(incident, status=RESOLVED, resolution=NEW_NORMAL)


def current_status(status: str) -> str:
    """The state that a name stands for, today's or that of versions before."""
    return RESOLVED if status == ACCEPTED else status


def confidence_of(*, confirmed: bool | None) -> str | None:
    """The confidence that a caller asks for; None for any."""
    if confirmed is None:
        return None
    return CONFIRMED if confirmed else SUSPECTED


def decision_of(status: str, *, new_normal: bool = False) -> str:
    """The decision that a state asks for; `accepted` is the word of versions before for the new normal."""
    return NEW_NORMAL if status == ACCEPTED or (new_normal and status == RESOLVED) else status


def shows(incident: Incident, decision: str) -> bool:
    """Tell whether an incident is as a decision would leave it."""
    if decision == NEW_NORMAL:
        return incident.status == RESOLVED and incident.resolution == NEW_NORMAL
    if decision == RESOLVED:
        return incident.status == RESOLVED and incident.resolution != NEW_NORMAL
    return incident.status == decision


def with_decision(incident: Incident, decision: str, who: str, at: datetime) -> Incident:
    """The incident after a decision, its evidence and revision as they were."""
    clean = msgspec.structs.replace(
        incident,
        status=OPEN,
        decided_at=at,
        resolved_at=None,
        resolved_by=None,
        resolution=None,
        last_day=None,
        acknowledged_at=None,
        acknowledged_by=None,
    )
    owner = assignee_of(incident)
    if decision == OPEN:
        # Who gives it back has it no more; who reopens what is over leaves it where it was.
        return assigned(clean, None if is_live(incident) else owner, at)
    if decision == ACKNOWLEDGED:
        has_it = who if owner in {None, incident.acknowledged_by} else owner
        return assigned(
            msgspec.structs.replace(clean, status=ACKNOWLEDGED, acknowledged_at=at, acknowledged_by=who), has_it, at
        )
    # Who had it stays known after the end of it, and so does the last day of what was over already.
    kept = msgspec.structs.replace(
        clean,
        acknowledged_at=incident.acknowledged_at,
        acknowledged_by=incident.acknowledged_by,
        last_day=incident.last_day,
        resolved_at=at,
        resolved_by=who,
    )
    if decision == DISMISSED:
        return msgspec.structs.replace(kept, status=DISMISSED)
    if decision == NEW_NORMAL:
        return msgspec.structs.replace(kept, status=RESOLVED, resolution=NEW_NORMAL)
    last = incident.last_day or datetime.combine(at.astimezone(UTC).date(), time(), UTC)
    return msgspec.structs.replace(kept, status=RESOLVED, resolution=FIXED, last_day=last)


def assignee_of(incident: Incident) -> str | None:
    """The person whose it is; in records of versions before who acknowledged it."""
    return incident.acknowledged_by if incident.assigned_at is None else incident.assignee


def assigned(incident: Incident, assignee: str | None, at: datetime) -> Incident:
    """The incident after it was assigned to a person, or to no one; its evidence and revision as they were."""
    return msgspec.structs.replace(incident, assignee=assignee, assigned_at=at)


def resolved_itself(incident: Incident, resolution: str, at: datetime, last_day: datetime | None) -> Incident:
    """The next revision of an incident that is over without anybody's doing."""
    return msgspec.structs.replace(
        incident,
        revision=incident.revision + 1,
        status=RESOLVED,
        resolution=resolution,
        resolved_at=at,
        resolved_by=SYSTEM,
        last_day=last_day,
        checked_at=at,
    )
