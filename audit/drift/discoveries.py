"""False discoveries: which of many series may be called changed, so that few of them are wrong.

A series that is watched alone has a false alarm once in years. Thousands of series have one every day. So a family of series is decided
together, from the evidence of each, by e-BH (Wang and Ramdas 2022, "False discovery rate control with e-values"): of n series, the k with
the most evidence are named, with the largest k for which each of them has at least

    threshold x n / k

For e-values and the threshold 1 / a, the expected share of wrong ones among those that are named is at most a, **whatever depends on what**: a
common shock may raise all series at once. For a family of one it is the threshold, and a family in which all series changed pays nothing.

What is an e-value? The evidence M of `audit.drift.change_detector` is a sum over the last 400 days of terms that are 1 on average without a
change, so M / 400 is one. The evidence of `audit.drift.versions` is one itself. This holds at each check. Among checks at any time, the
expected number of wrong names grows with the years that are watched, as `SUSPECTED` says for a series.

- `find_confirmed` decides a family: the tiers of a project, its agents, its versions, its behaviour. The threshold is what a series alone needs.
- `find_fleet_discoveries` decides all families of all projects together, at `FLEET_RATE`. A series is confirmed if both say so. A lone project of four
  tiers needs 16,000 for one of them, less than `CONFIRMED`, so it keeps its delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from audit.drift.change_detector import HISTORY_DAYS, SUSPECTED, Change
from audit.drift.series import Flags, Floats
from schemas.lazy_numpy import np

FLEET_RATE = 0.1
"""The expected share of wrong ones among the confirmed changes of an installation is at most this."""
_ROUNDING = 1e-9
Name = TypeVar("Name")


def find_confirmed(log_evidence: Sequence[float] | Floats, threshold: float, series: int = 0) -> Flags:
    """Return the mask of the series of a family that e-BH names; `threshold` is the evidence that a series needs alone.

    Logarithms are natural; minus infinity is no evidence. `series` is the size of the family if further series have no evidence.
    """
    evidence = np.asarray(log_evidence, dtype=np.float64)
    if not len(evidence):
        return np.zeros(0, dtype=bool)
    ranked = np.sort(evidence)[::-1]
    needed = math.log(threshold * max(series, len(evidence))) - np.log(np.arange(1, len(evidence) + 1))
    named = np.flatnonzero(ranked >= needed - _ROUNDING)
    mask: Flags = evidence >= (ranked[named[-1]] if named.size else math.inf)
    return mask


def log_e_value(log_evidence: float) -> float:
    """Return the log e-value of the evidence of a series that is watched for a change at any time."""
    return log_evidence - math.log(HISTORY_DAYS)


def find_fleet_discoveries(log_e_values: Sequence[float], series: int = 0, rate: float = FLEET_RATE) -> Flags:
    """Return the mask of the series of an installation that may be confirmed, by the log e-values of those with evidence.

    `series` is the number of all series.
    """
    return find_confirmed(log_e_values, 1 / rate, series)


def family_penalty(log_excess: Sequence[float] | Floats, series: int) -> float:
    """Return the log evidence that each of `series` series needs beyond the threshold of a single one.

    `log_excess` is the log evidence beyond that threshold, of the series that have any.
    """
    return math.log(max(series, 1) / max(1, int(find_confirmed(log_excess, 1.0, series).sum())))


def mask_candidates(bounds: Floats) -> Flags:
    """Return the mask of the series of a family that may be believed, by upper bounds of their log evidence (`audit.drift.evidence_bounds`).

    A family is decided by the ranks of its evidence, so a series that does not pass by its bound does not pass by its evidence either.
    """
    excess = bounds - math.log(SUSPECTED)
    is_candidate: Flags = excess >= family_penalty(excess, len(excess))
    return is_candidate


def believe_changes(
    find: Callable[[Name, float], Change | None], names: Iterable[Name], series: int
) -> tuple[dict[Name, Change], float]:
    """Return the changes of a family of `series` series that are believed, by name, and the penalty for each of them.

    `find` returns the change of a series with a penalty for its log evidence and for that of its confirmation. `names` are the series that may have
    changed.
    """
    found = {name: change for name in names if (change := find(name, 0.0)) is not None}
    penalty = family_penalty([change.log_evidence - math.log(SUSPECTED) for change in found.values()], series)
    believed = {name: find(name, penalty) for name in found}
    return {name: change for name, change in believed.items() if change is not None}, penalty
