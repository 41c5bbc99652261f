"""The budget of a question when the process dies: reservations are charged in full, and must fit under the cap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support import builders as build
from support.engines import engine_over, policy_of, rows

from analytics.store.store import Store
from audit.cost import Ledger, Usage, max_cost, nano_of, price_of
from audit.exchanges.questions import Question
from audit.policy import Policy
from schemas.codec import single_object
from schemas.errors import StoreError
from schemas.records import Judgement, Record, Reservation, ScoringTask
from streams.judges.protocol import CallBudget, Verdict
from streams.judging import call_budget
from streams.judging.call_budget import CallRecorder, DurableBudget, StoppedError, append_calls
from streams.judging.judged_stages import SCORING, JudgingTask


class RepairingJudge:
    """Repairs its first answer with a second call if the budget allows it."""

    def __init__(self) -> None:
        self.reserved: list[int] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Make one cheap call, then try to reserve another."""
        assert await budget.reserve()
        budget.spend(Usage(100, 10), question.model)
        self.reserved.append(await budget.reserve())
        return Verdict(outcome="invalid", attempts=1)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


@pytest.mark.parametrize(("calls", "expected"), [(1.7, False), (1.9, True)])
def test_a_second_call_is_made_only_if_a_crash_would_stay_under_the_cap(calls: float, expected: bool) -> None:
    """If the process dies, both calls are charged in full. At 1.8 times the worst case, a short answer still fits."""

    async def work(cap: float) -> tuple[list[int], float]:
        judge = RepairingJudge()
        with Store(None) as store:
            async with engine_over(store, policy_of(cost_cap_per_session=cap), judge) as engine:
                await engine.ingest_exchange(build.exchange("s", 1))
                await engine.wait_until_drained()
            [(amount,), *_] = rows(store, "reservations", "amount_usd", "_offset")
            assert isinstance(amount, float)
            return judge.reserved, amount

    _, amount = asyncio.run(work(10.0))
    reserved, _ = asyncio.run(work(calls * amount))
    assert expected is bool(reserved[0])


def _judging_task(ledger: Ledger, *, batched: bool) -> JudgingTask:
    exchange = build.exchange("s", 1)
    task = ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=0,
        exchange=single_object.encode(exchange),
        turn_number=1,
        sampling_reason="always",
        sampling_probability=1.0,
        tier1_score=0.0,
        tier1_flags=(),
        methodology="",
        rule_version="1",
        policy_digest="",
    )
    return SCORING.open(task, Policy(), (), ledger=ledger, batched=batched)


def test_a_batched_question_is_reserved_charged_and_recorded_as_such() -> None:
    """A batch costs half as much, and its record must say so."""
    ledger, records = Ledger(None), list[Record]()
    judging_task = _judging_task(ledger, batched=True)
    question = next(judging_task.judging())
    price = price_of(question.model, {})
    assert price is not None

    async def publish(record: Record) -> None:
        records.append(record)

    async def settle() -> Judgement:
        budget = DurableBudget(question, judging_task, publish, lambda: build.START, lambda: True)
        assert await budget.reserve()
        budget.spend(Usage(100, 10), question.model)
        return await budget.record_judgement(Verdict(outcome="answered", answer="{}", attempts=1))

    judgement = asyncio.run(settle())
    assert judgement.batched
    assert isinstance(records[0], Reservation)
    assert max_cost(question, price, batched=True) == nano_of(records[0].amount_usd or 0) < max_cost(question, price)
    assert price.cost(Usage(100, 10), batched=True) == nano_of(judgement.cost_usd or 0) == ledger.spent


def test_an_existing_reservation_is_used_before_a_new_one() -> None:
    """The batch of a killed process already has a reservation, which must be settled once."""
    ledger, records = Ledger(None), list[Record]()
    judging_task = _judging_task(ledger, batched=True)
    question = next(judging_task.judging())

    async def publish(record: Record) -> None:
        records.append(record)

    async def settle() -> Judgement:
        budget = DurableBudget(question, judging_task, publish, lambda: build.START, lambda: False, reservation_id="of before")
        assert await budget.reserve()
        assert ledger.reserved > 0
        budget.spend(None, question.model)
        return await budget.record_judgement(Verdict(outcome="provider_error", attempts=1))

    judgement = asyncio.run(settle())
    assert judgement.reservation_ids == ("of before",)
    assert records == [judgement]
    with pytest.raises(StoppedError):
        asyncio.run(DurableBudget(question, judging_task, publish, lambda: build.START, lambda: False).reserve())


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the ids of the judgements in each transaction; a transaction with `full` fails."""
    groups: list[list[str]] = []

    def append(store: Store, records: Sequence[Judgement]) -> None:
        groups.append([record.judgement_id for record in records])
        if "full" in groups[-1]:
            raise StoreError("the disk is full")
        append_calls(store, records)

    monkeypatch.setattr(call_budget, "append_calls", append)
    return groups


def test_records_of_one_event_loop_turn_are_one_transaction(groups: list[list[str]]) -> None:
    """Records share a commit, and each is in the tables before its call continues."""

    async def publish(store: Store) -> None:
        recorder = CallRecorder(store)

        async def publish_two(name: str) -> None:
            for number in range(2):
                await recorder.publish(build.judgement("s", 1, judgement_id=f"{name}{number}"))
                assert (f"{name}{number}",) in rows(store, "judgements", "judgement_id")

        await asyncio.gather(*map(publish_two, "abc"))

    with Store(None) as store:
        asyncio.run(publish(store))
    assert groups == [["a0", "b0", "c0"], ["a1", "b1", "c1"]]


def test_every_call_learns_that_its_record_is_not_durable(groups: list[list[str]]) -> None:
    """A failed transaction writes none of its records and does not affect the next one."""

    async def publish(store: Store) -> list[BaseException | None]:
        recorder = CallRecorder(store)
        names = ("full", "beside")
        outcomes = await asyncio.gather(
            *(recorder.publish(build.judgement("s", 1, judgement_id=name)) for name in names), return_exceptions=True
        )
        await recorder.publish(build.judgement("s", 1, judgement_id="later"))
        return outcomes

    with Store(None) as store:
        outcomes = asyncio.run(publish(store))
        assert rows(store, "judgements", "judgement_id") == [("later",)]
    assert list(map(type, outcomes)) == [StoreError, StoreError]
    assert groups == [["full", "beside"], ["later"]]


def test_a_record_is_written_although_its_caller_is_gone(groups: list[list[str]]) -> None:
    """The call may have been made: without its record it would be paid for again."""

    async def publish(store: Store) -> None:
        recorder = CallRecorder(store)
        gone, stays = (
            asyncio.ensure_future(recorder.publish(build.judgement("s", 1, judgement_id=name))) for name in ("gone", "stays")
        )
        await asyncio.sleep(0)
        gone.cancel()
        await stays

    with Store(None) as store:
        asyncio.run(publish(store))
        assert set(rows(store, "judgements", "judgement_id")) == {("gone",), ("stays",)}
    assert groups == [["gone", "stays"]]
