"""Differences between policies: the changed settings and the affected projects."""

from __future__ import annotations

from typing import Any

from audit.policy import Policy
from service.write.policy_file import OTHER_PROJECTS, SERVER_WIDE, compare_policies, settings_in_force


def policy(**fields: Any) -> Policy:
    """A policy."""
    return Policy.model_validate(fields, by_alias=True)


def told(before: Policy, after: Policy) -> list[tuple[str, Any, Any, tuple[str, ...]]]:
    """The changes as rows."""
    return [(change.setting, change.before, change.after, tuple(change.projects)) for change in compare_policies(before, after)]


def test_a_default_reaches_those_that_do_not_say_otherwise() -> None:
    """A change of a default is a change of many projects, and not of the ones with a value of their own."""
    own = {"own": {"sampling": {"routineInterval": 7}}, "other": {"gateCascade": True}}
    before, after = policy(projects=own), policy(projects=own, defaults={"sampling": {"routineInterval": 9}})
    assert told(before, after) == [("sampling.routineInterval", 3, 9, (OTHER_PROJECTS, "other"))]


def test_a_project_that_is_named_now_changes_by_what_it_says() -> None:
    """An explicit value that equals the default is not a change."""
    after = policy(projects={"ops": {"retentionDays": 30, "gateCascade": True}})
    assert told(Policy(), after) == [("retentionDays", 90, 30, ("ops",))]
    assert told(after, Policy()) == [("retentionDays", 30, 90, ("ops",))]


def test_what_belongs_to_no_project_is_of_the_whole_server() -> None:
    """Disabling redaction must be clearly visible."""
    assert told(Policy(), policy(redaction={"enabled": False})) == [("redaction.enabled", True, False, (SERVER_WIDE,))]
    assert told(Policy(), policy(sessionGapMinutes=60)) == [("sessionGapMinutes", 30, 60, (SERVER_WIDE,))]


def test_the_same_in_other_words_changes_nothing() -> None:
    """Order and defaults written out are no difference."""
    assert compare_policies(Policy(), policy(defaults={"enabled": True}, projects={"ops": {}})) == []


def test_what_is_in_force_is_whole() -> None:
    """Every setting is there, whether the file names it or not."""
    assert {"retentionDays", "sampling.routineInterval", "methodology"} <= settings_in_force(Policy(), "ops").keys()
