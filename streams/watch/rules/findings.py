"""Findings of rules in one form, so that incidents need not know each rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

from audit.drift.reference import Span

DRIFT, SPIKE = "drift", "anomaly_spike"
UP, DOWN = "up", "down"
VERBS = {UP: "rose", DOWN: "fell"}
"""The verbs of a title for each direction."""
RISING_IS_BAD = ("unsafe", "failure:")
"""Beginnings of the names of series of which more is worse."""
MEAN, SPREAD, FURTHER = "mean", "spread", "further"
"""What moved: the mean, the spread, or the mean once more the same way while the incident of its first change is open."""
WARNING, CRITICAL = "warning", "critical"
SEVERITIES = (WARNING, CRITICAL)
"""From the lesser to the worse."""


_BOUNDS: Mapping[str, tuple[float, float]] = {"tier3": (1.0, 5.0), "trust": (0.0, 100.0)}
"""The ends of the scales that are not 0 to 1."""


def bounds_of(series: str | None) -> tuple[float, float]:
    """Return the least and the greatest value that a series can have."""
    return _BOUNDS.get(series or "", (0.0, 1.0))


class Key(NamedTuple):
    """The series that moved, of a project or of one of its agents, and its direction."""

    type: str
    tier: str | None
    """Name of the series: a tier, or of runs `trust`, `unsafe` or `failure:<type>`; None for the rate of anomalies."""
    direction: str | None
    agent: str | None = None
    """The agent of the runs; None for a series of the whole project."""

    @property
    def series(self) -> str:
        """The name by which references and decisions know it."""
        name = self.tier or self.type
        return name if self.agent is None else f"{name} of {self.agent}"

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse: down for what should be high, up for what should be low."""
        rising_is_bad = self.type == SPIKE or (self.tier or "").startswith(RISING_IS_BAD)
        return (self.direction == UP) == rising_is_bad


class Series(NamedTuple):
    """The entry of an incident's list: a series and its direction, and what of it moved."""

    key: Key
    kind: str = MEAN

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse; a wider spread is worse, wherever the mean went."""
        return self.key.direction == UP if self.kind == SPREAD else self.key.is_worse


@dataclass(frozen=True, slots=True)
class Looked:
    """The place where a rule has looked: the named query with its parameters, which finds the same numbers again."""

    query: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a rule found in a project."""

    key: Key
    rule: str
    severity: str
    since: date
    """First day of the change, UTC; where that is estimated, the likeliest."""
    until: date
    """Last day with scores that shows it."""
    size: float
    """The size of the change, never negative, in a measure of the rule's own: only sizes of one rule are compared."""
    title: str
    description: str
    numbers: Mapping[str, Any]
    """The numbers that the rule saw, as JSON, rounded as shown: days, averages, counts, estimates with intervals."""
    before: tuple[datetime, datetime]
    """The time that was compared with, start inclusive, end exclusive, UTC."""
    after: tuple[datetime, datetime]
    """The time of the change."""
    expected: float | None
    """The value to be expected: the mean of the scores before, or the rate of anomalies."""
    looked: Looked
    cut: tuple[Span, ...] = ()
    """Days within the time that was compared with that are left out of it: those of changes that are over."""
    known_level: bool = False
    """True if the rule measures from the level of the last decision: its finding is then no repetition of that."""
    confirmed: bool = True
    """True if it is certain enough for an alert; otherwise it is suspected, and only shown."""
    interval: tuple[date, date] | None = None
    """The first and the last day that may be the first one of the change; None where the rule does not say: `since` alone."""
    fell_too: bool = False
    """True if it raised no alarm of its own and only moved with others that did."""
    kind: str = MEAN
    """What moved: `MEAN`, `SPREAD` or `FURTHER`."""

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse."""
        return self.series.is_worse

    @property
    def series(self) -> Series:
        """The series that moved."""
        return Series(self.key, self.kind)

    @property
    def first_days(self) -> tuple[date, date]:
        """The days that may be the first one of the change, both ends included."""
        return self.interval or (self.since, self.since)


def worse(severity: str, than: str) -> bool:
    """Tell whether one severity is above another."""
    return SEVERITIES.index(severity) > SEVERITIES.index(than)
