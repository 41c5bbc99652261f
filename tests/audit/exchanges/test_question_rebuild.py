"""`rebuild_question` returns exactly the question that the judge answered, or None."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import exchange, judgement

from audit.exchanges.cascade import rebuild_question
from audit.exchanges.prompts import thinking_question, tier2_question, tier3_question
from audit.policy import Policy

POLICY = Policy().for_project("ops")
TILT_POLICY = Policy.model_validate({"defaults": {"methodology": "tilt"}}).for_project("ops")
BUILDERS = {
    "tier2": lambda audited: tier2_question(audited, POLICY),
    "tier2_5": lambda audited: thinking_question(audited, POLICY),
    "tier3": lambda audited: tier3_question(audited, POLICY, POLICY.methodology.tier3[:2]),
}


@pytest.mark.parametrize("purpose", BUILDERS)
@given(st.text(), st.text())
def test_the_question_of_a_judgement_is_rebuilt(purpose: str, message: str, response: str) -> None:
    """The exchange page shows this prompt as the one that was sent, whatever the texts contain."""
    audited_exchange = exchange("s", 1, response, user_message="Is it? " + message, agent_thinking="Hm.")
    question = BUILDERS[purpose](audited_exchange)
    stored_judgement = judgement("s", 1, purpose, fingerprint=question.fingerprint)
    rebuilt = rebuild_question(audited_exchange, POLICY, stored_judgement)
    assert rebuilt is not None
    assert rebuilt.instructions == question.instructions
    assert rebuilt.content("x") == question.content("x")
    assert rebuilt.schema == question.schema


@pytest.mark.parametrize("purpose", BUILDERS)
def test_a_question_with_another_fingerprint_is_not_rebuilt(purpose: str) -> None:
    """A different letter, exchange or policy means that the judge answered another question."""
    audited_exchange = exchange("s", 1, "It is done.", agent_thinking="Hm.")
    question = BUILDERS[purpose](audited_exchange)
    stored_judgement = judgement("s", 1, purpose, fingerprint=question.fingerprint)
    assert rebuild_question(exchange("s", 1, "It is done!", agent_thinking="Hm."), POLICY, stored_judgement) is None
    assert rebuild_question(exchange("s", 2, "It is done.", agent_thinking="Hm."), POLICY, stored_judgement) is None
    assert rebuild_question(audited_exchange, TILT_POLICY, stored_judgement) is None


def test_dimensions_that_apply_because_of_a_flag_are_rebuilt() -> None:
    """The exchange does not contain whether Tier 2 raised a flag."""
    audited_exchange = exchange("s", 1)
    flagged = [dimension for dimension in TILT_POLICY.methodology.tier3 if dimension.when in {"always", "high_stakes"}]
    question = tier3_question(audited_exchange, TILT_POLICY, flagged)
    stored_judgement = judgement("s", 1, "tier3", fingerprint=question.fingerprint)
    rebuilt = rebuild_question(audited_exchange, TILT_POLICY, stored_judgement)
    assert rebuilt is not None
    assert rebuilt.task == question.task
    assert rebuilt.schema == question.schema
    assert "trust_signal_accuracy" in rebuilt.task


def test_an_evaluation_question_is_not_rebuilt() -> None:
    """An evaluation asks about a whole run, not about one exchange."""
    assert rebuild_question(exchange("s", 1), POLICY, judgement("s", 1, "evaluation")) is None
