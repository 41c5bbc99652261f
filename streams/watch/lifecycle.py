"""The life of an incident: its states, what people decide on it and what that changes, and when it is over by itself.

| state | it is | counts as red | changes |
| --- | --- | --- | --- |
| open | it is not acknowledged | where it is confirmed | nothing |
| acknowledged | a person works on it, by name | where it is confirmed | nothing: no baseline, no reference |
| resolved | over, or the new normal | no | its days are cut out of the reference, or the reference begins with its first day |
| dismissed | no change that matters | no | its days are cut out once it is over; it opens nothing again for what was seen |

`resolution` says why one is resolved: it recovered by itself, it was only suspected and vanished, a person says that it is fixed, or that
it is the new normal. Earlier versions wrote `accepted`, which moved the reference: it is read as the new normal
(`analytics.store.tables`), and the decision may still be called so.

The assignee is the person whose incident it is, in every state. Acknowledging an incident assigns it to oneself if it has no assignee, or
if its assignee got it by acknowledging; assigning it acknowledges nothing. Older records have no assignee: whoever acknowledged one has it.

Recovery. A change is over by its own measure, in whole days, without waiting for the rule to forget it:

1. A change is over when the last whole days with scores, at least two of them, lie back: each on the near side of the line halfway
   between the level before and the level of the change, and all of them together so with 95 % confidence.
2. The rule's silence proves nothing: after two months it takes a change for normal, and after a change of the judge it has nothing to
   compare with. Its alarm proves nothing either: a dip stays in its window long after it was mended. So the level decides, of runs as of
   scores. If there is none to measure (a spread; runs that other rules diagnosed), a series is over when no rule has seen it for a
   week of checks.
3. The first of the days that lie back ends the change; the day before it is its last one. From then on the days of the change are cut
   out of the reference, so that the way back is no rise, and the next fall is measured from what is normal.
4. An incident is over when all of its series that raised an alarm are. After a person reopened it, days before that do not count.
   What a check finds for the first time may be over by then, as in an import of last month's records: the same check resolves it.
5. A dismissed incident is over, too, when no rule has seen it for two whole days. One that is only suspected then vanishes: chance made
   it, so its days stay in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import msgspec

from audit.drift.incident_evidence import ChangedSeries, Level, evidence_of
from audit.drift.watched_series import SPIKE, TIERS
from schemas.lazy_numpy import np
from schemas.records import Incident
from streams.watch.measures import ProjectRuns, ProjectScores, midnight

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


def is_in_effect(incident: Incident, decision: str) -> bool:
    """Tell whether an incident is as a decision would leave it."""
    if decision == NEW_NORMAL:
        return incident.status == RESOLVED and incident.resolution == NEW_NORMAL
    if decision == RESOLVED:
        return incident.status == RESOLVED and incident.resolution != NEW_NORMAL
    return incident.status == decision


def set_decision(incident: Incident, decision: str, who: str, at: datetime) -> Incident:
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
        # Unassigning yourself leaves a live incident unassigned; reopening one that is over leaves the assignee as it was.
        return set_assignee(clean, None if is_live(incident) else owner, at)
    if decision == ACKNOWLEDGED:
        has_it = who if owner in {None, incident.acknowledged_by} else owner
        return set_assignee(
            msgspec.structs.replace(clean, status=ACKNOWLEDGED, acknowledged_at=at, acknowledged_by=who), has_it, at
        )
    # The assignee stays on record after the end, and so does the last day of a change that was over already.
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
    """Return the assignee; in records of earlier versions, the person who acknowledged it."""
    return incident.acknowledged_by if incident.assigned_at is None else incident.assignee


def set_assignee(incident: Incident, assignee: str | None, at: datetime) -> Incident:
    """The incident after it was assigned to a person, or to no one; its evidence and revision as they were."""
    return msgspec.structs.replace(incident, assignee=assignee, assigned_at=at)


def resolve_automatically(incident: Incident, resolution: str, at: datetime, last_day: datetime | None) -> Incident:
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


MIN_RECOVERED_DAYS = 2
"""So many whole days lie back before a change is over: one may be a weekend's."""
MAX_UNSEEN_DAYS = 2
"""After so many whole days without a sight of it, what was dismissed is over, and what was suspected has vanished."""
MAX_UNMEASURED_DAYS = 7
"""The same for a series whose level cannot be measured: the rules look back a week."""
Z_95_ONE_SIDED = 1.645
"""Standard errors to 95 % on one side."""


@dataclass(frozen=True, slots=True)
class DayLevel:
    """The level of a series on one day."""

    day: date
    mean: float
    units: float
    """Of how many independent units, weights taken into account."""


Levels = Callable[[ChangedSeries], Sequence[DayLevel] | None]
"""Returns the days of a series, oldest first; None if it has no level that can be measured."""


def levels_of(measured: ProjectScores | None, runs: ProjectRuns | None) -> Levels:
    """The levels of the series of one project; None for its scores or its runs if it has none of the last days."""

    def levels(moved: ChangedSeries) -> Sequence[DayLevel] | None:
        tier = moved.key.tier
        if tier is not None and tier not in TIERS:
            return None if runs is None else _read_run_levels(runs, moved, tier)
        if measured is None:
            return None
        return (
            _read_anomaly_levels(measured)
            if moved.key.type == SPIKE
            else _read_tier_levels(measured, tier)
            if tier is not None
            else None
        )

    return levels


