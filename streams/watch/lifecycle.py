"""The life of an incident: its states, the decisions of people and their effects, and its automatic end.

| state | meaning | counts as red | effect |
| --- | --- | --- | --- |
| open | not acknowledged | if confirmed | none |
| acknowledged | a person works on it | if confirmed | none on baselines and references |
| resolved | over, or the new normal | no | its days are excluded from the reference, or the reference begins with its first day |
| dismissed | not important | no | its days are excluded once it is over; the same change opens no new incident |

`resolution` is the reason why an incident is resolved: it recovered by itself, it was only suspected and vanished, or a person marked it
as fixed or as the new normal. Earlier versions wrote the status `accepted`, which is read as the new normal (`analytics.store.tables`).
The decision may still be named so.

An incident may have an assignee in every state. Acknowledging an incident assigns it to oneself if it has no assignee, or if the assignee
got it by acknowledging it. Assigning an incident does not acknowledge it. In older records without an assignee, it is the person who
acknowledged the incident.

A live incident can be snoozed until a time, or only until it gets worse. It then stays open, but lists of open incidents and alerts leave it
out. A snooze ends at its time, when the change gets worse (`streams.watch.incidents`), with the next decision, or when a person ends it.

Recovery. The level of a series decides when its change is over, in whole days:

1. A change is over when the series is back for at least two whole days with scores, up to the last one. A day is back if its mean is closer
   to the level before the change than to the level of the change. The mean of all these days must be so with 95% confidence.
2. The findings of the rules do not decide. A rule stops finding a change that continues: after two months the change is its normal level,
   and after a change of the judge it has nothing to compare with. It also keeps finding a dip that is over, as long as the dip is in its
   window. Only if the level cannot be measured (a spread; runs that were diagnosed by other rules; the behaviour of one version), a change is over when no rule has
   found it for a week.
3. The day before the first day back is the last day of the change. From then on, the days of the change are excluded from the reference, so
   that the recovery is not a rise, and the next fall is measured from the normal level.
4. An incident is over when all of its series that raised an alarm are back. After a person has reopened it, earlier days do not count. A
   new incident may be over already, for example after an import of last month's records; the same check resolves it.
5. A dismissed incident is also over when no rule has found it for two whole days. A suspected incident then vanishes: it was due to chance,
   so its days stay in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import msgspec

from audit.drift.incident_evidence import ChangedSeries, Level, evidence_of
from audit.drift.series import cells_of
from audit.drift.watched_series import BEHAVIOUR, SESSION, SPIKE, TIERS, Key
from schemas.lazy_numpy import np
from schemas.records import Incident
from streams.watch.behaviour_rules import AgentSeries, ProjectBehaviour
from streams.watch.measures import ProjectRuns, ProjectScores, ProjectSessions, midnight

OPEN, ACKNOWLEDGED, RESOLVED, DISMISSED = "open", "acknowledged", "resolved", "dismissed"
STATUSES = (OPEN, ACKNOWLEDGED, RESOLVED, DISMISSED)
LIVE = frozenset({OPEN, ACKNOWLEDGED})
"""The states of incidents that have not ended."""
NEW_NORMAL, ACCEPTED = "new_normal", "accepted"
"""The decision that resolves an incident and moves the reference, and its earlier name."""
DECISIONS = (OPEN, ACKNOWLEDGED, RESOLVED, NEW_NORMAL, DISMISSED)
"""The decisions that a person may make."""
RECOVERED, VANISHED, FIXED = "recovered", "vanished", "fixed"
"""The reasons why an incident is resolved, other than that it is the new normal."""
SUSPECTED, CONFIRMED = "suspected", "confirmed"
DAY = timedelta(days=1)
DECISION, ASSIGNMENT, COMMENT, SNOOZE = "incident_decision", "incident_assignment", "incident_comment", "incident_snooze"
"""The kinds of reviews of an incident."""
MAX_SNOOZE = timedelta(days=366)
"""The longest snooze with an end."""
SYSTEM = "driftline"
"""The name recorded for the resolver of an incident that resolved itself."""


def is_live(incident: Incident) -> bool:
    """Return whether an incident is open or acknowledged."""
    return incident.status in LIVE


def is_snoozed(incident: Incident, now: datetime) -> bool:
    """Return whether a live incident is snoozed."""
    if incident.snoozed_at is None or incident.woken_at is not None or not is_live(incident):
        return False
    return incident.snoozed_at <= now and (incident.snoozed_until is None or now < incident.snoozed_until)


def describe_snooze(incident: Incident, now: datetime) -> str:
    """Describe the snooze of a live incident, or why it has ended; empty for an incident that was not snoozed."""
    if incident.snoozed_at is None or not is_live(incident):
        return ""
    end = "until it gets worse"
    if incident.snoozed_until is not None:
        end = f"until {incident.snoozed_until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if is_snoozed(incident, now):
        return f"Snoozed by {incident.snoozed_by} {end}{'' if incident.snoozed_until is None else ', or until it gets worse'}."
    if incident.woken_because is not None:
        return f"Back from a snooze by {incident.snoozed_by}: {incident.woken_because}"
    return f"Back from a snooze by {incident.snoozed_by}: it was {end}."


def recovered_since(incident: Incident) -> date | None:
    """Return the first day after the change of an incident that recovered by itself; None for any other."""
    if incident.resolution != RECOVERED or incident.last_day is None:
        return None
    return incident.last_day.astimezone(UTC).date() + DAY


def current(incident: Incident) -> Incident:
    """Return the record with today's states: `accepted` becomes resolved as the new normal."""
    if incident.status != ACCEPTED:
        return incident
    return msgspec.structs.replace(incident, status=RESOLVED, resolution=NEW_NORMAL)


