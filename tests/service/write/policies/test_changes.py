"""Differences between policies: the changed settings and the affected projects."""

from __future__ import annotations

from typing import Any

from audit.policy import Policy
from service.write.policy_file import OTHER_PROJECTS, SERVER_WIDE, compare_policies, settings_in_force


def policy(**fields: Any) -> Policy:
    """A policy."""
    return Policy.model_validate(fields, by_alias=True)


def change_rows(before: Policy, after: Policy) -> list[tuple[str, Any, Any, tuple[str, ...]]]:
    """Return the changes between two policies: setting, old value, new value, affected projects."""
    return [(change.setting, change.before, change.after, tuple(change.projects)) for change in compare_policies(before, after)]


def test_a_default_affects_projects_without_an_own_value() -> None:
    """A changed default affects many projects, but not those that override it."""
    own = {"own": {"sampling": {"routineInterval": 7}}, "other": {"gateCascade": True}}
    before, after = policy(projects=own), policy(projects=own, defaults={"sampling": {"routineInterval": 9}})
    assert change_rows(before, after) == [("sampling.routineInterval", 3, 9, (OTHER_PROJECTS, "other"))]


def test_an_explicit_value_equal_to_the_default_is_no_change() -> None:
    """An explicit value that equals the default is not a change."""
    after = policy(projects={"ops": {"retentionDays": 30, "gateCascade": True}})
    assert change_rows(Policy(), after) == [("retentionDays", 90, 30, ("ops",))]
    assert change_rows(after, Policy()) == [("retentionDays", 30, 90, ("ops",))]


def test_a_server_wide_setting_is_shown_as_such() -> None:
    """Disabling redaction must be clearly visible."""
    assert change_rows(Policy(), policy(redaction={"enabled": False})) == [("redaction.enabled", True, False, (SERVER_WIDE,))]
    assert change_rows(Policy(), policy(sessionGapMinutes=60)) == [("sessionGapMinutes", 30, 60, (SERVER_WIDE,))]


def test_equivalent_policies_have_no_difference() -> None:
    """The order and written-out defaults do not matter."""
    assert compare_policies(Policy(), policy(defaults={"enabled": True}, projects={"ops": {}})) == []


def test_the_effective_policy_is_complete() -> None:
    """It has every setting, whether or not the file names it."""
    assert {"retentionDays", "sampling.routineInterval", "methodology"} <= settings_in_force(Policy(), "ops").keys()
