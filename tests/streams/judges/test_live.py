"""The live judge over a scripted API: its requests, its reading of answers, and its limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audit.cost import PromptBound, Usage
from schemas.errors import SettingsError
from streams.judges.live import OutputModes, open_live_judge
from streams.judges.messages_api import message_parameters
from streams.judges.model_api import OutputMode, Repair, build_request
from streams.judges.protocol import Credentials, ModelTraits, credentials

KEY = "sk-ant-api03-a-key-that-must-not-be-shown"
LOCAL = "http://127.0.0.1:9"
GOOD = '{"score": 0.5}'
Build = Callable[..., Any]


def test_a_question_becomes_one_call_and_one_answered_verdict(judge_with: Build, build_question: Build, message: Build) -> None:
    """The ordinary case: the request, and all fields of a judgement."""
    judge = judge_with(message())
    (verdict,) = judge.ask(build_question())
    (body,) = judge.api.bodies
    assert body.keys() == {"model", "max_tokens", "system", "messages", "output_config"}
    assert body["system"] == [{"type": "text", "text": build_question().instructions, "cache_control": {"type": "ephemeral"}}]
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": build_question().schema}}
    assert verdict.outcome == "answered"
    assert verdict.answer == GOOD
    assert verdict.error is None
    assert verdict.attempts == 1
    assert verdict.attempt_errors == ()
    assert Usage(100, 20, 0, 7) == verdict.usage
    assert verdict.model == "claude-haiku-4-5"
    assert verdict.stop_reason == "end_turn"
    assert verdict.simulated is False
    assert judge.budgets[0].usages == [Usage(100, 20, 0, 7)]
    assert judge.api.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_each_request_has_its_own_boundary(judge_with: Build, build_question: Build, message: Build) -> None:
    """A reused boundary could be known to the author of a later text."""
    judge = judge_with(message())
    judge.ask(build_question(), build_question())
    contents = {body["messages"][0]["content"] for body in judge.api.bodies}
    assert len(contents) == 2
    assert all(content.endswith("Give a score from 0 to 1.") for content in contents)


@pytest.mark.parametrize(("minimum", "marked"), [(None, True), (100, True), (4096, False)])
def test_a_prefix_too_short_for_the_cache_is_not_marked(minimum: int | None, marked: bool, build_question: Build) -> None:
    """An ignored cache mark is free, but it makes the estimated costs wrong."""
    system = message_parameters(build_request(build_question(), ModelTraits(cache_minimum=minimum), "b"))["system"][0]
    assert ("cache_control" in system) == marked


def test_thinking_is_disabled_only_for_models_that_think_by_default(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """Older models and compatible servers may not know the parameter."""
    for off in (False, True):
        judge = judge_with(message(), traits=ModelTraits(switch_off_thinking=off))
        judge.ask(build_question())
        assert judge.api.bodies[0].get("thinking") == ({"type": "disabled"} if off else None)


def test_a_lone_surrogate_is_replaced_in_the_request(judge_with: Build, build_question: Build, message: Build) -> None:
    """UTF-8 cannot encode it, and an agent's text must not make its own judging fail."""
    judge = judge_with(message())
    (verdict,) = judge.ask(build_question(task="Score \ud800 this."))
    assert verdict.outcome == "answered"
    assert judge.api.bodies[0]["messages"][0]["content"].endswith("Score ? this.")


def text_blocks(*texts: str) -> list[dict[str, Any]]:
    """Return the content of a message with these text blocks."""
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "thinking", "thinking": '{"score": 0.1}', "signature": "x"}, *text_blocks(GOOD)],
        [{"type": "redacted_thinking", "data": "eA=="}, *text_blocks(GOOD)],
        text_blocks("I looked at it first.", GOOD),
        text_blocks(GOOD, "!"),
        text_blocks("", GOOD),
        text_blocks(GOOD[:9], GOOD[9:]),
        text_blocks(GOOD, GOOD),
        text_blocks("<think>Is it ", '{"score": 0.1}?</think>', GOOD),
        [{"type": "tool_use", "id": "t", "name": "answer", "input": {"score": 0.5}}],
        [*text_blocks("I call the tool."), {"type": "tool_use", "id": "t", "name": "answer", "input": {"score": 0.5}}],
    ],
)
def test_an_answer_is_read_from_all_blocks(
    content: list[dict[str, Any]], judge_with: Build, build_question: Build, message: Build
) -> None:
    """Servers may split an answer or put text before it, so one block alone may miss it."""
    (verdict,) = judge_with(message(content=content)).ask(build_question())
    assert verdict.outcome == "answered"
    assert json.loads(verdict.answer) == {"score": 0.5}
    assert verdict.attempts == 1


