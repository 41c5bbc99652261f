"""Asking in batches, by rule 9 of `README.md`: the first pass asks Tiers 2 and 2.5 of all tasks, the next one Tier 3 where needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime

import msgspec

from audit.cost.session_ledger import Ledger
from audit.exchanges.cascade import INVALID, drive
from audit.exchanges.questions import Question, Reply
from audit.policy.policy import Policy
from schemas.records import Judgement, Score, ScoringTask
from streams.judges.batch.judge import CANCELLED, Asked, BatchJudge
from streams.judging.call_budget import DurableBudget, StoppedError
from streams.judging.judged_stages import SCORING, JudgingTask
from streams.replay.part_file import PartFile

_TIER3 = "tier3"


class Clerk:
    """A court that scores nothing and collects what is to be asked; see `streams.replay.rescoring.Court`."""

    def __init__(self, policy: Policy, kept: PartFile, now: Callable[[], datetime]) -> None:
        self._policy = policy
        self._kept = kept
        self._now = now
        self._reservations = kept.reservations()
        self._ledgers: dict[tuple[str, str], Ledger] = {}
        self._asked: dict[str, Asked] = {}

    @property
    def asked(self) -> Sequence[Asked]:
        """The questions that are to be asked, in the order of the history."""
        return list(self._asked.values())

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> Score | None:
        """Collect what the task wants to know, as far as it does not depend on what is not known yet."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=True)
        # One ledger for the session, charged with everything that was paid in it, whatever exchange it was paid for.
        whole = self._ledgers.setdefault((task.connection, task.session_id), Ledger(ledger.cap))
        whole.charge(max(0, ledger.spent - whole.spent))
        waits: list[str] = []

        def reply(question: Question) -> Reply:
            earlier = judging_task.earlier(question)
            settled = judging_task.settle(question, earlier)
            if settled is not None:
                return settled
            if question.purpose != _TIER3 or not waits:
                self._collect(question, judging_task, whole)
            waits.append(question.purpose)
            return Reply(state=INVALID, judgements=earlier)

        drive(judging_task.judging(), reply)
        return None

    def _collect(self, question: Question, judging_task: JudgingTask, ledger: Ledger) -> None:
        if question.fingerprint in self._asked:
            return  # a later revision finds the answer that the earlier one gets
        paying = msgspec.structs.replace(judging_task, ledger=ledger)
        reserved = self._reservations.get(question.fingerprint)
        budget = DurableBudget(question, paying, self._kept.publish, self._now, lambda: True, reservation_id=reserved)
        self._asked[question.fingerprint] = Asked(question, budget, budget)


async def ask_all(judge: BatchJudge, asked: Sequence[Asked], report: Callable[[int], None]) -> None:
    """Ask the questions and record what comes of each. StoppedError when they were cancelled; `report` is called with every verdict."""
    cancelled = False
    async with aclosing(judge.ask_all(asked)) as verdicts:
        async for one, verdict in verdicts:
            if verdict.error == CANCELLED:
                cancelled = True
            elif isinstance(one.tag, DurableBudget):
                await one.tag.judgement(verdict)
            report(1)
    if cancelled:
        raise StoppedError