def current_status(status: str) -> str:
    """Return today's state for a state of any version."""
    return RESOLVED if status == ACCEPTED else status


def confidence_of(*, confirmed: bool | None) -> str | None:
    """Return the confidence to filter by; None for any."""
    if confirmed is None:
        return None
    return CONFIRMED if confirmed else SUSPECTED


def decision_of(status: str, *, new_normal: bool = False) -> str:
    """Return the decision that leads to a state; `accepted` is the earlier name of the new normal."""
    return NEW_NORMAL if status == ACCEPTED or (new_normal and status == RESOLVED) else status


def is_in_effect(incident: Incident, decision: str) -> bool:
    """Return whether an incident is in the state to which a decision leads."""
    if decision == NEW_NORMAL:
        return incident.status == RESOLVED and incident.resolution == NEW_NORMAL
    if decision == RESOLVED:
        return incident.status == RESOLVED and incident.resolution != NEW_NORMAL
    return incident.status == decision


def set_decision(incident: Incident, decision: str, who: str, at: datetime) -> Incident:
    """Return the incident after a decision, with the same evidence and revision."""
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
        snoozed_at=None,
        snoozed_by=None,
        snoozed_until=None,
        woken_at=None,
        woken_because=None,
    )
    owner = assignee_of(incident)
    if decision == OPEN:
        # Unassigning yourself leaves a live incident unassigned; reopening one that is over leaves the assignee as it was.
        return set_assignee(clean, None if is_live(incident) else owner, at)
    if decision == ACKNOWLEDGED:
        assignee = who if owner in {None, incident.acknowledged_by} else owner
        return set_assignee(
            msgspec.structs.replace(clean, status=ACKNOWLEDGED, acknowledged_at=at, acknowledged_by=who), assignee, at
        )
    # An ended incident keeps its assignee, and the last day of a change that was already over.
    ended = msgspec.structs.replace(
        clean,
        acknowledged_at=incident.acknowledged_at,
        acknowledged_by=incident.acknowledged_by,
        last_day=incident.last_day,
        resolved_at=at,
        resolved_by=who,
    )
    if decision == DISMISSED:
        return msgspec.structs.replace(ended, status=DISMISSED)
    if decision == NEW_NORMAL:
        return msgspec.structs.replace(ended, status=RESOLVED, resolution=NEW_NORMAL)
    last = incident.last_day or datetime.combine(at.astimezone(UTC).date(), time(), UTC)
    return msgspec.structs.replace(ended, status=RESOLVED, resolution=FIXED, last_day=last)


def assignee_of(incident: Incident) -> str | None:
    """Return the assignee; in records of earlier versions, the person who acknowledged it."""
    return incident.acknowledged_by if incident.assigned_at is None else incident.assignee


