"""Recovery: a change is over by its own measure, in whole days, without waiting for the rule to forget it.

1. A change is over when the last whole days with scores, at least two of them, lie back: each on the near side of the line halfway
   between the level before and the level of the change, and all of them together so with 95 % confidence.
2. The rule's silence proves nothing: after two months it takes a change for normal, and after a change of the judge it has nothing to
   compare with. Its alarm proves nothing either: a dip stays in its window long after it was mended. So the level decides, of runs as of
   scores. Where there is none to measure (a spread; runs that other rules diagnosed), a series is over when no rule has seen it for a
   week of checks.
3. The first of the days that lie back ends the change; the day before it is its last one. From then on the days of the change are cut
   out of the reference, so that the way back is no rise, and the next fall is measured from what is normal.
4. An incident is over when all of its series that raised an alarm are. After a person opened it again, days before that do not count.
   What a check finds for the first time may be over by then, as in an import of last month's records: it is resolved by the same check.
5. What was dismissed is over, too, when no rule has seen it for two whole days. What is only suspected then vanishes: chance made it,
   so its days stay in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import msgspec

from audit.drift.incident_evidence import Level, Moved, evidence_of
from audit.drift.watched_series import SPIKE, TIERS
from schemas.lazy.numpy import np
from schemas.records import Incident
from streams.watch.incidents.states import DAY, DISMISSED, OPEN, RECOVERED, SUSPECTED, VANISHED, is_live, resolved_itself
from streams.watch.measured import Measured, midnight
from streams.watch.run_measures import ProjectRuns

WHOLE_DAYS = 2
"""So many whole days lie back before a change is over: one may be a weekend's."""
UNSEEN_DAYS = 2
"""After so many whole days without a sight of it, what was dismissed is over, and what was suspected has vanished."""
UNMEASURED_DAYS = 7
"""The same for a series whose level cannot be measured: the rules look back a week."""
CERTAIN = 1.645
"""Standard errors to 95 % on one side."""


@dataclass(frozen=True, slots=True)
class DayLevel:
    """The level of a series on one day."""

    day: date
    mean: float
    units: float
    """Of how many independent units, weights taken into account."""


Levels = Callable[[Moved], Sequence[DayLevel] | None]
"""Returns the days of a series, oldest first; None if it has no level that can be measured."""


def levels_of(measured: Measured | None, runs: ProjectRuns | None) -> Levels:
    """The levels of the series of one project; None for its scores or its runs if it has none of the last days."""

    def found(moved: Moved) -> Sequence[DayLevel] | None:
        tier = moved.key.tier
        if tier is not None and tier not in TIERS:
            return None if runs is None else _run_levels(runs, moved, tier)
        if measured is None:
            return None
        return _rates(measured) if moved.key.type == SPIKE else _tier_levels(measured, tier) if tier is not None else None

    return found


def _run_levels(runs: ProjectRuns, moved: Moved, series: str) -> list[DayLevel] | None:
    """The days of a series of an agent's runs; None if it has none of late, or other rules diagnosed them than those of the change."""
    agent = next((one for one in runs.agents if one.agent == moved.key.agent), None)
    if agent is None or moved.seen.made_with not in (None, agent.made_by):
        return None
    return [DayLevel(day, mean, count) for day, (mean, count) in agent.days(series).items()]


def _tier_levels(measured: Measured, tier: str) -> list[DayLevel]:
    cells = measured.cells(tier)
    days = cells.last.astype("datetime64[D]")
    starts = np.flatnonzero(days != np.concatenate(([np.datetime64(0, "D")], days[:-1])))
    if not starts.size:
        return []
    weight, total, squares = (np.add.reduceat(column, starts) for column in (cells.weight, cells.total, cells.squares))
    rows = zip(days[starts].tolist(), (total / weight).tolist(), (weight**2 / squares).tolist(), strict=True)
    return [DayLevel(*row) for row in rows]


