"""Skill failure: an available skill was not used, or failed."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SessionEvidence

SKILL_FAILURE = FailureType(
    name="skill_failure",
    title="Skill failure",
    dimension="skill_adherence",
    dimension_title="Skill adherence",
    weight=15,
    largest_penalty=24,
    causal_chain=("skill_available", "skill_not_selected_or_failed", "generic_execution"),
    remediation="Verify skill selection logic and skill invocation flow; a mismatch or ignored skill means the agent is "
    "falling back to generic execution when a specialized path is available",
)


@detector(
    SKILL_FAILURE,
    version=1,
    order=6,
    rule=Rule(fires="n failed skills", severity="high if n >= 2, else medium", penalty="-min(24, 8 + 6n)"),
    cases=Cases(found=[{"event": "skill_event", "invoked": False}], silent=[{"event": "skill_event", "invoked": True}]),
)
def skill_failure(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find skills that were available but not invoked, ignored, mismatched or failed."""
    problem = evidence.problem("skill_event")
    n = problem.count
    if n < thresholds.failed_skills:
        return []
    severity = "high" if n >= thresholds.severe_failed_skills else "medium"
    description = f"Skill not invoked, ignored, mismatched or failed in {pluralize(n, 'skill event')}."
    return [SKILL_FAILURE.cause(severity, 8 + 6 * n, description, problem.references, evidence_count=n)]
