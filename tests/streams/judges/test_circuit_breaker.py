"""A judge with unreadable answers gets few calls, and waiting questions are judged once it recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from support import builders
from support.engines import engine_over, live_judge, policy_of, rows

from analytics.store.store import Store
from audit.exchanges.questions import Question
from driftline_trial.simulator import running
from streams.judges.live import open_live_judge
from streams.judges.protocol import ModelTraits, Verdict
from streams.judges.rate_limits import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, MAX_UNREADABLE, CircuitBreaker, Clock

CONCURRENCY, QUESTIONS = 4, 60
MOST_CALLS = 3
"""Of a question that is never answered: structured, with the schema in the prompt, and a turn of repair."""
GOOD = '{"score": 0.5}'
GARBAGE = {
    "prose": lambda message: message("I like it."),
    "out of range": lambda message: message('{"score": 5.0}'),
    "no text": lambda message: message(None),
    "HTML": lambda _: httpx2.Response(200, html="<html>Sign in</html>"),
    "an error with 200": lambda _: httpx2.Response(200, json={"type": "error", "error": {"type": "overloaded_error"}}),
}
Build = Callable[..., Any]
POLICY = policy_of(sampling={"enabled": False})


class Time:
    """A clock that stands still until all tasks sleep, then skips to the first wake-up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        """Sleep until `run` reaches this time."""
        alarm = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, alarm))
        await alarm

    async def run(self, work: asyncio.Future[Any]) -> None:
        """Skip from wake-up to wake-up until the work is done."""
        while not work.done():
            for _ in range(40):
                await asyncio.sleep(0)
            if self._sleepers and not work.done():
                self._sleepers.sort(key=lambda sleeper: sleeper[0])
                wakes_at, alarm = self._sleepers.pop(0)
                self.seconds = max(self.seconds, wakes_at)
                if not alarm.done():
                    alarm.set_result(None)
        await work

    @property
    def judge_clock(self) -> Clock:
        """Return the `Clock` for a judge."""
        return Clock(now=lambda: self.seconds, sleep=self.sleep, jitter=lambda: 1.0, wall=lambda: 1_800_000_000.0)


