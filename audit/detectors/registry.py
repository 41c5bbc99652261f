"""Registry of detectors: what a failure type means, and the decorator that registers the function that finds it.

1. A detector is one module of this package: a failure type, a decorated pure function, the rule in words, two cases. Nothing
   else names it: scores, rules' version, reference, pages and contract tests go by what is registered.
2. `audit.detectors.detectors` imports every module of the package, so a module that is there is registered.
3. Order: first the detectors with a place, by their place, then the others by the name of their failure type. The order decides
   which of two equal causes is primary, so a place is never given to another detector.
4. A failure type with a dimension is scored; weights sum to 100. With weight 0 it is on trial: found, shown and stored, but no part of
   the trust score. A failure type without a dimension is a finding: its impact is 0 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import Reference, SessionEvidence

NAME_LENGTH = 80
"""Characters shown of a name an agent supplied."""
UNPRINTABLE = "(unprintable)"
"""Shown for a name without a printable character."""


class FailureType(msgspec.Struct, frozen=True, kw_only=True):
    """A failure type and its meaning.

    `title` and `dimension_title` are the words of pages. `weight` is the percentage of its dimension in the trust score; they sum to
    100. `largest_penalty` is the most that its dimension loses, however much evidence there is. A finding has no dimension, and 0
    for both.
    """

    name: str
    title: str
    dimension: str = ""
    dimension_title: str = ""
    weight: int = 0
    largest_penalty: int = 0
    causal_chain: tuple[str, ...]
    remediation: str

    @property
    def node(self) -> str:
        """Id of its node in a causal graph."""
        return f"failure_{self.name}"

    def cause(
        self, severity: str, penalty: int, description: str, evidence: Sequence[Reference], *, evidence_count: int | None = None
    ) -> Cause:
        """A cause of this type; its penalty, from 0 up, is kept within the largest one.

        `evidence_count` is how many events support it; needed where `evidence` may be capped.
        """
        return Cause(
            type=self.name,
            severity=severity,
            impact_score=-min(self.largest_penalty, penalty),
            description=description,
            evidence_count=len(evidence) if evidence_count is None else evidence_count,
            evidence=tuple(evidence),
        )


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong. `impact_score` is the penalty, negative; `evidence` may be capped, its count is exact."""

    type: str
    severity: str
    impact_score: int
    description: str
    evidence_count: int
    evidence: tuple[Reference, ...]

    @property
    def failure(self) -> FailureType:
        """The failure type of the cause."""
        return _registered[self.type].failure


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A detector's rule, for the reference: when it fires, with which severity and penalty."""

    fires: str
    severity: str
    penalty: str


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions as raw events: one in which the failure is found, one of the same kind in which it is not."""

    found: Sequence[Mapping[str, Any]]
    silent: Sequence[Mapping[str, Any]]


Detect = Callable[[SessionEvidence, Thresholds], list[Cause]]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """A registered detector. Raise `version` with every change of what it says.

    `place` is its number among the detectors that the rules' version counts by place; None: it comes after them, by its name.
    `threshold` is the field of the thresholds without which it looks for nothing.
    """

    failure: FailureType
    version: int
    rule: Rule
    cases: Cases
    detect: Detect
    place: int | None
    threshold: str | None

    @property
    def failure_type(self) -> str:
        """Name of what it finds."""
        return self.failure.name

    def runs_with(self, thresholds: Thresholds) -> bool:
        """Tell whether these thresholds have it look for anything."""
        return self.threshold is None or getattr(thresholds, self.threshold) is not None


_registered: dict[str, Detector] = {}


def detector(
    failure: FailureType, *, version: int, rule: Rule, cases: Cases, place: int | None = None, threshold: str | None = None
) -> Callable[[Detect], Detect]:
    """Register the decorated function as the detector of a failure type; see `Detector` for `place` and `threshold`.

    ValueError if the failure type, its dimension or the place is registered already.
    """

    def register(detect: Detect) -> Detect:
        for earlier in _registered.values():
            taken = {earlier.failure.name, earlier.failure.dimension or None, earlier.place} - {None}
            if again := taken & {failure.name, failure.dimension, place}:
                raise ValueError(f"{again.pop()} is registered by {earlier.detect.__module__} already")
        _registered[failure.name] = Detector(
            failure=failure, version=version, rule=rule, cases=cases, detect=detect, place=place, threshold=threshold
        )
        return detect

    return register


def registered() -> tuple[Detector, ...]:
    """Return the detectors registered so far, in the order in which they run."""
    return tuple(
        sorted(
            _registered.values(),
            key=lambda registration: (registration.place is None, registration.place or 0, registration.failure_type),
        )
    )


def shown(name: str) -> str:
    """A name from an agent, fit to be shown: at most NAME_LENGTH characters, without control and direction characters."""
    if len(name) <= NAME_LENGTH and name.isprintable():
        return name
    return "".join(islice((character for character in name if character.isprintable()), NAME_LENGTH)) or UNPRINTABLE


def counted(n: int, noun: str) -> str:
    """A number with its noun, in the plural where it is not one."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
