"""A question that is made again is the one that was asked, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import exchange, judgement

from audit.exchanges.cascade import rebuilt
from audit.exchanges.prompts import thinking_question, tier2_question, tier3_question
from audit.policy import Policy

POLICY = Policy().for_project("ops")
TILT = Policy.model_validate({"defaults": {"methodology": "tilt"}}).for_project("ops")
PURPOSES = {
    "tier2": lambda said: tier2_question(said, POLICY),
    "tier2_5": lambda said: thinking_question(said, POLICY),
    "tier3": lambda said: tier3_question(said, POLICY, POLICY.methodology.tier3[:2]),
}


@pytest.mark.parametrize("purpose", PURPOSES)
@given(st.text(), st.text())
def test_the_question_behind_a_judgement_is_found_again(purpose: str, message: str, response: str) -> None:
    """Whatever the texts: the prompt of the page is that of the call, to the letter."""
    said = exchange("s", 1, response, user_message="Is it? " + message, agent_thinking="Hm.")
    asked = PURPOSES[purpose](said)
    made = rebuilt(said, POLICY, judgement("s", 1, purpose, fingerprint=asked.fingerprint))
    assert made is not None
    assert (asked.instructions, asked.content("x"), asked.schema) == (made.instructions, made.content("x"), made.schema)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_question_about_another_text_is_not_taken_for_it(purpose: str) -> None:
    """Not even where one letter differs."""
    said = exchange("s", 1, "It is done.", agent_thinking="Hm.")
    asked = judgement("s", 1, purpose, fingerprint=PURPOSES[purpose](said).fingerprint)
    assert rebuilt(exchange("s", 1, "It is done!", agent_thinking="Hm."), POLICY, asked) is None
    assert rebuilt(exchange("s", 2, "It is done.", agent_thinking="Hm."), POLICY, asked) is None
    assert rebuilt(said, TILT, asked) is None


def test_dimensions_that_a_flag_made_apply_are_found_again() -> None:
    """Whether Tier 2 raised a flag is not in the exchange."""
    said = exchange("s", 1)
    flagged = [one for one in TILT.methodology.tier3 if one.when in {"always", "high_stakes"}]
    asked = tier3_question(said, TILT, flagged)
    made = rebuilt(said, TILT, judgement("s", 1, "tier3", fingerprint=asked.fingerprint))
    assert made is not None
    assert (asked.task, asked.schema) == (made.task, made.schema)
    assert "trust_signal_accuracy" in made.task


def test_what_is_no_question_about_an_exchange_is_not_made_again() -> None:
    """Evaluations of whole runs have prompts of their own."""
    assert rebuilt(exchange("s", 1), POLICY, judgement("s", 1, "evaluation")) is None
