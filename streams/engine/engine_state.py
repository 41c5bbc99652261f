"""Settings and state of an engine, as its callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from streams.log.admission import CONFLICT, KNOWN, WRITTEN


@dataclass(frozen=True)
class EngineLimits:
    """How much the engine takes on at once, and how often it looks after idle sessions."""

    waiting: int = 2_000
    """Submissions that may wait for a commit."""
    at_once: int = 256
    """Submissions in one commit."""
    flush_seconds: float = 0.5
    """Seconds that a record may be in the log alone where nobody asks for it."""
    idle_check: float = 60.0
    """Seconds between two looks for sessions that fell idle."""


@dataclass(frozen=True)
class Published:
    """What became of records: how many were written, how many the log had, and the places of those in conflict with it."""

    written: int
    known: int
    conflicts: list[int]
    outcomes: Sequence[str] = ()
    """The outcome of each record; empty if only their numbers were counted."""

    @classmethod
    def of(cls, outcomes: Sequence[str]) -> Self:
        """Count what became of each record."""
        conflicts = [index for index, outcome in enumerate(outcomes) if outcome == CONFLICT]
        return cls(outcomes.count(WRITTEN), outcomes.count(KNOWN), conflicts, outcomes)


@dataclass(frozen=True)
class EngineState:
    """How the engine is."""

    ready: bool
    why_not: str
    queues: Mapping[str, int]
    """What waits: `commits` (submissions), `tasks` (exchanges to score), `evaluations` (to make), `sessions` (with any of them under way); with Kafka `sink` (records
    that have not landed), `unlanded` (those of them that were brought here), `producing` (calls that wait for the broker)."""
    judge_calls: Mapping[str, int]
    """Questions that were asked since the start, by outcome."""
    spent_usd: float
    """What they have cost, as far as prices are known."""
