"""What is told of the cases that a command evaluates by, before anybody is asked."""

from __future__ import annotations

import pytest

from audit.evaluation.cases import Case, CaseInput, Message, TrustAtLeast
from service.cli.commands.evaluating import warnings_of


@pytest.mark.parametrize(("least", "warns"), [(0, True), (60, True), (73, True), (74, False), (100, False)])
def test_a_check_on_trust_that_no_run_fails_is_warned_of(least: int, *, warns: bool) -> None:
    """It passes whatever the agent did, and its author counts on it."""
    check = TrustAtLeast(check_id="trust", kind="trust_at_least", trust=least)
    asked = CaseInput(messages=(Message(role="user", content="Refund order 4711."),))
    found = warnings_of([Case(case_id="refund", title="Refund", input=asked, deterministic_checks=(check,))])
    wanted = f"case refund: trust_at_least {least} never fails a run: trust is never below 73"
    assert any(one.startswith(wanted) for one in found) == warns
    assert len(found) == warns
