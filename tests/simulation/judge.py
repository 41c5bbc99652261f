"""A judge that answers, fails in every way, and sends a bill: what a provider knows of calls, whatever the process knows of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from simulation.disk import Calls
from simulation.world import World

from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from driftline_trial.simulator.answers import simulated_answer
from streams.judges.protocol import CallBudget, Verdict
from streams.judging.call_budget import DurableBudget

ATTEMPTS = 3
HANGS = 600.0
"""Seconds until a call that hangs is given up."""


@dataclass
class BilledCall:
    """A call that was made, and what it costs: the worst case as long as that is not known."""

    session: str
    fingerprint: str
    nano_usd: int


class SimulatedJudge:
    """See the module. `durable_calls` tells what is durable at this moment; `is_erased` whether nothing may be asked of a session any more."""

    def __init__(self, world: World, durable_calls: Callable[[], Calls], is_erased: Callable[[str], bool]) -> None:
        self._world = world
        self._durable_calls = durable_calls
        self._is_erased = is_erased
        self._chance = random.Random(f"judge {world.history.seed}")
        self.bill: list[BilledCall] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer, or do what the history says."""
        fault = self._world.pass_point("question")
        does = "answers" if fault is None else fault.what
        if does == "crashes":
            await budget.reserve()
            raise RuntimeError("the judge crashes")
        for attempt in range(1, ATTEMPTS + 1):
            room = await budget.reserve()
            if not room:
                return Verdict(outcome="cost_cap", attempts=attempt - 1)
            if does == "fails" or (does == "fails once" and attempt == 1):
                await asyncio.sleep(0.2)
                continue
            return await self._answer(question, budget, does, room, attempt)
        return Verdict(outcome="provider_error", error="overloaded", attempts=ATTEMPTS)

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def _answer(self, question: Question, budget: CallBudget, does: str, room: int, attempt: int) -> Verdict:
        call = self._begin_call(question, cast("DurableBudget", budget), room)
        await asyncio.sleep(HANGS if does == "hangs" else self._chance.uniform(1, 20) if does == "is slow" else 0.05)
        usage = Usage(self._chance.randrange(1, question.texts_size // 4), self._chance.randrange(1, room // 4))
        if does not in {"hangs", "times out", "tells no usage"}:
            call.nano_usd = self._price(budget, usage)
            budget.spend(usage, question.model)
        else:
            budget.spend(None, question.model)
        if does in {"hangs", "times out"}:
            return Verdict(outcome="timeout", error="no answer in time", attempts=attempt)
        if does == "answers nonsense":
            return Verdict(outcome="invalid", answer="{", attempts=attempt, usage=usage)
        if does == "refuses":
            return Verdict(outcome="refused", error="I will not", attempts=attempt, usage=usage)
        answer = canonical_json(
            simulated_answer(question.schema, {material.name: material.literal for material in question.materials})
        )
        known = None if does == "tells no usage" else usage
        return Verdict(outcome="answered", answer=answer, attempts=attempt, usage=known)

    def _begin_call(self, question: Question, budget: DurableBudget, room: int) -> BilledCall:
        world, task, calls = self._world, budget._judging_task, self._durable_calls()
        name = f"{task.subject_id} {question.purpose}"
        world.note(f"call about {name}, at most {room} tokens")
        reserved = Counter(calls.reservations.values())[question.fingerprint]
        made = sum(call.fingerprint == question.fingerprint for call in self.bill)
        world.require(
            reserved > made, "a call has a durable reservation of its own", f"{name}: {made} calls, {reserved} reserved"
        )
        world.require(question.fingerprint not in calls.answered, "no answer is paid twice", name)
        world.require(not self._is_erased(task.session_id), "nothing is asked about an erased session", name)
        price = task.price_of(question.model)
        most = 0 if price is None else price.max_cost(question.texts_size, room)
        call = BilledCall(task.session_id, question.fingerprint, most)
        self.bill.append(call)
        spent = sum(other.nano_usd for other in self.bill if other.session == task.session_id)
        cap = task.ledger.cap
        world.require(
            cap is None or spent <= cap, "no cap is exceeded", f"session {task.session_id}: {spent} of {cap} nano-USD"
        )
        return call

    @staticmethod
    def _price(budget: CallBudget, usage: Usage) -> int:
        durable = cast("DurableBudget", budget)
        price = durable._judging_task.price_of(durable._question.model)
        return 0 if price is None else price.cost(usage) or 0
