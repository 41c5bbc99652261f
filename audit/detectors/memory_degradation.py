"""Memory degradation: stored memories are not recalled, or recalled and not used."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SessionEvidence

MEMORY_DEGRADATION = FailureType(
    name="memory_degradation",
    title="Memory degradation",
    dimension="memory_integrity",
    dimension_title="Memory integrity",
    weight=15,
    largest_penalty=25,
    causal_chain=("memory_stored", "recall_failed_or_ignored", "state_reconstruction_failed"),
    remediation="Check memory storage and recall logic; ensure that stored context is retrievable and actively used in "
    "downstream decisions",
)


@detector(
    MEMORY_DEGRADATION,
    version=1,
    order=2,
    rule=Rule(fires="n lost memories", severity="high if n >= 3, else medium", penalty="-min(25, 8 + 5n)"),
    cases=Cases(
        found=[{"event": "memory_event", "action": "miss"}],
        silent=[{"event": "memory_event", "action": "stored"}],
    ),
)
def memory_degradation(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find memory events whose action (else status) is recall_failed, ignored, lost or miss."""
    problem = evidence.problem("memory_event")
    n = problem.count
    if n < thresholds.lost_memories:
        return []
    severity = "high" if n >= thresholds.severe_lost_memories else "medium"
    description = f"Memory recall failed, was ignored or lost in {pluralize(n, 'memory event')}."
    return [MEMORY_DEGRADATION.cause(severity, 8 + 5 * n, description, problem.references, evidence_count=n)]