@pytest.mark.parametrize(
    "content",
    [
        text_blocks(GOOD, '{"score": 0.1}'),
        [*text_blocks(GOOD), {"type": "tool_use", "id": "t", "name": "answer", "input": {"score": 0.1}}],
        [{"type": "thinking", "thinking": GOOD, "signature": "x"}],
    ],
)
def test_contradicting_blocks_are_an_invalid_answer(
    content: list[dict[str, Any]], judge_with: Build, build_question: Build, message: Build
) -> None:
    """Choosing one of two scores would be a guess."""
    (verdict,) = judge_with(message(content=content)).ask(build_question())
    assert verdict.outcome == "invalid"


@pytest.mark.parametrize(
    ("fields", "outcome", "answer"),
    [
        ({"stop_reason": "refusal"}, "refused", GOOD),
        (
            {"content": [{"type": "text", "text": "I'm sorry, I can't judge that."}]},
            "refused",
            "I'm sorry, I can't judge that.",
        ),
        ({"stop_reason": "model_context_window_exceeded"}, "cut_off", GOOD),
    ],
)
def test_an_answer_that_a_second_call_cannot_help_is_not_asked_for_again(
    *, fields: dict[str, Any], outcome: str, answer: str | None, judge_with: Build, build_question: Build, message: Build
) -> None:
    """Each is a named failure of the judge, never a score; the call was made, so its usage is charged."""
    judge = judge_with(message(**fields))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == outcome
    assert verdict.answer == answer
    assert verdict.attempts == 1
    assert verdict.error
    assert judge.budgets[0].usages == [Usage(100, 20, 0, 7)]


@pytest.mark.parametrize("content", [None, [], [{"type": "thinking", "thinking": "hm"}], [{"type": "text", "text": " \n"}]])
def test_an_empty_answer_is_asked_for_once_more(
    content: list[dict[str, Any]] | None, judge_with: Build, build_question: Build, message: Build
) -> None:
    """Servers sometimes lose an answer; two empty ones in a row are a failure, and both are charged."""
    judge = judge_with(message(content=content), message())
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.attempts == 2
    again = judge_with(message(content=content))
    (verdict,) = again.ask(build_question())
    assert verdict.outcome == "invalid"
    assert verdict.attempts == 2
    assert again.budgets[0].usages == [Usage(100, 20, 0, 7)] * 2


