"""The health of a project without incidents is only good if it was checked, over enough data."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from audit.policy import Policy, ProjectSettings
from service.read.project import ENOUGH, Project, build_project, describe_check, describe_unchecked

CHECKED_AT = datetime(2026, 11, 2, 9, 30, 59, tzinfo=UTC)
CHECK: dict[str, Any] = {"checked_at": CHECKED_AT, "check_days": 14, "baseline_days": 14, "check_findings": 0}
ENOUGH_DATA: dict[str, Any] = {"exchanges": 100, "scores": 100, "recent_scores": 50, "last_score_day": date(2026, 11, 2)}


def project(name: str = "ops", *, enabled: bool = True, **fields: Any) -> Project:
    """Return a project built from these columns of the query `projects`."""
    return build_project(name, fields, Policy(defaults=ProjectSettings(enabled=enabled)), CHECKED_AT.date())


@pytest.mark.parametrize(
    ("fields", "state", "explanation"),
    [
        ({}, "nothing", "no scores to check"),
        ({"enabled": False, **ENOUGH_DATA}, "off", "turns auditing off"),
        (ENOUGH_DATA, "never", "Not checked yet."),
        ({**ENOUGH_DATA, **CHECK}, "quiet", "Checked 2026-11-02 09:30 UTC: nothing found."),
        (
            {**ENOUGH_DATA, **CHECK, "check_days": 9},
            "learning",
            "9 of 14 days",
        ),
        ({**ENOUGH_DATA, **CHECK, "check_findings": 1}, "found", "Checked 2026-11-02 09:30 UTC: 1 finding."),
        (
            {**ENOUGH_DATA, **CHECK, "last_score_day": date(2026, 11, 3)},
            "quiet",
            "Checked 2026-11-02 09:30 UTC: nothing found.",
        ),
        (
            {**ENOUGH_DATA, **CHECK, "last_score_day": date(2026, 11, 10)},
            "behind",
            "2026-11-10",
        ),
    ],
)
def test_the_absence_of_incidents_is_explained(fields: dict[str, Any], state: str, explanation: str) -> None:
    """A reader does something different about a missing check, a short history, an outdated check and a clean result."""
    checked_project = project(**fields)
    assert checked_project.check.state == state
    assert explanation in describe_check(checked_project)


@pytest.mark.parametrize(
    ("fields", "health", "reasons"),
    [
        ({**ENOUGH_DATA, **CHECK}, "ok", []),
        ({**ENOUGH_DATA, **CHECK, "check_days": 9}, "ok", []),
        (ENOUGH_DATA, "unknown", ["unchecked"]),
        ({**ENOUGH_DATA, **CHECK, "recent_scores": 1}, "unknown", ["too_few"]),
        ({**ENOUGH_DATA, "recent_scores": ENOUGH - 1}, "unknown", ["too_few", "unchecked"]),
        ({**ENOUGH_DATA, **CHECK, "recent_scores": ENOUGH}, "ok", []),
        ({"runs": ENOUGH, "runs_with_evidence": ENOUGH}, "ok", []),
        ({"runs": ENOUGH, "runs_with_evidence": 1}, "unknown", ["too_few"]),
        ({"runs": 1, "runs_with_evidence": 1}, "unknown", ["too_few"]),
        ({**ENOUGH_DATA, "recent_unsafe_runs": 1}, "warning", ["unsafe_runs"]),
        ({**ENOUGH_DATA, "recent_unsafe_runs": 1, "recent_unscored": 50}, "warning", ["unsafe_runs", "unjudged"]),
        ({**ENOUGH_DATA, "open_incidents": 1, "critical_incidents": 1}, "critical", ["open_incidents"]),
        ({}, "empty", []),
    ],
)
def test_a_project_is_healthy_only_if_enough_was_checked(fields: dict[str, Any], health: str, reasons: list[str]) -> None:
    """Little data may prove a problem, but never that there is none."""
    checked_project = project(**fields)
    assert checked_project.health == health
    assert checked_project.reasons == reasons


def test_unchecked_projects_are_named() -> None:
    """A list without incidents names the projects that were not checked."""
    projects = [project(**ENOUGH_DATA, **CHECK), project("web", **ENOUGH_DATA)]
    assert describe_unchecked(projects) == "1 project checked. web: Not checked yet."
    assert describe_unchecked(projects[1:]) == "Not checked yet."
