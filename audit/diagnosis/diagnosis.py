"""The diagnosis of a session: the findings of the detectors, the trust score, and the record and document with both.

1. A dimension is 100 less the largest penalty of its failure type, at least 0; trust is the weighted mean of the dimensions, in
   integers, rounded half to even. A critical cause or a trust below 60 is unsafe_for_production; a cause of high severity or a trust
   below 80 is review_recommended; the rest is ready_for_runtime. Without a single event there is no evidence, so no score. Every
   penalty has a limit, so trust is never below 73: the rule of 60 never applies, and only a critical cause makes a run
   unsafe_for_production. Compare runs by readiness first; trust distinguishes runs of the same readiness.
2. The record is cut to the size of a message. Counts are exact, and scores are computed from all events. Lists are cut: the causes with
   the largest impact, the first references of each, the most frequent event types, the beginning of long names. The events themselves
   are in the log, so the entire diagnosis can be computed again from them on request.
3. The causal graph has a node per event, then a node per failure type. Its edges are `precedes` between consecutive events; for
   every cause, `causes` from each evidence event to its failure, and `reinforces` between its consecutive evidence events. No
   edge is repeated. It is built on request, from the events and the causes; it is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from audit.detectors.detectors import DETECTORS, FAILURE_TYPES, FINDERS, FINDING_TYPES, Cause, FailureType, printable
from audit.detectors.thresholds import Profile, Thresholds, default_profile, source_of
from audit.diagnosis.events import TOOL_EVENTS, normalise_session, tool_name, unique_ids
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.fingerprints import digest
from schemas.records import CostAnalysis, DiagnosedDimension, Diagnosis, DimensionScores, EventCount, EvidenceRef, FailureCause

SAFE_TRUST = 60
"""Trust below this is unsafe for production. It is never reached: see LOWEST_TRUST."""
READY_TRUST = 80
"""Trust below this should be reviewed."""
NO_FAILURE = "No OpenClaw failure mode was detected from runtime evidence."
"""Explanation of a session without failures."""
NO_EVENTS = "There are no runtime events, so no failure mode could be looked for."
"""Explanation of a session without events."""
_COUNTED_EVENTS = {
    "tool_calls": "tool_call",
    "tool_outputs": "tool_output",
    "memory_events": "memory_event",
    "retries": "retry_event",
    "errors": "error_event",
    "state_transitions": "state_transition",
}
_NO_SCORES = dict.fromkeys(failure.dimension for failure in FAILURE_TYPES.values())

EVIDENCE_REFERENCES = 100
"""References that a cause keeps; folds for records need not keep more."""
ALL_REFERENCES = 1_000
"""References that all causes keep together; the first causes take theirs first."""
CAUSES = 50
"""Maximum number of causes in a record."""
EVENT_TYPES = 100
"""Maximum number of event types in a record."""
NAME_CHARACTERS = 128
"""Characters kept of an event's id or type."""

FAILURE_NODES = frozenset(failure.node for failure in (FAILURE_TYPES | FINDING_TYPES).values())
"""Ids of the failure nodes, which no event may have."""


class SessionDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the detectors about one session.

    `scores` has every dimension, 0 to 100, None without evidence. `causes` are in the order of the detectors. `primary` is the
    cause with the largest penalty, the first of equals. `cost_analysis` and `evidence_summary` are as in the document.
    """

    trust_score: int | None
    readiness_level: str
    scores: dict[str, int | None]
    causes: tuple[Cause, ...]
    primary: Cause | None
    cost_analysis: CostAnalysis
    evidence_summary: dict[str, Any]


def rule_version(profile: Profile) -> str:
    """Return the version of the rules that are enabled under a profile.

    It consists of the version of the scoring, those of the detectors with an order, and the others by name.
    """
    ordered_versions = ".".join(str(detector.version) for detector in DETECTORS if detector.order is not None)
    named_detectors = (
        detector for detector in (*DETECTORS, *FINDERS) if detector.order is None and detector.is_enabled(profile)
    )
    return f"diagnosis-1:{ordered_versions}" + "".join(
        f"+{detector.failure_type}-{detector.version}" for detector in named_detectors
    )


def lowest_trust(failures: Iterable[FailureType]) -> int:
    """Return the trust score of a session in which each of these failures has its largest penalty."""
    return _divide_half_even(sum((100 - failure.largest_penalty) * failure.weight for failure in failures), 100)


def _divide_half_even(numerator: int, denominator: int) -> int:
    """Divide non-negative integers, rounding half to even."""
    quotient, remainder = divmod(numerator, denominator)
    rounds_up = 2 * remainder > denominator or (2 * remainder == denominator and quotient % 2 == 1)
    return quotient + 1 if rounds_up else quotient


def diagnose(evidence: SessionEvidence, thresholds: Thresholds) -> SessionDiagnosis:
    """Run the detectors over the evidence and score their causes; a pure function."""
    causes = tuple(cause for detector in (*DETECTORS, *FINDERS) for cause in detector.detect(evidence, thresholds))
    penalties: dict[str, int] = {}
    for cause in causes:
        penalties[cause.type] = max(penalties.get(cause.type, 0), -cause.impact_score)
    scores: dict[str, int | None] = dict(_NO_SCORES)
    trust = None
    if evidence.event_counts:
        total = 0
        for failure in FAILURE_TYPES.values():
            score = max(0, 100 - penalties.get(failure.name, 0))
            scores[failure.dimension] = score
            total += score * failure.weight
        trust = _divide_half_even(total, 100)
    return SessionDiagnosis(
        trust_score=trust,
        readiness_level=_decide_readiness(trust, causes),
        scores=scores,
        causes=causes,
        # min() returns the first of equals.
        primary=min(causes, key=lambda cause: cause.impact_score, default=None),
        cost_analysis=_analyse_cost(evidence, penalties.get("cost_explosion", 0)),
        evidence_summary={
            "event_count": evidence.event_count,
            "event_counts": dict(sorted(evidence.event_counts.items())),
            **{name: evidence.count(event) for name, event in _COUNTED_EVENTS.items()},
        },
    )


def _decide_readiness(trust: int | None, causes: Sequence[Cause]) -> str:
    severities = {cause.severity for cause in causes}
    if trust is None:
        return "insufficient_evidence"
    if trust < SAFE_TRUST or "critical" in severities:
        return "unsafe_for_production"
    if trust < READY_TRUST or "high" in severities:
        return "review_recommended"
    return "ready_for_runtime"


def _analyse_cost(evidence: SessionEvidence, cost_penalty: int) -> CostAnalysis:
    duplicates = evidence.duplicate_calls
    tokens = evidence.total_tokens
    redundancy = _divide_half_even(100 * duplicates, max(1, evidence.count("tool_call")))
    return CostAnalysis(
        total_tokens=tokens,
        duplicate_calls=duplicates,
        redundancy_score=redundancy,
        token_waste=min(tokens, 1000 * duplicates + 120 * cost_penalty),
        cost_efficiency=100 - redundancy,
    )


def diagnose_events(session_id: str, raw_events: Sequence[Mapping[str, Any]], profile: Profile | None = None) -> dict[str, Any]:
    """Return the diagnosis document of a session given as raw events in order.

    Without a profile, the default thresholds for the session's kind of source are used. Raises the errors of
    `audit.diagnosis.events.normalise_event`.
    """
    events = normalise_session(raw_events, reserved=FAILURE_NODES)
    profile = profile or default_profile(source_of(event.source for event in events))
    evidence = SessionEvidence.held_to(profile)
    fold_columns({session_id: evidence}, [fold_row(session_id, event, seq) for seq, event in enumerate(events)])
    return diagnosis_document(session_id, [event.payload for event in events], diagnose(evidence, profile.thresholds))


def diagnosis_document(
    session_id: str, events: Sequence[Mapping[str, Any]], result: SessionDiagnosis, *, positions: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the whole diagnosis as a JSON object, with the full events as evidence and the causal graph.

    `events` are the normalized payloads in order; `positions` are their positions in the session if these are not 0, 1, 2, ...
    Repeated event ids get a suffix, see `audit.diagnosis.events`. Evidence whose event is missing has only its id.
    """
    ids = unique_ids([event["event_id"] for event in events], reserved=FAILURE_NODES)
    named_events = [
        event if event["event_id"] == name else {**event, "event_id": name} for event, name in zip(events, ids, strict=True)
    ]
    positions_of_events = range(len(events)) if positions is None else positions
    event_at = dict(zip(positions_of_events, named_events, strict=True))
    return {
        "session_id": session_id,
        "trust_score": result.trust_score,
        "readiness_level": result.readiness_level,
        "scores": dict(result.scores),
        "failure_causes": [_describe_cause(cause, event_at) for cause in result.causes],
        "primary_diagnosis": _describe_primary(result),
        "cost_analysis": msgspec.structs.asdict(result.cost_analysis),
        "evidence_summary": result.evidence_summary,
        "causal_graph": causal_graph(named_events, result.causes, dict(zip(positions_of_events, ids, strict=True))),
    }


