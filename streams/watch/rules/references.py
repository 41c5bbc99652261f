"""The reference of each series, from what is known of its incidents. Pure.

1. "This is the new normal" moves the reference of all series of the incident to their first day. The latest such decision counts.
2. The days of a change that is over are cut out: of one that recovered, that a person says is fixed, or that was dismissed and ended. The cut
   begins a day before the most probable first day where the interval of the first day allows that.
3. A change that was over before it was called the new normal is cut out as well: what holds now is what held before it.
4. What goes on, open, acknowledged or dismissed, changes nothing; neither does what was suspected and vanished. A further change the same
   way is looked for within the days of an open one, and its days are then left out of the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime

from audit.drift.incident_evidence import Moved, evidence_of
from audit.drift.reference import Reference, Span, joined
from audit.drift.watched_series import FURTHER, MEAN
from schemas.records import Incident
from streams.watch.incidents.causes import HISTORY
from streams.watch.incidents.recovery import UNSEEN_DAYS
from streams.watch.incidents.states import DAY, NEW_NORMAL, VANISHED, is_live
from streams.watch.rules.cases import OpenChange


def references_of(known: Iterable[Incident]) -> dict[str, Reference]:
    """For each series on which something was decided, or of which something is over, the days that count."""
    since: dict[str, date] = {}
    cuts: dict[str, list[Span]] = defaultdict(list)
    decided = [one for one in known if not is_live(one) and one.resolution != VANISHED]
    for incident in sorted(decided, key=lambda one: (_at(one), one.incident_id)):
        last = _last_day(incident)
        for moved in evidence_of(incident).moved:
            first = _first_day(moved)
            if last is not None:
                cuts[moved.key.series].append((min(first, last), last))
            elif incident.resolution == NEW_NORMAL:
                since[moved.key.series] = moved.since
    return {series: Reference(since.get(series), joined(cuts.get(series, ()))) for series in since.keys() | cuts.keys()}


def open_changes_of(known: Iterable[Incident]) -> dict[str, OpenChange]:
    """The changes of a project's means whose incidents are open, by series; of several the first, with the next one the same way."""
    changes: dict[str, OpenChange] = {}
    further: dict[str, date] = {}
    # What history explains is no level that anything could fall further from.
    own = [incident for incident in known if is_live(incident) and incident.cause != HISTORY]
    live = [one for incident in own for one in evidence_of(incident).moved if not one.fell_too]
    for moved in sorted(live, key=lambda one: one.since, reverse=True):
        direction = moved.key.direction
        if moved.kind == FURTHER:
            further[moved.key.series] = moved.since
        elif moved.kind == MEAN and moved.confirmed and direction is not None:
            changes[moved.key.series] = OpenChange(direction, moved.since)
    return {series: change._replace(further_since=further.get(series)) for series, change in changes.items()}


def _first_day(moved: Moved) -> date:
    """The first day that is cut out."""
    return min(moved.since, max(moved.interval[0], moved.since - DAY))


def _last_day(incident: Incident) -> date | None:
    """The last day of a change that is over; None for one that goes on."""
    if incident.last_day is not None:
        return incident.last_day.date()
    seen = [one.until for one in evidence_of(incident).moved]
    if incident.resolution != NEW_NORMAL or not seen:
        return None
    return max(seen) if max(seen) < _at(incident).date() - UNSEEN_DAYS * DAY else None


def _at(incident: Incident) -> datetime:
    return incident.resolved_at or incident.detected_at
