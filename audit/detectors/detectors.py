"""The six failure detectors: each reads a session's folded evidence and says what went wrong, or nothing.

A detector is one pure function of the evidence, independent of the others. What a failure type means beyond its thresholds
(its dimension, weight, causal chain and remediation) is one row of FAILURE_TYPES; which detectors run, in which order and in
which version, is DETECTORS. n is the number of matching events, r the number of retry_events, d the number of duplicate calls, all of
the session or, of a transcript, of one exchange.

From which values on a detector fires is a threshold (`audit.detectors.thresholds`); the table has those of sessions that are delivered as
events.

| failure type | fires when | severity | impact |
| --- | --- | --- | --- |
| infinite_tool_loop | one call n >= 3 times | critical if n >= 5 or r >= 3, else high | -min(30, 8 + 4n + 3r) |
| memory_degradation | n lost memories | high if n >= 3, else medium | -min(25, 8 + 5n) |
| ignoring_tool_outputs | n unused outputs | high if n >= 2, else medium | -min(30, 10 + 7n) |
| context_pollution | n polluted contexts | high if any is 95 % full, else medium | -min(22, 7 + 5n) |
| cost_explosion | 12 000 tokens or d >= 3 | critical from 30 000 tokens, else high | -min(30, 10 + 4d + tokens // 6000) |
| skill_failure | n failed skills | high if n >= 2, else medium | -min(24, 8 + 6n) |

Two more are looked for where a policy sets their thresholds (`audit.detectors.call_patterns`). They are findings: their impact is 0, they have no
dimension, and no trust score or readiness depends on them.

| finding | fires when | severity | impact |
| --- | --- | --- | --- |
| alternating_calls | two calls n >= alternatingRounds times in turn | medium | 0 |
| near_duplicate_calls | n >= nearDuplicateCalls calls that nearly repeat one of the 10 before them | medium | 0 |
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import RETRY_REFERENCES, SPENDING_REFERENCES, Reference, SessionEvidence, Sightings

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
        return FAILURE_TYPES.get(self.type) or FINDING_TYPES[self.type]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """A registered detector. Raise `version` with every change of what it says."""

    failure_type: str
    version: int
    detect: Callable[[SessionEvidence, Thresholds], list[Cause]]


def infinite_tool_loop(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """The same tool with the same arguments three times or more: one cause each, in order of first occurrence.

    Calls without a tool name are never identical. In a transcript they are repeated within an exchange, with no other call between.
    Evidence: those calls, then the first three retry events.
    """
    if evidence.count("tool_call") < thresholds.loop_calls:
        return []
    retries = evidence.retries_in_scope
    severe = thresholds.critical_retries is not None and retries >= thresholds.critical_retries
    retried = f" {_counted(retries, 'retry event')} in the {_scope(evidence)}." if retries else ""
    return [
        Cause(
            type="infinite_tool_loop",
            severity="critical" if severe or calls.count >= thresholds.critical_loop_calls else "high",
            impact_score=_impact("infinite_tool_loop", 8 + 4 * calls.count + 3 * retries),
            description=f"Tool call repeated {calls.count} times with matching arguments. Tool: {shown(calls.tool)}.{retried}",
            evidence_count=calls.count + min(retries, RETRY_REFERENCES),
            evidence=(*calls.references, *evidence.retries),
        )
        for calls in evidence.calls.values()
        if calls.count >= thresholds.loop_calls and calls.tool is not None and calls.tool not in thresholds.polling_tools
    ]


def memory_degradation(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Memory events whose action (else status) is recall_failed, ignored, lost or miss."""
    seen = evidence.problem("memory_event")
    n = seen.count
    severity = "high" if n >= thresholds.severe_lost_memories else "medium"
    said = f"Memory recall failed, was ignored or lost in {_counted(n, 'memory event')}."
    return _problems(
        seen,
        thresholds.lost_memories,
        failure_type="memory_degradation",
        severity=severity,
        impact_score=_impact("memory_degradation", 8 + 5 * n),
        description=said,
    )