def _describe_cause(cause: Cause, event_at: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": cause.type,
        "severity": cause.severity,
        "impact_score": cause.impact_score,
        "causal_chain": list(cause.failure.causal_chain),
        "description": cause.description,
        "evidence": [event_at.get(seq) or {"event_id": event_id} for seq, event_id in cause.evidence],
        "remediation": cause.failure.remediation,
    }


def _describe_primary(result: SessionDiagnosis) -> dict[str, Any]:
    primary = result.primary
    nothing = NO_EVENTS if result.trust_score is None else NO_FAILURE
    return {
        "root_cause_failure_type": primary and primary.type,
        "causal_chain_explanation": " -> ".join(primary.failure.causal_chain) if primary else nothing,
        "severity": primary and primary.severity,
        "description": primary and primary.description,
        "remediation": primary and primary.failure.remediation,
    }


def causal_graph(
    events: Sequence[Mapping[str, Any]], causes: Iterable[Cause], id_by_seq: Mapping[int, str]
) -> dict[str, list[dict[str, str]]]:
    """Return `{"nodes": [{id, type, label}], "edges": [{from, to, relation}]}` for events in order, with unique ids.

    `id_by_seq` maps the positions that causes refer to to ids; evidence without an id there has no edges.
    """
    nodes = [{"id": event["event_id"], "type": "event", "label": _label(event)} for event in events]
    edges = [
        {"from": earlier["event_id"], "to": later["event_id"], "relation": "precedes"} for earlier, later in pairwise(events)
    ]
    links: dict[tuple[str, str, str], None] = {}
    failures: dict[str, dict[str, str]] = {}
    for cause in causes:
        node = cause.failure.node
        failures[node] = {"id": node, "type": "failure", "label": cause.type}
        links.update(dict.fromkeys(link[:3] for link in evidence_links(cause, id_by_seq)))
    nodes.extend(failures.values())
    edges.extend({"from": source, "to": target, "relation": relation} for source, target, relation in links)
    return {"nodes": nodes, "edges": edges}


def _label(event: Mapping[str, Any]) -> str:
    """Return the event's type, with its tool if it has one."""
    label = printable(event["event"])
    tool = tool_name(event) if event["event"] in TOOL_EVENTS else None
    return f"{label}: {printable(tool)}" if tool else label


def evidence_links(cause: Cause, id_by_seq: Mapping[int, str]) -> Iterator[EvidenceLink]:
    """Yield the links of a cause: each of its evidence events to its failure, then its consecutive evidence events."""
    node = cause.failure.node
    ids = [id_by_seq[seq] for seq, _ in cause.evidence if seq in id_by_seq]
    yield from (EvidenceLink(event_id, node, "causes", node) for event_id in ids)
    yield from (EvidenceLink(earlier, later, "reinforces", node) for earlier, later in pairwise(ids))


