"""Findings of rules in one form, so that incidents need not know each rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from audit.drift.incident_evidence import Numbers
from audit.drift.reference import Span
from audit.drift.watched_series import MEAN, Key, Series


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
    numbers: Numbers
    """The numbers that the rule saw: days, averages, counts, estimates with intervals."""
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
