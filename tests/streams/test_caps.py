"""A session's cap is used almost completely and never exceeded, for any texts and any end of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support import builders as build
from support.engines import engine_over, policy_of, rows, runner_over

from analytics.store.store import Store
from audit.cost import max_cost, nano_of, price_of
from audit.exchanges.prompts import tier2_question
from benchmarks.counting_api import TOKENIZERS, CountingApi
from schemas.records import Exchange
from service.setup.settings import Settings
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.protocol import ModelTraits
from streams.judges.rate_limits import Clock

MODEL = "claude-haiku-4-5"
TEXTS = {
    "English": "I checked the log of the night, and the backup of the database is healthy. " * 3,
    "CJK": "\u5099\u4efd\u5df2\u5b8c\u6210\u3002" * 60,
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 50,
    "marks": "!#%&*+^`|~" * 60,
    "ligatures": "\ufdfa" * 60,
}
OPEN = "SELECT reservation_id FROM reservations WHERE reservation_id NOT IN (SELECT unnest(reservation_ids) FROM judgements)"
WHOLE = "* EXCLUDE (_offset)"


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a database in memory."""
    with Store(None) as opened:
        yield opened


def judge_over(api: httpx2.AsyncBaseTransport, **options: Any) -> LiveJudge:
    """Return a judge over an API in this process."""
    return open_live_judge(None, "http://127.0.0.1:9", lambda _: ModelTraits(cache_minimum=4096), transport=api, **options)


def exchanges(session: str, text: str, turns: int = 30) -> list[Exchange]:
    """Return a session's exchanges, all of which are judged."""
    return [build.exchange(session, turn, f"{turn}: {text}") for turn in range(1, turns + 1)]


def spent_by_session(store: Store) -> dict[str, int]:
    """Return the nano-USD per session by the scores, and by the judgements."""
    spending: list[dict[str, int]] = [{}, {}]
    for index, table in enumerate(("log.scores", "judgements")):
        for session, cost in store.cursor().execute(f"SELECT session_id, cost_usd FROM {table}").fetchall():
            spending[index][session] = spending[index].get(session, 0) + nano_of(cost or 0)
    scores, judgements = spending
    assert scores == {session: judgements.get(session, 0) for session in scores}
    return scores


def judged(store: Store, api: httpx2.AsyncBaseTransport, sessions: dict[str, list[Exchange]], cap: float) -> None:
    """Judge all sessions concurrently."""

    async def work() -> None:
        policy = policy_of(cost_cap_per_session=cap, sampling={"enabled": False})
        async with engine_over(store, policy, judge_over(api)) as engine:
            await engine.publish("exchanges", [one for session in sessions.values() for one in session])
            await engine.wait_until_drained()

    asyncio.run(work())
    runner = runner_over(store, policy_of(cost_cap_per_session=cap, sampling={"enabled": False}))
    before = rows(store, "scores", WHOLE)
    runner.rebuild()
    assert rows(store, "scores", WHOLE) == before


@pytest.mark.parametrize("kind", TEXTS)
def test_a_small_cap_is_used_almost_completely(store: Store, kind: str) -> None:
    """A call refused despite sufficient budget leaves an exchange unjudged."""
    cap = 0.04
    judged(store, CountingApi(TOKENIZERS["by script"]), {"s": exchanges("s", TEXTS[kind])}, cap)
    (spent,) = spent_by_session(store).values()
    assert 0.8 * nano_of(cap) <= spent <= nano_of(cap)
    assert "cost_cap" in {reason for (reason,) in rows(store, "scores", "tier2_reason")}


@pytest.mark.parametrize("tokens", TOKENIZERS)
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "not counted"])
def test_no_cap_is_exceeded_whatever_the_texts_and_the_tokenizer(store: Store, *, tokens: str, counts: bool) -> None:
    """With concurrent sessions and one token per byte, the spending never exceeds the cap, and the sums agree."""
    cap = 0.04
    sessions = {kind: exchanges(kind, text, 12) for kind, text in TEXTS.items()}
    judged(store, CountingApi(TOKENIZERS[tokens], counts=counts), sessions, cap)
    spent = spent_by_session(store)
    assert set(spent) == set(TEXTS)
    assert all(one <= nano_of(cap) for one in spent.values())
    assert store.cursor().execute(OPEN).fetchall() == []


