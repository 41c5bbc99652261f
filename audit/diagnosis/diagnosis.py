"""The diagnosis of a session: what the detectors say, the trust score that follows, and both forms it is given out in.

Scoring: a dimension is 100 less the largest penalty of its failure type, at least 0; trust is the weighted mean of the dimensions,
in integers, rounded half to even. A critical cause or a trust below 60 is unsafe_for_production; a cause of high severity or a
trust below 80 is review_recommended; the rest is ready_for_runtime. Without a single event there is no evidence, so no score.
Every penalty has a limit, so trust is never below 73: the rule of 60 never applies, and only a critical cause makes a run
unsafe_for_production. Go by readiness first; trust tells runs of the same readiness apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from audit.detectors.detectors import DETECTORS, FAILURE_TYPES, FINDERS, Cause, FailureType
from audit.detectors.thresholds import Profile, Thresholds, default_profile, source_of
from audit.diagnosis.causal_graph import FAILURE_NODES, causal_graph
from audit.diagnosis.events import normalise_session, unique_ids
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from schemas.records import CostAnalysis

SAFE_TRUST = 60
"""Trust below this is unsafe for production. It cannot be: see LOWEST_TRUST."""
READY_TRUST = 80
"""Trust below this should be reviewed."""
NO_FAILURE = "No OpenClaw failure mode was detected from runtime evidence."
"""Explanation of a session in which nothing was found."""
NO_EVENTS = "There are no runtime events, so no failure mode could be looked for."
"""Explanation of a session without events."""

_COUNTED = {
    "tool_calls": "tool_call",
    "tool_outputs": "tool_output",
    "memory_events": "memory_event",
    "retries": "retry_event",
    "errors": "error_event",
    "state_transitions": "state_transition",
}
_NO_SCORES = dict.fromkeys(failure.dimension for failure in FAILURE_TYPES.values())


class SessionDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the detectors about one session.

    `scores` has every dimension, 0 to 100, null without evidence; `causes` are in the order of the detectors; `primary` is
    the cause with the largest penalty, the first of equals. `cost_analysis` and `evidence_summary` are as in the document.
    """

    trust_score: int | None
    readiness_level: str
    scores: dict[str, int | None]
    causes: tuple[Cause, ...]
    primary: Cause | None
    cost_analysis: CostAnalysis
    evidence_summary: dict[str, Any]


def rule_version(thresholds: Thresholds) -> str:
    """Version of the rules that these thresholds have run: of the scoring, of each detector that has a place, then by name the others.

    Those that the thresholds have look for nothing are left out.
    """
    placed = ".".join(str(one.version) for one in DETECTORS if one.place is not None)
    named = (one for one in (*DETECTORS, *FINDERS) if one.place is None and one.runs_with(thresholds))
    return f"diagnosis-1:{placed}" + "".join(f"+{one.failure_type}-{one.version}" for one in named)


def lowest_trust(failures: Iterable[FailureType]) -> int:
    """The trust score of a session in which each of these failures has its largest penalty: no session has a lower one."""
    return _divided(sum((100 - failure.largest_penalty) * failure.weight for failure in failures), 100)


def diagnose(evidence: SessionEvidence, thresholds: Thresholds) -> SessionDiagnosis:
    """Run the detectors over the evidence and score what they say; a pure function of both."""
    causes = tuple(cause for detector in (*DETECTORS, *FINDERS) for cause in detector.detect(evidence, thresholds))
    penalties: dict[str, int] = {}
    for cause in causes:
        penalties[cause.type] = max(penalties.get(cause.type, 0), -cause.impact_score)
    scores: dict[str, int | None] = dict(_NO_SCORES)
    trust = None
    if evidence.event_counts:
        total = 0
        for failure in FAILURE_TYPES.values():
            score = scores[failure.dimension] = max(0, 100 - penalties.get(failure.name, 0))
            total += score * failure.weight
        trust = _divided(total, 100)
    return SessionDiagnosis(
        trust_score=trust,
        readiness_level=_readiness(trust, causes),
        scores=scores,
        causes=causes,
        # min returns the first of equals
        primary=min(causes, key=lambda cause: cause.impact_score, default=None),
        cost_analysis=_cost_analysis(evidence, penalties.get("cost_explosion", 0)),
        evidence_summary={
            "event_count": evidence.event_count,
            "event_counts": dict(sorted(evidence.event_counts.items())),
            **{name: evidence.count(event) for name, event in _COUNTED.items()},
        },
    )


