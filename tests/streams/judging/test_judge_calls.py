"""The counts and messages about a process's judge calls."""

from __future__ import annotations

import logging

import pytest
from support import builders as build

from streams.judging.judging_partition import JudgeCalls


def test_an_outage_is_logged_when_it_changes_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A long outage is logged once, and its end once; reservations are ignored."""
    calls = JudgeCalls()
    outcomes = ["timeout", "timeout", "provider_error", "answered", "answered"]
    with caplog.at_level(logging.INFO, logger="streams.judging.judging_partition"):
        for number, outcome in enumerate(outcomes):
            calls.note(build.reservation("s", number))
            error = None if outcome == "answered" else "no answer in 60 s"
            calls.note(build.judgement("s", number, outcome=outcome, error=error, cost_usd=0.001 if error is None else None))
    timeout, provider_error, recovered = caplog.messages
    assert timeout.endswith(" timeout: no answer in 60 s")
    assert provider_error.endswith(" provider_error: no answer in 60 s")
    assert recovered == "the judge answers"
    assert calls.outcomes == {"timeout": 2, "provider_error": 1, "answered": 2}
    assert calls.spent_usd == 0.002