class Unanswering(CountingApi):
    """Counts tokens, and never answers."""

    def __init__(self) -> None:
        super().__init__(TOKENIZERS["four characters a token"])
        self.begun = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Count tokens, or hang."""
        if request.url.path.endswith("/count_tokens"):
            return await super().handle_async_request(request)
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_an_interrupted_call_is_charged_by_its_own_prompt(store: Store) -> None:
    """A restart must charge running calls at their maximum cost, not more and not less."""
    exchange = build.exchange("s", 1, TEXTS["English"])
    question = tier2_question(exchange, policy_of().for_project(exchange.project))
    price = price_of(MODEL, {})
    assert price is not None

    async def cut_off() -> None:
        api = Unanswering()
        async with engine_over(store, judge=judge_over(api)) as engine:
            await engine.ingest_exchange(exchange)
            await api.begun.wait()
            await engine.stop(0)

    async def again() -> None:
        async with engine_over(store, judge=judge_over(CountingApi(TOKENIZERS["four characters a token"]))) as engine:
            await engine.wait_until_drained()

    asyncio.run(cut_off())
    asyncio.run(again())
    by_outcome = dict(rows(store, "judgements WHERE purpose = 'tier2'", "outcome, cost_usd"))
    near, real = (nano_of(float(str(by_outcome[outcome]))) for outcome in ("interrupted", "answered"))
    assert real < near < max_cost(question, price) * 2 / 3
    assert near - question.max_tokens * 5000 < 1.5 * question.texts_size / 4 * 1000
    assert nano_of(sum(float(str(cost)) for (cost,) in rows(store, "judgements", "cost_usd"))) == spent_by_session(store)["s"]


class Overloaded(CountingApi):
    """Rejects every message free of charge, and demands a pause."""

    def __init__(self, wait: str) -> None:
        super().__init__(TOKENIZERS["four characters a token"])
        self.refused = 0
        self._wait = wait

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Count tokens, or reject the message."""
        if request.url.path.endswith("/count_tokens"):
            return await super().handle_async_request(request)
        self.refused += 1
        body = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}
        return httpx2.Response(529, headers={"retry-after": self._wait}, json=body)


def test_a_stop_charges_nothing_for_a_refused_call(store: Store) -> None:
    """An overloaded API bills nothing, so a stop must not charge the reservation."""
    slept = asyncio.Event()

    async def work() -> None:
        go_on = asyncio.Event()

        async def sleep(_seconds: float) -> None:
            slept.set()
            await go_on.wait()

        judge = judge_over(Overloaded("1"), clock=Clock(sleep=sleep))
        async with engine_over(store, judge=judge) as engine:
            await engine.ingest_exchange(build.exchange("s", 1))
            await slept.wait()
            stopping = asyncio.create_task(engine.stop(60))
            await asyncio.sleep(0)
            go_on.set()
            await stopping

    asyncio.run(work())
    assert rows(store, "judgements", "outcome, cost_usd") == [("interrupted", 0.0)]
    assert store.cursor().execute(OPEN).fetchall() == []

    async def again() -> None:
        async with engine_over(store, judge=judge_over(CountingApi(TOKENIZERS["four characters a token"]))) as engine:
            await engine.wait_until_drained()

    asyncio.run(again())
    judgements = rows(store, "judgements WHERE purpose = 'tier2'", "outcome", "outcome")
    assert judgements == [("answered",), ("interrupted",)]
    spent_by_session(store)


def test_a_waiting_question_does_not_delay_a_stop(store: Store) -> None:
    """During an API's pause of ten minutes, questions can wait for the restart."""

    async def work() -> None:
        asleep = asyncio.Event()

        async def sleep(_seconds: float) -> None:
            asleep.set()
            await asyncio.Event().wait()

        judge = judge_over(Overloaded("500"), clock=Clock(sleep=sleep))
        judge.limiter.pause(500)
        async with engine_over(store, judge=judge) as engine:
            await engine.ingest_exchange(build.exchange("s", 1))
            await asleep.wait()
            await asyncio.wait_for(engine.stop(3600), 60)

    asyncio.run(work())
    assert rows(store, "reservations") == []
    assert rows(store, "scores") == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, (20, 125)), ({"judge_deadline": 600.0}, (20, 605)), ({"stop_grace": 3.0}, (3, 3))],
    ids=["as it comes", "slow judge", "as somebody wants it"],
)
def test_a_stop_waits_for_a_call_up_to_its_maximum_duration(given: dict[str, float], expected: tuple[float, float]) -> None:
    """An interrupted call is charged in full and repeated."""
    settings = Settings(**given)  # type: ignore[arg-type]
    assert (settings.client_grace, settings.judge_grace) == expected
