"""The diagnosis as a record: what a message can carry of it, whatever a session holds.

Counts are exact and scores rest on everything. Lists are cut: the causes with the largest impact, the first references of each,
the most frequent event types, the beginning of long names. The events themselves are in the log, so the whole is made again from
them on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from audit.detectors.registry import Cause
from audit.detectors.thresholds import Profile
from audit.diagnosis.diagnosis import SessionDiagnosis, rule_version
from audit.diagnosis.evidence import SessionEvidence
from audit.fingerprints import digest
from schemas.records import DiagnosedDimension, Diagnosis, DimensionScores, EventCount, EvidenceRef, FailureCause

EVIDENCE_REFERENCES = 100
"""References a cause keeps. Folds for records need keep no more than these."""
ALL_REFERENCES = 1_000
"""References all causes keep together, the first causes first."""
CAUSES = 50
"""Causes that are kept."""
EVENT_TYPES = 100
"""Event types that are kept."""
NAME_CHARACTERS = 128
"""Characters that are kept of an event's id or type."""


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
    """The record of a diagnosis made of this evidence, cut to what a message can carry; the counts stay exact."""
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
        failure_causes=_cause_records(result.causes),
        failure_cause_count=len(result.causes),
        primary_failure_type=result.primary.type if result.primary else None,
        primary_severity=result.primary.severity if result.primary else None,
        cost_analysis=result.cost_analysis,
        event_count=evidence.event_count,
        event_counts=_event_counts(evidence),
        event_type_count=len(evidence.event_counts),
        rule_version=rule_version(profile.thresholds),
        policy_digest=policy_digest,
        evidence_digest=evidence_digest(evidence),
        threshold_profile=profile.version,
        threshold_changes=profile.changes_json,
        dimensions=tuple(DiagnosedDimension(dimension=name, score=score) for name, score in result.scores.items()),
    )


def evidence_digest(evidence: SessionEvidence) -> str:
    """Digest of the folded evidence: the same for every reference limit from EVIDENCE_REFERENCES up, and for none."""
    calls = {key: [calls.tool, calls.count, calls.references[:EVIDENCE_REFERENCES]] for key, calls in evidence.calls.items()}
    problems = {event: [seen.count, seen.references[:EVIDENCE_REFERENCES]] for event, seen in evidence.problems.items()}
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
        folded += [evidence.new_tokens.most, evidence.exchange_retries.most]
        folded += [evidence.new_tokens.most_shares, evidence.first_retries]
    if evidence.patterns is not None:
        folded.append(evidence.patterns.folded(EVIDENCE_REFERENCES))
    return digest(msgspec.json.encode(folded, order="deterministic").decode())


def _first_scores(scores: Mapping[str, int | None]) -> DimensionScores:
    """The scores of the dimensions that records had before they had a list of them; readers of those days go on reading them."""
    return DimensionScores(**{name: scores.get(name) for name in DimensionScores.__struct_fields__})


def _cause_records(causes: Sequence[Cause]) -> tuple[FailureCause, ...]:
    """The causes with the largest impact, the first of equals, in their own order."""
    order = sorted(range(len(causes)), key=lambda place: (causes[place].impact_score, place))[:CAUSES]
    left, records = ALL_REFERENCES, []
    for place in sorted(order):
        records.append(_cause_record(causes[place], min(left, EVIDENCE_REFERENCES)))
        left -= len(records[-1].evidence)
    return tuple(records)


def _cause_record(cause: Cause, references: int) -> FailureCause:
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


def _event_counts(evidence: SessionEvidence) -> tuple[EventCount, ...]:
    """The most frequent event types, by name; tool calls are always among them, because runs are listed with their number."""
    order = sorted(evidence.event_counts.items(), key=lambda counted: (counted[0] != "tool_call", -counted[1], counted[0]))
    frequent = order[:EVENT_TYPES]
    return tuple(EventCount(event=event[:NAME_CHARACTERS], count=count) for event, count in sorted(frequent))
