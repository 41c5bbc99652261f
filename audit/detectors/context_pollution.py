"""Context pollution: a context that is nearly full, or was compacted."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SessionEvidence

CONTEXT_POLLUTION = FailureType(
    name="context_pollution",
    title="Context pollution",
    dimension="context_health",
    dimension_title="Context health",
    weight=15,
    largest_penalty=22,
    causal_chain=("context_growth", "saturation_or_compaction", "key_state_risk"),
    remediation="Reduce context window usage; avoid unnecessary compaction events that discard key state silently",
)


@detector(
    CONTEXT_POLLUTION,
    version=1,
    order=4,
    rule=Rule(fires="n polluted contexts", severity="high if any is 95% full, else medium", penalty="-min(22, 7 + 5n)"),
    cases=Cases(found=[{"event": "context_event", "saturation": 85}], silent=[{"event": "context_event", "saturation": 84}]),
)
def context_pollution(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find contexts that are 85% full or more, or were compacted."""
    problem = evidence.problem("context_event")
    n = problem.count
    if n < thresholds.polluted_contexts:
        return []
    severity = "high" if evidence.context_full else "medium"
    level = f", with saturation of {evidence.severe_saturation:g} % or more" if evidence.context_full else ""
    description = f"Context saturated or compacted in {pluralize(n, 'context event')}{level}."
    return [CONTEXT_POLLUTION.cause(severity, 7 + 5 * n, description, problem.references, evidence_count=n)]
