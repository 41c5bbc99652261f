"""The days of an incident: the days between its first and last one that lie on the side of the change."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from audit.drift.incident_evidence import MOVED_TOO, Moved, Sighting, evidence_of
from audit.drift.watched_series import DOWN, SPREAD, UP
from schemas.records import Incident
from streams.watch.lifecycle import DISMISSED, VANISHED, is_live

Days = Mapping[str, float | None]
"""A measure by day or hour, as 2026-10-01 or 2026-10-01 14:00; None for one without it."""
_Day = tuple[str, str, float]
"""A day, its label, and its measure."""
_DAY = len("2026-10-01")
_AFTER = "~"
"""Sorts after every label of a day."""
_WEIGHING = frozenset({"sequential", "runs", MOVED_TOO})
"""The rules that weigh evidence over many days."""
INCIDENTS_AT_HAND = 256
"""Maximum number of incidents whose parsed evidence is cached: twice those of a page."""


def expected_of(rule: str, seen: Sighting) -> tuple[float, float] | None:
    """Return the expected value and its sigma, 0 if the rule has no sigma; None for evidence without them."""
    if rule in _WEIGHING:
        mean, sigma = seen.mean_before, seen.sigma
    elif rule == "consecutive_days":
        mean, sigma = seen.mean, seen.stddev
    else:
        mean, sigma = seen.baseline_rate if rule == "rate_ratio" else None, None
    return None if mean is None else (mean, sigma or 0.0)


def before_of(tier: str, incidents: Sequence[Incident]) -> tuple[date, float, float] | None:
    """Return the first day of a tier's newest live change, and the mean before it with one sigma; None without a live change."""
    live = (one for one in incidents if is_live(one))
    for incident in sorted(live, key=lambda one: one.detected_at, reverse=True):
        for moved in _entries(incident, tier):
            for rule, seen in [(moved.rule, moved.seen), *moved.rules.items()]:
                expected = expected_of(rule, seen)
                if expected is not None:
                    return seen.since, *expected
    return None


def days_of(incident: Incident, values: Days) -> frozenset[str]:
    """Return the days that show an incident, judged by its leading series.

    A day shows it if a rule's finding covers the day, and its value deviates from the expected one on the incident's side by one sigma of
    the evidence-weighing rule or by half of the change, whichever is less. If the evidence has no numbers, every day in it counts.
    """
    return _days_of(_entries(incident, incident.tier or incident.type, incident.agent), _known(values))


class Shown(NamedTuple):
    """An incident, and the days that show it."""

    incident: Incident
    days: frozenset[str]


def shown_by(name: str, incidents: Sequence[Incident], values: Days) -> list[Shown]:
    """Return the incidents of a tier, or of a type without a tier such as anomaly_spike, that some of the days show."""
    days = _known(values)
    shown = [Shown(incident, _days_of(_entries(incident, name), days)) for incident in _about(name, incidents)]
    return [incident for incident in shown if incident.days]


def marked_days(shown: Iterable[Shown]) -> frozenset[str]:
    """Return the days that show any of the incidents."""
    return frozenset[str]().union(*(one.days for one in shown))


def _known(values: Days) -> list[_Day]:
    """Return the days with a value, in order."""
    return sorted((label[:_DAY], label, value) for label, value in values.items() if value is not None)


def _days_of(entries: Iterable[Moved], days: Sequence[_Day]) -> frozenset[str]:
    return frozenset(
        label
        for moved in entries
        for rule, seen in moved.rules.items()
        for label in _showing(moved.key.direction, rule, seen, days)
    )


def _about(name: str, incidents: Sequence[Incident]) -> Iterator[Incident]:
    """Leave out dismissed incidents, and suspected ones that have disappeared."""
    shown = (one for one in incidents if one.status != DISMISSED and one.resolution != VANISHED)
    return (one for one in shown if _entries(one, name))


def _entries(incident: Incident, name: str, agent: str | None = None) -> list[Moved]:
    """Return the changed series in incidents of a tier, or of a type without a tier, for one agent's runs or the whole project."""
    return [moved for moved in _means(incident) if agent == moved.key.agent and name == (moved.key.tier or moved.key.type)]


@functools.lru_cache(maxsize=INCIDENTS_AT_HAND)
def _means(incident: Incident) -> tuple[Moved, ...]:
    """Return the changed means of an incident, cached because a page needs them by tier and for each chart."""
    return tuple(moved for moved in evidence_of(incident).moved if moved.kind != SPREAD)


def _showing(direction: str | None, rule: str, seen: Sighting, days: Sequence[_Day]) -> Iterator[str]:
    """Yield the days that a rule's finding covers and that show the incident."""
    told = days[bisect_left(days, (f"{seen.since}",)) : bisect_left(days, (f"{seen.until}{_AFTER}",))]
    expected = expected_of(rule, seen)
    if expected is None:
        yield from (label for _, label, _ in told)
        return
    mean, sigma = expected
    # With many scores, a change may be smaller than one sigma.
    least = min(sigma, abs(seen.change or 0.0) / 2) if rule in _WEIGHING else 0.0
    named = {f"{one.day}" for one in seen.days or ()} if rule == "consecutive_days" else None
    for day, label, value in told:
        off = {UP: value - mean, DOWN: mean - value}.get(direction or "", abs(value - mean))
        if off > least and (named is None or day in named):
            yield label
