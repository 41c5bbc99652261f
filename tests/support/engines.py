"""Engines for tests: over a store of one's own, with a judge over the Messages API of a simulated server, or with none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from support.clocks import NOW, TickingClock

from analytics.store.store import Store
from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.policy import Policy, ProjectSettings
from audit.redaction import Redactor
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine import Engine
from streams.engine.record_intake import EngineLimits
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.protocol import CallBudget, Judge, ModelTraits, Verdict


def policy_of(**settings: object) -> Policy:
    """Return a policy with these project settings as its defaults."""
    return Policy(defaults=ProjectSettings(**settings))  # type: ignore[arg-type]


def live_judge(base_url: str, **options: object) -> LiveJudge:
    """Return a judge over a simulated server."""
    return open_live_judge(None, base_url, lambda _: ModelTraits(), **options)  # type: ignore[arg-type]


@asynccontextmanager
async def engine_over(
    store: Store,
    policy: Policy | None = None,
    judge: Judge | None = None,
    now: Callable[[], datetime] | None = None,
    limits: EngineLimits | None = None,
) -> AsyncIterator[Engine]:
    """Yield a started engine and stop it at the end."""
    policy = policy or Policy()
    name = "live" if judge else "none"
    redactor = Redactor(policy.redaction)
    engine = Engine(store, policy, redactor, now or TickingClock(), judge=judge, judge_name=name, limits=limits)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def runner_over(store: Store, policy: Policy | None = None) -> EmbeddedRunner:
    """Return a runner that scores from recorded judgements."""
    policy = policy or Policy()
    return EmbeddedRunner(store, policy, Redactor(policy.redaction), TickingClock(NOW + timedelta(days=1)))


class MoodyJudge:
    """A judge in this process with random outcomes and costs, which records the peak number of concurrent questions."""

    def __init__(self, seed: int, answer: Callable[[Question], str]) -> None:
        self._random = random.Random(seed)
        self._answer = answer

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Make zero to three calls and return a random outcome."""
        for attempt in range(1, 4):
            if not await budget.reserve():
                return Verdict(outcome="cost_cap", attempts=attempt - 1)
            mood = self._random.random()
            if mood < 0.4:
                usage = Usage(self._random.randrange(1, 3000), self._random.randrange(0, 500))
                budget.spend(usage, question.model)
                return Verdict(outcome="answered", answer=self._answer(question), attempts=attempt, usage=usage)
            if mood < 0.6:
                budget.spend(None, None)
                return Verdict(outcome="timeout", attempts=attempt)
            if mood < 0.7:
                budget.spend(None, None)
        return Verdict(outcome="provider_error", attempts=3)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class HangingJudge:
    """A judge that makes a reservation and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Wait forever."""
        assert question.purpose
        assert await budget.reserve()
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def rows(store: Store, table: str, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """Return the rows of a log table."""
    return store.cursor().execute(f"SELECT {columns} FROM log.{table} ORDER BY {order}").fetchall()
