"""The days of an incident: those from its first to its last one that lie on the side of the change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from schemas.records import Incident
from streams.watch.incidents.moves import Moved, moved_of
from streams.watch.incidents.states import DISMISSED, VANISHED, is_live
from streams.watch.rules.findings import DOWN, MEAN, UP

Seen = Mapping[str, Any]
"""The finding of a rule, as the evidence of an incident has it."""
Days = Mapping[str, float | None]
"""A measure by day, the days as 2026-10-01; None for a day without one."""
_EXPECTED = {
    "sequential": ("meanBefore", "sigma"),
    "runs": ("meanBefore", "sigma"),
    "consecutive_days": ("mean", "stddev"),
    "rate_ratio": ("baselineRate", ""),
    "moved_too": ("meanBefore", "sigma"),
}
"""The fields of a rule's finding with the expected value and its spread."""


def expected_of(rule: str, seen: Seen) -> tuple[float, float] | None:
    """Return the expected value and one sigma of it, 0 if the rule has none; None for evidence without them."""
    mean, sigma = (_number(seen, name) for name in _EXPECTED.get(rule, ("", "")))
    return None if mean is None else (mean, sigma or 0.0)


def before_of(tier: str, incidents: Sequence[Incident]) -> tuple[date, float] | None:
    """Return the first day of the newest live change of a tier, and the tier's mean before it; None without one."""
    live = (one for one in incidents if is_live(one))
    for incident in sorted(live, key=lambda one: one.detected_at, reverse=True):
        for moved in _entries(incident, tier):
            for rule, seen in [(moved.rule, moved.seen), *moved.rules.items()]:
                expected = expected_of(rule, seen)
                if expected is not None:
                    return date.fromisoformat(seen["since"]), expected[0]
    return None


def days_of(incident: Incident, values: Days, name: str | None = None) -> frozenset[str]:
    """Return the days that show an incident, by its measure: of a tier that moved in it, or of its leading series.

    A day does when a rule tells of it, and it lies off what was to be expected, on the incident's side: by one sigma of the rule that
    weighs evidence or by half of the change, whichever is less. Where the evidence has no numbers, each day that it names does.
    """
    return frozenset(
        day
        for moved in _entries(incident, name or incident.tier or incident.type)
        for rule, seen in moved.rules.items()
        for day, value in values.items()
        if value is not None and seen["since"] <= day <= seen["until"] and _shows(moved.key.direction, rule, seen, day, value)
    )


def marked_days(name: str, incidents: Sequence[Incident], values: Days) -> frozenset[str]:
    """Return the days that show an incident of a tier, or of a type without one, such as anomaly_spike."""
    return frozenset().union(*(days_of(one, values, name) for one in _about(name, incidents)))


def telling(name: str, incidents: Sequence[Incident], values: Days, days: Collection[str]) -> list[Incident]:
    """Return the incidents of a tier, or of a type without one, that some of these days show."""
    return [one for one in _about(name, incidents) if not days_of(one, values, name).isdisjoint(days)]


def _about(name: str, incidents: Sequence[Incident]) -> Iterator[Incident]:
    """Leave out dismissed incidents, and suspected ones that vanished."""
    shown = (one for one in incidents if one.status != DISMISSED and one.resolution != VANISHED)
    return (one for one in shown if _entries(one, name))


def _entries(incident: Incident, name: str) -> list[Moved]:
    """Yield the series that moved in an incident of a tier of the project, or of a type without one."""
    means = (one for one in moved_of(incident) if one.series.kind == MEAN and one.key.agent is None)
    return [one for one in means if name == (one.key.tier or one.key.type)]


def _shows(direction: str | None, rule: str, seen: Seen, day: str, value: float) -> bool:
    expected = expected_of(rule, seen)
    if expected is None:
        return True
    mean, sigma = expected
    off = {UP: value - mean, DOWN: mean - value}.get(direction or "", abs(value - mean))
    if rule in {"sequential", "runs", "moved_too"}:
        # A change may be smaller than one sigma where there are many scores.
        return off > min(sigma, abs(_number(seen, "change") or 0.0) / 2)
    return off > 0 and (rule != "consecutive_days" or day in {one.get("day") for one in seen.get("days") or []})


def _number(seen: Seen, name: str) -> float | None:
    value = seen.get(name)
    return float(value) if isinstance(value, (int, float)) else None
