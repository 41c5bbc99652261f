"""The money of a question when the process dies: what was set aside is charged in full, and that must fit under the cap, too."""

from __future__ import annotations

import asyncio

import builders as build
import pytest
from engines import engine_over, policy_of, rows

from analytics.store.store import Store
from audit.cost.prices import Usage, nano_of, price_of, worst_case
from audit.cost.session_ledger import Ledger
from audit.exchanges.questions import Question
from audit.policy.policy import Policy
from schemas.codec import single_object
from schemas.records import Judgement, Record, Reservation, ScoringTask
from streams.judges.protocol import CallBudget, Verdict
from streams.judging.call_budget import DurableBudget, StoppedError
from streams.judging.judged_stages import SCORING, JudgingTask


class RepairingJudge:
    """Has its first answer mended by a second call, where there is money for one."""

    def __init__(self) -> None:
        self.reserved: list[int] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Call once, cheaply, and see whether there is room for another call."""
        assert await budget.reserve()
        budget.spend(Usage(100, 10), question.model)
        self.reserved.append(await budget.reserve())
        return Verdict(outcome="invalid", attempts=1)

    async def aclose(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize(("calls", "expected"), [(1.7, False), (1.9, True)])
def test_a_second_call_is_made_only_where_a_crash_would_not_pass_the_cap(calls: float, expected: bool) -> None:
    """What the first call really cost is known to this process alone: when it dies, both are charged in full. 1.8 holds a short answer."""

    async def work(cap: float) -> tuple[list[int], float]:
        judge = RepairingJudge()
        with Store(None) as store:
            async with engine_over(store, policy_of(cost_cap_per_session=cap), judge) as engine:
                await engine.take_exchange(build.exchange("s", 1))
                await engine.drained()
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
    """Half the price is why a batch is waited for; a record that does not say so would make the judge look cheaper than it is."""
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
        return await budget.judgement(Verdict(outcome="answered", answer="{}", attempts=1))

    judgement = asyncio.run(settle())
    assert judgement.batched
    assert isinstance(records[0], Reservation)
    assert worst_case(question, price, batched=True) == nano_of(records[0].amount_usd or 0) < worst_case(question, price)
    assert price.cost(Usage(100, 10), batched=True) == nano_of(judgement.cost_usd or 0) == ledger.spent


def test_a_reservation_of_before_is_used_before_another_one_is_made() -> None:
    """The batch of a process that was killed is taken up: the money for it is set aside already, and settled once."""
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
        return await budget.judgement(Verdict(outcome="provider_error", attempts=1))

    judgement = asyncio.run(settle())
    assert ("of before",) == judgement.reservation_ids
    assert [judgement] == records
    with pytest.raises(StoppedError):
        asyncio.run(DurableBudget(question, judging_task, publish, lambda: build.START, lambda: False).reserve())