def set_assignee(incident: Incident, assignee: str | None, at: datetime) -> Incident:
    """Return the incident after it was assigned to a person, or to nobody, with the same evidence and revision."""
    return msgspec.structs.replace(incident, assignee=assignee, assigned_at=at)


def set_snooze(incident: Incident, until: datetime | None, who: str, at: datetime) -> Incident:
    """Return the incident after it was snoozed, with the same evidence and revision. A time that is not after `at` ends the snooze."""
    if until is not None and until <= at:
        return wake(incident, f"{who} ended the snooze.", at)
    return msgspec.structs.replace(
        incident, snoozed_at=at, snoozed_by=who, snoozed_until=until, woken_at=None, woken_because=None
    )


def wake(incident: Incident, reason: str, at: datetime) -> Incident:
    """Return the incident after its snooze ended early, with the same evidence and revision."""
    return msgspec.structs.replace(incident, woken_at=at, woken_because=reason)


def resolve_automatically(incident: Incident, resolution: str, at: datetime, last_day: datetime | None) -> Incident:
    """Return the next revision of an incident that ended by itself."""
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
"""Whole days back at the earlier level after which a change is over; a single day may be a weekend's."""
MAX_UNSEEN_DAYS = 2
"""Whole days without a finding after which a dismissed change is over and a suspected one has vanished."""
MAX_UNMEASURED_DAYS = 7
"""Days without a finding after which a change is over if its level cannot be measured; the rules look back a week."""
Z_95_ONE_SIDED = 1.645
"""Standard errors of a one-sided 95% bound."""


@dataclass(frozen=True, slots=True)
class DayLevel:
    """The level of a series on one day."""

    day: date
    mean: float
    units: float
    """The effective number of independent units, given their weights."""


Levels = Callable[[ChangedSeries], Sequence[DayLevel] | None]
"""Returns the daily levels of a series, oldest first; None if its level cannot be measured."""


def levels_of(
    measured: ProjectScores | None,
    runs: ProjectRuns | None,
    sessions: ProjectSessions | None = None,
    behaviour: ProjectBehaviour | None = None,
) -> Levels:
    """Return a function that reads the daily levels of a project's series from its scores, runs, judged sessions and behaviour."""

    def read_levels(changed: ChangedSeries) -> Sequence[DayLevel] | None:
        tier = changed.key.tier
        if tier is not None and tier.startswith(SESSION):
            return None if sessions is None else _read_session_levels(sessions, changed, tier)
        if tier is not None and tier.startswith(BEHAVIOUR):
            return None if behaviour is None else _read_behaviour_levels(behaviour, changed, tier)
        if tier is not None and tier not in TIERS:
            return None if runs is None else _read_run_levels(runs, changed, tier)
        if measured is None:
            return None
        if changed.key.type == SPIKE:
            return _read_anomaly_levels(measured)
        return None if tier is None else _read_tier_levels(measured, changed.key)

    return read_levels


def _read_run_levels(runs: ProjectRuns, changed: ChangedSeries, series: str) -> list[DayLevel] | None:
    """Return the daily levels of a series of an agent's runs; None without recent runs, or if other rules diagnosed them."""
    agent = next((agent for agent in runs.agents if agent.agent == changed.key.agent), None)
    if agent is None or changed.observation.made_with not in (None, agent.made_by):
        return None
    return [DayLevel(day, mean, count) for day, (mean, count) in agent.days(series).items()]


def _read_session_levels(sessions: ProjectSessions, changed: ChangedSeries, series: str) -> list[DayLevel] | None:
    """Return the daily levels of a series of judged sessions; None if another judge or yardstick scored them."""
    if changed.observation.made_with not in (None, sessions.made_by):
        return None
    return [DayLevel(day, mean, count) for day, (mean, count) in sessions.days(series).items()]


def _read_behaviour_levels(behaviour: ProjectBehaviour, changed: ChangedSeries, series: str) -> list[DayLevel] | None:
    """Return the daily levels of a series of an agent's behaviour; None for that of a single version, whose others are gone when it is left alone."""
    if changed.slice is not None:
        return None
    days = behaviour.days(AgentSeries(changed.key.agent or "", series.removeprefix(BEHAVIOUR)))
    return [DayLevel(day, mean, sessions) for day, (mean, sessions, _) in days.items()]


