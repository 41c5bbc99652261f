"""The states of a tier of an exchange's score, and the purposes of the questions that decide them."""

from __future__ import annotations

SCORED = "scored"
NOT_APPLICABLE = "not_applicable"
SKIPPED_GATE = "skipped_gate"
SKIPPED_COST_CAP = "skipped_cost_cap"
SKIPPED_SAMPLING = "skipped_sampling"
UNSCORED = "unscored"

TIER2 = "tier2"
TIER2_5 = "tier2_5"
TIER3 = "tier3"
TIERS_2_AND_3 = "tiers_2_and_3"
"""A question that both tiers answer from; see `combineTiers` in the policy."""
