"""Twins of an incident: what began with it, and the cause that one may lend the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.incident_evidence import build_example, build_incident

from schemas.records import Incident
from service.read.why import find_related, find_suspected_cause

DAY = datetime(2026, 10, 28, tzinfo=UTC)


def ongoing_incident(name: str, evidence: dict[str, Any] | None = None, **fields: Any) -> Incident:
    """Return an incident that began on `DAY` and still lasted five days later."""
    return build_incident(
        evidence, **{"incident_id": name, "first_day": DAY, "checked_at": DAY + timedelta(days=5), "cause": None, **fields}
    )


SPIKE = ongoing_incident("spike", {"exchanges": [build_example("e", "s")]}, type="anomaly_spike", tier=None)


@pytest.mark.parametrize(
    ("fields", "is_twin"),
    [
        ({}, True),
        ({"first_day": DAY + timedelta(days=2)}, True),
        ({"first_day": DAY + timedelta(days=3)}, False),
        ({"project": "web"}, False),
        ({"agent": "scout"}, True),
        ({"agent": "another"}, False),
        ({"first_day": DAY - timedelta(days=2), "last_day": DAY - timedelta(days=1), "status": "resolved"}, False),
        ({"incident_id": "spike"}, False),
    ],
)
def test_a_twin_is_of_the_project_the_days_and_the_agent(fields: dict[str, Any], is_twin: bool) -> None:
    """Two incidents of one fall are found by different rules; two falls of different agents are not the same."""
    assert bool(find_related(SPIKE, [ongoing_incident("drift", **fields)])) == is_twin


def test_a_first_day_of_versions_before_is_that_of_the_evidence() -> None:
    """Their records have no field for it."""
    assert find_related(SPIKE, [ongoing_incident("drift", first_day=None)])


def test_the_cause_of_a_related_incident_is_suspected_unless_they_disagree() -> None:
    """A twin's cause is only suspected, so an incident with its own cause keeps that."""
    agent, judge = ongoing_incident("a", cause="agent"), ongoing_incident("j", cause="judge")
    assert find_suspected_cause(SPIKE, [ongoing_incident("n"), agent]) == agent
    assert find_suspected_cause(SPIKE, [agent, judge]) is None
    assert find_suspected_cause(SPIKE, [ongoing_incident("n")]) is None
    assert find_suspected_cause(agent, [judge]) is None