def _read_tier_levels(measured: ProjectScores, key: Key) -> list[DayLevel]:
    tier = key.tier or ""
    segment = measured.segment(tier, key.agent) if key.slice is None else measured.slices(tier, key.agent).get(key.slice)
    cells = cells_of(()) if segment is None else segment.cells
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
    """Return whether a mean is closer to the level before a change than to the level of the change."""
    halfway = (before + after) / 2
    return mean < halfway if after > before else mean > halfway


def find_recovery_day(days: Iterable[DayLevel], level: Level, after: date, today: date) -> date | None:
    """Return the first of the recovered days since a change; None if it continues. Days up to `after` do not count."""
    halfway = (level.before + level.after) / 2
    whole_days = [day for day in days if after < day.day < today]
    recovered: list[DayLevel] = []
    for day in sorted(whole_days, key=lambda day: day.day, reverse=True):
        if not is_recovered(day.mean, level.before, level.after):
            break
        recovered.append(day)
    units = sum(day.units for day in recovered)
    if len(recovered) < MIN_RECOVERED_DAYS or not units:
        return None
    mean = sum(day.mean * day.units for day in recovered) / units
    is_certain = abs(mean - halfway) > Z_95_ONE_SIDED * level.sigma / math.sqrt(units)
    return recovered[-1].day if is_certain else None


def find_last_day(incident: Incident, levels: Levels, as_of: datetime) -> date | None:
    """Return the last day of an incident's change; None unless all series that raised an alarm have recovered."""
    alarms = [changed for changed in evidence_of(incident).moved if not changed.fell_too]
    last_days = [_find_last_day_of_series(alarm, incident, levels(alarm), as_of) for alarm in alarms]
    ended = [day for day in last_days if day is not None]
    return max(ended) if ended and len(ended) == len(last_days) else None


def _find_last_day_of_series(
    changed: ChangedSeries, incident: Incident, days: Sequence[DayLevel] | None, as_of: datetime
) -> date | None:
    today = as_of.date()
    level = changed.level
    reopened = incident.decided_at.date() if incident.status == OPEN and incident.decided_at else None
    if days is None or level is None:
        last_found = changed.until if reopened is None else max(changed.until, reopened)
        return changed.until if (today - last_found).days > MAX_UNMEASURED_DAYS else None
    after = changed.since if reopened is None else max(changed.since, reopened)
    first_day_back = find_recovery_day(days, level, after, today)
    return None if first_day_back is None else max(changed.since, first_day_back - DAY)


def is_unseen(incident: Incident, as_of: datetime, days: int) -> bool:
    """Return whether no rule has found an incident's change for more than `days` whole days."""
    last_days = [changed.until for changed in evidence_of(incident).moved]
    if incident.decided_at is not None:
        last_days.append(incident.decided_at.date())
    return bool(last_days) and (as_of.date() - max(last_days)).days > days


def end_if_over(incident: Incident, levels: Levels, as_of: datetime) -> Incident | None:
    """Return the next revision of an incident whose change is over; None if it continues or its end is already known."""
    if incident.last_day is not None or not _may_end(incident, as_of):
        return None
    last = find_last_day(incident, levels, as_of)
    if is_live(incident):
        return None if last is None else resolve_automatically(incident, RECOVERED, as_of, midnight(last))
    if last is None and is_unseen(incident, as_of, MAX_UNSEEN_DAYS):
        last = max((changed.until for changed in evidence_of(incident).moved), default=None)
    if last is None:
        return None
    return msgspec.structs.replace(incident, revision=incident.revision + 1, last_day=midnight(last), checked_at=as_of)


def end_if_vanished(incident: Incident, as_of: datetime) -> Incident | None:
    """Return the last revision of a suspected incident that no rule finds any more; None for any other."""
    if not is_live(incident) or incident.confidence != SUSPECTED:
        return None
    if not _may_end(incident, as_of) or not is_unseen(incident, as_of, MAX_UNSEEN_DAYS):
        return None
    return resolve_automatically(incident, VANISHED, as_of, None)


def _may_end(incident: Incident, as_of: datetime) -> bool:
    """Return whether a check may end an incident: not if it is resolved, or was checked as of a later time."""
    looks_back = incident.checked_at is not None and as_of < incident.checked_at
    return not looks_back and (is_live(incident) or incident.status == DISMISSED)
