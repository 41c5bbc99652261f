"""What is told of the cases that a command evaluates by, before anybody is asked."""

from __future__ import annotations

import pytest

from audit.evaluation.cases import Case, CaseInput, Message, TrustAtLeast
from service.cli.commands.evaluating import warnings_of


@pytest.mark.parametrize(("min_trust", "warns"), [(0, True), (60, True), (73, True), (74, False), (100, False)])
def test_a_trust_check_that_no_run_can_fail_causes_a_warning(min_trust: int, *, warns: bool) -> None:
    """The author of the case would rely on a check that always passes."""
    check = TrustAtLeast(check_id="trust", kind="trust_at_least", trust=min_trust)
    case_input = CaseInput(messages=(Message(role="user", content="Refund order 4711."),))
    case = Case(case_id="refund", title="Refund", input=case_input, deterministic_checks=(check,))
    warnings = warnings_of([case])
    assert len(warnings) == warns
    assert all(f"case refund: trust_at_least {min_trust} never fails" in warning for warning in warnings)
