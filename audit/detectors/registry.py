"""Registry of detectors: failure types, and the decorator that registers a function as the detector of one.

1. A detector is one module of this package: a failure type, a decorated pure function, the rule in words, and two cases. Nothing else
   lists it: scores, the version of the rules, the reference, pages and contract tests use what is registered.
2. `audit.detectors.detectors` imports every module of the package, so every module is registered.
3. Detectors run by their `order`; those without one follow, by the name of their failure type. The sequence decides which of two equal
   causes is primary, so an `order` is never given to another detector.
4. A failure type with a dimension is scored; weights sum to 100. With weight 0 it is on trial: found, shown and stored, but left out of
   the trust score. A failure type without a dimension is a finding: its impact is 0 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from audit.detectors.thresholds import NO_RULES, Profile, Thresholds, ToolRules
from audit.diagnosis.evidence import Reference, SessionEvidence

NAME_LENGTH = 80
"""Most characters shown of a name that an agent supplied."""
UNPRINTABLE = "(unprintable)"
"""Shown in place of a name without printable characters."""


class FailureType(msgspec.Struct, frozen=True, kw_only=True):
    """A failure type and its meaning.

    `title` and `dimension_title` are shown on pages. `weight` is the percentage of the dimension in the trust score; all weights sum to
    100. `largest_penalty` is the most that the dimension can lose. A finding has no dimension, and 0 for both numbers.
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
        """Return a cause of this type; `penalty`, from 0 up, is capped at the largest one.

        `evidence_count` is the number of events that support it; pass it if `evidence` may be capped.
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
    """A failure that was found. `impact_score` is the penalty, negative; `evidence` may be capped, `evidence_count` is exact."""

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
    """A detector's rule, as the reference prints it: when it fires, its severity and its penalty."""

    fires: str
    severity: str
    penalty: str


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions as raw events: one in which the failure is found, and a similar one in which it is not; and the rules for tools."""

    found: Sequence[Mapping[str, Any]]
    silent: Sequence[Mapping[str, Any]]
    rules: ToolRules = NO_RULES


Detect = Callable[[SessionEvidence, Thresholds], list[Cause]]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """A registered detector. Raise `version` with every change of its results.

    `order` is its position among the detectors that the version of the rules lists by number; None sorts it after them, by name.
    `threshold` is a field of `Thresholds`: while that is None, the detector is disabled. `rules` are fields of `ToolRules`: while none
    of them is set, the detector is disabled.
    """

    failure: FailureType
    version: int
    rule: Rule
    cases: Cases
    detect: Detect
    order: int | None
    threshold: str | None
    rules: tuple[str, ...]

    @property
    def failure_type(self) -> str:
        """The name of its failure type."""
        return self.failure.name

    def is_enabled(self, profile: Profile) -> bool:
        """Return whether the detector is enabled under these thresholds and rules."""
        if self.rules:
            return any(getattr(profile.rules, rule) != getattr(NO_RULES, rule) for rule in self.rules)
        return self.threshold is None or getattr(profile.thresholds, self.threshold) is not None


_registered: dict[str, Detector] = {}


def detector(
    failure: FailureType,
    *,
    version: int,
    rule: Rule,
    cases: Cases,
    order: int | None = None,
    threshold: str | None = None,
    rules: tuple[str, ...] = (),
) -> Callable[[Detect], Detect]:
    """Register the decorated function as the detector of a failure type; see `Detector` for `order`, `threshold` and `rules`.

    Raise ValueError if the failure type, its dimension or its order is registered already.
    """

    def register(detect: Detect) -> Detect:
        for other in _registered.values():
            _refuse_conflict(failure, order, other)
        _registered[failure.name] = Detector(
            failure=failure,
            version=version,
            rule=rule,
            cases=cases,
            detect=detect,
            order=order,
            threshold=threshold,
            rules=rules,
        )
        return detect

    return register


def registered() -> tuple[Detector, ...]:
    """Return the detectors registered so far, in the order in which they run."""
    return tuple(
        sorted(
            _registered.values(),
            key=lambda registration: (registration.order is None, registration.order or 0, registration.failure_type),
        )
    )


def _refuse_conflict(failure: FailureType, order: int | None, other: Detector) -> None:
    """Raise ValueError if a new detector has the failure type, the dimension or the order of another one."""
    module = other.detect.__module__
    if failure.name == other.failure.name:
        raise ValueError(f"failure type {failure.name} is already registered by {module}")
    if failure.dimension and failure.dimension == other.failure.dimension:
        raise ValueError(f"dimension {failure.dimension} is already registered by {module}")
    if order is not None and order == other.order:
        raise ValueError(f"order {order} is already registered by {module}")


def printable(name: str) -> str:
    """Clean a name that an agent supplied: at most NAME_LENGTH characters, without control and direction characters."""
    if len(name) <= NAME_LENGTH and name.isprintable():
        return name
    cleaned = "".join(islice((character for character in name if character.isprintable()), NAME_LENGTH))
    return cleaned or UNPRINTABLE


def pluralize(n: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless the count is 1."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