def test_an_answer_that_was_cut_off_is_asked_for_once_more_with_twice_the_room(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """A longer answer may fit; a second one that does not is a failure."""
    judge = judge_with(message(stop_reason="max_tokens"), message())
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    limits = [body["max_tokens"] for body in judge.api.bodies]
    assert limits == [build_question().max_tokens, 2 * build_question().max_tokens]
    again = judge_with(message(stop_reason="max_tokens"))
    (verdict,) = again.ask(build_question())
    assert verdict.outcome == "cut_off"
    assert verdict.attempts == 2


def test_a_cap_without_room_for_a_longer_answer_leaves_it_cut_off(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """The money is not the reason that there is no answer: the first call was paid for."""
    judge = judge_with(message(stop_reason="max_tokens"))
    (verdict,) = judge.ask(build_question(), calls=1)
    assert verdict.outcome == "cut_off"
    assert verdict.attempts == 1


def test_a_server_without_structured_output_gets_the_schema_in_the_prompt(
    judge_with: Build, build_question: Build, message: Build, error: Build
) -> None:
    """Compatible servers may reject the parameter; the rejection is free, and is remembered."""
    refused = error(400, "output_config: Extra inputs are not permitted")
    judge = judge_with(refused, message(f"```json\n{GOOD}\n```"))
    verdicts = judge.ask(build_question(), build_question())
    assert [(verdict.outcome, verdict.answer, verdict.attempts) for verdict in verdicts] == [
        ("answered", GOOD, 2),
        ("answered", GOOD, 1),
    ]
    assert ["output_config" in body for body in judge.api.bodies] == [True, False, False]
    schema = '{"properties":{"score":{"type":"number"}},"required":["score"],"type":"object"}'
    assert judge.api.bodies[1]["messages"][0]["content"].endswith(schema)
    assert judge.api.bodies[0]["system"] == judge.api.bodies[1]["system"]
    assert [(budget.reserved, len(budget.settled)) for budget in judge.budgets] == [(1, 1), (1, 1)]


def test_json_within_prose_is_accepted_and_the_next_prompt_has_the_schema(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """The recorded text is the one that was parsed, so that a replay parses the same."""
    judge = judge_with(message(f"Here you are: {GOOD} I hope it helps."))
    verdicts = judge.ask(build_question(), build_question())
    assert [(verdict.outcome, verdict.answer, verdict.attempts) for verdict in verdicts] == [("answered", GOOD, 1)] * 2
    assert ["output_config" in body for body in judge.api.bodies] == [True, False]


def test_prose_is_asked_again_with_the_schema_then_repaired_once_then_invalid(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """Each step costs a call, so a model that never complies must not use up the session's budget."""
    judge = judge_with(message("I would rather not say."))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "invalid"
    assert verdict.answer == "I would rather not say."
    assert verdict.attempts == 3
    assert len(verdict.attempt_errors) == 3
    assert [[turn["role"] for turn in body["messages"]] for body in judge.api.bodies] == [
        ["user"],
        ["user"],
        ["user", "assistant", "user"],
    ]
    assert judge.budgets[0].reserved == 3
    assert len(judge.budgets[0].settled) == 3
    assert Usage(300, 60, 0, 21) == verdict.usage


def test_an_answer_that_violates_the_schema_is_sent_back_once_with_the_problems(
    judge_with: Build, build_question: Build, message: Build
) -> None:
    """Most wrong answers need a small repair; the last turn is the user's, because a prefilled answer is rejected."""
    judge = judge_with(message('{"score": 7.0}'), message())
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.answer == GOOD
    assert verdict.attempts == 2
    (error,) = verdict.attempt_errors
    assert "score: not from 0 to 1" in error
    turns = judge.api.bodies[1]["messages"]
    assert turns[1]["content"] == '{"score": 7.0}'
    assert "- score: not from 0 to 1" in turns[2]["content"]
    assert "output_config" in judge.api.bodies[1]


@example(answer="x" * 5000, problems=["y" * 300] * 12)
@example(answer="\u6f22" * 5000, problems=["\u5b57"])
@given(answer=st.text(min_size=1, max_size=5000), problems=st.lists(st.text(max_size=300), min_size=1, max_size=12))
def test_a_repair_stays_within_its_reservation(build_question: Build, answer: str, problems: list[str]) -> None:
    """The reservation counts one token per byte; half of our own text must pay for the repair."""
    question = build_question()
    plain = message_parameters(build_request(question, ModelTraits(), "b", output_mode=OutputMode.IN_PROMPT))["messages"]
    mended = message_parameters(
        build_request(question, ModelTraits(), "b", Repair(answer, tuple(problems)), output_mode=OutputMode.IN_PROMPT)
    )["messages"]
    own = len(question.instructions) + len(question.task) + len(json.dumps(question.schema))
    assert plain[0] == mended[0]
    assert sum(len(turn["content"].encode()) for turn in mended[1:]) <= own // 2 + 200


def test_an_oversized_answer_is_neither_kept_nor_sent_back(judge_with: Build, build_question: Build, message: Build) -> None:
    """A judgement must fit into a record, and a repair into a prompt."""
    (verdict,) = judge_with(message("x" * 100_000)).ask(build_question())
    assert verdict.outcome == "invalid"
    assert verdict.attempts == 1
    assert len(verdict.answer or "") == 65_536


def test_a_temporary_error_is_retried_and_costs_nothing(
    judge_with: Build, build_question: Build, message: Build, error: Build, clock: Any
) -> None:
    """The API does not bill errors; the backoff grows, and each failure is recorded."""
    judge = judge_with(error(529, "Overloaded"), error(500, "oops"), error(409, "locked"), message())
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.attempts == 4
    assert verdict.attempt_errors == ("overloaded: Overloaded", "HTTP 500: oops", "HTTP 409: locked")
    assert clock.slept == [0.5, 1.0, 2.0]
    assert judge.budgets[0].reserved == 1
    assert judge.budgets[0].usages == [Usage(100, 20, 0, 7)]


def test_the_number_of_calls_is_bounded(judge_with: Build, build_question: Build, error: Build) -> None:
    """A provider that is down must not block a session indefinitely."""
    judge = judge_with(error(503, "down"), max_attempts=3)
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "provider_error"
    assert verdict.error == "HTTP 503: down"
    assert verdict.attempts == 3
    assert judge.budgets[0].reserved == 1
    assert judge.budgets[0].settled == []


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404])
def test_a_permanent_error_is_not_retried(status: int, judge_with: Build, build_question: Build, error: Build) -> None:
    """Retries do not fix a wrong key, whatever the server says about retrying."""
    judge = judge_with(error(status, headers={"x-should-retry": "true"}))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "provider_error"
    assert verdict.attempts == 1
    assert judge.budgets[0].settled == []


@pytest.mark.parametrize(("status", "hint", "attempts"), [(500, "false", 1), (413, "true", 4), (413, "", 1)])
def test_a_server_may_decide_about_the_retry(
    *, status: int, hint: str, attempts: int, judge_with: Build, build_question: Build, error: Build
) -> None:
    """The server knows more about the failure than the status shows."""
    (verdict,) = judge_with(error(status, headers={"x-should-retry": hint})).ask(build_question())
    assert verdict.outcome == "provider_error"
    assert verdict.attempts == attempts


@pytest.mark.parametrize("headers", [{"retry-after": "30"}, {"retry-after": "30", "retry-after-ms": "30000"}])
def test_a_rate_limit_delays_the_retry(
    *, headers: dict[str, str], judge_with: Build, build_question: Build, message: Build, error: Build, clock: Any
) -> None:
    """Retrying before the server's delay would make it worse."""
    (verdict,) = judge_with(error(429, headers=headers), message()).ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.attempt_errors == ("rate limited: retry after 30 s",)
    assert clock.slept == [30.0]


def test_a_rate_limit_beyond_the_deadline_ends_the_question_and_delays_the_next(
    judge_with: Build, build_question: Build, message: Build, error: Build, clock: Any
) -> None:
    """The session is judged later: a backlog must not become unscored while the API demands a pause."""
    judge = judge_with(error(429, headers={"retry-after": "300"}), message())
    first, second = judge.ask(build_question(), build_question())
    assert first.outcome == "provider_error"
    assert first.error == "rate limited: retry after 300 s"
    assert first.attempts == 1
    assert second.outcome == "answered"
    assert second.attempts == 1
    assert 290 < sum(clock.slept) <= 300
    assert [(budget.reserved, len(budget.settled)) for budget in judge.budgets] == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("fault", "outcome", "billed"),
    [
        (httpx2.ConnectError("no route"), "provider_error", False),
        (httpx2.ConnectTimeout("slow"), "timeout", False),
        (httpx2.PoolTimeout("full"), "timeout", False),
        (httpx2.ReadTimeout("slow"), "timeout", True),
        (httpx2.ReadError("reset"), "provider_error", True),
        (httpx2.RemoteProtocolError("gone"), "provider_error", True),
        (httpx2.WriteError("reset"), "provider_error", True),
    ],
)
def test_only_a_call_that_cannot_have_started_is_free(
    fault: Exception, outcome: str, billed: bool, judge_with: Build, build_question: Build
) -> None:
    """Once a request was sent, an answer may have been generated and billed without being received."""
    judge = judge_with(fault, max_attempts=2)
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == outcome
    assert verdict.attempts == 2
    budget = judge.budgets[0]
    expected_charges = [budget.amount] * 2 if billed else []
    assert budget.settled == expected_charges


def test_a_gateway_error_is_charged_because_it_may_hide_an_answer(
    judge_with: Build, build_question: Build, error: Build
) -> None:
    """A 504 of the API itself is not billed; one of a proxy does not show what the API did."""
    page = httpx2.Response(504, html="<h1>Gateway time-out</h1>")
    for response, charge_count in ((page, 1), (error(504), 0)):
        judge = judge_with(response, max_attempts=1)
        judge.ask(build_question())
        assert len(judge.budgets[0].settled) == charge_count


@pytest.mark.parametrize(
    "content",
    [
        b"<html>sign in</html>",
        b'{"content": [{"type": "text", "te',
        b'{"content": "text"}',
        b'{"content": [[]]}',
        b'{"type": "error", "error": {"type": "overloaded_error"}}',
        b"[]",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"content": [], "more": ' + b"[" * 100_000,
        b'{"content": [], "usage": {"input_tokens": ' + b"9" * 5000 + b"}}",
    ],
)
def test_an_unreadable_answer_is_an_outcome_charged_in_full(content: bytes, judge_with: Build, build_question: Build) -> None:
    """Status 200 means that the call was made and paid for; repeating it would pay twice."""
    judge = judge_with(httpx2.Response(200, content=content, headers={"content-type": "application/json"}))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "provider_error"
    assert verdict.attempts == 1
    assert (verdict.error or "").startswith("unreadable answer: ")
    assert judge.budgets[0].usages == [None]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "many",
        {},
        {"input_tokens": 5},
        {"input_tokens": -1, "output_tokens": 5},
        {"input_tokens": 5, "output_tokens": 2.5},
        {"input_tokens": True, "output_tokens": 5},
        {"input_tokens": 2**40, "output_tokens": 5},
        {"input_tokens": 5, "output_tokens": 5, "cache_read_input_tokens": "7"},
    ],
)
def test_invalid_usage_counts_as_unknown(usage: Any, judge_with: Build, build_question: Build, message: Build) -> None:
    """The answer counts, its cost is unknown, and invalid usage must not break the record."""
    judge = judge_with(message(usage=usage))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.usage is None
    assert judge.budgets[0].usages == [None]


