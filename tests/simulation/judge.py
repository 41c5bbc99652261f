"""A judge that answers or fails in every way and keeps a bill: the provider's record of calls, independent of the process."""

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
HANG_SECONDS = 600.0
"""Seconds until a hanging call times out."""


@dataclass
class BilledCall:
    """A call with its cost, which is the maximum until its usage is known."""

    session: str
    fingerprint: str
    nano_usd: int


class SimulatedJudge:
    """See the module. `durable_calls` returns the calls that are durable now; `is_erased` says whether a session is erased."""

    def __init__(self, world: World, durable_calls: Callable[[], Calls], is_erased: Callable[[str], bool]) -> None:
        self._world = world
        self._durable_calls = durable_calls
        self._is_erased = is_erased
        self._chance = random.Random(f"judge {world.history.seed}")
        self.bill: list[BilledCall] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer, or fail as the history prescribes."""
        fault = self._world.pass_point("question")
        does = "answers" if fault is None else fault.what
        if does == "crashes":
            await budget.reserve()
            raise RuntimeError("the judge crashes")
        for attempt in range(1, ATTEMPTS + 1):
            answer_tokens = await budget.reserve()
            if not answer_tokens:
                return Verdict(outcome="cost_cap", attempts=attempt - 1)
            if does == "fails" or (does == "fails once" and attempt == 1):
                await asyncio.sleep(0.2)
                continue
            return await self._answer(question, budget, does, answer_tokens, attempt)
        return Verdict(outcome="provider_error", error="overloaded", attempts=ATTEMPTS)

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""

    async def _answer(self, question: Question, budget: CallBudget, does: str, answer_tokens: int, attempt: int) -> Verdict:
        call = self._begin_call(question, cast("DurableBudget", budget), answer_tokens)
        await asyncio.sleep(self._draw_duration(does))
        usage = Usage(self._chance.randrange(1, question.texts_size // 4), self._chance.randrange(1, answer_tokens // 4))
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
        reported_usage = None if does == "tells no usage" else usage
        return Verdict(outcome="answered", answer=answer, attempts=attempt, usage=reported_usage)

    def _draw_duration(self, does: str) -> float:
        """Return the seconds that a call takes."""
        if does == "hangs":
            return HANG_SECONDS
        if does == "is slow":
            return self._chance.uniform(1, 20)
        return 0.05

    def _begin_call(self, question: Question, budget: DurableBudget, answer_tokens: int) -> BilledCall:
        world = self._world
        task = budget._judging_task
        calls = self._durable_calls()
        name = f"{task.subject_id} {question.purpose}"
        world.note(f"call about {name}, at most {answer_tokens} tokens")
        reserved = Counter(calls.reservations.values())[question.fingerprint]
        call_count = sum(call.fingerprint == question.fingerprint for call in self.bill)
        world.require(
            reserved > call_count,
            "a call has a durable reservation of its own",
            f"{name}: {call_count} calls, {reserved} reserved",
        )
        world.require(question.fingerprint not in calls.answered, "no answer is paid twice", name)
        world.require(not self._is_erased(task.session_id), "nothing is asked about an erased session", name)
        price = task.price_of(question.model)
        max_cost = 0 if price is None else price.max_cost(question.texts_size, answer_tokens)
        call = BilledCall(task.session_id, question.fingerprint, max_cost)
        self.bill.append(call)
        spent = sum(billed.nano_usd for billed in self.bill if billed.session == task.session_id)
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
