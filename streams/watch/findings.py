"""The input of the rules (`RuleInput`) and their output (`Finding`), in a common form, so that incidents do not depend on single rules."""

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
from audit.drift.watched_series import MEAN, Key, Series, describe_change, format_date
from audit.policy import MinAlertedChange
from schemas.records import Baseline
from streams.watch.measures import SCORES_QUERY, ProjectScores, midnight

VERSIONS = "versions"
"""The name of the rules about versions side by side."""
NEW_VERSION_DAYS = 28
"""Days for which a new version is compared with the others; then it has a past of its own."""
UNNAMED_AGENT = "exchanges without an agent"
"""The name of the segment of a project's exchanges whose source tells no agent, beside agents with a name."""


@dataclass(frozen=True, slots=True)
class Source:
    """The named query that a rule read, with its parameters, so that its numbers can be reproduced."""

    query: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A change that a rule found in a project."""

    key: Key
    rule: str
    severity: str
    since: date
    """The first day of the change in UTC; the most probable one if it is estimated."""
    until: date
    """The last day with scores on which the change was observed."""
    size: float
    """The size of the change, never negative, on the scale of the rule. Only sizes from the same rule are comparable."""
    owner: str
    """The agent whose series changed, or the project for all of its agents."""
    headline: str
    """The change for the middle of a title, such as `answer quality halved (0.90 → 0.47)`."""
    remark: str = ""
    """An addition to the title."""
    description: str
    numbers: Numbers
    """The numbers of the change: days, averages, counts, estimates with intervals."""
    before: tuple[datetime, datetime]
    """The period before the change, start inclusive, end exclusive, UTC."""
    after: tuple[datetime, datetime]
    """The period since the change."""
    expected: float | None
    """The expected value: the mean before the change, or the rate of anomalies."""
    source: Source
    cut: tuple[Span, ...] = ()
    """Days that were excluded from the period before the change, because they belong to changes that are over."""
    known_level: bool = False
    """True if the rule compares with the level of the last decision, so that the finding does not repeat the change that was decided on."""
    confirmed: bool = True
    """True if the change is certain enough for an alert; a suspected change is only shown."""
    interval: tuple[date, date] | None = None
    """The first and the last possible first day of the change; None if the rule gives only `since`."""
    fell_too: bool = False
    """True if the series raised no alarm of its own, and changed along with others that did."""
    kind: str = MEAN
    """The kind of change: `MEAN`, `SPREAD` or `FURTHER`."""

    @property
    def title(self) -> str:
        """The change in a sentence for people."""
        return self.write_title()

    def write_title(self, *, reason: str = "", version: str = "") -> str:
        """Return the title with the reason before the change, and the version that came with it after the day."""
        return f"{self.owner}: {reason}{self.headline} since {format_date(self.since)}{version}{self.remark}"

    @property
    def series(self) -> Series:
        """The series that changed."""
        return Series(self.key, self.kind)

    @property
    def first_days(self) -> tuple[date, date]:
        """The first and the last possible first day of the change."""
        return self.interval or (self.since, self.since)


class OpenChange(NamedTuple):
    """A change of a mean whose incident is open."""

    direction: str
    since: date
    """The first day of the change."""
    further_since: date | None = None
    """The first day of a further change in the same direction, if that has an open incident of its own."""


@dataclass(frozen=True, slots=True)
class RuleInput:
    """The scores of a project, for the rules about scores."""

    measured: ProjectScores
    baseline: Baseline | None
    references: Mapping[str, Reference]
    """The reference days by series; a missing series has all days."""
    parameters: Mapping[str, Any]
    """The parameters of the query that read the scores."""
    open_changes: Mapping[str, OpenChange] = field(default_factory=dict)
    """The changes whose incidents are open, by series."""
    min_alerted: MinAlertedChange = field(default_factory=MinAlertedChange)
    """The smallest change of a mean that is confirmed, and so alerted."""

    @property
    def source(self) -> Source:
        """The query that read the scores, for this project alone."""
        return Source(SCORES_QUERY, {**self.parameters, "projects": [self.measured.project]})

    def reference(self, series: str) -> Reference:
        """Return the reference days of a series."""
        return self.references.get(series, NO_DECISION)

    def window(self, first: date, last: date) -> tuple[datetime, datetime]:
        """Return the period between two days, both included, up to the as-of."""
        return days_window(first, last, self.measured.as_of)


Rule = Callable[[RuleInput], Iterator[Finding]]


def days_window(first: date, last: date, as_of: datetime) -> tuple[datetime, datetime]:
    """Return the period between two days, both included, up to the as-of."""
    return midnight(first), min(midnight(last + timedelta(days=1)), as_of)


def list_days(counts: Mapping[DailyAverage, int]) -> list[Day]:
    """Return the days of an incident with their averages and numbers of scores."""
    return [Day(day=day.day, average=day.average, count=count) for day, count in counts.items()]


class Wording(NamedTuple):
    """The description of a change for people."""

    owner: str
    """The agent or the project."""
    description: str
    days: list[Day]
    """The days of the change with their averages and counts."""
    numbers: Numbers
    """The numbers that only this kind of finding has."""
    remark: str = ""
    """An addition to the title."""


class Comparison(NamedTuple):
    """The circumstances of a comparison by a rule."""

    rule: str
    source: Source
    reference: Reference
    first_day: date
    """The first day of the series that was examined."""
    as_of: datetime


def build_finding(key: Key, change: Change, comparison: Comparison, wording: Wording, kind: str = MEAN) -> Finding:
    """Return the finding of a change that the change detector found in a tier's scores or in an agent's runs."""
    until = change.seen_at.date()
    since = comparison.reference.since or comparison.first_day
    return Finding(
        key=key,
        kind=kind,
        rule=comparison.rule,
        severity=change.severity,
        since=change.first_day,
        until=until,
        size=abs(change.size),
        owner=wording.owner,
        headline=describe_change(Series(key, kind), change.mean_before, change.mean_after),
        remark=wording.remark,
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
        after=days_window(change.first_day, until, comparison.as_of),
        cut=comparison.reference.cut,
        expected=change.mean_before,
        source=comparison.source,
        interval=(change.earliest_day, change.latest_day),
        confirmed=change.confirmed_at is not None,
        known_level=comparison.reference.since is not None,
    )