@pytest.mark.parametrize(("calls", "outcome", "attempts"), [(0, "cost_cap", 0), (1, "cost_cap", 1), (2, "invalid", 2)])
def test_every_call_needs_a_reservation(
    *, calls: int, outcome: str, attempts: int, judge_with: Build, build_question: Build, message: Build
) -> None:
    """The cap also holds for repairs."""
    judge = judge_with(message('{"score": 7.0}'))
    (verdict,) = judge.ask(build_question(), calls=calls)
    assert verdict.outcome == outcome
    assert verdict.attempts == attempts
    assert len(judge.api.requests) == attempts


def test_error_messages_of_a_server_are_shortened_and_redacted(judge_with: Build, build_question: Build, error: Build) -> None:
    """Error messages are recorded and shown; they may repeat the key or contain terminal sequences."""
    response_text = f"bad key {KEY}\x1b[31m\u202e\nAuthorization: Bearer abcdefghijklmnopqrstuvwxyz012345 " + "x" * 10_000
    (verdict,) = judge_with(error(401, response_text)).ask(build_question())
    error_message = verdict.error or ""
    assert error_message.startswith("unauthorized: bad key [key] [31m Authorization: ")
    assert "abcdefghijklmnopqrstuvwxyz" not in error_message
    assert len(error_message) <= 220
    assert error_message.isprintable()


