"""The registered detectors: importing this module imports every module of the package, which registers its detector.

Each detector is a pure function of the evidence, independent of the others. The values from which it fires are thresholds
(`audit.detectors.thresholds`). See `audit.detectors.registry` for registration and order.
"""

from __future__ import annotations

import importlib
import pkgutil

import audit.detectors
from audit.detectors.registry import Cause, Detector, FailureType, printable, registered

__all__ = ["DETECTORS", "FAILURE_TYPES", "FINDERS", "FINDING_TYPES", "Cause", "Detector", "FailureType", "printable"]

for _module in sorted(module.name for module in pkgutil.iter_modules(audit.detectors.__path__, "audit.detectors.")):
    if _module != __name__:
        importlib.import_module(_module)

DETECTORS: tuple[Detector, ...] = tuple(detector for detector in registered() if detector.failure.dimension)
"""The detectors of failure types with a dimension, in the order in which they run."""

FINDERS: tuple[Detector, ...] = tuple(detector for detector in registered() if not detector.failure.dimension)
"""The detectors that run after them, if the thresholds enable them."""

# The sort is stable, so equal weights stay in the order of the detectors.
FAILURE_TYPES: dict[str, FailureType] = {
    detector.failure_type: detector.failure for detector in sorted(DETECTORS, key=lambda detector: -detector.failure.weight)
}
"""Every failure type by name, in the order of the trust score's dimensions: the largest weight first."""

FINDING_TYPES: dict[str, FailureType] = {detector.failure_type: detector.failure for detector in FINDERS}
"""Findings that a policy can enable, by name; they have no dimension and no weight."""
