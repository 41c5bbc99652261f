"""Relevance: picks the recorded judgements that answer the questions of the policy in force."""

from __future__ import annotations

from collections.abc import Sequence

from audit.exchanges.applicability import Circumstances, applies
from audit.policy.policy import ProjectPolicy
from audit.prompts.exchange_prompts import thinking_question, tier2_question, tier3_question
from schemas.records import Exchange, Judgement


def of_these_questions(exchange: Exchange, policy: ProjectPolicy, recorded: Sequence[Judgement]) -> list[Judgement]:
    """The judgements of questions that the policy asks, whatever the answers come to.

    Another policy's were paid for, too, but not for these scores: they neither use up a session's cap nor count as what a score cost.
    """
    asked = {tier2_question(exchange, policy).fingerprint}
    if exchange.agent_thinking:
        asked.add(thinking_question(exchange, policy).fingerprint)
    for flagged in (False, True):
        circumstances = Circumstances(
            user_message=exchange.user_message,
            agent_response=exchange.agent_response,
            flagged=flagged,
            multi_user=exchange.multi_user,
        )
        dimensions = tuple(one for one in policy.methodology.tier3 if applies(one.when, circumstances))
        if dimensions:
            asked.add(tier3_question(exchange, policy, dimensions).fingerprint)
    return [one for one in recorded if one.fingerprint in asked]
