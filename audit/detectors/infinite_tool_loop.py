"""Infinite tool loop: the same call again and again."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize, printable
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import RETRY_REFERENCES, SessionEvidence

INFINITE_TOOL_LOOP = FailureType(
    name="infinite_tool_loop",
    title="Infinite tool loop",
    dimension="loop_control",
    dimension_title="Loop control",
    weight=20,
    largest_penalty=30,
    causal_chain=("tool_call", "tool_failure_or_no_progress", "retry_same_action", "loop_flagged"),
    remediation="Review loop termination conditions; add retry caps to prevent the agent from re-issuing identical "
    "tool calls without progress",
)


@detector(
    INFINITE_TOOL_LOOP,
    version=3,
    order=1,
    rule=Rule(
        fires="one call n >= 3 times",
        severity="critical if n >= 5 or r >= 3, else high",
        penalty="-min(30, 8 + 4n + 3r)",
    ),
    cases=Cases(
        found=[{"event": "tool_call", "tool": "t"}] * 3,
        silent=[{"event": "tool_call", "tool": "t", "args": n} for n in range(1, 9)],
    ),
)
def infinite_tool_loop(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find three or more calls of the same tool with the same arguments: one cause each, in order of first occurrence.

    Calls without a tool name are never identical. In a transcript, calls are repeated within an exchange, without another call
    in between. Evidence: those calls, then the first three retry events; for a transcript, those of the exchange with the most.
    """
    if evidence.count("tool_call") < thresholds.loop_calls:
        return []
    retries = evidence.retries_in_scope
    severe = thresholds.critical_retries is not None and retries >= thresholds.critical_retries
    scope = "exchange" if evidence.is_transcript else "session"
    retried = f" {pluralize(retries, 'retry event')} in the {scope}." if retries else ""
    return [
        INFINITE_TOOL_LOOP.cause(
            "critical" if severe or calls.count >= thresholds.critical_loop_calls else "high",
            8 + 4 * calls.count + 3 * retries,
            f"Tool call repeated {calls.count} times with matching arguments. Tool: {printable(calls.tool)}.{retried}",
            (*calls.references, *evidence.first_retries),
            evidence_count=calls.count + min(retries, RETRY_REFERENCES),
        )
        for calls in evidence.calls.values()
        if calls.count >= thresholds.loop_calls and calls.tool is not None and calls.tool not in thresholds.polling_tools
    ]
