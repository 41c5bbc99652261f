"""What the rules are given (`Case`), and what they find (`Finding`), in one form, so that incidents need not know each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from audit.drift.change_detector import Change
from audit.drift.consecutive_days import DailyAverage
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.series import NO_DECISION, Reference, Span
from audit.drift.watched_series import MEAN, Key, Series
from schemas.records import Baseline
from streams.watch.measures import SCORES_QUERY, ProjectScores, midnight


@dataclass(frozen=True, slots=True)
class Source:
    """The named query that a rule read, with its parameters: it finds the same numbers again."""

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
    source: Source
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


class OpenChange(NamedTuple):
    """A change of a mean whose incident is open."""

    direction: str
    since: date
    """Its first day."""
    further_since: date | None = None
    """The first day of the next change the same way, if that has an open incident of its own."""


@dataclass(frozen=True, slots=True)
class RuleInput:
    """The data that the rules are asked about."""

    measured: ProjectScores
    baseline: Baseline | None
    references: Mapping[str, Reference]
    """The days that count, by series; all of them if a series is not named."""
    parameters: Mapping[str, Any]
    """Of the query that the measures come from."""
    open_changes: Mapping[str, OpenChange] = field(default_factory=dict)
    """The changes whose incidents are open, by series."""

    @property
    def source(self) -> Source:
        """The place where the rules look: the named query and its parameters."""
        return Source(SCORES_QUERY, {**self.parameters, "projects": [self.measured.project]})

    def reference(self, series: str) -> Reference:
        """Return the days of a series that count."""
        return self.references.get(series, NO_DECISION)

    def window(self, first: date, last: date) -> tuple[datetime, datetime]:
        """The time from one day to another, both included, as far as it was looked at."""
        return days_window(first, last, self.measured.as_of)


Rule = Callable[[RuleInput], Iterator[Finding]]


def days_window(first: date, last: date, as_of: datetime) -> tuple[datetime, datetime]:
    """Return the time from one day to another, both included, until a moment."""
    return midnight(first), min(midnight(last + timedelta(days=1)), as_of)


def list_days(counts: Mapping[DailyAverage, int]) -> list[Day]:
    """Return the days with their averages and numbers of scores, as they are shown."""
    return [Day(day=day.day, average=day.average, count=count) for day, count in counts.items()]


class Wording(NamedTuple):
    """The description of a change for people."""

    title: str
    description: str
    days: list[Day]
    """The days that show it, each with its average and count."""
    numbers: Numbers
    """The numbers besides those of every change."""


class Comparison(NamedTuple):
    """The data that a rule compared."""

    rule: str
    source: Source
    reference: Reference
    first_day: date
    """Of the series, as far as it was looked at."""
    as_of: datetime


def build_finding(key: Key, change: Change, compared: Comparison, wording: Wording) -> Finding:
    """Return a change that the sequential rule found as a finding: of a tier's scores or of an agent's runs."""
    until, since = change.seen_at.date(), compared.reference.since or compared.first_day
    return Finding(
        key=key,
        rule=compared.rule,
        severity=change.severity,
        since=change.first_day,
        until=until,
        size=abs(change.size),
        title=wording.title,
        description=wording.description,
        numbers=msgspec.structs.replace(
            wording.numbers,
            days=wording.days,
            compared_since=since,
            first_day=change.first_day,
            first_day_interval=(change.earliest_day, change.latest_day),
            change=change.size,
            change_interval=(change.size_interval.low, change.size_interval.high),
            mean_before=change.mean_before,
            mean_after=change.mean_after,
            sigma=change.sigma,
            log_evidence=change.log_evidence,
        ),
        before=(midnight(since), midnight(change.first_day)),
        after=days_window(change.first_day, until, compared.as_of),
        cut=compared.reference.cut,
        expected=change.mean_before,
        source=compared.source,
        interval=(change.earliest_day, change.latest_day),
        confirmed=change.confirmed_at is not None,
        known_level=compared.reference.since is not None,
    )
