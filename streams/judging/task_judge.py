"""Judging a task into its record, a score or an evaluation, with every paid call recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from audit.cost import Ledger
from audit.exchanges.outcomes import NO_JUDGE
from audit.exchanges.questions import Question, Reply, recorded_reply
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record
from streams.engine.stage_runs import stage_failed
from streams.judges.protocol import Judge, Verdict
from streams.judging.call_budget import DurableBudget, Publish, StoppedError
from streams.judging.judged_stages import JudgedStage, JudgingTask
from streams.log.admission import Accepted, Admission, Place

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TaskResult:
    """The result of a task: its record or its dead letter, its judgements, and its session's spending."""

    made: Accepted = field(default_factory=Accepted)
    dead: Accepted = field(default_factory=Accepted)
    judgements: Sequence[Judgement] = ()
    spent: int = 0


class TaskJudge:
    """Judges the tasks of a stage, with a judge where needed; without a judge, as the stage's step does.

    `publish` makes a record of the topic judgements durable before it returns.
    """

    def __init__(
        self,
        stage: JudgedStage[Any],
        policy: Policy,
        judge: Judge | None,
        publish: Publish,
        now: Callable[[], datetime],
    ) -> None:
        self._stage = stage
        self._policy = policy
        self._judge = judge
        self._publish = publish
        self._now = now
        self._open = True
        self._asking: dict[asyncio.Task[Verdict], DurableBudget] = {}

    def close(self) -> None:
        """Make no more calls: questions that need one raise StoppedError. Running calls finish.

        A question that waits for its turn, or for the end of an API's rate limit, is given up at once: nothing was reserved for it.
        """
        self._open = False
        for asking, budget in self._asking.items():
            if not budget.is_at_stake:
                asking.cancel()

    async def rule(
        self, task: Record, recorded: Sequence[Judgement], spent: int, place: Place, admission: Callable[[], Admission]
    ) -> TaskResult:
        """Judge a task, given its session's spending; a task that cannot be judged becomes a dead letter and affects no other.

        StoppedError if the task needs a call after `close`.
        """
        stage, result = self._stage, TaskResult()
        judging_task: JudgingTask | None = None
        try:
            judging_task = stage.open(task, self._policy, recorded, spent=spent)
            result.made.add(stage.sink, encode(await self._drive(judging_task)))
        except StoppedError:
            raise
        except Exception as error:
            log.exception("%s: %s could not be judged; it is set aside", stage.name, stage.id_of(task))
            admission().set_aside(result.dead, place, stage_failed(stage.name, error), encode(task))
        result.judgements = (*judging_task.recorded, *judging_task.asked) if judging_task is not None else ()
        result.spent = stage.spent_after(spent, judging_task)
        return result

    async def judge(self, task: Record, recorded: Sequence[Judgement], ledger: Ledger) -> Record:
        """Judge a task and return its record; its cost is in the ledger. StoppedError if it needs a call after `close`."""
        return await self._drive(self._stage.open(task, self._policy, recorded, ledger=ledger))

    async def _drive(self, judging_task: JudgingTask) -> Record:
        if self._judge is None:
            unasked: Record = judging_task.without_judge()
            return unasked
        questions = judging_task.judging()
        try:
            question = next(questions)
            while True:
                question = questions.send(await self._reply(self._judge, question, judging_task))
        except StopIteration as finished:
            made: Record = finished.value
            return made

    async def _reply(self, judge: Judge, question: Question, judging_task: JudgingTask) -> Reply:
        earlier = judging_task.earlier(question)
        settled = judging_task.settle(question, earlier)
        if settled is not None:
            return settled
        budget = DurableBudget(question, judging_task, self._publish, self._now, lambda: self._open)
        verdict = await self._ask(judge, question, budget)
        judging_task.asked.append(await budget.judgement(verdict))
        judgements = (*earlier, judging_task.asked[-1])
        # Answered as a replay will answer it, from the recorded judgements.
        return recorded_reply(judgements, judging_task.revision) or Reply(state=NO_JUDGE, judgements=judgements)

    async def _ask(self, judge: Judge, question: Question, budget: DurableBudget) -> Verdict:
        """Ask the judge; a bug of ours counts as an outcome, too, and the call is charged in full."""
        asking = asyncio.ensure_future(judge.ask(question, budget))
        self._asking[asking] = budget
        try:
            return await asking
        except StoppedError:
            raise
        except asyncio.CancelledError:
            if self._open or budget.is_at_stake or _is_cancelled():
                raise
            raise StoppedError from None
        except Exception as error:
            log.exception("the judge failed in a way it should not")
            budget.write_off()
            return Verdict(outcome="provider_error", error=f"a fault of Driftline: {type(error).__name__}", attempts=1)
        finally:
            del self._asking[asking]


def _is_cancelled() -> bool:
    """Tell whether the running task itself was cancelled, and not only an operation that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
