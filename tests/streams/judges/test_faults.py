"""Many concurrent questions against each fault of a provider, through the real client and real connections.

In all cases no exception escapes, the deadline holds, no more is spent than reserved, and every question ends in
one verdict. Each fault meets 200 questions in a soak run, and a fifth of them otherwise.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from support import builders as build
from support.effort import times

from audit.cost import price_of
from audit.exchanges.prompts import tier2_question
from audit.exchanges.questions import Invalid, Question
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from driftline_trial.simulator.scripts import KINDS
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.protocol import ModelTraits, Verdict

QUESTIONS = times(40, soak=200)
KEY = "sk-ant-api03-a-key-that-must-not-be-shown"


class Fault(NamedTuple):
    """The expected outcome of all questions, and the settings of the run."""

    outcomes: set[str]
    deadline: float = 20.0
    max_body: int = 100_000
    script: str | None = None
    concurrency: int = 16
    charged: str = "usage"
    """usage, nothing, or all (of what was set aside)."""


PROVIDER, ANSWERED, INVALID, TIMEOUT = {"provider_error"}, {"answered"}, {"invalid"}, {"timeout"}
FAULTS = {
    "answer": Fault(ANSWERED),
    "strict": Fault(ANSWERED),
    "obedient": Fault(ANSWERED),
    "slow": Fault(ANSWERED, script="slow:0.01"),
    "thinking_first": Fault(ANSWERED),
    "rate_limited": Fault(PROVIDER, charged="nothing"),
    "overloaded": Fault(PROVIDER, charged="nothing"),
    "error500": Fault(PROVIDER, charged="nothing"),
    "bad_request": Fault(PROVIDER, charged="nothing"),
    "unauthorized": Fault(PROVIDER, charged="nothing"),
    "no_structured": Fault(ANSWERED),
    "drip": Fault(TIMEOUT, deadline=2.0, script="drip:0.1", concurrency=50, charged="all"),
    "hang": Fault(TIMEOUT, deadline=2.0, concurrency=50, charged="all"),
    "reset": Fault(PROVIDER, charged="all"),
    "huge": Fault(PROVIDER, script="huge:1", charged="all"),
    "html": Fault(PROVIDER, charged="all"),
    "truncated_json": Fault(PROVIDER, charged="all"),
    "wrong_shape": Fault(PROVIDER, charged="all"),
    "no_text": Fault(INVALID),
    "no_usage": Fault(ANSWERED, charged="all"),
    "zero_usage": Fault(ANSWERED, charged="all"),
    "lying_usage": Fault(ANSWERED, charged="all"),
    "refusal": Fault({"refused"}),
    "cut_off": Fault({"cut_off"}),
    "garbage": Fault(INVALID),
    "out_of_range": Fault(INVALID),
    "ignores_structured": Fault(ANSWERED),
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Return the simulated judge that all tests share."""
    with running() as served:
        yield served


def _question(number: int) -> Question:
    return tier2_question(build.exchange("s", number), Policy().for_project("ops"))


def _traits(model: str) -> ModelTraits:
    price = price_of(model, {})
    assert price is not None
    return ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)


async def _ask_all(judge: LiveJudge, pairs: list[tuple[Question, Any]]) -> list[Verdict]:
    """Ask all questions concurrently, each with its call budget."""
    try:
        return await asyncio.gather(*(judge.ask(*pair) for pair in pairs))
    finally:
        await judge.aclose()


def _check(fault: Fault, question: Question, verdict: Verdict, budget: Any) -> None:
    """Assert the invariants of one question."""
    assert sum(budget.settled) <= budget.reserved * budget.amount
    assert len(budget.settled) <= verdict.attempts <= 4
    assert (verdict.outcome == "answered") == (verdict.error is None)
    if verdict.outcome == "answered":
        assert not isinstance(question.read(verdict.answer or ""), Invalid)
        assert verdict.simulated
    call_count = (
        verdict.attempts if fault.outcomes != TIMEOUT else len(budget.settled)
    )  # a deadline may strike before a call is sent
    settled = {"nothing": [], "all": [budget.amount] * call_count}.get(fault.charged)
    assert settled is None or settled == budget.settled
    if fault.charged == "usage":
        assert budget.settled
        assert all(0 < charge < budget.amount for charge in budget.settled)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_provider_is_an_outcome(
    kind: str, simulator: RunningJudge, budget_for: Callable[..., Any], clock: Any
) -> None:
    """This covers every fault of the simulated judge; a new fault without an entry here fails."""
    fault = FAULTS[kind]
    simulator.reset(fault.script or kind)
    judge = open_live_judge(
        KEY,
        simulator.base_url,
        _traits,
        deadline=fault.deadline,
        concurrency=fault.concurrency,
        max_body=fault.max_body,
        clock=clock.judge_clock,
    )
    questions = [_question(number) for number in range(QUESTIONS)]
    pairs = [(question, budget_for(question)) for question in questions]
    began = time.monotonic()
    ended = asyncio.run(_ask_all(judge, pairs))
    took = time.monotonic() - began
    assert len(ended) == QUESTIONS
    assert fault.outcomes == {verdict.outcome for verdict in ended}, Counter(verdict.error for verdict in ended)
    for (question, budget), verdict in zip(pairs, ended, strict=True):
        _check(fault, question, verdict, budget)
    assert simulator.requests > 0, "the fault did not happen"
    assert (fault.charged != "nothing") == any(budget.settled for _, budget in pairs)
    assert took < fault.deadline + 120.0, "the deadline does not bound it"
    assert judge.limiter.in_flight == 0


def test_the_key_is_in_no_log(
    simulator: RunningJudge, budget_for: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The client and the HTTP library log requests and headers at DEBUG, which may be enabled in production."""
    simulator.reset("unauthorized,no_structured,answer")
    for name in (None, "anthropic", "httpx2"):
        caplog.set_level(logging.DEBUG, name)
    judge = open_live_judge(KEY, simulator.base_url, _traits)
    asyncio.run(_ask_all(judge, [(question, budget_for(question)) for question in map(_question, range(3))]))
    assert "HTTP Request" in caplog.text
    assert KEY not in caplog.text
    assert KEY[-8:] not in caplog.text


def test_the_limit_of_a_compressed_response_applies_to_its_unpacked_size(
    build_question: Callable[..., Any], budget_for: Callable[..., Any]
) -> None:
    """A megabyte of zeros is a kilobyte on the wire, so the size must be counted after decompression."""
    bomb = gzip.compress(b" " * 50_000_000)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + bomb)
        writer.close()

    async def run() -> Verdict:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        judge = open_live_judge(None, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", _traits)
        async with server:
            question = build_question()
            verdict = await judge.ask(question, budget_for(question))
            await judge.aclose()
        return verdict

    verdict = asyncio.run(run())
    assert verdict.outcome == "provider_error"
    assert verdict.error == "the response is too large"