def ignoring_tool_outputs(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Tool outputs that were not used, not referenced or ignored."""
    seen = evidence.problem("tool_output")
    n = seen.count
    severity = "high" if n >= thresholds.severe_unused_outputs else "medium"
    said = f"{_counted(n, 'tool output')} not used by later decisions."
    return _problems(
        seen,
        thresholds.unused_outputs,
        failure_type="ignoring_tool_outputs",
        severity=severity,
        impact_score=_impact("ignoring_tool_outputs", 10 + 7 * n),
        description=said,
    )


def context_pollution(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """A context filled to 85 % or more, or compacted."""
    seen = evidence.problem("context_event")
    n = seen.count
    severity = "high" if evidence.context_full else "medium"
    level = f", with saturation of {evidence.severe_saturation:g} % or more" if evidence.context_full else ""
    said = f"Context saturated or compacted in {_counted(n, 'context event')}{level}."
    return _problems(
        seen,
        thresholds.polluted_contexts,
        failure_type="context_pollution",
        severity=severity,
        impact_score=_impact("context_pollution", 7 + 5 * n),
        description=said,
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
        Cause(
            type="cost_explosion",
            severity="critical" if is_critical else "high",
            impact_score=_impact("cost_explosion", 10 + 4 * duplicates + spent // 6000),
            description=f"{used} with {_counted(duplicates, 'duplicate tool call')}.",
            evidence_count=min(SPENDING_REFERENCES, evidence.count("token_usage") + evidence.count("tool_call")),
            evidence=tuple(evidence.spending),
        )
    ]


def skill_failure(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Skills that were available but not invoked, ignored, mismatched or failed."""
    seen = evidence.problem("skill_event")
    n = seen.count
    severity = "high" if n >= thresholds.severe_failed_skills else "medium"
    said = f"Skill not invoked, ignored, mismatched or failed in {_counted(n, 'skill event')}."
    return _problems(
        seen,
        thresholds.failed_skills,
        failure_type="skill_failure",
        severity=severity,
        impact_score=_impact("skill_failure", 8 + 6 * n),
        description=said,
    )


def alternating_calls(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Two calls in turn, each with the same arguments every time and no other call between: the longest such run (ping-pong).

    Of a transcript, within an exchange. Polling breaks no run and is part of none.
    """
    if evidence.patterns is None or thresholds.alternating_rounds is None:
        return []
    seen = evidence.patterns.alternation
    if seen.rounds < thresholds.alternating_rounds:
        return []
    first, second = map(shown, seen.pair)
    said = f"Two tool calls alternated for {seen.rounds} rounds with unchanged arguments. Tools: {first}, {second}."
    return [_finding("alternating_calls", said, seen.calls, seen.references)]


def near_duplicate_calls(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Calls of a tool that say nearly what one of the 10 calls before them said: the same keys and numbers, nearly the same words.

    Case, spacing and order do not count; arguments that are equal are a loop's business. Of a transcript, within an exchange.
    """
    patterns = evidence.patterns
    if (
        patterns is None
        or thresholds.near_duplicate_calls is None
        or patterns.near_duplicates < thresholds.near_duplicate_calls
    ):
        return []
    n = patterns.near_duplicates
    said = f"{_counted(n, 'tool call')} nearly repeated an earlier one. First tool: {shown(patterns.near_tool)}."
    return [_finding("near_duplicate_calls", said, n, patterns.near_references)]


def shown(name: str) -> str:
    """A name from an agent, fit to be shown: at most NAME_LENGTH characters, without control and direction characters."""
    if len(name) <= NAME_LENGTH and name.isprintable():
        return name
    return "".join(islice((character for character in name if character.isprintable()), NAME_LENGTH)) or UNPRINTABLE


def _reaches(value: int, threshold: int | None) -> bool:
    return threshold is not None and value >= threshold


def _spent(evidence: SessionEvidence, thresholds: Thresholds) -> tuple[int, str]:
    """The tokens that the thresholds look at, and how the description says them."""
    if thresholds.session_tokens is not None:
        return evidence.total_tokens, f"Session used {_counted(evidence.total_tokens, 'token')}"
    most = evidence.new_tokens.most
    return most, f"An exchange took up to {_counted(most, 'new token')}"


def _scope(evidence: SessionEvidence) -> str:
    return "exchange" if evidence.is_transcript else "session"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _impact(failure_type: str, penalty: int) -> int:
    """The penalty as an impact score: negative, and never more than the largest one of the failure type."""
    return -min(FAILURE_TYPES[failure_type].largest_penalty, penalty)


def _problems(
    seen: Sightings, fires_at: int, *, failure_type: str, severity: str, impact_score: int, description: str
) -> list[Cause]:
    """The cause that rests on these events, or none where they are too few."""
    if seen.count < fires_at:
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


def _finding(failure_type: str, description: str, count: int, references: list[Reference]) -> Cause:
    return Cause(
        type=failure_type,
        severity="medium",
        impact_score=0,
        description=description,
        evidence_count=count,
        evidence=tuple(references),
    )


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

FINDING_TYPES: dict[str, FailureType] = {
    finding.name: finding
    for finding in (
        FailureType(
            name="alternating_calls",
            dimension="",
            weight=0,
            largest_penalty=0,
            causal_chain=("tool_call", "other_tool_call", "same_calls_in_turn", "alternation_flagged"),
            remediation="Give the agent a way out of undoing and redoing: say when either call is enough, and cap how often both "
            "may be made without another step between them",
        ),
        FailureType(
            name="near_duplicate_calls",
            dimension="",
            weight=0,
            largest_penalty=0,
            causal_chain=("tool_call", "answer_not_used", "rephrased_tool_call", "near_duplicates_flagged"),
            remediation="Tell the agent what an empty or unhelpful result means, so that it changes its approach instead of the "
            "wording of the same call",
        ),
    )
}
"""Findings that a policy can have looked for, by name; they have no dimension and no weight."""

DETECTORS: tuple[Detector, ...] = (
    Detector(failure_type="infinite_tool_loop", version=2, detect=infinite_tool_loop),
    Detector(failure_type="memory_degradation", version=1, detect=memory_degradation),
    Detector(failure_type="ignoring_tool_outputs", version=2, detect=ignoring_tool_outputs),
    Detector(failure_type="context_pollution", version=1, detect=context_pollution),
    Detector(failure_type="cost_explosion", version=2, detect=cost_explosion),
    Detector(failure_type="skill_failure", version=1, detect=skill_failure),
)
"""The detectors in the order in which they run."""

FINDERS: tuple[Detector, ...] = (
    Detector(failure_type="alternating_calls", version=1, detect=alternating_calls),
    Detector(failure_type="near_duplicate_calls", version=1, detect=near_duplicate_calls),
)
"""What runs after them, where the thresholds have it looked for."""
