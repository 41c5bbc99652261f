"""Tool outputs ignored: the result of a tool does not influence what follows."""

from __future__ import annotations

from audit.detectors.registry import Cases, Cause, FailureType, Rule, detector, pluralize
from audit.detectors.thresholds import Thresholds
from audit.diagnosis.evidence import SessionEvidence

IGNORING_TOOL_OUTPUTS = FailureType(
    name="ignoring_tool_outputs",
    title="Tool outputs ignored",
    dimension="tool_output_utilization",
    dimension_title="Use of tool outputs",
    weight=20,
    largest_penalty=30,
    causal_chain=("tool_call", "tool_output", "decision_skipped_output", "unsupported_agent_step"),
    remediation="Ensure tool results are incorporated into agent decisions; outputs that are received but never "
    "referenced indicate a disconnect between the tool layer and the reasoning layer",
)


@detector(
    IGNORING_TOOL_OUTPUTS,
    version=2,
    order=3,
    rule=Rule(fires="n unused outputs", severity="high if n >= 2, else medium", penalty="-min(30, 10 + 7n)"),
    cases=Cases(found=[{"event": "tool_output", "used": False}], silent=[{"event": "tool_output", "used": True}]),
)
def ignoring_tool_outputs(evidence: SessionEvidence, thresholds: Thresholds) -> list[Cause]:
    """Find tool outputs that were not used, not referenced or ignored."""
    problem = evidence.problem("tool_output")
    n = problem.count
    if n < thresholds.unused_outputs:
        return []
    severity = "high" if n >= thresholds.severe_unused_outputs else "medium"
    description = f"{pluralize(n, 'tool output')} not used by later decisions."
    return [IGNORING_TOOL_OUTPUTS.cause(severity, 10 + 7 * n, description, problem.references, evidence_count=n)]
