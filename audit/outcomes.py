"""From what was found about an exchange to its score: one definition of the states, dispositions and ids.

A tier is in exactly one state: scored, not_applicable, skipped_gate, skipped_cost_cap, skipped_sampling or unscored (with a
reason). Unscored is a state, not a number.
"""

from __future__ import annotations

from typing import NamedTuple

from audit.anomalies import anomaly_reasons
from audit.fingerprints import stable_id
from audit.policy import ProjectPolicy
from schemas.records import Exchange, Score

RULE_VERSION = "eval-1"
"""Version of Tier 1, sampling and the cascade."""
NOT_APPLICABLE = "not_applicable"
SKIPPED_SAMPLING = "skipped_sampling"
UNSCORED = "unscored"


class TierState(NamedTuple):
    """State of a tier and why it is in it."""

    state: str
    reason: str


NO_JUDGE = TierState(UNSCORED, "no_judge")
"""What the judged tiers are when no judge is configured."""
LEFT_OUT = TierState(SKIPPED_SAMPLING, "sampling_skip")
"""What the judged tiers are when the exchange was not sampled."""
NO_THINKING = TierState(NOT_APPLICABLE, "no_thinking")
"""What Tier 2.5 is when there is no thinking to compare with."""
THINKING_OFF = TierState(NOT_APPLICABLE, "thinking_analysis_off")
"""What Tier 2.5 is when the policy switches it off."""


def score_id(connection: str, exchange_id: str) -> str:
    """Id of the one score an exchange has."""
    return stable_id("score", connection, exchange_id)


def thinking_state(exchange: Exchange, policy: ProjectPolicy, otherwise: TierState) -> TierState:
    """State of Tier 2.5: not applicable without thinking or where the policy switches it off, else as given."""
    if not exchange.agent_thinking:
        return NO_THINKING
    return otherwise if policy.settings.thinking_block_analysis else THINKING_OFF


def structural_score(
    exchange: Exchange,
    policy: ProjectPolicy,
    *,
    revision: int,
    turn_number: int,
    sampling_reason: str,
    sampling_probability: float | None,
    tier1_score: float,
    tier1_flags: tuple[str, ...],
    judged: TierState,
) -> Score:
    """The score of an exchange that no judge has seen: Tier 1, and the state `judged` for the tiers that want one."""
    thinking = thinking_state(exchange, policy, judged)
    reasons = anomaly_reasons(tier1_flags, {}, None)
    return Score(
        score_id=score_id(exchange.connection, exchange.exchange_id),
        revision=revision,
        exchange_id=exchange.exchange_id,
        connection=exchange.connection,
        project=exchange.project,
        agent=exchange.agent,
        session_id=exchange.session_id,
        turn_number=turn_number,
        exchange_at=exchange.occurred_at,
        scored_at=exchange.ingested_at,
        disposition="sampling_skip" if judged is LEFT_OUT else UNSCORED,
        sampling_reason=sampling_reason,
        sampling_probability=sampling_probability,
        tier1_score=tier1_score,
        tier1_flags=tier1_flags,
        tier2_state=judged.state,
        tier2_reason=judged.reason,
        tier2_5_state=thinking.state,
        tier2_5_reason=thinking.reason,
        tier3_state=judged.state,
        tier3_reason=judged.reason,
        anomaly=bool(reasons),
        anomaly_reasons=reasons,
        cost_usd=0.0,
        methodology=policy.methodology.name,
        methodology_version=policy.methodology.version,
        methodology_digest=policy.methodology.digest,
        rule_version=RULE_VERSION,
        policy_digest=policy.digest,
        evidence_digest=exchange.content_digest,
    )
