"""Drift by evidence: has the mean of a project's scores changed, looked at after every session, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from audit.drift import Direction, Severity

WINDOW_DAYS = 81
"""How many UTC days of units `find_change` can make use of, the one of the check included."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The scores of one session on one UTC day: what is independent of what came before, as far as anything is.

    Weights are 1 / sampling probability. Several sessions of one hour may be added up to one unit where there are very many.
    """

    at: datetime
    """Time of the last of its exchanges, UTC, aware or naive but all of one kind."""
    scores: int
    """How many scores it holds."""
    weight: float
    """Sum of the weights, above 0."""
    total: float
    """Sum of weight x score."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the mean that is more than chance, as it looks after the last unit."""

    direction: Direction
    severity: Severity
    """Critical when the size is beyond two sigma."""
    alarm_at: datetime
    """Time of the unit after which it was first beyond doubt."""
    first_day: date
    """Most likely the first day of the change."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95 % interval of the first day."""
    size: float
    """Mean after less mean before, in points of the score."""
    size_interval: Interval
    sigma: float
    """Standard deviation of one unit's mean, in points of the score."""
    mean_before: float
    mean_after: float
    scores_before: int
    scores_after: int
    units_before: int
    units_after: int
    log_evidence: float
    """Natural logarithm of the evidence at the last look that raised the alarm; the alarm is at `ALARM`."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand after the last unit."""

    change: Change | None
    level: float
    """How far it is to an alarm after the last unit: 0 nothing speaks for a change, 1 and above is an alarm."""


def standing(units: Iterable[Unit], as_of: date, *, since: date | None = None) -> Standing:
    """Whether the mean has changed by the end of the day `as_of`, and how far it is from an alarm.

    `units` are those of one project and tier over the last `WINDOW_DAYS` days, in any order; later ones and earlier ones do not matter.
    `since` is the first day that counts: after a person has decided on a change, the `first_day` of that change. A project has no
    reference before 14 days, and no change is found until then.
    """
    raise NotImplementedError


def find_change(units: Iterable[Unit], as_of: date, *, since: date | None = None) -> Change | None:
    """The change of `standing`."""
    return standing(units, as_of, since=since).change
