"""Looks at a series of scores: after each unit, what the two months up to it say to a change of the mean on each of their days.

A look depends on the units up to it and on nothing later, so a check that comes late finds what an earlier one would have found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from audit.changepoints import NOTHING, Contrast, Sums, contrast
from audit.firstday import Place

REFERENCE_DAYS = 14
"""A change has at least so many days before it, to be compared with."""
HISTORY_DAYS = 74
"""A look sees so many UTC days, its own included: a change is seen for two months, then what is new has become what is normal."""
FEWEST_BEFORE = 10
FEWEST_AFTER = 3
"""So many units stand on either side of a change: neither one exchange nor one session is a change."""
LOOKS_A_DAY = 24
"""Where there are more units a day than this, not every one of them is followed by a look; it would see what the last one saw."""
_AGES = (*((age, 1) for age in range(14)), *((age, 2) for age in range(15, 31, 2)), *((age, 4) for age in range(33, 60, 4)))
"""Days since a change that are tried, each with how many days it stands for: how long ago it was matters less, the longer it is ago."""


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


class Look(NamedTuple):
    """What there is after a unit."""

    at: datetime
    day: int
    """The day it falls on, counted from the first one of the history."""
    both: Sums
    """The units of the window up to here."""
    low: float
    high: float
    """The least and the greatest mean of one of them, from the origin."""


class History:
    """Units by day, with running sums, so that any stretch of days is one subtraction.

    Units before `first` or after `last` are left out. Days are counted from that of the first unit; means are measured from `origin`.
    """

    def __init__(self, units: Iterable[Unit], first: date, last: date) -> None:
        # Ties are broken by content, so that the order in which a database returns them changes nothing.
        kept = sorted(
            (unit for unit in units if first <= unit.at.date() <= last),
            key=lambda unit: (unit.at, unit.weight, unit.total, unit.scores),
        )
        self.first = kept[0].at.date() if kept else last
        self.origin = kept[0].total / kept[0].weight if kept else 0.0
        self.days: list[list[Unit]] = [[] for _ in range((last - self.first).days + 1)]
        for unit in kept:
            self.days[(unit.at.date() - self.first).days].append(unit)
        self._before = [NOTHING]
        self._ranges: list[tuple[float, float]] = []
        self._trials: dict[int, list[tuple[int, Sums]]] = {}
        """What is tried at the looks of the day that was looked at last."""
        for day in self.days:
            total, low, high = self._before[-1], math.inf, -math.inf
            for unit in day:
                total, low, high = self._with(unit, total, low, high)
            if day:
                known = self._before[-1]
                total = total.with_day(total.weight - known.weight, total.total - known.total)
            self._before.append(total)
            self._ranges.append((low, high))

    def looks(self, day: int) -> Iterator[Look]:
        """The looks of a day, in order."""
        start = _start(day)
        recent = self._before[day].units - self._before[max(0, day - REFERENCE_DAYS)].units
        stride = max(1, recent // (REFERENCE_DAYS * LOOKS_A_DAY))
        low = min((low for low, _ in self._ranges[start:day]), default=math.inf)
        high = max((high for _, high in self._ranges[start:day]), default=-math.inf)
        both = self._before[day].less(self._before[start])
        for place, unit in enumerate(self.days[day], start=1):
            both, low, high = self._with(unit, both, low, high)
            if place % stride == 0:
                yield Look(unit.at, day, both, low, high)

    def before(self, look: Look, day: int) -> Sums:
        """The units of a look's window before a day."""
        return self._within(look.day, day)

    def log_evidence(self, look: Look) -> float:
        """Logarithm of the summed evidence for a change on each of the days, at least 0."""
        most = look.both.units - FEWEST_AFTER
        terms = [
            (contrast(before, look.both, look.low, look.high).log_evidence, days)
            for days, before in self._tried(look.day)
            if before.units <= most
        ]
        top = max((term for term, _ in terms), default=0.0)
        return max(0.0, top + math.log(sum(days * math.exp(term - top) for term, days in terms))) if terms else 0.0

    def log_chance(self, look: Look) -> float:
        """Logarithm of the evidence that is to be expected when nothing has changed: 1 for each of the days."""
        return math.log(max(1, sum(days for days, _ in self._tried(look.day))))

    def places(self, look: Look) -> list[Place]:
        """Every day with units on which the mean may have changed, in order, with what the look says to it."""
        days = [day for day in range(look.day + 1) if self.days[day]]
        return [Place(day, found) for day in days if (found := self._contrast(look, day)) is not None]

    def _tried(self, day: int) -> list[tuple[int, Sums]]:
        """For the looks of a day the changes that are tried: how many days each stands for, and the units before it."""
        if day not in self._trials:
            earliest = _start(day) + REFERENCE_DAYS
            befores = ((days, self._within(day, day - age)) for age, days in _AGES if day - age >= earliest)
            self._trials = {day: [(days, before) for days, before in befores if before.units >= FEWEST_BEFORE]}
        return self._trials[day]

    def _contrast(self, look: Look, day: int) -> Contrast | None:
        """What a look says to a change on a day; None where too little stands on either side of it."""
        if day < _start(look.day) + REFERENCE_DAYS:
            return None
        before = self.before(look, day)
        if before.units < FEWEST_BEFORE or look.both.units - before.units < FEWEST_AFTER:
            return None
        return contrast(before, look.both, look.low, look.high)

    def _within(self, last: int, day: int) -> Sums:
        """The units before a day, of the window of the looks of the day `last`."""
        return self._before[day].less(self._before[_start(last)])

    def _with(self, unit: Unit, total: Sums, low: float, high: float) -> tuple[Sums, float, float]:
        """A stretch and its range with one more unit."""
        off = unit.total - self.origin * unit.weight
        mean = off / unit.weight
        return total.with_unit(unit.scores, unit.weight, off), min(low, mean), max(high, mean)


def _start(day: int) -> int:
    """The first day of the window of a look on that day."""
    return max(0, day - HISTORY_DAYS + 1)
