"""Fixtures of the judge's tests: questions, a checking call budget, a scripted API without a network, and a clock that skips waits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pytest

from audit.cost import OVERHEAD_TOKENS, PromptBound, Usage, is_plausible, max_cost, price_of
from audit.exchanges.questions import Invalid, Material, Question
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.protocol import ModelTraits, Verdict
from streams.judges.rate_limits import Clock

MODEL = "claude-haiku-4-5"
KEY = "sk-ant-api03-a-key-that-must-not-be-shown"
GOOD = '{"score": 0.5}'
Response = httpx2.Response | Exception | Callable[[httpx2.Request], Any]


class SkippingClock:
    """A running clock that skips sleeps and records their length."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.jitter = 1.0
        """The jitter of a backoff; 1.0 is the longest."""

    def now(self) -> float:
        """Return the time in seconds, including skipped ones."""
        return time.monotonic() + sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        """Skip the wait."""
        self.slept.append(seconds)
        await asyncio.sleep(0)

    @property
    def judge_clock(self) -> Clock:
        """Return the `Clock` for a judge."""
        return Clock(now=self.now, sleep=self.sleep, jitter=lambda: self.jitter, wall=lambda: 1_800_000_000.0)


class CheckingBudget:
    """A budget for `calls` calls of one question (None: no cap); the test fails if it spends more than it reserved."""

    def __init__(self, question: Question, calls: int | None = None, *, batched: bool = False) -> None:
        self._question = question
        self._batched = batched
        price = price_of(question.model, {})
        assert price is not None
        self._price = price
        self.amount = max_cost(question, price, batched=batched)
        self.call_limit = calls
        self.reserved = 0
        self.tokens = question.max_tokens
        self.amounts: list[int] = []
        self.settled: list[int] = []
        self.usages: list[Usage | None] = []
        self.has_open_reservation = False

    async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:
        """Reserve the worst case of one call, or use the open reservation."""
        assert prompt is None or prompt.tokens <= self._question.texts_size + OVERHEAD_TOKENS
        await asyncio.sleep(0)
        if not self.has_open_reservation:
            if self.call_limit is not None and self.call_limit <= self.reserved:
                return 0
            self.reserved += 1
            self.has_open_reservation = True
            self.tokens = answer_tokens or self._question.max_tokens
            self.amounts.append(self.amount_of(self.tokens))
        return self.tokens

    def amount_of(self, tokens: int) -> int:
        """Return the maximum cost of a call whose answer has this many tokens."""
        return self._price.max_cost(self._question.texts_size, tokens, batched=self._batched)

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """Settle the reservation."""
        assert self.has_open_reservation, "a call was charged without a reservation"
        assert isinstance(model, str | None)
        self.has_open_reservation = False
        self.usages.append(usage)
        has_plausible_usage = usage is not None and is_plausible(usage, self._question, self.tokens)
        cost = self._price.cost(usage, batched=self._batched) if usage is not None and has_plausible_usage else None
        self.settled.append(self.amounts[-1] if cost is None else cost)
        assert sum(self.settled) <= sum(self.amounts)


class ScriptedApi(httpx2.AsyncBaseTransport):
    """Returns the given responses in order; the last one is repeated."""

    def __init__(self, *responses: Response) -> None:
        self._responses = list(responses)
        self.requests: list[httpx2.Request] = []

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests."""
        return [json.loads(request.content) for request in self.requests]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the next response; tokens are not counted, so each byte counts as one."""
        await request.aread()
        if request.url.path.endswith("/count_tokens"):
            return httpx2.Response(404, json={"type": "error", "error": {"type": "not_found_error", "message": "no"}})
        self.requests.append(request)
        response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
        if isinstance(response, Exception):
            raise response
        if isinstance(response, httpx2.Response):
            return httpx2.Response(response.status_code, headers=response.headers, content=response.content)
        return await response(request)


def _read(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return Invalid(("it is not JSON",))
    score = value.get("score") if isinstance(value, dict) else None
    return score if isinstance(score, float) and 0 <= score <= 1 else Invalid(("score: not from 0 to 1",))


def _question(**fields: Any) -> Question:
    values: dict[str, Any] = {
        "purpose": "tier2",
        "model": MODEL,
        "instructions": "Judge the exchange. " * 40,
        "materials": (Material("agent_response", '"It is done."'),),
        "task": "Give a score from 0 to 1.",
        "schema": {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]},
        "max_tokens": 500,
        "fingerprint": "f" * 64,
        "read": _read,
    }
    return Question(**(values | fields))


def _message(text: str | None = GOOD, *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx2.Response:
    content = [] if text is None else [{"type": "text", "text": text}]
    usage = {"input_tokens": 100, "output_tokens": 20, "cache_creation_input_tokens": None, "cache_read_input_tokens": 7}
    body = {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "end_turn",
        "usage": usage,
    }
    return httpx2.Response(200, json=body | fields, headers=headers)


def _error(status: int, message: str = "no", *, headers: Mapping[str, str] | None = None) -> httpx2.Response:
    body = {"type": "error", "error": {"type": "some_error", "message": message}}
    return httpx2.Response(status, json=body, headers=headers)


@pytest.fixture(scope="session")
def build_question() -> Callable[..., Question]:
    """Return a function that builds a question with the answer `{"score": 0..1}`."""
    return _question


@pytest.fixture(scope="session")
def message() -> Callable[..., httpx2.Response]:
    """Return a function that builds a response with a message of this text."""
    return _message


@pytest.fixture(scope="session")
def error() -> Callable[..., httpx2.Response]:
    """Return a function that builds an error response of the API."""
    return _error


@pytest.fixture
def clock() -> SkippingClock:
    """Return a clock that skips waits."""
    return SkippingClock()


@pytest.fixture(scope="session")
def budget_for() -> type[CheckingBudget]:
    """Return a function that builds a checking call budget."""
    return CheckingBudget


class ScriptedJudge:
    """A judge over a scripted API, with the results of its questions."""

    def __init__(self, clock: SkippingClock, responses: tuple[Response, ...], options: dict[str, Any]) -> None:
        self.api = ScriptedApi(*responses)
        self.clock = clock
        self.budgets: list[CheckingBudget] = []
        traits = options.pop("traits", ModelTraits())
        self._open = lambda: open_live_judge(
            KEY, "http://127.0.0.1:9", lambda _model: traits, clock=clock.judge_clock, transport=self.api, **options
        )

    def ask(self, *questions: Question, calls: int | None = None) -> list[Verdict]:
        """Ask a judge the questions, one after another."""

        async def run() -> list[Verdict]:
            judge = self._open()
            try:
                return [await self._ask_one(judge, question, calls) for question in questions]
            finally:
                await judge.aclose()

        return asyncio.run(run())

    async def _ask_one(self, judge: LiveJudge, question: Question, calls: int | None) -> Verdict:
        self.budgets.append(CheckingBudget(question, calls))
        verdict = await judge.ask(question, self.budgets[-1])
        assert judge.limiter.in_flight == 0
        return verdict


@pytest.fixture
def judge_with(clock: SkippingClock) -> Callable[..., ScriptedJudge]:
    """Return a function that builds a judge over an API with these responses; it takes options of `open_live_judge`."""
    return lambda *responses, **options: ScriptedJudge(clock, responses, options)
