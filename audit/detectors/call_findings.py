"""Alternating and near-duplicate calls: findings about patterns of calls, enabled by a policy's thresholds.

Their impact is 0 and they have no dimension, so no trust score or readiness depends on them. See
`audit.detectors.call_patterns` for the patterns.
"""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize, printable
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SessionEvidence

ALTERNATING_CALLS = FailureType(
    name="alternating_calls",
    title="Alternating calls",
    causal_chain=("tool_call", "other_tool_call", "same_calls_in_turn", "alternation_flagged"),
    remediation="Give the agent a way out of undoing and redoing: say when either call is enough, and cap how often both "
    "may be made without another step between them",
)
NEAR_DUPLICATE_CALLS = FailureType(
    name="near_duplicate_calls",
    title="Near-duplicate calls",
    causal_chain=("tool_call", "answer_not_used", "rephrased_tool_call", "near_duplicates_flagged"),
    remediation="Tell the agent what an empty or unhelpful result means, so that it changes its approach instead of the "
    "wording of the same call",
)
_READ_CALL, _EDIT_CALL = ({"event": "tool_call", "tool": tool, "args": {"path": "a"}} for tool in ("read", "edit"))
_FIRST_SEARCH, _REPHRASED_SEARCH, _OTHER_SEARCH = (
    {"event": "tool_call", "tool": "search", "args": {"q": text}}
    for text in ("where is the parcel sent on Monday", "Where is the parcel, sent on MONDAY", "refund for a broken lamp")
)


@detector(
    ALTERNATING_CALLS,
    version=1,
    threshold="alternating_rounds",
    rule=Rule(fires="two calls n >= alternatingRounds times in turn", severity="medium", penalty="0"),
    cases=Cases(found=[_READ_CALL, _EDIT_CALL] * 3, silent=[_READ_CALL, _EDIT_CALL, _OTHER_SEARCH] * 3),
)
def alternating_calls(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find the longest run of two calls in turn, each with unchanged arguments and no other call in between (ping-pong).

    In a transcript, within an exchange. Polling neither interrupts a run nor is part of one.
    """
    if evidence.patterns is None or thresholds.alternating_rounds is None:
        return []
    alternation = evidence.patterns.alternation
    if alternation.rounds < thresholds.alternating_rounds:
        return []
    first_tool, second_tool = map(printable, alternation.pair)
    description = f"Two tool calls alternated for {alternation.rounds} rounds with unchanged arguments. Tools: {first_tool}, {second_tool}."
    return [ALTERNATING_CALLS.cause("medium", 0, description, alternation.references, evidence_count=alternation.calls)]


@detector(
    NEAR_DUPLICATE_CALLS,
    version=1,
    threshold="near_duplicate_calls",
    rule=Rule(
        fires="n >= nearDuplicateCalls calls that nearly repeat one of the 10 before them", severity="medium", penalty="0"
    ),
    cases=Cases(found=[_FIRST_SEARCH, _REPHRASED_SEARCH] * 3, silent=[_FIRST_SEARCH, _OTHER_SEARCH]),
)
def near_duplicate_calls(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find calls of a tool that nearly repeat one of the 10 previous calls: the same keys and numbers, nearly the same words.

    Case, spacing and order do not matter; equal arguments are a loop instead. In a transcript, within an exchange.
    """
    patterns = evidence.patterns
    if (
        patterns is None
        or thresholds.near_duplicate_calls is None
        or patterns.near_duplicates < thresholds.near_duplicate_calls
    ):
        return []
    n = patterns.near_duplicates
    description = f"{pluralize(n, 'tool call')} nearly repeated an earlier one. First tool: {printable(patterns.near_tool)}."
    return [NEAR_DUPLICATE_CALLS.cause("medium", 0, description, patterns.near_references, evidence_count=n)]
