"""A rebuilt question is exactly the one that was asked, or None."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import exchange, judgement

from audit.exchanges.cascade import rebuild_question
from audit.exchanges.prompts import thinking_question, tier2_question, tier3_question
from audit.policy import Policy

POLICY = Policy().for_project("ops")
TILT = Policy.model_validate({"defaults": {"methodology": "tilt"}}).for_project("ops")
PURPOSES = {
    "tier2": lambda audited_exchange: tier2_question(audited_exchange, POLICY),
    "tier2_5": lambda audited_exchange: thinking_question(audited_exchange, POLICY),
    "tier3": lambda audited_exchange: tier3_question(audited_exchange, POLICY, POLICY.methodology.tier3[:2]),
}


@pytest.mark.parametrize("purpose", PURPOSES)
@given(st.text(), st.text())
def test_the_question_of_a_judgement_is_rebuilt(purpose: str, message: str, response: str) -> None:
    """The prompt on the page must be exactly that of the call, for any texts."""
    audited_exchange = exchange("s", 1, response, user_message="Is it? " + message, agent_thinking="Hm.")
    question = PURPOSES[purpose](audited_exchange)
    rebuilt = rebuild_question(audited_exchange, POLICY, judgement("s", 1, purpose, fingerprint=question.fingerprint))
    assert rebuilt is not None
    assert question.instructions == rebuilt.instructions
    assert question.content("x") == rebuilt.content("x")
    assert question.schema == rebuilt.schema


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_question_about_another_text_is_not_rebuilt(purpose: str) -> None:
    """A difference of one letter is enough."""
    audited_exchange = exchange("s", 1, "It is done.", agent_thinking="Hm.")
    question = judgement("s", 1, purpose, fingerprint=PURPOSES[purpose](audited_exchange).fingerprint)
    assert rebuild_question(exchange("s", 1, "It is done!", agent_thinking="Hm."), POLICY, question) is None
    assert rebuild_question(exchange("s", 2, "It is done.", agent_thinking="Hm."), POLICY, question) is None
    assert rebuild_question(audited_exchange, TILT, question) is None


def test_dimensions_that_apply_because_of_a_flag_are_rebuilt() -> None:
    """The exchange does not contain whether Tier 2 raised a flag."""
    audited_exchange = exchange("s", 1)
    flagged = [dimension for dimension in TILT.methodology.tier3 if dimension.when in {"always", "high_stakes"}]
    question = tier3_question(audited_exchange, TILT, flagged)
    rebuilt = rebuild_question(audited_exchange, TILT, judgement("s", 1, "tier3", fingerprint=question.fingerprint))
    assert rebuilt is not None
    assert question.task == rebuilt.task
    assert question.schema == rebuilt.schema
    assert "trust_signal_accuracy" in rebuilt.task


def test_other_questions_are_not_rebuilt() -> None:
    """Evaluations of whole runs have other prompts."""
    assert rebuild_question(exchange("s", 1), POLICY, judgement("s", 1, "evaluation")) is None
