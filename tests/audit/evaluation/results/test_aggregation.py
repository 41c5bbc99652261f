"""From iterations to one score: the median or mean of the successful ones, in any order."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.evaluation.cases import Method
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.questions import Assessment, EvaluationAnswer
from audit.evaluation.results import aggregate

METHODS: tuple[Method, ...] = ("median", "mean")
SCORES = st.floats(0, 10) | st.integers(0, 100).map(lambda tenths: tenths / 10)


@st.composite
def iterations(draw: st.DrawFn) -> dict[int, EvaluationAnswer]:
    """Return answers about task and spark by number of iteration, each with distinct evidence."""
    numbers = draw(st.lists(st.integers(1, 50), min_size=1, max_size=9, unique=True))
    return {number: answered(number, draw(SCORES), draw(SCORES), draw(SCORES)) for number in numbers}


def answered(number: int, overall: float, task: float = 5.0, spark: float = 5.0) -> EvaluationAnswer:
    """Return an answer whose evidence names its iteration."""
    scores = {"task": task, "spark": spark}
    return EvaluationAnswer(
        {item: Assessment((f"{item} in {number}",), scores[item]) for item in DIMENSIONS if item in scores},
        Assessment((f"overall in {number}",), overall),
    )


def middle(scores: list[float], method: Method) -> float:
    """Return the median or mean by definition, in exact arithmetic."""
    exact = sorted(map(Fraction, scores))
    half = len(exact) // 2
    if method == "mean":
        return float(sum(exact) / len(exact))
    return float(exact[half] if len(exact) % 2 else (exact[half - 1] + exact[half]) / 2)


@given(iterations(), st.sampled_from(METHODS))
def test_every_score_is_the_median_or_mean_of_the_iterations_that_succeeded(
    answers: dict[int, EvaluationAnswer], method: Method
) -> None:
    """The aggregate uses only the scores of successful iterations."""
    aggregates = aggregate(answers, method)
    assert aggregates is not None
    overall = [item.overall.score for item in answers.values()]
    assert middle(overall, method) == pytest.approx(aggregates.overall.score, rel=1e-15, abs=1e-300)
    assert aggregates.overall.spread == max(overall) - min(overall)
    for dimension in ("task", "spark"):
        scores = [item.dimensions[dimension].score for item in answers.values()]
        assert middle(scores, method) == pytest.approx(aggregates.dimensions[dimension].score, rel=1e-15, abs=1e-300)
        assert aggregates.dimensions[dimension].spread == max(scores) - min(scores)


@given(iterations(), st.sampled_from(METHODS))
def test_an_aggregate_lies_within_what_it_is_made_of(answers: dict[int, EvaluationAnswer], method: Method) -> None:
    """Rounding must not move a mean above its largest score, which could leave the scale."""
    aggregates = aggregate(answers, method)
    assert aggregates is not None
    scores = [item.overall.score for item in answers.values()]
    assert min(scores) <= aggregates.overall.score <= max(scores)


@given(iterations(), st.sampled_from(METHODS), st.randoms())
def test_the_order_of_the_iterations_never_matters(
    answers: dict[int, EvaluationAnswer], method: Method, chance: random.Random
) -> None:
    """Answers arrive in any order, and must give the same bytes."""
    shuffled = list(answers.items())
    chance.shuffle(shuffled)
    assert repr(aggregate(answers, method)) == repr(aggregate(dict(shuffled), method))


@given(iterations(), st.sampled_from(METHODS))
def test_the_evidence_is_that_of_the_iteration_nearest_to_the_aggregate(
    answers: dict[int, EvaluationAnswer], method: Method
) -> None:
    """All evidence is from the iteration nearest to the score, so that it is consistent."""
    aggregates = aggregate(answers, method)
    assert aggregates is not None
    distances = {number: abs(item.overall.score - aggregates.overall.score) for number, item in answers.items()}
    nearest = min(number for number, distance in distances.items() if distance == min(distances.values()))
    assert nearest == aggregates.evidence_iteration
    assert aggregates.overall.evidence == (f"overall in {nearest}",)
    assert [item.evidence for item in aggregates.dimensions.values()] == [(f"task in {nearest}",), (f"spark in {nearest}",)]


def test_of_two_iterations_that_are_as_near_the_first_gives_the_evidence() -> None:
    """With an even number of iterations, the median is between two of them."""
    aggregates = aggregate({4: answered(4, 6), 2: answered(2, 8)}, "median")
    assert aggregates is not None
    assert aggregates.overall.score == 7.0
    assert aggregates.evidence_iteration == 2
    assert aggregates.overall.spread == 2.0


def test_one_outlier_moves_the_mean_and_not_the_median() -> None:
    """An outlier changes the mean but hardly the median."""
    answers = {number: answered(number, score) for number, score in enumerate((8, 8, 0.5), 1)}
    aggregates = {method: aggregate(answers, method) for method in METHODS}
    assert {method: item.overall.score for method, item in aggregates.items() if item is not None} == {
        "median": 8.0,
        "mean": 5.5,
    }


def test_nothing_comes_of_no_iteration() -> None:
    """A score without answers would be averaged by somebody."""
    assert aggregate({}, "median") is None
