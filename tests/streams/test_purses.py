"""The money of a question when the process dies: what was set aside is charged in full, and that must fit under the cap, too."""

from __future__ import annotations

import asyncio

import builders as build
import pytest
from engines import engine_over, policy_of, rows

from analytics.store import Store
from audit.prices import Usage
from audit.questions import Question
from streams.judges.protocol import Purse, Verdict


class RepairingJudge:
    """Has its first answer mended by a second call, where there is money for one."""

    def __init__(self) -> None:
        self.reserved: list[bool] = []

    async def ask(self, question: Question, purse: Purse) -> Verdict:
        """Call once, cheaply, and see whether there is room for another call."""
        assert await purse.reserve()
        purse.spend(Usage(100, 10), question.model)
        self.reserved.append(await purse.reserve())
        return Verdict(outcome="invalid", attempts=1)

    async def aclose(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize(("calls", "expected"), [(1.9, False), (2.1, True)])
def test_a_second_call_is_made_only_where_a_crash_would_not_pass_the_cap(calls: float, expected: bool) -> None:
    """What the first call really cost is known to this process alone: when it dies, both calls are charged in full."""

    async def work(cap: float) -> tuple[list[bool], float]:
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
    assert expected is reserved[0]
