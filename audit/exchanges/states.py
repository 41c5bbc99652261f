"""The states of a tier of an exchange's score."""

from __future__ import annotations

SCORED = "scored"
NOT_APPLICABLE = "not_applicable"
SKIPPED_GATE = "skipped_gate"
SKIPPED_COST_CAP = "skipped_cost_cap"
SKIPPED_SAMPLING = "skipped_sampling"
UNSCORED = "unscored"