class Recovering(httpx2.AsyncBaseTransport):
    """Gives unreadable answers for some seconds; each call takes one second."""

    def __init__(self, time: Time, seconds: float, bad: httpx2.Response, good: httpx2.Response) -> None:
        self._time, self._until = time, seconds
        self._bad, self._good = bad, good
        self.garbage_at: list[float] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer; requests for token counts fail."""
        if request.url.path.endswith("/count_tokens"):
            return httpx2.Response(404, json={})
        await self._time.sleep(1.0)
        is_bad = self._time.seconds <= self._until
        if is_bad:
            self.garbage_at.append(self._time.seconds)
        response = self._bad if is_bad else self._good
        return httpx2.Response(200, headers=response.headers, content=response.content)


def ask_all(time: Time, api: httpx2.AsyncBaseTransport, questions: list[Question], budget_for: Build) -> list[Verdict]:
    """Ask all questions concurrently; every call needs a reservation."""

    async def work() -> list[Verdict]:
        judge = open_live_judge(
            None, "http://127.0.0.1:9", lambda _: ModelTraits(), concurrency=CONCURRENCY, clock=time.judge_clock, transport=api
        )
        asking = asyncio.gather(*(judge.ask(question, budget_for(question)) for question in questions))
        await time.run(asking)
        await judge.aclose()
        return await asking

    return asyncio.run(work())


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("minutes", [1, 60])
def test_unreadable_answers_limit_the_calls_until_the_judge_recovers(
    kind: str, minutes: int, build_question: Build, message: Build, budget_for: Build
) -> None:
    """Each of these calls is paid for: without the breaker, a small server made 2,850 in a minute."""
    time = Time()
    api = Recovering(time, minutes * 60, GARBAGE[kind](message), message(GOOD))
    verdicts = ask_all(time, api, [build_question(fingerprint=f"{number:064}") for number in range(QUESTIONS)], budget_for)
    unanswered = [verdict for verdict in verdicts if verdict.outcome != "answered"]
    probes = 1 + minutes * 60 / MAX_PAUSE_SECONDS + 4  # a minute, two, four and eight come before the longest pause
    assert len(api.garbage_at) <= MOST_CALLS * (MAX_UNREADABLE + CONCURRENCY + probes)
    assert MAX_UNREADABLE <= len(unanswered) <= MAX_UNREADABLE + CONCURRENCY + probes
    assert all(verdict.attempts and verdict.error for verdict in unanswered), "an answer that was paid for is recorded as one"
    assert len([verdict for verdict in verdicts if verdict.answer == GOOD]) == QUESTIONS - len(unanswered)
    assert time.seconds <= minutes * 60 + MAX_PAUSE_SECONDS + 300


def test_an_unreadable_model_does_not_delay_the_others(build_question: Build, message: Build, budget_for: Build) -> None:
    """Projects may use different models."""
    time = Time()
    bad = [build_question(fingerprint=f"{number:064}") for number in range(40)]
    good = [build_question(fingerprint=f"{number:064}", model="claude-haiku-5-5") for number in range(40, 60)]
    answer_times: list[float] = []

    class Noting(Recovering):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if b"claude-haiku-5-5" in request.content:
                answer_times.append(time.seconds)
                return message(GOOD)
            return await super().handle_async_request(request)

    api = Noting(time, 3600, message("No."), message(GOOD))
    ask_all(time, api, bad + good, budget_for)
    assert len(answer_times) >= 20
    assert max(answer_times) < FIRST_PAUSE_SECONDS


def test_a_readable_answer_resets_the_count(build_question: Build, message: Build, judge_with: Build) -> None:
    """A model that fails now and then must not be paused."""
    spoilt = [message("No."), message("No."), message("No.")]
    often = [message("No."), message("No.")]
    responses = [*spoilt, *often * (MAX_UNREADABLE - 2), message(GOOD), *often * (MAX_UNREADABLE - 1), message(GOOD)]
    judge = judge_with(*responses)
    verdicts = judge.ask(*(build_question(fingerprint=f"{number:064}") for number in range(2 * MAX_UNREADABLE)))
    assert [verdict.outcome for verdict in verdicts].count("answered") == 2
    assert not [seconds for seconds in judge.clock.slept if seconds > FIRST_PAUSE_SECONDS / 2]


def test_pauses_grow_to_a_maximum_and_restart_after_an_answer() -> None:
    """An hour of unreadable answers costs a handful of calls, and a later failure starts with a short pause again."""
    time = Time()
    breaker = CircuitBreaker(time.judge_clock)
    pauses = []
    for _ in range(MAX_UNREADABLE - 1):
        breaker.note_unreadable("m")
    assert not breaker.is_paused("m")
    for _ in range(6):
        breaker.note_unreadable("m")
        breaker.note_unreadable("m")  # of a question that was under way
        start = time.seconds
        while breaker.is_paused("m"):
            time.seconds += 1
        pauses.append(time.seconds - start)
    assert pauses == [60, 120, 240, 480, 600, 600]
    breaker.note_readable("m")
    for _ in range(MAX_UNREADABLE):
        breaker.note_unreadable("m")
    time.seconds += 59
    assert breaker.is_paused("m")
    time.seconds += 1
    assert not breaker.is_paused("m")


def test_questions_waiting_for_an_unreadable_judge_survive_a_restart() -> None:
    """Waiting questions have no reservation, so a stop neither waits for the pause nor loses a task; paid calls are recorded."""
    with Store(None) as store, running() as simulator:
        paused = asyncio.Event()

        async def sleep(_seconds: float) -> None:
            paused.set()
            await asyncio.Event().wait()

        def sign_in(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(404 if request.url.path.endswith("/count_tokens") else 200, html="<html>Sign in</html>")

        async def first() -> None:
            judge = open_live_judge(
                None,
                simulator.base_url,
                lambda _: ModelTraits(),
                concurrency=2,
                clock=Clock(sleep=sleep),
                transport=httpx2.MockTransport(sign_in),
            )
            async with engine_over(store, POLICY, judge=judge) as engine:
                for number in range(1, 21):
                    await engine.ingest_exchange(builders.exchange(f"s{number}", 1))
                await paused.wait()
                await asyncio.wait_for(engine.stop(3600), 60)

        async def again() -> None:
            async with engine_over(store, POLICY, judge=live_judge(simulator.base_url)) as engine:
                await engine.wait_until_drained()

        asyncio.run(first())
        paid = rows(store, "judgements", "outcome, attempts, cost_usd IS NOT NULL")
        assert MAX_UNREADABLE <= len(paid) <= MAX_UNREADABLE + 2
        assert set(paid) == {("provider_error", 1, True)}
        assert len(rows(store, "scores")) < 20
        asyncio.run(again())
        assert len(rows(store, "scores")) == 20
        unscored = rows(store, "scores WHERE tier2_score IS NULL", "tier2_reason")
        assert len(unscored) <= MAX_UNREADABLE + 2
        assert 20 - len(unscored) <= len(rows(store, "judgements WHERE outcome = 'answered' AND purpose = 'tier2'"))
