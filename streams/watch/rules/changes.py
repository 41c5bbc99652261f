"""A change that the sequential rule found, as a finding: the same of a tier's scores and of an agent's runs."""

from __future__ import annotations

from datetime import date, datetime
from typing import NamedTuple

import msgspec

from audit.drift.change_detector import Change
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.reference import Reference
from audit.drift.watched_series import Key
from streams.watch.measured import midnight
from streams.watch.rules.cases import days_window
from streams.watch.rules.findings import Finding, Looked


class Told(NamedTuple):
    """The description of a change for people."""

    title: str
    description: str
    days: list[Day]
    """The days that show it, each with its average and count."""
    numbers: Numbers
    """The numbers besides those of every change."""


class Asked(NamedTuple):
    """The data that was looked at."""

    rule: str
    looked: Looked
    reference: Reference
    first_day: date
    """Of the series, as far as it was looked at."""
    as_of: datetime


def change_finding(key: Key, found: Change, asked: Asked, told: Told) -> Finding:
    """The finding of a change."""
    until, compared = found.seen_at.date(), asked.reference.since or asked.first_day
    return Finding(
        key=key,
        rule=asked.rule,
        severity=found.severity,
        since=found.first_day,
        until=until,
        size=abs(found.size),
        title=told.title,
        description=told.description,
        numbers=msgspec.structs.replace(
            told.numbers,
            days=told.days,
            compared_since=compared,
            first_day=found.first_day,
            first_day_interval=(found.earliest_day, found.latest_day),
            change=found.size,
            change_interval=(found.size_interval.low, found.size_interval.high),
            mean_before=found.mean_before,
            mean_after=found.mean_after,
            sigma=found.sigma,
            log_evidence=found.log_evidence,
        ),
        before=(midnight(compared), midnight(found.first_day)),
        after=days_window(found.first_day, until, asked.as_of),
        cut=asked.reference.cut,
        expected=found.mean_before,
        looked=asked.looked,
        interval=(found.earliest_day, found.latest_day),
        confirmed=found.confirmed_at is not None,
        known_level=asked.reference.since is not None,
    )
