"""The largest change of a project: its incident's series, or its last days compared with the days before."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from support.builders import incident
from support.watch_histories import END, fallen, history, put

from analytics.store.store import Store
from audit.policy import Policy
from service.read.project import (
    LEVEL_DAYS,
    Change,
    Project,
    build_change,
    build_project,
    with_changes,
    with_levels,
    worst_incidents,
)

DAY = date(2026, 10, 28)
LATELY: dict[str, Any] = {
    "recent_tier1": 0.98, "before_tier1": 0.99, "recent_tier2": 0.61, "before_tier2": 0.9, "recent_tier3": 3.0, "before_tier3": 4.0,
}  # fmt: skip
INCIDENT: dict[str, Any] = {
    "project": "ops", "incident_id": "i", "type": "drift", "tier": "tier3", "agent": None, "since": DAY,
    "name": "Tier 3", "level_before": 4.6, "level_after": 3.1,
}  # fmt: skip


def project(until: date = DAY, **columns: Any) -> Project:
    """A project with these columns of the query `projects`."""
    return build_project("ops", LATELY | columns, Policy(), until)


def change(incident: dict[str, Any] | None, **columns: Any) -> Change:
    """The change of a project, which there is."""
    project_change = build_change(project(**columns), incident)
    assert project_change is not None
    return project_change


def test_an_incident_takes_precedence_over_the_last_days() -> None:
    """An incident is statistically significant, and a change of the last days may not be."""
    incident_change = change(INCIDENT)
    assert incident_change.series == "tier3"
    assert incident_change.before == 4.6
    assert incident_change.after == 3.1
    assert incident_change.since == DAY
    assert incident_change.incident == "i"


@pytest.mark.parametrize("metadata", ["{}", "no json", '{"moved": [{"name": "Tier 3"}]}', '{"moved": 7}', ""])
def test_an_incident_without_levels_uses_those_of_the_last_days(metadata: str) -> None:
    """Evidence of earlier versions has no levels, but it names the series and the first day."""
    with Store(None) as store:
        columns = {"tier": "tier3", "confidence": "confirmed", "first_day": datetime.combine(DAY, time(), UTC)}
        put(store, "incidents", [incident(project="ops", incident_id="i", metadata=metadata, **columns)])
        incident_change = change(dict(worst_incidents(store.cursor(), None)["ops"]))
    assert incident_change.name == "Tier 3"
    assert incident_change.before == 4.0
    assert incident_change.after == 3.0
    assert incident_change.since == DAY


@pytest.mark.parametrize(
    ("series", "days", "now"),
    [
        ("tier2", 30, 0.61),
        ("tier2", 7, 0.61),
        ("tier2", 6, None),
        ("tier2", 0, None),
        ("anomaly_spike", 30, 0.2),
        ("unsafe", 30, None),
    ],
)
def test_an_old_change_has_the_current_level(series: str, days: int, now: float | None) -> None:
    """A month-old fall may have recovered or worsened; the last days count only if all of them come after its first day."""
    kind = "anomaly_spike" if series == "anomaly_spike" else "drift"
    columns = {"type": kind, "tier": None if kind != "drift" else series, "since": DAY - timedelta(days=days)}
    assert change(INCIDENT | columns, recent_scores=50, recent_anomalies=10).now == now


@pytest.mark.parametrize(("now", "is_back"), [(0.89, True), (0.81, True), (0.80, False), (0.71, False), (0.95, True)])
def test_a_level_beyond_the_midpoint_has_recovered(now: float, is_back: bool) -> None:
    """The check ends an incident by the same limit; the card shows it before the next check."""
    levels = {"name": "Tier 2", "level_before": 0.9, "level_after": 0.7}
    fell = INCIDENT | {"tier": "tier2", "since": DAY - timedelta(days=20)} | levels
    assert change(fell, recent_tier2=now).is_back == is_back


@pytest.mark.parametrize(
    ("columns", "series"),
    [
        ({}, "tier2"),
        ({"recent_tier2": None}, "tier1"),
        ({"before_tier2": None}, None),
        ({"recent_tier2": None, "recent_tier1": None}, None),
    ],
)
def test_without_an_incident_tier_2_or_another_measure_is_compared(columns: dict[str, Any], series: str | None) -> None:
    """Days without a score are not compared."""
    project_change = build_change(project(**columns), None)
    assert (None if project_change is None else project_change.series) == series


@pytest.mark.parametrize(
    ("series", "before", "after", "worse"),
    [
        ("tier2", 0.9, 0.6, 0.3), ("tier2", 0.6, 0.9, -0.3), ("tier3", 5.0, 3.0, 0.5), ("trust", 100.0, 80.0, 0.2),
        ("unsafe", 0.1, 0.5, 0.4), ("failure:loop", 0.5, 0.1, -0.4), ("anomaly_spike", 0.0, 0.5, 0.5), ("tier2", 0.9, 0.9, 0.0),
    ],
)  # fmt: skip
def test_changes_are_compared_on_the_scale_of_their_measure(series: str, before: float, after: float, worse: float) -> None:
    """More unsafe runs are worse, higher scores are better, and trust ranges up to a hundred."""
    kind = "anomaly_spike" if series == "anomaly_spike" else "drift"
    levels = {"level_before": before, "level_after": after}
    incident_change = change(INCIDENT | {"type": kind, "tier": None if kind != "drift" else series} | levels)
    assert incident_change.series == series
    assert incident_change.worse == pytest.approx(worse)


def test_levels_end_with_the_last_day_and_have_gaps() -> None:
    """A day without a score is a gap, not zero."""
    with Store(None) as store:
        put(store, "scores", [one for one in history(fallen(6), 40) if one.exchange_at.date() != date(2026, 10, 20)])
        known_project = project(END.date())
        (row,) = with_levels(store.cursor(), with_changes([known_project], {}), None)
        assert row.change is not None
        levels = row.change.levels
        first, last = levels[0], levels[-1]
        assert len(levels) == LEVEL_DAYS
        assert levels[-1 - 12] is None
        assert first is not None
        assert last is not None
        assert last < 0.55 < first
        assert with_levels(store.cursor(), [known_project], None) == [known_project]
