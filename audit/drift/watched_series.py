"""The series that the watch compares, of a project's scores or of an agent's runs: names, scales and directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DRIFT, SPIKE = "drift", "anomaly_spike"
UP, DOWN = "up", "down"
VERBS = {UP: "rose", DOWN: "fell"}
"""The verb of a title for each direction."""
RISING_IS_BAD = ("unsafe", "failure:")
"""Prefixes of the names of series for which a rise is bad."""
MEAN, SPREAD, FURTHER = "mean", "spread", "further"
"""What moved: the mean, the spread, or the mean again in the same direction while the first change's incident is open."""
WARNING, CRITICAL = "warning", "critical"
SEVERITIES = (WARNING, CRITICAL)
"""In ascending order."""
TIERS = {"tier1": "Tier 1", "tier2": "Tier 2", "tier2_5": "Tier 2.5", "tier3": "Tier 3"}
"""The everyday names of the tiers by their columns."""
_BOUNDS: Mapping[str, tuple[float, float]] = {"tier3": (1.0, 5.0), "trust": (0.0, 100.0)}
"""The ends of scales other than 0 to 1."""


class Key(NamedTuple):
    """A series of a project or of one of its agents, and the direction in which it moved."""

    type: str
    tier: str | None
    """Name of the series: a tier, or for runs `trust`, `unsafe` or `failure:<type>`; None for the rate of anomalies."""
    direction: str | None
    agent: str | None = None
    """The agent of the runs; None for a series of the whole project."""

    @property
    def series(self) -> str:
        """The name of the series in references and decisions."""
        name = self.tier or self.type
        return name if self.agent is None else f"{name} of {self.agent}"

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse: down if high is good, up if low is good."""
        rising_is_bad = self.type == SPIKE or (self.tier or "").startswith(RISING_IS_BAD)
        return (self.direction == UP) == rising_is_bad


class Series(NamedTuple):
    """A series of an incident with its direction and what moved."""

    key: Key
    kind: str = MEAN

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse; a wider spread is always worse."""
        return self.key.direction == UP if self.kind == SPREAD else self.key.is_worse

    @property
    def name(self) -> str:
        """The everyday name of the series."""
        tier, agent = self.key.tier or "", self.key.agent
        kind, _, failure = tier.partition(":")
        name = TIERS.get(tier) or {
            "trust": "Trust",
            "unsafe": "Unsafe runs",
            "failure": f"Failures of type {failure.replace('_', ' ')}",
            "": "Anomalies",
        }.get(kind, tier)
        figure = {SPREAD: f"Spread of {name}", FURTHER: f"{name}, further"}.get(self.kind, name)
        return figure if agent is None else f"{figure} ({agent})"


def bounds_of(series: str | None) -> tuple[float, float]:
    """Return the least and the greatest possible value of a series."""
    return _BOUNDS.get(series or "", (0.0, 1.0))


def worse(severity: str, than: str) -> bool:
    """Return whether one severity is above another."""
    return SEVERITIES.index(severity) > SEVERITIES.index(than)
