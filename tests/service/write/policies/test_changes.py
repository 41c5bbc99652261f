"""Differences between policies: the changed settings and the affected projects."""

from __future__ import annotations

from typing import Any

from audit.policy import Policy
from service.write.policies import EVERY_OTHER, FLEET, changes, effective


def policy(**fields: Any) -> Policy:
    """A policy."""
    return Policy.model_validate(fields, by_alias=True)


def told(before: Policy, after: Policy) -> list[tuple[str, Any, Any, tuple[str, ...]]]:
    """The changes as rows."""
    return [(one.setting, one.before, one.after, tuple(one.projects)) for one in changes(before, after)]


def test_a_default_reaches_those_that_do_not_say_otherwise() -> None:
    """A change of a default is a change of many projects, and not of the ones with a value of their own."""
    own = {"own": {"sampling": {"routineInterval": 7}}, "other": {"gateCascade": True}}
    before, after = policy(projects=own), policy(projects=own, defaults={"sampling": {"routineInterval": 9}})
    assert told(before, after) == [("sampling.routineInterval", 3, 9, (EVERY_OTHER, "other"))]


def test_a_project_that_is_named_now_changes_by_what_it_says() -> None:
    """An explicit value that equals the default is not a change."""
    after = policy(projects={"ops": {"retentionDays": 30, "gateCascade": True}})
    assert told(Policy(), after) == [("retentionDays", 90, 30, ("ops",))]
    assert told(after, Policy()) == [("retentionDays", 30, 90, ("ops",))]


def test_what_belongs_to_no_project_is_of_the_whole_server() -> None:
    """Disabling redaction must be clearly visible."""
    assert told(Policy(), policy(redaction={"enabled": False})) == [("redaction.enabled", True, False, (FLEET,))]
    assert told(Policy(), policy(sessionGapMinutes=60)) == [("sessionGapMinutes", 30, 60, (FLEET,))]


def test_the_same_in_other_words_changes_nothing() -> None:
    """Order and defaults written out are no difference."""
    assert changes(Policy(), policy(defaults={"enabled": True}, projects={"ops": {}})) == []


def test_what_is_in_force_is_whole() -> None:
    """Every setting is there, whether the file names it or not."""
    assert {"retentionDays", "sampling.routineInterval", "methodology"} <= effective(Policy(), "ops").keys()
