"""The question behind a recorded judgement, made again from the exchange and a policy.

A judgement keeps the fingerprint of its question and not the prompt. A question that is made again and has that fingerprint is the one that
was asked, to the letter; any other is not, however alike it may be.
"""

from __future__ import annotations

from collections.abc import Iterator

from audit.exchanges.applicability import applicable
from audit.exchanges.questions import Question
from audit.policy.policy import ProjectPolicy
from audit.prompts.exchange_prompts import ExchangeQuestions
from schemas.records import Exchange, Judgement


def questions_about(exchange: Exchange, policy: ProjectPolicy) -> Iterator[Question]:
    """The questions that a policy can ask about an exchange; those of Tier 3 twice where a flag makes more dimensions apply."""
    questions = ExchangeQuestions(exchange, policy)
    yield questions.tier2()
    if exchange.agent_thinking:
        yield questions.thinking()
    for flagged in (False, True):
        if dimensions := applicable(exchange, policy, flagged=flagged):
            yield questions.tier3(dimensions)


def rebuilt(exchange: Exchange, policy: ProjectPolicy, judgement: Judgement) -> Question | None:
    """The question that the judgement answers; None where the exchange and this policy do not make it."""
    return next((one for one in questions_about(exchange, policy) if one.fingerprint == judgement.fingerprint), None)
