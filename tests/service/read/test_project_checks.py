"""The health of a project without incidents is only good if it was checked, over enough data."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from audit.policy import Policy, ProjectSettings
from service.read.project import ENOUGH, Project, build_project, describe_check, describe_unchecked

AT = datetime(2026, 11, 2, 9, 30, 59, tzinfo=UTC)
CHECKED: dict[str, Any] = {"checked_at": AT, "check_days": 14, "baseline_days": 14, "check_findings": 0}
FULL: dict[str, Any] = {"exchanges": 100, "scores": 100, "recent_scores": 50, "last_score_day": date(2026, 11, 2)}


def project(name: str = "ops", *, enabled: bool = True, **fields: Any) -> Project:
    """A project with these columns of the query `projects`."""
    return build_project(name, fields, Policy(defaults=ProjectSettings(enabled=enabled)), AT.date())


@pytest.mark.parametrize(
    ("fields", "state", "words"),
    [
        ({}, "nothing", "no scores to check"),
        ({"enabled": False, **FULL}, "off", "turns auditing off"),
        (FULL, "never", "Not checked yet."),
        ({**FULL, **CHECKED}, "quiet", "Checked 2026-11-02 09:30 UTC: nothing found."),
        (
            {**FULL, **CHECKED, "check_days": 9},
            "learning",
            "9 of 14 days",
        ),
        ({**FULL, **CHECKED, "check_findings": 1}, "found", "Checked 2026-11-02 09:30 UTC: 1 finding."),
        ({**FULL, **CHECKED, "last_score_day": date(2026, 11, 3)}, "quiet", "Checked 2026-11-02 09:30 UTC: nothing found."),
        (
            {**FULL, **CHECKED, "last_score_day": date(2026, 11, 10)},
            "behind",
            "newest exchange is of 2026-11-10",
        ),
    ],
)
def test_the_absence_of_incidents_is_explained(fields: dict[str, Any], state: str, words: str) -> None:
    """Never checked, too little history, not checked since, and nothing found call for different actions."""
    row = project(**fields)
    assert row.check.state == state
    assert words in describe_check(row)


@pytest.mark.parametrize(
    ("fields", "health", "reasons"),
    [
        ({**FULL, **CHECKED}, "ok", []),
        ({**FULL, **CHECKED, "check_days": 9}, "ok", []),
        (FULL, "unknown", ["unchecked"]),
        ({**FULL, **CHECKED, "recent_scores": 1}, "unknown", ["too_few"]),
        ({**FULL, "recent_scores": ENOUGH - 1}, "unknown", ["too_few", "unchecked"]),
        ({**FULL, **CHECKED, "recent_scores": ENOUGH}, "ok", []),
        ({"runs": ENOUGH, "runs_with_evidence": ENOUGH}, "ok", []),
        ({"runs": ENOUGH, "runs_with_evidence": 1}, "unknown", ["too_few"]),
        ({"runs": 1, "runs_with_evidence": 1}, "unknown", ["too_few"]),
        ({**FULL, "recent_unsafe_runs": 1}, "warning", ["unsafe_runs"]),
        ({**FULL, "open_incidents": 1, "critical_incidents": 1}, "critical", ["open_incidents"]),
        ({}, "empty", []),
    ],
)
def test_a_project_is_healthy_only_if_enough_was_checked(fields: dict[str, Any], health: str, reasons: list[str]) -> None:
    """Problems count even with little data, but health needs enough data and a check."""
    row = project(**fields)
    assert row.health == health
    assert row.reasons == reasons


def test_unchecked_projects_are_named() -> None:
    """A list without incidents names the projects that were not checked."""
    projects = [project(**FULL, **CHECKED), project("web", **FULL)]
    assert describe_unchecked(projects) == "1 project checked. web: Not checked yet."
    assert describe_unchecked(projects[1:]) == "Not checked yet."
