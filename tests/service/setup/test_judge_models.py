"""A judge of another provider is refused before it costs anything, unless what it needs is configured."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from support.evaluation_builders import plan

from audit.policy import Policy
from schemas.errors import SettingsError
from service.setup.judge_setup import ANTHROPIC, check_judges_configured
from streams.judges.protocol import DEFAULT_BASE_URL

GATEWAY = "http://127.0.0.1:4000"
PRICED = {
    "prices": {"gpt-4o": {"input": 2.5, "output": 10, "source": "https://example.com/prices", "readOn": date(2026, 10, 1)}}
}


def judged_by(model: str, **said: Any) -> Any:
    """A plan whose judge is this model."""
    return plan(judge={"judge_id": "x", "model": model, "type": said.pop("type", "live")}, **said)


@pytest.mark.parametrize(
    ("policy", "address", "said"),
    [
        ({}, ANTHROPIC, {}),
        ({}, GATEWAY, {}),
        ({}, "", {}),
        (PRICED, ANTHROPIC, {}),
        ({}, ANTHROPIC, {"cost_cap_usd": None}),
        ({}, GATEWAY, {"type": "batch"}),
    ],
)
def test_a_model_of_another_provider_says_what_to_configure(policy: Any, address: str, said: Any) -> None:
    """Every call would fail, and the failed evaluations would give no hint."""
    with pytest.raises(SettingsError, match=r"judge x: .*gpt-4o") as caught:
        check_judges_configured([judged_by("gpt-4o", **said)], Policy.model_validate(policy), address)
    assert "in the policy" in caught.value.hint


def test_batches_of_an_api_without_them_are_refused_before_they_are_asked_for() -> None:
    """A batch that cannot be created would fail after a day of waiting."""
    with pytest.raises(SettingsError, match="no batches"):
        check_judges_configured([judged_by("ollama/llama3.3", type="batch")], Policy(), "")
    entry = {
        "mine": {"api": "messages", "baseUrl": GATEWAY, "model": "m", "batches": False, "price": {"input": 0, "output": 0}}
    }
    with pytest.raises(SettingsError, match="no batches"):
        check_judges_configured([judged_by("mine", type="batch")], Policy.model_validate({"judges": entry}), "")
    check_judges_configured([judged_by("claude-haiku-4-5", type="batch")], Policy(), "")


@pytest.mark.parametrize(
    ("model", "policy", "address", "said"),
    [
        ("gpt-4o", PRICED, GATEWAY, {}),
        ("gpt-4o", PRICED, "", {}),
        ("gpt-4o", {}, GATEWAY, {"cost_cap_usd": None}),
        ("gpt-4o", {}, ANTHROPIC, {"type": "recorded"}),
        ("claude-haiku-4-5", {}, ANTHROPIC, {}),
        ("us.anthropic.claude-new-1", {}, ANTHROPIC, {}),
        ("ollama/llama3.3", {}, ANTHROPIC, {}),
        ("openai/gpt-4o", PRICED, ANTHROPIC, {}),
        ("mine", {"judges": {"mine": {"model": "m", "baseUrl": GATEWAY, "price": {"input": 0, "output": 0}}}}, ANTHROPIC, {}),
    ],
)
def test_a_configured_judge_is_called(model: str, policy: Any, address: str, said: Any) -> None:
    """A gateway with a price is a valid judge, and recorded answers need neither."""
    check_judges_configured([judged_by(model, **said)], Policy.model_validate(policy), address)


def test_the_address_determines_the_kind_of_judge() -> None:
    """The kind of judge is determined without loading the API's client."""
    assert DEFAULT_BASE_URL == ANTHROPIC
