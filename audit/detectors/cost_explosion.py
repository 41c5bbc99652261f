"""Cost explosion: too many tokens, or duplicate calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import Reference, SessionEvidence, Share, duplicates_of

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
    version=3,
    order=5,
    rule=Rule(
        fires="12,000 tokens or d >= 3",
        severity="critical from 30,000 tokens, else high",
        penalty="-min(30, 10 + 4d + tokens // 6000)",
    ),
    cases=Cases(
        found=[{"event": "token_usage", "total": 12_000}],
        silent=[{"event": "token_usage", "total": 11_999}],
    ),
)
def cost_explosion(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find sessions with 12,000 tokens or more, or three duplicate calls.

    For a transcript, new tokens and duplicate calls of one exchange count. The evidence has the largest token_usage events, up to
    twelve, that together reach the threshold of tokens, and the repeated calls if they reach theirs.
    """
    total = evidence.total_tokens
    new_tokens = evidence.new_tokens
    repeated = evidence.most_repeated_except(thresholds.polling_tools)
    duplicates = duplicates_of(repeated)
    spent = {
        *_select_shares(total, thresholds.session_tokens, evidence.largest),
        *_select_shares(new_tokens.max_count, thresholds.exchange_tokens, new_tokens.max_shares),
    }
    is_expensive = _reaches(total, thresholds.session_tokens) or _reaches(new_tokens.max_count, thresholds.exchange_tokens)
    if not is_expensive and duplicates < thresholds.duplicate_calls:
        return []
    if duplicates < thresholds.duplicate_calls:
        repeated = []
    is_critical = _reaches(total, thresholds.critical_session_tokens) or _reaches(
        new_tokens.max_count, thresholds.critical_exchange_tokens
    )
    tokens, used = _describe_tokens(evidence, thresholds)
    return [
        COST_EXPLOSION.cause(
            "critical" if is_critical else "high",
            10 + 4 * duplicates + tokens // 6000,
            f"{used} with {pluralize(duplicates, 'duplicate tool call')}.",
            (*sorted(spent), *sorted(reference for calls in repeated for reference in calls.references)),
            evidence_count=len(spent) + sum(calls.count for calls in repeated),
        )
    ]


def _reaches(value: int, threshold: int | None) -> bool:
    return threshold is not None and value >= threshold


def _select_shares(value: int, threshold: int | None, shares: Iterable[Share]) -> Iterator[Reference]:
    """Yield the largest shares of a value until their sum reaches the threshold; none if the value does not reach it."""
    if threshold is None or value < threshold:
        return
    missing = threshold
    for negated_amount, seq, event_id in shares:
        yield seq, event_id
        missing += negated_amount
        if missing <= 0:
            return


def _describe_tokens(evidence: SessionEvidence, thresholds: Thresholds) -> tuple[int, str]:
    """Return the tokens that the thresholds apply to, and their description."""
    if thresholds.session_tokens is not None:
        return evidence.total_tokens, f"Session used {pluralize(evidence.total_tokens, 'token')}"
    max_tokens = evidence.new_tokens.max_count
    return max_tokens, f"An exchange took up to {pluralize(max_tokens, 'new token')}"
