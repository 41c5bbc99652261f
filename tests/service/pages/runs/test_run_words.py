"""A detector's description of a cause, as pages show it."""

from __future__ import annotations

import pytest

from service.pages.run_view import told_cause


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Session used 0 tokens with 5 duplicate tool calls.",
            "5 duplicate tool calls. The events report no tokens.",
        ),
        (
            "An exchange took up to 0 new tokens with 3 duplicate tool calls.",
            "3 duplicate tool calls. The events report no tokens.",
        ),
        (
            "An exchange took up to 175527 new tokens with 4 duplicate tool calls.",
            "An exchange took up to 175\u202f527 new tokens with 4 duplicate tool calls.",
        ),
        ("Session used 900 tokens with 1 duplicate tool call.", "Session used 900 tokens with 1 duplicate tool call."),
        ("Tool call repeated 6000 times. Tool: a4711.", "Tool call repeated 6000 times. Tool: a4711."),
    ],
)
def test_tokens_that_no_event_reports_are_not_said_to_be_none(said: str, shown: str) -> None:
    """An unknown number of tokens must not be shown as 0."""
    assert told_cause(said) == shown