def _read_run_levels(runs: ProjectRuns, moved: ChangedSeries, series: str) -> list[DayLevel] | None:
    """The days of a series of an agent's runs; None if it has none of late, or other rules diagnosed them than those of the change."""
    agent = next((agent for agent in runs.agents if agent.agent == moved.key.agent), None)
    if agent is None or moved.observation.made_with not in (None, agent.made_by):
        return None
    return [DayLevel(day, mean, count) for day, (mean, count) in agent.days(series).items()]


def _read_tier_levels(measured: ProjectScores, tier: str) -> list[DayLevel]:
    cells = measured.cells(tier)
    days = cells.last.astype("datetime64[D]")
    starts = np.flatnonzero(days != np.concatenate(([np.datetime64(0, "D")], days[:-1])))
    if not starts.size:
        return []
    weight, total, squares = (np.add.reduceat(column, starts) for column in (cells.weight, cells.total, cells.squares))
    rows = zip(days[starts].tolist(), (total / weight).tolist(), (weight**2 / squares).tolist(), strict=True)
    return [DayLevel(*row) for row in rows]


def _read_anomaly_levels(measured: ProjectScores) -> list[DayLevel]:
    days = [measured.as_of.date() - number * DAY for number in range(2 * MAX_UNMEASURED_DAYS, -1, -1)]
    daily = [(day, measured.statistics(day, day)) for day in days]
    return [DayLevel(day, counts.anomalies / counts.exchanges, counts.exchanges) for day, counts in daily if counts.exchanges]


def is_recovered(mean: float, before: float, after: float) -> bool:
    """Tell whether a mean is on the near side of the line halfway between the level before a change and that of the change."""
    halfway = (before + after) / 2
    return mean < halfway if after > before else mean > halfway


def find_recovery_day(days: Iterable[DayLevel], level: Level, after: date, today: date) -> date | None:
    """The first of the last whole days that lie back; None where the change goes on. Days up to `after` do not count."""
    halfway = (level.before + level.after) / 2
    stretch: list[DayLevel] = []
    for day in sorted((day for day in days if after < day.day < today), key=lambda day: day.day, reverse=True):
        if not is_recovered(day.mean, level.before, level.after):
            break
        stretch.append(day)
    units = sum(day.units for day in stretch)
    if len(stretch) < MIN_RECOVERED_DAYS or not units:
        return None
    mean = sum(day.mean * day.units for day in stretch) / units
    return stretch[-1].day if abs(mean - halfway) > Z_95_ONE_SIDED * level.sigma / math.sqrt(units) else None


def find_last_day(incident: Incident, levels: Levels, as_of: datetime) -> date | None:
    """The last day of an incident's change, when all of its alarms are over; None while it goes on."""
    alarms = [moved for moved in evidence_of(incident).moved if not moved.fell_too]
    last_days = [_find_last_day_of_series(alarm, incident, levels(alarm), as_of) for alarm in alarms]
    ended = [day for day in last_days if day is not None]
    return max(ended) if ended and len(ended) == len(last_days) else None


def _find_last_day_of_series(
    moved: ChangedSeries, incident: Incident, days: Sequence[DayLevel] | None, as_of: datetime
) -> date | None:
    today, level = as_of.date(), moved.level
    opened_again = incident.decided_at.date() if incident.status == OPEN and incident.decided_at else None
    if days is None or level is None:
        seen = max(moved.until, opened_again or moved.until)
        return moved.until if (today - seen).days > MAX_UNMEASURED_DAYS else None
    after = max(moved.since, opened_again or moved.since)
    first = find_recovery_day(days, level, after, today)
    return None if first is None else max(moved.since, first - DAY)


def is_unseen(incident: Incident, as_of: datetime, days: int) -> bool:
    """Tell whether no rule has seen an incident for so many whole days."""
    sightings = [moved.until for moved in evidence_of(incident).moved]
    if incident.decided_at is not None:
        sightings.append(incident.decided_at.date())
    return bool(sightings) and (as_of.date() - max(sightings)).days > days


def end_if_over(incident: Incident, levels: Levels, as_of: datetime) -> Incident | None:
    """The next revision of an incident whose change is over by its level; None while it goes on, or where that is known."""
    if incident.last_day is not None or not _may_end(incident, as_of):
        return None
    last = find_last_day(incident, levels, as_of)
    if is_live(incident):
        return None if last is None else resolve_automatically(incident, RECOVERED, as_of, midnight(last))
    seen = max((moved.until for moved in evidence_of(incident).moved), default=None)
    if last is None and seen is not None and is_unseen(incident, as_of, MAX_UNSEEN_DAYS):
        last = seen
    if last is None:
        return None
    return msgspec.structs.replace(incident, revision=incident.revision + 1, last_day=midnight(last), checked_at=as_of)


def end_if_vanished(incident: Incident, as_of: datetime) -> Incident | None:
    """The next revision of an incident that was only suspected and that no rule sees any more; None for another."""
    goes_on = not is_live(incident) or incident.confidence != SUSPECTED or not _may_end(incident, as_of)
    if goes_on or not is_unseen(incident, as_of, MAX_UNSEEN_DAYS):
        return None
    return resolve_automatically(incident, VANISHED, as_of, None)


def _may_end(incident: Incident, as_of: datetime) -> bool:
    """Tell whether a check may end it: not one that looks back, and nothing that is resolved already."""
    looks_back = incident.checked_at is not None and as_of < incident.checked_at
    return not looks_back and (is_live(incident) or incident.status == DISMISSED)