def _rates(measured: Measured) -> list[DayLevel]:
    days = [measured.as_of.date() - number * DAY for number in range(2 * UNMEASURED_DAYS, -1, -1)]
    daily = [(day, measured.statistics(day, day)) for day in days]
    return [DayLevel(day, one.anomalies / one.exchanges, one.exchanges) for day, one in daily if one.exchanges]


def lies_back(mean: float, before: float, after: float) -> bool:
    """Tell whether a mean is on the near side of the line halfway between the level before a change and that of the change."""
    halfway = (before + after) / 2
    return mean < halfway if after > before else mean > halfway


def back_since(days: Iterable[DayLevel], level: Level, after: date, today: date) -> date | None:
    """The first of the last whole days that lie back; None where the change goes on. Days up to `after` do not count."""
    halfway = (level.before + level.after) / 2
    stretch: list[DayLevel] = []
    for one in sorted((one for one in days if after < one.day < today), key=lambda one: one.day, reverse=True):
        if not lies_back(one.mean, level.before, level.after):
            break
        stretch.append(one)
    units = sum(one.units for one in stretch)
    if len(stretch) < WHOLE_DAYS or not units:
        return None
    mean = sum(one.mean * one.units for one in stretch) / units
    return stretch[-1].day if abs(mean - halfway) > CERTAIN * level.sigma / math.sqrt(units) else None


def last_day_of(incident: Incident, levels: Levels, as_of: datetime) -> date | None:
    """The last day of an incident's change, when all of its alarms are over; None while it goes on."""
    alarms = [one for one in evidence_of(incident).moved if not one.fell_too]
    ends = [_end_of(one, incident, levels(one), as_of) for one in alarms]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _end_of(moved: Moved, incident: Incident, days: Sequence[DayLevel] | None, as_of: datetime) -> date | None:
    today, level = as_of.date(), moved.level
    opened_again = incident.decided_at.date() if incident.status == OPEN and incident.decided_at else None
    if days is None or level is None:
        seen = max(moved.until, opened_again or moved.until)
        return moved.until if (today - seen).days > UNMEASURED_DAYS else None
    after = max(moved.since, opened_again or moved.since)
    first = back_since(days, level, after, today)
    return None if first is None else max(moved.since, first - DAY)


def unseen_for(incident: Incident, as_of: datetime, days: int) -> bool:
    """Tell whether no rule has seen an incident for so many whole days."""
    last = max((one.until for one in evidence_of(incident).moved), default=None)
    marks = [last, None if incident.decided_at is None else incident.decided_at.date()]
    known = [mark for mark in marks if mark is not None]
    return bool(known) and (as_of.date() - max(known)).days > days


def over(incident: Incident, levels: Levels, as_of: datetime) -> Incident | None:
    """The next revision of an incident whose change is over by its level; None while it goes on, or where that is known."""
    if incident.last_day is not None or not _may_end(incident, as_of):
        return None
    last = last_day_of(incident, levels, as_of)
    if is_live(incident):
        return None if last is None else resolved_itself(incident, RECOVERED, as_of, midnight(last))
    seen = max((one.until for one in evidence_of(incident).moved), default=None)
    if last is None and seen is not None and unseen_for(incident, as_of, UNSEEN_DAYS):
        last = seen
    if last is None:
        return None
    return msgspec.structs.replace(incident, revision=incident.revision + 1, last_day=midnight(last), checked_at=as_of)


def vanished(incident: Incident, as_of: datetime) -> Incident | None:
    """The next revision of an incident that was only suspected and that no rule sees any more; None for another."""
    goes_on = not is_live(incident) or incident.confidence != SUSPECTED or not _may_end(incident, as_of)
    if goes_on or not unseen_for(incident, as_of, UNSEEN_DAYS):
        return None
    return resolved_itself(incident, VANISHED, as_of, None)


def _may_end(incident: Incident, as_of: datetime) -> bool:
    """Tell whether a check may end it: not one that looks back, and nothing that is resolved already."""
    looks_back = incident.checked_at is not None and as_of < incident.checked_at
    return not looks_back and (is_live(incident) or incident.status == DISMISSED)
