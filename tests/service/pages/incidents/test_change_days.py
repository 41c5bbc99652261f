"""Only days that deviate in the direction of a change show it."""

from __future__ import annotations

import json
from datetime import date

import pytest
from support.builders import incident

from schemas.records import Incident
from service.pages.incident_figures import find_incident_days, find_level_before, find_shown_incidents, merge_labels

DAYS = {"2026-10-01": 0.9, "2026-10-02": 0.86, "2026-10-03": 0.5, "2026-10-04": None, "2026-10-05": 0.97, "2026-10-06": 0.4}


def incident_of_rule(rule: str, **numbers: object) -> Incident:
    """Return an incident of a rule that found the days from the second to the fifth."""
    rule_evidence = {"since": "2026-10-02", "until": "2026-10-05"} | numbers
    return incident(rule=rule, metadata=json.dumps({"rules": {rule: rule_evidence}}))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"meanBefore": 0.9, "sigma": 0.05, "change": -0.4}, {"2026-10-03"}),
        ({"meanBefore": 0.9, "sigma": 0.5, "change": -0.06}, {"2026-10-02", "2026-10-03"}),
        ({"meanBefore": 0.9}, {"2026-10-02", "2026-10-03"}),
        ({}, {"2026-10-02", "2026-10-03", "2026-10-05"}),
    ],
)
def test_a_day_deviates_by_one_sigma_or_by_half_of_the_change(numbers: dict[str, object], expected: set[str]) -> None:
    """A small change of many scores is within one sigma; without a baseline, every listed day counts."""
    assert find_incident_days(incident_of_rule("sequential", **numbers), DAYS) == expected


def test_consecutive_days_are_those_that_the_rule_found() -> None:
    """A bad day that arrived later was not part of the finding."""
    incident = incident_of_rule("consecutive_days", mean=0.9, stddev=0.1, days=[{"day": "2026-10-03"}, {"day": "2026-10-05"}])
    assert find_incident_days(incident, DAYS) == {"2026-10-03"}


def test_a_rise_is_marked_above() -> None:
    """A rise is marked on the opposite side of a fall."""
    metadata = json.dumps({"rules": {"rate_ratio": {"since": "2026-10-01", "until": "2026-10-06", "baselineRate": 0.88}}})
    risen = incident(rule="rate_ratio", type="anomaly_spike", tier=None, direction="up", metadata=metadata)
    flat = incident(
        rule="rate_ratio", type="anomaly_spike", tier=None, direction="up", metadata=metadata.replace("0.88", "0.98")
    )
    marked_incidents = find_shown_incidents("anomaly_spike", [risen, flat], DAYS)
    assert [one.incident for one in marked_incidents] == [risen]
    assert merge_labels(marked_incidents) == {"2026-10-01", "2026-10-05"}
    assert not find_shown_incidents("tier2", [risen], DAYS)


def test_only_an_open_change_has_an_earlier_level() -> None:
    """Only open changes have a level from before."""
    told = incident_of_rule("sequential", meanBefore=0.9)
    assert find_level_before("tier2", [told]) == (date(2026, 10, 2), 0.9, 0.0)
    assert find_level_before("tier1", [told]) is None
    assert find_level_before("tier2", [incident(status="accepted", metadata=told.metadata)]) is None
