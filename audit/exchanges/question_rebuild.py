"""The question behind a recorded judgement, made again from the exchange and a policy.

A judgement keeps the fingerprint of its question and not the prompt. A question that is made again and has that fingerprint is the one that
was asked, to the letter; any other is not, however alike it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from audit.exchanges.applicability import Circumstances, applies
from audit.exchanges.questions import Question
from audit.policy.policy import ProjectPolicy
from audit.prompts.exchange_prompts import TIER2, TIER2_5, TIER3, thinking_question, tier2_question, tier3_question
from schemas.records import Exchange, Judgement


def rebuilt(exchange: Exchange, policy: ProjectPolicy, judgement: Judgement) -> Question | None:
    """The question that the judgement answers; None where the exchange and this policy do not make it."""
    made = _MAKERS.get(judgement.purpose, _nothing)(exchange, policy)
    return next((one for one in made if one.fingerprint == judgement.fingerprint), None)


def _tier3(exchange: Exchange, policy: ProjectPolicy) -> Iterator[Question]:
    """The questions of Tier 3, as a flag makes more dimensions apply: without one, and with one."""
    for flagged in (False, True):
        case = Circumstances(
            user_message=exchange.user_message,
            agent_response=exchange.agent_response,
            flagged=flagged,
            multi_user=exchange.multi_user,
        )
        dimensions = [one for one in policy.methodology.tier3 if applies(one.when, case)]
        if dimensions:
            yield tier3_question(exchange, policy, dimensions)


def _nothing(_exchange: Exchange, _policy: ProjectPolicy) -> Iterator[Question]:
    yield from ()


_MAKERS: Mapping[str, Callable[[Exchange, ProjectPolicy], Iterator[Question]]] = {
    TIER2: lambda exchange, policy: iter([tier2_question(exchange, policy)]),
    TIER2_5: lambda exchange, policy: iter([thinking_question(exchange, policy)]),
    TIER3: _tier3,
}
