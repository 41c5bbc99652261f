"""The start-up banner: the words an agent is given, with the settings that are in force."""

from __future__ import annotations

from typing import Any

import pytest

from audit.policy import Policy, ProjectSettings, Sampling
from service.read.project import format_banner


def lines_of(settings: ProjectSettings, judge: str = "live") -> dict[str, str]:
    """Return the banner's lines by the label before the colon."""
    return dict(line.split(": ", 1) for line in format_banner(settings, 0, judge, "Not checked yet.").splitlines())


def test_the_default_banner_is_unchanged() -> None:
    """Agents and people have learnt these words, so they stay."""
    assert format_banner(ProjectSettings(), 2, "live", "Checked 2026-11-02 00:00 UTC: nothing found.") == (
        "Eval Audit Mode: Active\n"
        "Judge model: claude-haiku-4-5\n"
        "Tiers: 1 (structural) → 2 (semantic) → 2.5 (thinking) → 3 (behavioral)\n"
        "Sampling: every 3rd routine, always first 5 / last 3\n"
        "Cost cap: $1.00/session\n"
        "Open incidents: 2"
    )


def test_an_unaudited_project_gets_no_banner_about_an_audit() -> None:
    """A banner must not claim an audit that does not take place."""
    assert format_banner(ProjectSettings(enabled=False), 1, "live", "Not checked.") == "Eval Audit Mode: Off\nOpen incidents: 1"


def test_the_banner_says_whether_the_project_was_checked() -> None:
    """Before the first check, 0 incidents do not mean a clean record."""
    assert lines_of(ProjectSettings())["Open incidents"] == "0. Not checked yet."


def test_without_a_judge_the_banner_names_tier_1_only() -> None:
    """The banner must not announce tiers that are not judged."""
    lines = lines_of(ProjectSettings(), "none")
    assert lines["Judge model"] == "none; only Tier 1 runs"
    assert lines["Tiers"] == "1 (structural)"


def test_a_simulated_judge_is_named_in_the_banner() -> None:
    """Simulated verdicts must not pass for those of a model."""
    assert lines_of(ProjectSettings(), "simulated judge")["Judge model"] == "claude-haiku-4-5 (simulated judge)"


def test_the_banner_omits_thinking_if_it_is_not_judged() -> None:
    """The banner names only tiers that run."""
    settings = ProjectSettings(thinking_block_analysis=False)
    assert lines_of(settings)["Tiers"] == "1 (structural) → 2 (semantic) → 3 (behavioral)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"enabled": False}, "every exchange"),
        ({"routine_interval": 1}, "every exchange"),
        ({"routine_interval": 2}, "every 2nd routine, always first 5 / last 3"),
        ({"routine_interval": 11}, "every 11th routine, always first 5 / last 3"),
        ({"routine_interval": 21}, "every 21st routine, always first 5 / last 3"),
        ({"routine_interval": 112}, "every 112th routine, always first 5 / last 3"),
        ({"always_score_first": 0}, "every 3rd routine, always last 3"),
        ({"always_score_last": 0}, "every 3rd routine, always first 5"),
        ({"always_score_first": 0, "always_score_last": 0}, "every 3rd routine"),
    ],
)
def test_the_banner_describes_the_sampling(given: dict[str, Any], expected: str) -> None:
    """Turns that are never sampled are not announced."""
    assert lines_of(ProjectSettings(sampling=Sampling(**given)))["Sampling"] == expected


@pytest.mark.parametrize(
    ("cap", "expected"),
    [(None, "none"), (0.0, "$0.00/session"), (0.25, "$0.25/session"), (12.0, "$12.00/session"), (0.005, "$0.005/session")],
)
def test_the_banner_describes_the_cap(cap: float | None, expected: str) -> None:
    """A cap of 0 differs from no cap, and a small cap is not rounded to 0."""
    assert lines_of(ProjectSettings(cost_cap_per_session=cap))["Cost cap"] == expected


def test_the_banner_uses_the_projects_own_settings() -> None:
    """Settings that a project does not override come from the defaults."""
    policy = Policy(
        defaults=ProjectSettings(judge_model="m", cost_cap_per_session=0.5),
        projects={"ops": ProjectSettings(cost_cap_per_session=2.0)},
    )
    lines = lines_of(policy.for_project("ops").settings)
    assert lines["Judge model"] == "m"
    assert lines["Cost cap"] == "$2.00/session"
