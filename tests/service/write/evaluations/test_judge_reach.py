"""Evaluating fails if the judge is out of reach, and goes on if the judge still answers now and then."""

from __future__ import annotations

import pytest

from service.write.evaluating import JudgeCircuitBreaker, JudgeUnresponsiveError


def test_rounds_of_calls_without_an_answer_end_the_evaluation() -> None:
    """With a thousand questions and a timeout of two minutes, the failure would be noticed only the next morning."""
    breaker = JudgeCircuitBreaker(calls_at_once=4)
    breaker.record({"provider_error": 6, "timeout": 5})
    with pytest.raises(JudgeUnresponsiveError, match="none of its last 12 questions") as caught:
        breaker.record({"provider_error": 6, "timeout": 6})
    assert "driftline doctor" in caught.value.hint


def test_an_answer_in_between_shows_that_the_judge_is_reachable() -> None:
    """Single failed calls are covered by repetitions."""
    breaker = JudgeCircuitBreaker(calls_at_once=4)
    for number in range(1, 50):
        breaker.record({"provider_error": 11 * number, "answered": number})


def test_a_refusal_shows_that_the_judge_is_reachable() -> None:
    """The judge is reachable, and may answer another question."""
    JudgeCircuitBreaker(calls_at_once=1).record({"refused": 1000, "invalid": 1000, "cost_cap": 1000})
