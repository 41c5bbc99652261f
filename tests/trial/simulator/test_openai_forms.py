"""The simulated judge behind the official client of Chat Completions and Responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from audit.answers import read_tier2, tier2_schema
from driftline_trial.simulator.server import RunningJudge, running

DIMENSIONS = ("scope_compliance", "information_completeness")
INSTRUCTIONS = "You judge what an agent answered. " * 200
TEXT = '<user_message b>\n"How tall is it?"\n</user_message b>\n<agent_response b>\n"It is 12 m tall."\n</agent_response b>\n\nJudge it.'
SCHEMA = {"name": "answer", "strict": True, "schema": tier2_schema(DIMENSIONS)}


@pytest.fixture
def judge() -> Iterator[RunningJudge]:
    """Return a simulated judge on loopback."""
    with running() as served:
        yield served


def client_of(judge: RunningJudge) -> OpenAI:
    """Return the official client for this judge."""
    return OpenAI(api_key="any", base_url=f"{judge.base_url}/v1", max_retries=0)


def complete(judge: RunningJudge, **changes: Any) -> Any:
    """Ask for a chat completion."""
    request: dict[str, Any] = {
        "model": "gpt-5.4-mini",
        "messages": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": TEXT}],
        "max_completion_tokens": 1000,
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    }
    with client_of(judge) as client:
        return client.chat.completions.create(**(request | changes))


def respond(judge: RunningJudge, **changes: Any) -> Any:
    """Ask for a response."""
    request: dict[str, Any] = {
        "model": "gpt-5.4-mini",
        "instructions": INSTRUCTIONS,
        "input": [{"role": "user", "content": TEXT}],
        "max_output_tokens": 1000,
        "text": {"format": {"type": "json_schema", **SCHEMA}},
        "store": False,
    }
    with client_of(judge) as client:
        return client.responses.create(**(request | changes))


def message_text(judge: RunningJudge) -> str:
    """Return the text of the answer over the Messages API."""
    with Anthropic(api_key="any", base_url=judge.base_url) as client:
        message = client.messages.create(
            model="gpt-5.4-mini",
            max_tokens=1000,
            system=INSTRUCTIONS,
            messages=[{"role": "user", "content": TEXT}],
            output_config={"format": {"type": "json_schema", "schema": SCHEMA["schema"]}},
        )
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_the_three_apis_give_one_answer_to_one_question(judge: RunningJudge) -> None:
    """The rules exist once, so a test over one API holds for the others."""
    answer = message_text(judge)
    assert complete(judge).choices[0].message.content == answer
    assert respond(judge).output_text == answer
    assert not hasattr(read_tier2(answer, dimensions=DIMENSIONS, materials=()), "problems")


def test_cached_tokens_are_counted_as_the_apis_count_them(judge: RunningJudge) -> None:
    """Prompt tokens include cached ones there, unlike in the Messages API."""
    first, second = complete(judge).usage, complete(judge).usage
    assert first.prompt_tokens == second.prompt_tokens
    assert (first.prompt_tokens_details.cached_tokens, second.prompt_tokens_details.cached_tokens > 0) == (0, True)
    third = respond(judge).usage
    assert third.input_tokens == first.prompt_tokens
    assert third.input_tokens_details.cached_tokens == second.prompt_tokens_details.cached_tokens


def test_a_prompt_is_counted_without_being_answered(judge: RunningJudge) -> None:
    """The Responses API counts tokens; Chat Completions does not."""
    with client_of(judge) as client:
        counted = client.responses.input_tokens.count(
            model="gpt-5.4-mini",
            instructions=INSTRUCTIONS,
            input=[{"role": "user", "content": TEXT}],
            text={"format": {"type": "json_schema", **SCHEMA}},  # type: ignore[typeddict-item]
        )
    assert counted.input_tokens == respond(judge).usage.input_tokens
    assert judge.requests == 1


@pytest.mark.parametrize(
    ("script", "finish", "reason"),
    [("cut_off", "length", "max_output_tokens"), ("answer", "stop", None)],
)
def test_an_answer_that_was_cut_off_says_so(script: str, finish: str, reason: str | None) -> None:
    """Else half an answer would be read as a whole one."""
    with running(script) as judge:
        assert complete(judge).choices[0].finish_reason == finish
        details = respond(judge).incomplete_details
        assert (details.reason if details else None) == reason


def test_a_refusal_is_no_content() -> None:
    """Both APIs have a field of its own for it."""
    with running("refusal") as judge:
        message = complete(judge).choices[0].message
        (part,) = respond(judge).output[-1].content
    assert message.content is None
    assert message.refusal
    assert part.type == "refusal"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"max_tokens": 10}, "at the same time"),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA | {"schema": {"type": "object"}}}},
            "additionalProp",
        ),
        ({"extra_body": {"boundary": "b"}}, "Unknown parameter: 'boundary'"),
        ({"messages": [{"role": "user", "content": 5}]}, "expected a string"),
        ({"messages": []}, "messages"),
        ({"reasoning_effort": "immense"}, "reasoning_effort"),
    ],
)
def test_a_request_that_the_real_api_refuses_is_refused(judge: RunningJudge, changes: dict[str, Any], complaint: str) -> None:
    """A fault in a request must be discovered here and not with a real key."""
    with pytest.raises(openai.BadRequestError, match=complaint):
        complete(judge, **changes)


def test_each_error_has_the_status_and_body_of_its_api() -> None:
    """The official client makes its exceptions from them."""
    with running("rate_limited,unauthorized,no_structured,overloaded") as judge:
        with pytest.raises(openai.RateLimitError) as limited:
            complete(judge)
        with pytest.raises(openai.AuthenticationError):
            respond(judge)
        with pytest.raises(openai.BadRequestError, match="structured outputs are not supported"):
            complete(judge)
        with pytest.raises(openai.InternalServerError):
            respond(judge)
    assert limited.value.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_missing_key_is_unauthorized(judge: RunningJudge) -> None:
    """The header that Anthropic uses does not count here."""
    with pytest.raises(openai.AuthenticationError):
        complete(judge, extra_headers={"authorization": "", "x-api-key": "any"})


def test_an_unknown_path_names_those_that_exist(judge: RunningJudge) -> None:
    """A wrong base URL is the most common mistake of set-up."""
    with (
        OpenAI(api_key="any", base_url=judge.base_url, max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"),
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
