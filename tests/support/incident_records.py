"""Incidents of a desk, without the checks that would find them."""

from __future__ import annotations

from support.alerting import Desk

from schemas.codec.single_object import encode
from schemas.records import Incident


def open_incident(desk: Desk, **fields: object) -> Incident:
    """Return an open incident that a check has just found."""
    values: dict[str, object] = {
        "incident_id": "i1",
        "revision": 0,
        "project": "ops",
        "type": "drift",
        "tier": "tier2",
        "direction": "down",
        "status": "open",
        "severity": "warning",
        "title": "Tier 2 falls",
        "description": "Three days below the baseline.",
        "metadata": "{}",
        "detected_at": desk.now,
    }
    return Incident(**(values | fields))  # type: ignore[arg-type]


def publish(desk: Desk, record: Incident) -> None:
    """Append an incident to its topic."""
    with desk.store.transaction() as transaction:
        transaction.append("incidents", [encode(record)])
