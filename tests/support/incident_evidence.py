"""Builders of incidents and their evidence, in the form in which an incident stores it."""

from __future__ import annotations

import json
from typing import Any

from support.builders import incident

from schemas.records import Incident

RULE: dict[str, Any] = {
    "since": "2026-10-28", "until": "2026-11-01", "title": "Tier 2 fell", "severity": "critical", "size": 0.4, "meanBefore": 0.9,
    "meanAfter": 0.45, "sigma": 0.02, "scoresBefore": 147, "scoresAfter": 31, "sessionsBefore": 30, "sessionsAfter": 25,
}  # fmt: skip
NO_CHANGE = {"amount": 0.0, "low": 0.0, "high": 0.0}


def build_incident(evidence: dict[str, Any] | None = None, **fields: Any) -> Incident:
    """Return an incident of a Tier 2 decline with additional evidence."""
    values = {"rule": "sequential", "tier": "tier2", "direction": "down", "confidence": "confirmed", **fields}
    return incident(metadata=json.dumps({"rules": {values["rule"]: RULE}, **(evidence or {})}), **values)


def build_count(name: str, *counts: int, label: str = "reason", **fields: str) -> dict[str, Any]:
    """Return a row of counts: matches and total before the change, then matches and total since."""
    before, all_before, after, all_after = counts
    return {label: name, "before": before, "all_before": all_before, "after": after, "all_after": all_after, **fields}


def build_example(score_id: str, session: str, score: float = 0.1, reason: str = "It strays.") -> dict[str, Any]:
    """Return an exchange that contributed to the change of the mean."""
    return {
        "scoreId": score_id, "exchangeId": score_id, "connection": "c", "agent": "scout", "sessionId": session, "turnNumber": 7,
        "exchangeTimestamp": "2026-10-29T09:00:00Z", "score": score, "weight": 1.0, "moved": 0.8, "samplingReason": "routine_sample",
        "reason": reason,
    }  # fmt: skip


def build_slice(
    value: str, *, label: str = "agent_version", shares: tuple[float, float] = (0.0, 0.5), **fields: Any
) -> dict[str, Any]:
    """Return a slice of the traffic: by default, a new version."""
    return {
        "label": label, "kind": "value", "value": value, "shareBefore": shares[0], "shareAfter": shares[1], "meanBefore": None,
        "meanAfter": 0.05, "exchangesBefore": 0, "exchangesAfter": 25, "mix": {"amount": -0.39, "low": -0.42, "high": -0.36},
        "within": NO_CHANGE, "explained": 0.97, "standsOut": True, "sameAs": [], **fields,
    }  # fmt: skip


def slice_evidence(best: dict[str, Any], usual: dict[str, Any] | None = None, state: str = "found") -> dict[str, Any]:
    """Return the evidence about slices of the traffic."""
    change = {"amount": -0.4, "low": -0.45, "high": -0.35}
    return {"slices": {"state": state, "tried": 4, "unexplained": -0.01, "change": change, "slices": [best], "usual": usual}}


def deployment_evidence(version: str, **fields: str) -> dict[str, Any]:
    """Return the evidence of a deployment on one of the days."""
    evidence = {
        "label": "agent_version",
        "version": version,
        "agent": None,
        "at": "2026-10-27T09:00:00Z",
        "by": "dana",
        "comment": None,
        "url": None,
    }
    return {**evidence, **fields}
