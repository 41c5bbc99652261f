"""A judge that is out of reach ends what waits for it; one that answers now and then does not."""

from __future__ import annotations

import pytest

from service.write.evaluating import JudgeOutOfReachError, Reach


def test_rounds_of_calls_without_any_answer_end_the_waiting() -> None:
    """A thousand questions, two minutes each: nobody would know before the next morning."""
    reach = Reach(calls_at_once=4)
    reach.hear({"provider_error": 6, "timeout": 5})
    with pytest.raises(JudgeOutOfReachError, match="none of its last 12 questions") as caught:
        reach.hear({"provider_error": 6, "timeout": 6})
    assert "driftline doctor" in caught.value.hint


def test_an_answer_between_says_that_the_judge_is_there() -> None:
    """Single calls that fail are what repetitions are for."""
    reach = Reach(calls_at_once=4)
    for number in range(1, 50):
        reach.hear({"provider_error": 11 * number, "answered": number})


def test_a_refusal_is_an_answer_of_a_judge_that_is_there() -> None:
    """It counts in no score, and another question may be answered."""
    Reach(calls_at_once=1).hear({"refused": 1000, "invalid": 1000, "cost_cap": 1000})