@pytest.mark.parametrize(
    ("fields", "headers"), [({"model": "driftline-simulated-judge"}, {}), ({}, {"x-driftline-simulated": "1"})]
)
def test_a_simulated_answer_is_marked(
    fields: dict[str, Any], headers: dict[str, str], judge_with: Build, build_question: Build, message: Build
) -> None:
    """Scores of a simulated judge must not pass for real ones, even if a proxy removes one of the marks."""
    (verdict,) = judge_with(message(headers=headers, **fields)).ask(build_question())
    assert verdict.simulated


def test_a_redirect_is_not_followed(judge_with: Build, build_question: Build) -> None:
    """The texts of an exchange must go to the configured address alone."""
    judge = judge_with(httpx2.Response(307, headers={"location": "http://127.0.0.2:9/v1/messages"}))
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "provider_error"
    assert len(judge.api.requests) == 1


async def _never(_request: httpx2.Request) -> Any:
    await asyncio.Event().wait()


def test_the_deadline_covers_everything(judge_with: Build, build_question: Build) -> None:
    """A silent server costs one deadline; each call that may have been made is charged in full."""
    judge = judge_with(_never, deadline=0.2)
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "timeout"
    budget = judge.budgets[0]
    assert verdict.attempts == len(verdict.attempt_errors) == len(budget.settled) == budget.reserved
    assert set(budget.settled) == {budget.amount}


def test_one_call_cannot_use_up_the_deadline(judge_with: Build, build_question: Build, message: Build, clock: Any) -> None:
    """A hanging call is given up early enough for another one, and charged in full."""
    clock.jitter = 0.0
    judge = judge_with(_never, message(), deadline=1.0)
    (verdict,) = judge.ask(build_question())
    assert verdict.outcome == "answered"
    assert verdict.attempt_errors == ("no answer in time",)
    assert judge.budgets[0].usages == [None, Usage(100, 20, 0, 7)]


