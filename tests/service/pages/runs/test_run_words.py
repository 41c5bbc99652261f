"""The wording of causes on a run's page."""

from __future__ import annotations

import pytest

from service.pages.run_view import format_cause


@pytest.mark.parametrize(
    ("description", "formatted"),
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
            "An exchange took up to 175,527 new tokens with 4 duplicate tool calls.",
        ),
        ("Session used 900 tokens with 1 duplicate tool call.", "Session used 900 tokens with 1 duplicate tool call."),
        ("Tool call repeated 6000 times. Tool: a4711.", "Tool call repeated 6000 times. Tool: a4711."),
    ],
)
def test_unreported_tokens_are_not_shown_as_zero(description: str, formatted: str) -> None:
    """A missing token count is unknown; 0 would claim that the run was free."""
    assert format_cause(description) == formatted
