"""Terms of the records in words that a person on call reads, in one table: pages show these, and the term itself on hover."""

from __future__ import annotations

from collections.abc import Mapping

TERMS: Mapping[str, str] = {
    "critical": "Critical",
    "warning": "Warning",
    "ok": "Healthy",
    "empty": "No data yet",
    "open": "Open",
    "accepted": "Accepted",
    "dismissed": "Dismissed",
    "drift": "Drift",
    "anomaly_spike": "Anomaly spike",
    "tier1": "Tier 1 · structure",
    "tier2": "Tier 2 · semantics",
    "tier2_5": "Tier 2.5 · thinking",
    "tier3": "Tier 3 · behaviour",
    "scored": "Scored",
    "sampling_skip": "Left out by sampling",
    "skipped_cost_cap": "Left out by the cost cap",
    "unscored": "Unscored",
    "ready_for_runtime": "Ready for runtime",
    "review_recommended": "Review recommended",
    "unsafe_for_production": "Unsafe for production",
    "insufficient_evidence": "Insufficient evidence",
    "green": "Green",
    "yellow": "Yellow",
    "red": "Red",
}