def diagnose_events(session_id: str, raw_events: Sequence[Mapping[str, Any]], profile: Profile | None = None) -> dict[str, Any]:
    """The diagnosis document of a session given as raw events in order; errors as `audit.diagnosis.events.normalise_event`.

    Without a profile the defaults of the session's kind of source are its thresholds.
    """
    events = normalise_session(raw_events, reserved=FAILURE_NODES)
    profile = profile or default_profile(source_of(event.source for event in events))
    evidence = SessionEvidence.held_to(profile.thresholds)
    fold_columns({session_id: evidence}, [fold_row(session_id, event, seq) for seq, event in enumerate(events)])
    return diagnosis_document(session_id, [event.payload for event in events], diagnose(evidence, profile.thresholds))


def diagnosis_document(
    session_id: str, events: Sequence[Mapping[str, Any]], result: SessionDiagnosis, *, positions: Sequence[int] | None = None
) -> dict[str, Any]:
    """The whole diagnosis as a JSON object, with the events in full as evidence and the causal graph.

    `events` are the normalised payloads in order; `positions` are their places in the session where these are not 0, 1, 2, ...
    Repeated event ids get a suffix, see `audit.diagnosis.events`. Evidence whose event is not among them appears with its id alone.
    """
    ids = unique_ids([event["event_id"] for event in events], reserved=FAILURE_NODES)
    named = [
        event if event["event_id"] == name else {**event, "event_id": name} for event, name in zip(events, ids, strict=True)
    ]
    at = range(len(events)) if positions is None else positions
    event_at = dict(zip(at, named, strict=True))
    return {
        "session_id": session_id,
        "trust_score": result.trust_score,
        "readiness_level": result.readiness_level,
        "scores": dict(result.scores),
        "failure_causes": [_cause_document(cause, event_at) for cause in result.causes],
        "primary_diagnosis": _primary_document(result),
        "cost_analysis": msgspec.structs.asdict(result.cost_analysis),
        "evidence_summary": result.evidence_summary,
        "causal_graph": causal_graph(named, result.causes, dict(zip(at, ids, strict=True))),
    }


def _divided(numerator: int, denominator: int) -> int:
    """The quotient of integers from 0, rounded half to even."""
    quotient, rest = divmod(numerator, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient % 2))


LOWEST_TRUST = lowest_trust(FAILURE_TYPES.values())
"""No session has a lower trust score, whatever happened in it: a gate at or below this never fails a run."""


def _readiness(trust: int | None, causes: Sequence[Cause]) -> str:
    severities = {cause.severity for cause in causes}
    if trust is None:
        return "insufficient_evidence"
    if trust < SAFE_TRUST or "critical" in severities:
        return "unsafe_for_production"
    if trust < READY_TRUST or "high" in severities:
        return "review_recommended"
    return "ready_for_runtime"


def _cost_analysis(evidence: SessionEvidence, cost_penalty: int) -> CostAnalysis:
    duplicates, tokens = evidence.duplicate_calls, evidence.total_tokens
    redundancy = _divided(100 * duplicates, max(1, evidence.count("tool_call")))
    return CostAnalysis(
        total_tokens=tokens,
        duplicate_calls=duplicates,
        redundancy_score=redundancy,
        token_waste=min(tokens, 1000 * duplicates + 120 * cost_penalty),
        cost_efficiency=100 - redundancy,
    )


def _cause_document(cause: Cause, event_at: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": cause.type,
        "severity": cause.severity,
        "impact_score": cause.impact_score,
        "causal_chain": list(cause.failure.causal_chain),
        "description": cause.description,
        "evidence": [event_at.get(seq) or {"event_id": event_id} for seq, event_id in cause.evidence],
        "remediation": cause.failure.remediation,
    }


def _primary_document(result: SessionDiagnosis) -> dict[str, Any]:
    primary = result.primary
    nothing = NO_EVENTS if result.trust_score is None else NO_FAILURE
    return {
        "root_cause_failure_type": primary and primary.type,
        "causal_chain_explanation": " -> ".join(primary.failure.causal_chain) if primary else nothing,
        "severity": primary and primary.severity,
        "description": primary and primary.description,
        "remediation": primary and primary.failure.remediation,
    }
