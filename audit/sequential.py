"""Drift by evidence: has the mean of a project's scores changed, looked at after every session, and since when.

After a unit at time t, each day of the last two months is a day on which the mean may have changed. For each of them `audit.changepoints`
says how much more probable the scores of the window are with that change than without any; the sum over the days is the evidence
(Shiryaev and Roberts' sum, of e-values that start anew every day; Shin, Ramdas and Rinaldo 2023, "E-detectors: a nonparametric framework
for sequential change detection"). Without a change each term is 1 on average, so the sum grows by no more than 1 a day, and it takes at
least `ALARM` days on average until it has reached `ALARM`, however often one looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple

from audit.drift import Direction, Severity, severity_of
from audit.firstday import Interval, estimate
from audit.looks import HISTORY_DAYS, History, Look, Unit

__all__ = ["ALARM", "CHECKED_DAYS", "WINDOW_DAYS", "Change", "Interval", "Standing", "Unit", "find_change", "standing"]

ALARM = 8 * 365.0
"""Days to a false alarm of one tier, at least, on average. A project has four tiers: one false alarm in two years."""
CHECKED_DAYS = 7
"""The looks of so many days are taken again at each check, so that none is missed while the process is down."""
WINDOW_DAYS = HISTORY_DAYS + CHECKED_DAYS - 1
"""How many UTC days of units a check can make use of, the one of the check included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the mean that is more than chance, as it looked when it was last beyond doubt."""

    direction: Direction
    severity: Severity
    """Critical when the size is beyond two sigma."""
    alarm_at: datetime
    """Time of the unit after which it was first beyond doubt, within the days that are checked."""
    seen_at: datetime
    """Time of the last unit after which it was: all the estimates rest on the units up to it."""
    first_day: date
    """The most probable first day of the change."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95 % interval of the first day, included."""
    size: float
    """Mean after less mean before, in points of the score."""
    size_interval: Interval
    """95 %, what is not known of the first day included."""
    sigma: float
    """Standard deviation of one unit's mean, in points of the score."""
    mean_before: float
    mean_after: float
    scores_before: int
    scores_after: int
    units_before: int
    units_after: int
    log_evidence: float
    """Natural logarithm of the evidence."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand at a check."""

    change: Change | None
    level: float
    """How far it is to an alarm after the last look, on the scale of log evidence: 0 is no more than chance brings, 1 is an alarm."""


class _Alarm(NamedTuple):
    """Looks that raised an alarm, of one direction and without one of the other direction between them."""

    direction: Direction
    first: datetime
    look: Look
    """The last of them."""
    log_evidence: float


def standing(units: Iterable[Unit], as_of: date, *, since: date | None = None) -> Standing:
    """Whether the mean has changed in the week up to the end of the day `as_of`, or still is, and how far it is from an alarm.

    `units` are those of one project and tier over the last `WINDOW_DAYS` days, in any order; earlier and later ones do not matter.
    `since` is the first day that counts: after a person has decided on a change, the `first_day` of that change. No change is found
    before there are 14 days to compare with.
    """
    first = as_of - timedelta(days=WINDOW_DAYS - 1)
    history = History(units, max(first, since or first), as_of)
    alarm: _Alarm | None = None
    level = 0.0
    for day in range(max(0, len(history.days) - CHECKED_DAYS), len(history.days)):
        for look in history.looks(day):
            log_evidence, chance = history.log_evidence(look), history.log_chance(look)
            level = max(0.0, (log_evidence - chance) / (math.log(ALARM) - chance))
            if log_evidence >= math.log(ALARM):
                alarm = _raised(alarm, history, look, log_evidence)
    return Standing(None if alarm is None else _change(history, alarm), level)


def find_change(units: Iterable[Unit], as_of: date, *, since: date | None = None) -> Change | None:
    """The change of `standing`."""
    return standing(units, as_of, since=since).change


def _raised(alarm: _Alarm | None, history: History, look: Look, log_evidence: float) -> _Alarm:
    """The alarm after one more look that raised it."""
    best = max(history.places(look), key=lambda place: place.contrast.log_evidence).contrast
    direction: Direction = "up" if best.after > best.before else "down"
    first = alarm.first if alarm is not None and alarm.direction == direction else look.at
    return _Alarm(direction, first, look, log_evidence)


def _change(history: History, alarm: _Alarm) -> Change:
    """What is known of a change at the last look that raised the alarm."""
    known = estimate(history.places(alarm.look))
    best = known.best.contrast
    before = history.before(alarm.look, known.best.day)
    after = alarm.look.both.less(before)
    size, sigma = best.after - best.before, math.sqrt(best.variance_within)
    earliest, latest = (history.first + timedelta(days=day) for day in known.days)
    return Change(
        direction=alarm.direction,
        severity=severity_of(size / sigma) if sigma else "critical",
        alarm_at=alarm.first,
        seen_at=alarm.look.at,
        first_day=history.first + timedelta(days=known.best.day),
        earliest_day=earliest,
        latest_day=latest,
        size=size,
        size_interval=known.size,
        sigma=sigma,
        mean_before=best.before + history.origin,
        mean_after=best.after + history.origin,
        scores_before=before.scores,
        scores_after=after.scores,
        units_before=before.units,
        units_after=after.units,
        log_evidence=alarm.log_evidence,
    )