def test_a_cancelled_call_is_charged_in_full(build_question: Build, budget_for: Build, clock: Any) -> None:
    """At shutdown the outcome of running calls is unknown, so they are charged in full."""
    began = asyncio.Event()

    class Hangs(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.path.endswith("/count_tokens"):
                return httpx2.Response(404)
            began.set()
            return await _never(request)

    async def run() -> tuple[int, list[int]]:
        judge = open_live_judge(KEY, LOCAL, lambda _model: ModelTraits(), clock=clock.judge_clock, transport=Hangs())
        budget = budget_for(build_question())
        asking = asyncio.create_task(judge.ask(build_question(), budget))
        await began.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await judge.aclose()
        return judge.limiter.in_flight, [amount - budget.amount for amount in budget.settled]

    assert asyncio.run(run()) == (0, [0])


def test_an_error_of_the_budget_is_raised_and_frees_the_slot(judge_with: Build, build_question: Build, message: Build) -> None:
    """A failing store is not a failure of the judge, and calls must not continue without a record."""

    class Broken:
        async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:  # noqa: ARG002 - see CallBudget
            assert prompt
            raise TimeoutError("the store is busy")

        def spend(self, usage: Usage | None, model: str | None) -> None:
            raise AssertionError((usage, model))

    async def run() -> int:
        judge = open_live_judge(KEY, LOCAL, lambda _model: ModelTraits(), transport=judge_with(message()).api)
        with pytest.raises(TimeoutError, match="the store is busy"):
            await judge.ask(build_question(), Broken())
        await judge.aclose()
        return judge.limiter.in_flight

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize(
    ("key", "url", "message", "hint"),
    [
        (None, None, "no key", "ANTHROPIC_API_KEY"),
        (None, "https://api.anthropic.com/", "no key", "ANTHROPIC_API_KEY"),
        (KEY, "http://127.0.0.1:8000/v1", "ends in /v1", "set ANTHROPIC_BASE_URL=http://127.0.0.1:8000"),
        (KEY, "https://llm.example/proxy/v1/", "ends in /v1", "set ANTHROPIC_BASE_URL=https://llm.example/proxy"),
        (KEY, "https://llm.example/v1/messages", "ends in /v1/messages", "set ANTHROPIC_BASE_URL=https://llm.example"),
        (KEY, "127.0.0.1:8000", "does not start with http", "ANTHROPIC_BASE_URL"),
        (KEY, "ftp://llm.example", "does not start with http", "ANTHROPIC_BASE_URL"),
        (KEY, "http://", "does not start with http", "ANTHROPIC_BASE_URL"),
        (KEY, "http://[::1", "not a URL", "ANTHROPIC_BASE_URL"),
        (KEY, "https://me:secret@llm.example", "password", "environment"),
        (KEY, "https://llm.example?key=secret", "query", "ANTHROPIC_BASE_URL"),
        ("two words", None, "printable ASCII", "Copy"),
        ("smart\u2019quote", None, "printable ASCII", "Copy"),
    ],
)
def test_invalid_settings_are_refused_at_startup(key: str | None, url: str | None, message: str, hint: str) -> None:
    """Invalid settings must fail at startup, not at the first call, and the error must not contain a secret."""
    with pytest.raises(SettingsError, match=message) as refused:
        open_live_judge(key, url, lambda _model: ModelTraits())
    assert hint in refused.value.hint
    full_message = f"{refused.value} {refused.value.hint}"
    assert "secret" not in full_message
    assert KEY not in full_message


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:11434", "http://localhost:8000/", "http://[::1]:8000", "https://llm.example/proxy"]
)
def test_a_compatible_server_needs_no_key(url: str) -> None:
    """Local servers need no key, but the client refuses requests without one."""
    asyncio.run(open_live_judge(None, url, lambda _model: ModelTraits()).aclose())


def test_credentials_come_from_what_is_given() -> None:
    """The key has precedence over the token, and empty values count as unset."""
    assert Credentials(None, None) == credentials({})
    assert Credentials("k", "http://u") == credentials(
        {"ANTHROPIC_API_KEY": " k\n", "ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "http://u"}
    )
    assert Credentials("t", None) == credentials(
        {"ANTHROPIC_API_KEY": " ", "ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": ""}
    )


def test_structured_output_is_asked_for_again_after_an_hour() -> None:
    """One answer in prose may be an exception. Single calls and batches share this rule."""
    now = 100.0
    modes = OutputModes(lambda: now)
    assert modes["m"] is OutputMode.STRUCTURED
    modes.switch_to_prompt("m", "the answer is prose")
    now += 3599
    modes.switch_to_prompt("m", "another answer, asked before the first one came, does not prolong it")
    assert (modes["m"], modes["other"]) == (OutputMode.IN_PROMPT, OutputMode.STRUCTURED)
    now += 1
    assert modes["m"] is OutputMode.STRUCTURED
