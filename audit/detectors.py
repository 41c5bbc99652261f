"""The six failure detectors: each reads a session's folded evidence and says what went wrong, or nothing.

A detector is one pure function of the evidence, independent of the others. What a failure type means beyond its thresholds
(its dimension, weight, causal chain and remediation) is one row of FAILURE_TYPES; which detectors run, in which order and in
which version, is DETECTORS. n is the number of matching events, r the number of retry_events, d the number of duplicate calls.

| failure type | fires when | severity | impact |
| --- | --- | --- | --- |
| infinite_tool_loop | one call n >= 3 times | critical if n >= 5 or r >= 3, else high | -min(30, 8 + 4n + 3r) |
| memory_degradation | n lost memories | high if n >= 3, else medium | -min(25, 8 + 5n) |
| ignoring_tool_outputs | n unused outputs | high if n >= 2, else medium | -min(30, 10 + 7n) |
| context_pollution | n polluted contexts | high if any is 95 % full, else medium | -min(22, 7 + 5n) |
| cost_explosion | 12 000 tokens or d >= 3 | critical from 30 000 tokens, else high | -min(30, 10 + 4d + tokens // 6000) |
| skill_failure | n failed skills | high if n >= 2, else medium | -min(24, 8 + 6n) |
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from audit.evidence import RETRY_REFERENCES, SPENDING_REFERENCES, Reference, SessionEvidence, Sightings

LOOP_CALLS = 3
"""Identical calls from which they count as a loop."""
CRITICAL_LOOP_CALLS = 5
"""Identical calls from which a loop is critical."""
CRITICAL_RETRIES = 3
"""Retry events in the session from which a loop is critical."""
EXPENSIVE_TOKENS = 12_000
"""Tokens from which a session is too expensive."""
CRITICAL_TOKENS = 30_000
"""Tokens from which its expense is critical."""
EXPENSIVE_DUPLICATES = 3
"""Duplicate calls from which a session is too expensive."""
NAME_LENGTH = 80
"""Characters shown of a name an agent supplied."""
UNPRINTABLE = "(unprintable)"
"""Shown for a name of which nothing can be shown."""


class FailureType(msgspec.Struct, frozen=True, kw_only=True):
    """What a failure type means.

    `weight` is the percentage of its dimension in the trust score; they sum to 100. `largest_penalty` is the most that its dimension
    loses, however much evidence there is.
    """

    name: str
    dimension: str
    weight: int
    largest_penalty: int
    causal_chain: tuple[str, ...]
    remediation: str

    @property
    def node(self) -> str:
        """Id of its node in a causal graph."""
        return f"failure_{self.name}"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong. `impact_score` is the penalty, negative; `evidence` may be capped, its count is exact."""

    type: str
    severity: str
    impact_score: int
    description: str
    evidence_count: int
    evidence: tuple[Reference, ...]

    @property
    def failure(self) -> FailureType:
        """What the failure type means."""
        return FAILURE_TYPES[self.type]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """A registered detector. Raise `version` with every change of what it says."""

    failure_type: str
    version: int
    detect: Callable[[SessionEvidence], list[Cause]]


def infinite_tool_loop(evidence: SessionEvidence) -> list[Cause]:
    """The same tool with the same arguments three times or more: one cause each, in order of first occurrence.

    Calls without a tool name are never identical. Evidence: those calls, then the first three retry events.
    """
    if evidence.count("tool_call") < LOOP_CALLS:
        return []
    retries = evidence.count("retry_event")
    severe = retries >= CRITICAL_RETRIES
    retried = f" {_counted(retries, 'retry event')} in the session." if retries else ""
    return [
        Cause(
            type="infinite_tool_loop",
            severity="critical" if severe or calls.count >= CRITICAL_LOOP_CALLS else "high",
            impact_score=_impact("infinite_tool_loop", 8 + 4 * calls.count + 3 * retries),
            description=f"Tool call repeated {calls.count} times with matching arguments. Tool: {shown(calls.tool)}.{retried}",
            evidence_count=calls.count + min(retries, RETRY_REFERENCES),
            evidence=(*calls.references, *evidence.retries),
        )
        for calls in evidence.calls.values()
        if calls.count >= LOOP_CALLS and calls.tool is not None
    ]


def memory_degradation(evidence: SessionEvidence) -> list[Cause]:
    """Memory events whose action (else status) is recall_failed, ignored, lost or miss."""
    seen = evidence.problem("memory_event")
    n = seen.count
    severity = "high" if n >= 3 else "medium"
    said = f"Memory recall failed, was ignored or lost in {_counted(n, 'memory event')}."
    return _problems(
        seen,
        failure_type="memory_degradation",
        severity=severity,
        impact_score=_impact("memory_degradation", 8 + 5 * n),
        description=said,
    )


def ignoring_tool_outputs(evidence: SessionEvidence) -> list[Cause]:
    """Tool outputs that were not used, not referenced or ignored."""
    seen = evidence.problem("tool_output")
    n = seen.count
    severity = "high" if n >= 2 else "medium"
    said = f"{_counted(n, 'tool output')} not used by later decisions."
    return _problems(
        seen,
        failure_type="ignoring_tool_outputs",
        severity=severity,
        impact_score=_impact("ignoring_tool_outputs", 10 + 7 * n),
        description=said,
    )


def context_pollution(evidence: SessionEvidence) -> list[Cause]:
    """A context filled to 85 % or more, or compacted."""
    seen = evidence.problem("context_event")
    n = seen.count
    severity = "high" if evidence.context_full else "medium"
    level = ", with saturation of 95 % or more" if evidence.context_full else ""
    said = f"Context saturated or compacted in {_counted(n, 'context event')}{level}."
    return _problems(
        seen,
        failure_type="context_pollution",
        severity=severity,
        impact_score=_impact("context_pollution", 7 + 5 * n),
        description=said,
    )


