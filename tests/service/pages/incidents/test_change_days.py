"""Only days that deviate in the direction of a change show it."""

from __future__ import annotations

import json
from datetime import date

import pytest
from support.builders import incident

from schemas.records import Incident
from service.pages.incident_figures import find_incident_days, find_level_before, find_shown_incidents, merge_labels

DAYS = {"2026-10-01": 0.9, "2026-10-02": 0.86, "2026-10-03": 0.5, "2026-10-04": None, "2026-10-05": 0.97, "2026-10-06": 0.4}


def seen(rule: str, **numbers: object) -> Incident:
    """An incident of a rule that tells of the days from the second to the fifth."""
    told = {"since": "2026-10-02", "until": "2026-10-05"} | numbers
    return incident(rule=rule, metadata=json.dumps({"rules": {rule: told}}))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"meanBefore": 0.9, "sigma": 0.05, "change": -0.4}, {"2026-10-03"}),
        ({"meanBefore": 0.9, "sigma": 0.5, "change": -0.06}, {"2026-10-02", "2026-10-03"}),
        ({"meanBefore": 0.9}, {"2026-10-02", "2026-10-03"}),
        ({}, {"2026-10-02", "2026-10-03", "2026-10-05"}),
    ],
)
def test_a_day_is_off_by_a_sigma_or_by_half_of_the_change(numbers: dict[str, object], expected: set[str]) -> None:
    """A small change of many scores is within one sigma of them; where nothing is known, every day that is named counts."""
    assert find_incident_days(seen("sequential", **numbers), DAYS) == expected


def test_days_in_a_row_are_those_that_the_rule_saw() -> None:
    """A bad day between them that came later was not what it found."""
    told = seen("consecutive_days", mean=0.9, stddev=0.1, days=[{"day": "2026-10-03"}, {"day": "2026-10-05"}])
    assert find_incident_days(told, DAYS) == {"2026-10-03"}


def test_a_rise_is_marked_above() -> None:
    """A rise is marked on the opposite side of a fall."""
    told = json.dumps({"rules": {"rate_ratio": {"since": "2026-10-01", "until": "2026-10-06", "baselineRate": 0.88}}})
    risen = incident(rule="rate_ratio", type="anomaly_spike", tier=None, direction="up", metadata=told)
    flat = incident(rule="rate_ratio", type="anomaly_spike", tier=None, direction="up", metadata=told.replace("0.88", "0.98"))
    shown = find_shown_incidents("anomaly_spike", [risen, flat], DAYS)
    assert [one.incident for one in shown] == [risen]
    assert merge_labels(shown) == {"2026-10-01", "2026-10-05"}
    assert not find_shown_incidents("tier2", [risen], DAYS)


def test_where_a_tier_came_from_is_of_what_is_open() -> None:
    """Only open changes have a level from before."""
    told = seen("sequential", meanBefore=0.9)
    assert find_level_before("tier2", [told]) == (date(2026, 10, 2), 0.9, 0.0)
    assert find_level_before("tier1", [told]) is None
    assert find_level_before("tier2", [incident(status="accepted", metadata=told.metadata)]) is None
