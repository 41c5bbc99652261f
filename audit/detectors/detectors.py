"""The registered detectors: every module of this package is imported, and what it registers runs in one order.

Each detector is one pure function of the evidence, independent of the others. From which values on it fires is a threshold
(`audit.detectors.thresholds`). How they are registered and ordered: `audit.detectors.registry`.
"""

from __future__ import annotations

import importlib
import pkgutil

import audit.detectors
from audit.detectors.registry import Cause, Detector, FailureType, printable, registered

__all__ = ["DETECTORS", "FAILURE_TYPES", "FINDERS", "FINDING_TYPES", "Cause", "Detector", "FailureType", "printable"]

for _module in sorted(one.name for one in pkgutil.iter_modules(audit.detectors.__path__, "audit.detectors.")):
    if _module != __name__:
        importlib.import_module(_module)

DETECTORS: tuple[Detector, ...] = tuple(one for one in registered() if one.failure.dimension)
"""The detectors of failure types that have a dimension, in the order in which they run."""

FINDERS: tuple[Detector, ...] = tuple(one for one in registered() if not one.failure.dimension)
"""The detectors that run after them, where the thresholds ask for them."""

# The sort is stable: of equal weight, the order of the detectors.
FAILURE_TYPES: dict[str, FailureType] = {
    one.failure_type: one.failure for one in sorted(DETECTORS, key=lambda one: -one.failure.weight)
}
"""Every failure type by name, in the order of the trust score's dimensions: the largest weight first."""

FINDING_TYPES: dict[str, FailureType] = {one.failure_type: one.failure for one in FINDERS}
"""Findings that a policy can have looked for, by name; they have no dimension and no weight."""
