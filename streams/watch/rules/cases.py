"""Cases for the rules of the watch, and the format of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from audit.drift.consecutive_days import DailyAverage
from audit.drift.incident_evidence import Day
from audit.drift.reference import NO_DECISION, Reference
from schemas.records import Baseline
from streams.watch.measured import QUERY, Measured, midnight
from streams.watch.rules.findings import Finding, Looked


class OpenChange(NamedTuple):
    """A change of a mean whose incident is open."""

    direction: str
    since: date
    """Its first day."""
    further_since: date | None = None
    """The first day of the next change the same way, if that has an open incident of its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """The data that the rules are asked about."""

    measured: Measured
    baseline: Baseline | None
    references: Mapping[str, Reference]
    """The days that count, by series; all of them if a series is not named."""
    parameters: Mapping[str, Any]
    """Of the query that the measures come from."""
    open_changes: Mapping[str, OpenChange] = field(default_factory=dict)
    """The changes whose incidents are open, by series."""

    @property
    def looked(self) -> Looked:
        """The place where the rules look: the named query and its parameters."""
        return Looked(QUERY, {**self.parameters, "projects": [self.measured.project]})

    def reference(self, series: str) -> Reference:
        """Return the days of a series that count."""
        return self.references.get(series, NO_DECISION)

    def window(self, first: date, last: date) -> tuple[datetime, datetime]:
        """The time from one day to another, both included, as far as it was looked at."""
        return days_window(first, last, self.measured.as_of)


Rule = Callable[[Case], Iterator[Finding]]


def days_window(first: date, last: date, as_of: datetime) -> tuple[datetime, datetime]:
    """The time from one day to another, both included, until a moment."""
    return midnight(first), min(midnight(last + timedelta(days=1)), as_of)


def days_shown(counts: Mapping[DailyAverage, int]) -> list[Day]:
    """Days with their averages and how many scores each is of, as they are shown."""
    return [Day(day=one.day, average=one.average, count=count) for one, count in counts.items()]
