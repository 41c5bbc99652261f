"""Cost explosion: too many tokens, or calls that were paid for twice."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, counted, detector
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SPENDING_REFERENCES, SessionEvidence

COST_EXPLOSION = FailureType(
    name="cost_explosion",
    title="Cost explosion",
    dimension="cost_efficiency",
    dimension_title="Cost efficiency",
    weight=15,
    largest_penalty=30,
    causal_chain=("repeated_reasoning_or_calls", "token_waste", "cost_spike"),
    remediation="Review tool call efficiency; add token budget guards to prevent runaway token accumulation across "
    "multi-turn sessions",
)


@detector(
    COST_EXPLOSION,
    version=2,
    place=5,
    rule=Rule(
        fires="12 000 tokens or d >= 3",
        severity="critical from 30 000 tokens, else high",
        penalty="-min(30, 10 + 4d + tokens // 6000)",
    ),
    cases=Cases(
        found=[{"event": "token_usage", "total": 12_000}],
        silent=[{"event": "token_usage", "total": 11_999}],
    ),
)
def cost_explosion(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """12 000 tokens or more, or three duplicate calls. Evidence: the first twelve token_usage and tool_call events.

    Of a transcript the new tokens of an exchange count, and the duplicate calls of one.
    """
    total, most = evidence.total_tokens, evidence.new_tokens.most
    duplicates = evidence.most_duplicates_but(thresholds.polling_tools)
    is_expensive = _reaches(total, thresholds.session_tokens) or _reaches(most, thresholds.exchange_tokens)
    if not is_expensive and duplicates < thresholds.duplicate_calls:
        return []
    is_critical = _reaches(total, thresholds.critical_session_tokens) or _reaches(most, thresholds.critical_exchange_tokens)
    spent, used = _spent(evidence, thresholds)
    return [
        COST_EXPLOSION.cause(
            "critical" if is_critical else "high",
            10 + 4 * duplicates + spent // 6000,
            f"{used} with {counted(duplicates, 'duplicate tool call')}.",
            evidence.spending,
            evidence_count=min(SPENDING_REFERENCES, evidence.count("token_usage") + evidence.count("tool_call")),
        )
    ]


def _reaches(value: int, threshold: int | None) -> bool:
    return threshold is not None and value >= threshold


def _spent(evidence: SessionEvidence, thresholds: Thresholds) -> tuple[int, str]:
    """The tokens that the thresholds look at, and how the description says them."""
    if thresholds.session_tokens is not None:
        return evidence.total_tokens, f"Session used {counted(evidence.total_tokens, 'token')}"
    most = evidence.new_tokens.most
    return most, f"An exchange took up to {counted(most, 'new token')}"
