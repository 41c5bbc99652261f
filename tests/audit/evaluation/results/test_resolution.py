"""Combining checks and judge: which score counts under which policy, and the warnings for missing parts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.evaluation_builders import check

from audit.evaluation.cases import DimensionPolicy
from audit.evaluation.results import deterministic_score, normalised, resolution_warnings, resolve, weighted
from schemas.records import CheckOutcome

SCORES = st.floats(0, 10)
WEIGHTS = st.floats(0, 1_000)
OUTCOMES = st.lists(st.sampled_from(["pass", "fail", "error"]), max_size=20)
WEIGHTED = DimensionPolicy(policy="weighted", judge_weight=3, deterministic_weight=1)


def checks(*outcomes: str, dimension: str = "task") -> list[CheckOutcome]:
    """Return a check of each outcome."""
    return [check(f"check-{number}", outcome, (dimension,)) for number, outcome in enumerate(outcomes, 1)]


@given(OUTCOMES, OUTCOMES)
def test_the_deterministic_score_is_ten_times_the_share_of_mapped_checks_that_passed(
    mapped: list[str], others: list[str]
) -> None:
    """An error counts as not passed, and checks of other dimensions do not count."""
    resolution = deterministic_score("task", [*checks(*others, dimension="spark"), *checks(*mapped)])
    assert (10 * mapped.count("pass") / len(mapped) if mapped else None) == resolution


@given(SCORES, SCORES, WEIGHTS, WEIGHTS)
def test_weighted_is_the_mean_by_normalised_weights_and_lies_between_both_scores(
    judge: float, deterministic: float, judge_weight: float, deterministic_weight: float
) -> None:
    """Weights are normalized, and rounding must not move the score outside of its two parts."""
    assume(judge_weight + deterministic_weight > 0)
    policy = DimensionPolicy(policy="weighted", judge_weight=judge_weight, deterministic_weight=deterministic_weight)
    resolution = weighted(judge, deterministic, policy)
    shares = normalised(policy)
    assert Fraction(1) == sum(shares)
    exact = Fraction(judge_weight) * Fraction(judge) + Fraction(deterministic_weight) * Fraction(deterministic)
    assert float(exact / (Fraction(judge_weight) + Fraction(deterministic_weight))) == resolution
    assert min(judge, deterministic) <= resolution <= max(judge, deterministic)


@given(SCORES, st.integers(1, 9))
def test_weights_count_by_their_proportion_only(judge: float, factor: int) -> None:
    """0.75 and 0.25 are the same policy as 3 and 1."""
    scaled = DimensionPolicy(policy="weighted", judge_weight=3.0 * factor, deterministic_weight=1.0 * factor)
    assert weighted(judge, 10.0, WEIGHTED) == weighted(judge, 10.0, scaled)


@pytest.mark.parametrize(
    ("policy", "outcomes", "judge", "source", "final"),
    [
        ("judge_only", ("pass", "fail"), 8.0, "judge", 8.0),
        ("judge_only", (), 8.0, "judge", 8.0),
        ("judge_only", ("pass",), None, "missing", None),
        ("judge_only", (), None, "missing", None),
        ("deterministic_only", ("pass", "error"), 8.0, "deterministic", 5.0),
        ("deterministic_only", ("fail",), None, "deterministic", 0.0),
        ("deterministic_only", (), 8.0, "missing", None),
        ("deterministic_only", (), None, "missing", None),
        ("weighted", ("fail",), 8.0, "weighted", 6.0),
        ("weighted", (), 8.0, "judge", 8.0),
        ("weighted", ("pass",), None, "deterministic", 10.0),
        ("weighted", (), None, "missing", None),
    ],
)
def test_each_policy_takes_its_score_from_what_there_is(
    policy: str, outcomes: tuple[str, ...], judge: float | None, source: str, final: float | None
) -> None:
    """A missing score never counts as 0, and the source of every score is stated."""
    said = DimensionPolicy.model_validate({"policy": policy, "judge_weight": 3, "deterministic_weight": 1})
    resolution = resolve("task", said, checks(*outcomes), judge)
    assert resolution.source == source
    assert resolution.final == final
    assert resolution.judge == judge
    assert resolution.deterministic == deterministic_score("task", checks(*outcomes))


@pytest.mark.parametrize(
    ("policy", "outcomes", "judge", "warnings"),
    [
        ("judge_only", ("pass",), 8.0, []),
        ("judge_only", ("fail",), 8.0, ["Check check-1 failed"]),
        ("judge_only", ("error",), 8.0, ["Check check-1 could not be decided"]),
        ("deterministic_only", ("fail",), 8.0, []),
        ("deterministic_only", (), 8.0, ["task is scored by checks alone"]),
        ("weighted", ("fail",), 8.0, []),
        ("weighted", (), 8.0, ["task is weighted, but no check counts"]),
        (
            "weighted",
            ("pass",),
            None,
            ["task is weighted, but the judge has no score"],
        ),
    ],
)
def test_what_a_score_does_not_show_is_a_warning(
    policy: str, outcomes: tuple[str, ...], judge: float | None, warnings: list[str]
) -> None:
    """A failed check that changes no score, and a score without one of its parts, would be overlooked otherwise."""
    resolution = checks(*outcomes)
    resolved = resolve("task", DimensionPolicy.model_validate({"policy": policy}), resolution, judge)
    told = list(resolution_warnings([resolved], resolution))
    assert len(told) == len(warnings)
    assert all(item.startswith(warning) for item, warning in zip(told, warnings, strict=True)), told


def test_a_failed_check_of_another_dimension_is_no_warning() -> None:
    """Only `task` says whether the run did its job."""
    resolution = checks("fail", dimension="efficiency")
    resolved = [resolve(item, DimensionPolicy(), resolution, 8.0) for item in ("task", "efficiency")]
    assert list(resolution_warnings(resolved, resolution)) == []


def test_a_failed_check_of_a_dimension_that_the_case_does_not_declare_is_no_warning() -> None:
    """Without a judge's score, nothing contradicts the check."""
    resolved = [resolve("spark", DimensionPolicy(), checks("fail"), 8.0)]
    assert list(resolution_warnings(resolved, checks("fail"))) == []
