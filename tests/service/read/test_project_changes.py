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

LAST_DAY = date(2026, 10, 28)
RECENT_COLUMNS: dict[str, Any] = {
    "recent_tier1": 0.98, "before_tier1": 0.99, "recent_tier2": 0.61, "before_tier2": 0.9, "recent_tier3": 3.0, "before_tier3": 4.0,
}  # fmt: skip
INCIDENT_ROW: dict[str, Any] = {
    "project": "ops", "incident_id": "i", "type": "drift", "tier": "tier3", "agent": None, "since": LAST_DAY, "severity": "critical",
    "name": "Behavior quality", "level_before": 4.6, "level_after": 3.1,
}  # fmt: skip


def create_project(until: date = LAST_DAY, **columns: Any) -> Project:
    """Return a project with these columns of the query `projects`, by default one whose scores fell."""
    return build_project("ops", RECENT_COLUMNS | columns, Policy(), until)


def incident_row(series: str, **columns: Any) -> dict[str, Any]:
    """Return a row of the query `worst_incidents` for an incident of a series: a spike of anomalies, or drift of a measure."""
    if series == "anomaly_spike":
        return INCIDENT_ROW | {"type": "anomaly_spike", "tier": None} | columns
    return INCIDENT_ROW | {"type": "drift", "tier": series} | columns


def change_of_incident(row: dict[str, Any], **columns: Any) -> Change:
    """Return the change of a project whose worst incident has this row."""
    change = build_change(create_project(**columns), row)
    assert change is not None
    return change


def test_an_incident_takes_precedence_over_the_last_days() -> None:
    """An incident is statistically significant; a change of the last days may be noise."""
    change = change_of_incident(INCIDENT_ROW)
    assert change.series == "tier3"
    assert change.before == 4.6
    assert change.after == 3.1
    assert change.since == LAST_DAY
    assert change.incident == "i"


@pytest.mark.parametrize("metadata", ["{}", "no json", '{"moved": [{"name": "Behavior quality"}]}', '{"moved": 7}', ""])
def test_an_incident_without_levels_uses_those_of_the_last_days(metadata: str) -> None:
    """Evidence of earlier versions has no levels, but it names the series and the first day."""
    with Store(None) as store:
        first_day = datetime.combine(LAST_DAY, time(), UTC)
        old_incident = incident(
            project="ops", incident_id="i", tier="tier3", confidence="confirmed", first_day=first_day, metadata=metadata
        )
        put(store, "incidents", [old_incident])
        change = change_of_incident(dict(worst_incidents(store.cursor(), None)["ops"]))
    assert change.name == "Behavior quality"
    assert change.before == 4.0
    assert change.after == 3.0
    assert change.since == LAST_DAY


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
    row = incident_row(series, since=LAST_DAY - timedelta(days=days))
    assert change_of_incident(row, recent_scores=50, recent_anomalies=10).now == now


@pytest.mark.parametrize(("now", "is_back"), [(0.89, True), (0.81, True), (0.80, False), (0.71, False), (0.95, True)])
def test_a_level_beyond_the_midpoint_has_recovered(now: float, is_back: bool) -> None:
    """The check ends an incident by the same limit; the card shows it before the next check."""
    since = LAST_DAY - timedelta(days=20)
    row = incident_row("tier2", name="Tier 2", level_before=0.9, level_after=0.7, since=since)
    assert change_of_incident(row, recent_tier2=now).is_back == is_back


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
    change = build_change(create_project(**columns), None)
    assert (None if change is None else change.series) == series


@pytest.mark.parametrize(
    ("series", "before", "after", "worse"),
    [
        ("tier2", 0.9, 0.6, 0.3), ("tier2", 0.6, 0.9, -0.3), ("tier3", 5.0, 3.0, 0.5), ("trust", 100.0, 80.0, 0.2),
        ("unsafe", 0.1, 0.5, 0.4), ("failure:loop", 0.5, 0.1, -0.4), ("anomaly_spike", 0.0, 0.5, 0.5), ("tier2", 0.9, 0.9, 0.0),
    ],
)  # fmt: skip
def test_changes_are_compared_on_the_scale_of_their_measure(series: str, before: float, after: float, worse: float) -> None:
    """More unsafe runs are worse, higher scores are better, and trust ranges up to a hundred."""
    change = change_of_incident(incident_row(series, level_before=before, level_after=after))
    assert change.series == series
    assert change.worse == pytest.approx(worse)


def test_levels_end_with_the_last_day_and_have_gaps() -> None:
    """A day without a score is a gap, not zero."""
    gap_days_ago = 12
    gap = END.date() - timedelta(days=gap_days_ago)
    scores = [score for score in history(fallen(6), 40) if score.exchange_at.date() != gap]
    project = create_project(END.date())
    with Store(None) as store:
        put(store, "scores", scores)
        (changed_project,) = with_levels(store.cursor(), with_changes([project], {}), None)
    assert changed_project.change is not None
    levels = changed_project.change.levels
    assert len(levels) == LEVEL_DAYS
    assert levels[-1 - gap_days_ago] is None
    level_before_fall = levels[0]
    level_after_fall = levels[-1]
    assert level_before_fall is not None
    assert level_after_fall is not None
    assert level_after_fall < 0.55 < level_before_fall


def test_a_project_without_a_change_has_no_levels() -> None:
    """The chart belongs to the change, so no levels are read for other projects."""
    project = create_project(END.date())
    with Store(None) as store:
        put(store, "scores", history(fallen(6), 40))
        assert with_levels(store.cursor(), [project], None) == [project]
