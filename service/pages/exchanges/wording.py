"""Wording of an exchange's records: why it was sampled, why a tier is in its state, how a call ended."""

from __future__ import annotations

from collections.abc import Mapping

SAMPLING: Mapping[str, str] = {
    "sampling_disabled": "Sampling is off: every exchange is judged.",
    "first_turns": "The first turns of a session are always judged.",
    "last_turns": "The last turns of a session are judged once the session has closed.",
    "tier1_flags": "Tier 1 flagged it; flagged exchanges are always judged.",
    "disagreement": "The agent disagrees; disagreement is always judged.",
    "long_response": "The response is longer than the policy's threshold.",
    "routine_sample": "Every n-th routine turn is judged, from a random start in each session.",
    "sampling_skip": "A routine turn, left out to keep judging cheap.",
}
REASONS: Mapping[str, str] = {
    "always": "This tier judges every sampled exchange.",
    "thinking": "The agent's thinking can be compared with the answer.",
    "routine": "Nothing opened the gate: the exchange is routine and clean.",
    "no_dimension": "None of the tier's dimensions applies to the exchange.",
    "no_thinking": "The agent's thinking is missing, so there is nothing to compare.",
    "thinking_analysis_off": "The policy switches the analysis of thinking off.",
    "no_judge": "No judge is configured.",
    "sampling_skip": "The exchange was left out by sampling.",
    "cost_cap": "The session's cost cap left no room for the call.",
    "unknown_price": "There is a cost cap, and the model has no known price.",
    "gate_off": "The gate is switched off: this tier judges every sampled exchange.",
    "tier1_flags": "Tier 1 flagged the exchange, which opened the gate.",
    "tier2_flagged": "Tier 2 flagged the exchange, which opened the gate.",
    "sycophancy": "Tier 2.5 found sycophancy, which opened the gate.",
    "advocacy_suppression": "Tier 2.5 found suppressed advocacy, which opened the gate.",
    "early_turn": "Early turns are never routine.",
    "first_turns": "The first turns of a session are never routine.",
    "last_turns": "The last turns of a session are never routine.",
    "disagreement": "The agent disagrees, which is never routine.",
    "invalid": "The judge's answer could not be used.",
    "refused": "The judge refused to answer.",
    "cut_off": "The judge's answer was cut off.",
    "provider_error": "The provider of the judge failed.",
    "timeout": "The judge did not answer in time.",
    "interrupted": "The process ended before the answer was recorded.",
}
"""By the reason of a tier's state."""
CHECKS: Mapping[str, str] = {
    "self_identification": "The agent denied being an AI when asked.",
    "silent_refusal": "The agent gave no response.",
    "constraint_disclosure": "The agent refused without saying why.",
}
"""By the id of a Tier 1 check that fired; a methodology has more of them."""
OUTCOMES: Mapping[str, str] = {
    "answered": "Answered",
    "refused": "Refused",
    "cut_off": "Cut off",
    "provider_error": "Provider error",
    "timeout": "Timed out",
    "invalid": "Not usable",
    "cost_cap": "No money left",
    "interrupted": "Interrupted",
}
"""By the outcome of a judgement."""
DELETED = "The exchange was deleted, so the prompt cannot be reconstructed."
OTHER_POLICY = "The policy in force ({now}) differs from that of the score ({then}), and produces another prompt."
OTHER_PROMPT = "The question that record and policy make today has another fingerprint than the one that was sent: the wording of prompts has changed, or the question was about more than this exchange."
"""Why a prompt is not shown."""