def to_record(
    result: SessionDiagnosis,
    evidence: SessionEvidence,
    *,
    connection: str,
    project: str,
    agent: str | None,
    session_id: str,
    revision: int,
    started_at: datetime | None,
    ended_at: datetime | None,
    closed_at: datetime,
    closed_reason: str,
    policy_digest: str,
    profile: Profile,
) -> Diagnosis:
    """Return the record of a diagnosis, cut to the size of a message; counts stay exact."""
    return Diagnosis(
        connection=connection,
        project=project,
        agent=agent,
        session_id=session_id,
        revision=revision,
        started_at=started_at,
        ended_at=ended_at,
        closed_at=closed_at,
        closed_reason=closed_reason,
        trust_score=result.trust_score,
        readiness_level=result.readiness_level,
        scores=_first_scores(result.scores),
        failure_causes=_select_causes(result.causes),
        failure_cause_count=len(result.causes),
        primary_failure_type=result.primary.type if result.primary else None,
        primary_severity=result.primary.severity if result.primary else None,
        cost_analysis=result.cost_analysis,
        event_count=evidence.event_count,
        event_counts=_select_event_counts(evidence),
        event_type_count=len(evidence.event_counts),
        rule_version=rule_version(profile),
        policy_digest=policy_digest,
        evidence_digest=evidence_digest(evidence),
        threshold_profile=profile.version,
        threshold_changes=profile.changes_json,
        dimensions=tuple(DiagnosedDimension(dimension=name, score=score) for name, score in result.scores.items()),
    )


def _first_scores(scores: Mapping[str, int | None]) -> DimensionScores:
    """Return the scores of the dimensions that records had before the list of dimensions, for older readers."""
    return DimensionScores(**{name: scores.get(name) for name in DimensionScores.__struct_fields__})


def _select_causes(causes: Sequence[Cause]) -> tuple[FailureCause, ...]:
    """Return the causes with the largest impact, the first of equals, in their own order."""
    order = sorted(range(len(causes)), key=lambda index: (causes[index].impact_score, index))[:CAUSES]
    references_left = ALL_REFERENCES
    records: list[FailureCause] = []
    for index in sorted(order):
        records.append(_build_cause(causes[index], min(references_left, EVIDENCE_REFERENCES)))
        references_left -= len(records[-1].evidence)
    return tuple(records)


def _build_cause(cause: Cause, references: int) -> FailureCause:
    return FailureCause(
        type=cause.type,
        severity=cause.severity,
        impact_score=cause.impact_score,
        causal_chain=cause.failure.causal_chain,
        description=cause.description,
        evidence_count=cause.evidence_count,
        evidence=tuple(
            EvidenceRef(seq=seq, event_id=event_id[:NAME_CHARACTERS]) for seq, event_id in cause.evidence[:references]
        ),
        remediation=cause.failure.remediation,
    )


def _select_event_counts(evidence: SessionEvidence) -> tuple[EventCount, ...]:
    """Return the most frequent event types, by name; always including tool calls, because lists of runs show their number."""
    order = sorted(evidence.event_counts.items(), key=lambda entry: (entry[0] != "tool_call", -entry[1], entry[0]))
    frequent = order[:EVENT_TYPES]
    return tuple(EventCount(event=event[:NAME_CHARACTERS], count=count) for event, count in sorted(frequent))


def evidence_digest(evidence: SessionEvidence) -> str:
    """Return the digest of the folded evidence, which is the same for every reference limit from EVIDENCE_REFERENCES up."""
    calls = {key: [calls.tool, calls.count, calls.references[:EVIDENCE_REFERENCES]] for key, calls in evidence.calls.items()}
    problems = {
        event: [problem.count, problem.references[:EVIDENCE_REFERENCES]] for event, problem in evidence.problems.items()
    }
    folded: list[Any] = [
        evidence.event_counts,
        calls,
        evidence.retries,
        evidence.largest,
        problems,
        evidence.context_full,
        evidence.total_tokens,
    ]
    if evidence.is_transcript:
        folded += [evidence.new_tokens.max_count, evidence.exchange_retries.max_count]
        folded += [evidence.new_tokens.max_shares, evidence.first_retries]
    if evidence.patterns is not None:
        folded.append(evidence.patterns.folded(EVIDENCE_REFERENCES))
    if evidence.tool_use is not None:
        folded.append(evidence.tool_use.folded(EVIDENCE_REFERENCES))
    return digest(msgspec.json.encode(folded, order="deterministic").decode())


class EvidenceLink(NamedTuple):
    """An edge of a cause from an event; `failure` is the node of the cause's failure type."""

    source: str
    target: str
    relation: str
    failure: str


LOWEST_TRUST = lowest_trust(FAILURE_TYPES.values())
"""The lowest possible trust score of a session; a gate at or below it never fails a run."""