def cost_explosion(evidence: SessionEvidence) -> list[Cause]:
    """12 000 tokens or more, or three duplicate calls. Evidence: the first twelve token_usage and tool_call events."""
    tokens, duplicates = evidence.total_tokens, evidence.duplicate_calls
    if tokens < EXPENSIVE_TOKENS and duplicates < EXPENSIVE_DUPLICATES:
        return []
    return [
        Cause(
            type="cost_explosion",
            severity="critical" if tokens >= CRITICAL_TOKENS else "high",
            impact_score=_impact("cost_explosion", 10 + 4 * duplicates + tokens // 6000),
            description=f"Session used {_counted(tokens, 'token')} with {_counted(duplicates, 'duplicate tool call')}.",
            evidence_count=min(SPENDING_REFERENCES, evidence.count("token_usage") + evidence.count("tool_call")),
            evidence=tuple(evidence.spending),
        )
    ]


def skill_failure(evidence: SessionEvidence) -> list[Cause]:
    """Skills that were available but not invoked, ignored, mismatched or failed."""
    seen = evidence.problem("skill_event")
    n = seen.count
    severity = "high" if n >= 2 else "medium"
    said = f"Skill not invoked, ignored, mismatched or failed in {_counted(n, 'skill event')}."
    return _problems(
        seen,
        failure_type="skill_failure",
        severity=severity,
        impact_score=_impact("skill_failure", 8 + 6 * n),
        description=said,
    )


def shown(name: str) -> str:
    """A name from an agent, fit to be shown: at most NAME_LENGTH characters, without control and direction characters."""
    if len(name) <= NAME_LENGTH and name.isprintable():
        return name
    return "".join(islice((character for character in name if character.isprintable()), NAME_LENGTH)) or UNPRINTABLE


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _impact(failure_type: str, penalty: int) -> int:
    """The penalty as an impact score: negative, and never more than the largest one of the failure type."""
    return -min(FAILURE_TYPES[failure_type].largest_penalty, penalty)


def _problems(seen: Sightings, *, failure_type: str, severity: str, impact_score: int, description: str) -> list[Cause]:
    """The cause that rests on these events, or none without any."""
    if not seen.count:
        return []
    return [
        Cause(
            type=failure_type,
            severity=severity,
            impact_score=impact_score,
            description=description,
            evidence_count=seen.count,
            evidence=tuple(seen.references),
        )
    ]


FAILURE_TYPES: dict[str, FailureType] = {
    failure.name: failure
    for failure in (
        FailureType(
            name="infinite_tool_loop",
            dimension="loop_control",
            weight=20,
            largest_penalty=30,
            causal_chain=("tool_call", "tool_failure_or_no_progress", "retry_same_action", "loop_flagged"),
            remediation="Review loop termination conditions; add retry caps to prevent the agent from re-issuing identical "
            "tool calls without progress",
        ),
        FailureType(
            name="ignoring_tool_outputs",
            dimension="tool_output_utilization",
            weight=20,
            largest_penalty=30,
            causal_chain=("tool_call", "tool_output", "decision_skipped_output", "unsupported_agent_step"),
            remediation="Ensure tool results are incorporated into agent decisions; outputs that are received but never "
            "referenced indicate a disconnect between the tool layer and the reasoning layer",
        ),
        FailureType(
            name="memory_degradation",
            dimension="memory_integrity",
            weight=15,
            largest_penalty=25,
            causal_chain=("memory_stored", "recall_failed_or_ignored", "state_reconstruction_failed"),
            remediation="Check memory storage and recall logic; ensure that stored context is retrievable and actively used in "
            "downstream decisions",
        ),
        FailureType(
            name="context_pollution",
            dimension="context_health",
            weight=15,
            largest_penalty=22,
            causal_chain=("context_growth", "saturation_or_compaction", "key_state_risk"),
            remediation="Reduce context window usage; avoid unnecessary compaction events that discard key state silently",
        ),
        FailureType(
            name="cost_explosion",
            dimension="cost_efficiency",
            weight=15,
            largest_penalty=30,
            causal_chain=("repeated_reasoning_or_calls", "token_waste", "cost_spike"),
            remediation="Review tool call efficiency; add token budget guards to prevent runaway token accumulation across "
            "multi-turn sessions",
        ),
        FailureType(
            name="skill_failure",
            dimension="skill_adherence",
            weight=15,
            largest_penalty=24,
            causal_chain=("skill_available", "skill_not_selected_or_failed", "generic_execution"),
            remediation="Verify skill selection logic and skill invocation flow; a mismatch or ignored skill means the agent is "
            "falling back to generic execution when a specialized path is available",
        ),
    )
}
"""Every failure type by name, in the order of the trust score's dimensions."""

DETECTORS: tuple[Detector, ...] = (
    Detector(failure_type="infinite_tool_loop", version=1, detect=infinite_tool_loop),
    Detector(failure_type="memory_degradation", version=1, detect=memory_degradation),
    Detector(failure_type="ignoring_tool_outputs", version=1, detect=ignoring_tool_outputs),
    Detector(failure_type="context_pollution", version=1, detect=context_pollution),
    Detector(failure_type="cost_explosion", version=1, detect=cost_explosion),
    Detector(failure_type="skill_failure", version=1, detect=skill_failure),
)
"""The detectors in the order in which they run."""
