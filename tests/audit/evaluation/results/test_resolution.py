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


def build_checks(*outcomes: str, dimension: str = "task") -> list[CheckOutcome]:
    """Return one check outcome per given outcome, all mapped to a dimension."""
    return [check(f"check-{number}", outcome, (dimension,)) for number, outcome in enumerate(outcomes, 1)]


@given(OUTCOMES, OUTCOMES)
def test_the_deterministic_score_is_ten_times_the_share_of_mapped_checks_that_passed(
    mapped: list[str], unmapped: list[str]
) -> None:
    """An error counts as not passed, and checks of other dimensions do not count."""
    score = deterministic_score("task", [*build_checks(*unmapped, dimension="spark"), *build_checks(*mapped)])
    expected = 10 * mapped.count("pass") / len(mapped) if mapped else None
    assert score == expected


@given(SCORES, SCORES, WEIGHTS, WEIGHTS)
def test_the_weighted_score_is_the_exact_mean_between_both_scores(
    judge: float, deterministic: float, judge_weight: float, deterministic_weight: float
) -> None:
    """Weights are normalized, and rounding must not move the score outside of its two parts."""
    assume(judge_weight + deterministic_weight > 0)
    policy = DimensionPolicy(policy="weighted", judge_weight=judge_weight, deterministic_weight=deterministic_weight)
    score = weighted(judge, deterministic, policy)
    weighted_sum = Fraction(judge_weight) * Fraction(judge) + Fraction(deterministic_weight) * Fraction(deterministic)
    exact_mean = weighted_sum / (Fraction(judge_weight) + Fraction(deterministic_weight))
    assert sum(normalised(policy)) == Fraction(1)
    assert score == float(exact_mean)
    assert min(judge, deterministic) <= score <= max(judge, deterministic)


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
def test_each_policy_uses_the_scores_that_exist(
    policy: str, outcomes: tuple[str, ...], judge: float | None, source: str, final: float | None
) -> None:
    """A missing score never counts as 0, and the source of every score is stated."""
    dimension_policy = DimensionPolicy.model_validate({"policy": policy, "judge_weight": 3, "deterministic_weight": 1})
    resolution = resolve("task", dimension_policy, build_checks(*outcomes), judge)
    assert resolution.source == source
    assert resolution.final == final
    assert resolution.judge == judge
    assert resolution.deterministic == deterministic_score("task", build_checks(*outcomes))


@pytest.mark.parametrize(
    ("policy", "outcomes", "judge", "expected"),
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
def test_facts_that_the_score_hides_are_warnings(
    policy: str, outcomes: tuple[str, ...], judge: float | None, expected: list[str]
) -> None:
    """A failed check that changes no score, and a score without one of its parts, would be overlooked otherwise."""
    check_outcomes = build_checks(*outcomes)
    resolution = resolve("task", DimensionPolicy.model_validate({"policy": policy}), check_outcomes, judge)
    reported = list(resolution_warnings([resolution], check_outcomes))
    assert len(reported) == len(expected)
    for warning, start in zip(reported, expected, strict=True):
        assert warning.startswith(start)


def test_a_failed_check_of_another_dimension_is_no_warning() -> None:
    """Only `task` measures whether the run did its job."""
    check_outcomes = build_checks("fail", dimension="efficiency")
    resolutions = [resolve(dimension, DimensionPolicy(), check_outcomes, 8.0) for dimension in ("task", "efficiency")]
    assert list(resolution_warnings(resolutions, check_outcomes)) == []


def test_a_failed_check_of_a_dimension_that_the_case_does_not_declare_is_no_warning() -> None:
    """Without a judge's score, nothing contradicts the check."""
    resolutions = [resolve("spark", DimensionPolicy(), build_checks("fail"), 8.0)]
    assert list(resolution_warnings(resolutions, build_checks("fail"))) == []
