"""Series that the watch compares, of a project's scores or of an agent's runs: their names, scales and directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
TIERS = {"tier1": "Tier 1", "tier2": "Tier 2", "tier2_5": "Tier 2.5", "tier3": "Tier 3"}
"""The tiers by their columns, and how people call them."""
_BOUNDS: Mapping[str, tuple[float, float]] = {"tier3": (1.0, 5.0), "trust": (0.0, 100.0)}
"""The ends of the scales that are not 0 to 1."""


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
    """Return the least and the greatest value that a series can have."""
    return _BOUNDS.get(series or "", (0.0, 1.0))


def worse(severity: str, than: str) -> bool:
    """Return whether one severity is above another."""
    return SEVERITIES.index(severity) > SEVERITIES.index(than)
