"""Resolution: a dimension's score, from the deterministic checks and the judge.

| policy             | checks and judge | judge alone        | checks alone         | neither |
|--------------------|------------------|--------------------|----------------------|---------|
| judge_only         | judge            | judge              | missing              | missing |
| deterministic_only | deterministic    | missing            | deterministic        | missing |
| weighted           | weighted         | judge (a warning)  | deterministic (a w.) | missing |

The judge has no score when all of its iterations failed, the checks have none where no check counts for the dimension. What is
missing is never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from audit.evaluation.cases.profile import DimensionPolicy
from audit.evaluation.dimensions import HIGHEST, Dimension
from schemas.records import CheckOutcome

Source = Literal["judge", "deterministic", "weighted", "missing"]
PASS, FAIL, ERROR = "pass", "fail", "error"
"""The outcomes of a check."""
JUDGE_ONLY = DimensionPolicy()
"""The policy for a dimension that the profile does not mention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The origin of one dimension's score; scores are from 0 to 10."""

    dimension: Dimension
    policy: DimensionPolicy
    source: Source
    """The source of the final score."""
    deterministic: float | None
    """None where no check counts for the dimension."""
    judge: float | None
    """None where the judge has no score."""
    final: float | None


def deterministic_score(dimension: Dimension, checks: Sequence[CheckOutcome]) -> float | None:
    """10 x passed / mapped checks, where an error counts as not passed; None where no check counts for the dimension."""
    mapped = [check for check in checks if dimension in check.dimensions]
    return HIGHEST * sum(check.outcome == PASS for check in mapped) / len(mapped) if mapped else None


def weighted(judge: float, deterministic: float, policy: DimensionPolicy) -> float:
    """The mean of both scores by the normalised weights; exact, so never outside of the two."""
    judge_weight, deterministic_weight = normalised(policy)
    return float(judge_weight * Fraction(judge) + deterministic_weight * Fraction(deterministic))


def normalised(policy: DimensionPolicy) -> tuple[Fraction, Fraction]:
    """The weights of judge and checks, with a sum of 1. No policy that weighs has both 0: its model refuses that."""
    judge, deterministic = Fraction(policy.judge_weight), Fraction(policy.deterministic_weight)
    return judge / (judge + deterministic), deterministic / (judge + deterministic)


def resolve(dimension: Dimension, policy: DimensionPolicy, checks: Sequence[CheckOutcome], judge: float | None) -> Resolution:
    """The score of one dimension; see the table of the module."""
    deterministic = deterministic_score(dimension, checks)
    source = _source(policy, deterministic, judge)
    final = {"judge": judge, "deterministic": deterministic, "missing": None}.get(source)
    if source == "weighted" and judge is not None and deterministic is not None:
        final = weighted(judge, deterministic, policy)
    return Resolution(dimension=dimension, policy=policy, source=source, deterministic=deterministic, judge=judge, final=final)


def resolution_warnings(resolutions: Sequence[Resolution], checks: Sequence[CheckOutcome]) -> Iterator[str]:
    """Yield warnings for a reader of the scores: checks that count for nothing, and scores with a part missing."""
    by_judge_alone = {one.dimension for one in resolutions if one.policy.policy == "judge_only"}
    for check in checks:
        if check.outcome == ERROR:
            yield f"Check {check.check_id} could not be decided and counts as not passed."
        elif check.outcome == FAIL and "task" in by_judge_alone and "task" in check.dimensions:
            yield f"Check {check.check_id} failed, but task is scored by the judge alone."
    for one in resolutions:
        words = _WARNINGS.get((one.policy.policy, one.source))
        if words is not None:
            yield f"{one.dimension} {words}"


_SOURCES: Mapping[str, tuple[Source, Source, Source]] = {
    "judge_only": ("judge", "judge", "missing"),
    "deterministic_only": ("deterministic", "missing", "deterministic"),
    "weighted": ("weighted", "judge", "deterministic"),
}
"""By policy: the source where there are both scores, the judge's alone, that of the checks alone."""
_WARNINGS: Mapping[tuple[str, Source], str] = {
    ("weighted", "judge"): "is weighted, but no check counts for it: its score is the judge's.",
    ("weighted", "deterministic"): "is weighted, but the judge has no score: its score is that of the checks.",
    ("deterministic_only", "missing"): "is scored by checks alone, but no check counts for it: it has no score.",
}


def _source(policy: DimensionPolicy, deterministic: float | None, judge: float | None) -> Source:
    if deterministic is None and judge is None:
        return "missing"
    both, judge_alone, checks_alone = _SOURCES[policy.policy]
    if deterministic is None:
        return judge_alone
    return checks_alone if judge is None else both
