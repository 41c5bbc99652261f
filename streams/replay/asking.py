"""The open questions of a replay: counted for an estimate, or collected for batches (rules 9 and 12 of `README.md`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from audit.cost import Ledger, worst_case
from audit.exchanges.cascade import INVALID, drive
from audit.exchanges.prompts import TIER3, tier3_question
from audit.exchanges.questions import Question, Reply, estimate, recorded_reply
from audit.policy import Policy
from schemas.records import Judgement, Score, ScoringTask
from streams.judges.batch_plans import CANCELLED, Asked
from streams.judging.call_budget import DurableBudget, Publish, StoppedError
from streams.judging.judged_stages import SCORING, JudgingTask
from streams.stage_batches import encoded_exchange

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge


def _questions_of(judging_task: JudgingTask) -> tuple[Score, list[tuple[Question, Reply | None]]]:
    """The questions of a task's cascade, each with its reply, or None if the judge must be asked; and the score without these answers.

    An open question does not stop the cascade, so that later questions are found, too.
    """
    questions: list[tuple[Question, Reply | None]] = []

    def reply(question: Question) -> Reply:
        earlier = judging_task.earlier(question)
        settled = judging_task.settle(question, earlier)
        questions.append((question, settled))
        return settled or Reply(state=INVALID, judgements=earlier)

    score: Score = drive(judging_task.judging(), reply)
    return score, questions


class Estimate(msgspec.Struct):
    """Counts of a planned replay. Money is in nano-USD."""

    exchanges: int = 0
    """Exchanges in the scope."""
    tasks: int = 0
    """Sampled exchanges; each later revision counts once more."""
    reused: int = 0
    """Questions that were answered before."""
    calls: int = 0
    """Questions that will be asked."""
    open: int = 0
    """Exchanges that may need Tier 3, too, depending on the answers."""
    unpriced: int = 0
    """Questions whose judge has no known price; they count in no sum."""
    not_asked: int = 0
    """Questions that will not be asked, because the cap leaves no room, or because there is a cap and the price is unknown."""
    expected: int = 0
    at_most: int = 0
    """With Tier 3 wherever it may be needed, and with every session within its cap."""

    def add(self, other: Estimate) -> None:
        """Add the counts of another part."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Estimator:
    """A judge that scores nothing and counts the calls that scoring would need; see `streams.replay.rescoring.ReplayJudge`."""

    def __init__(self, policy: Policy, *, batched: bool, asks: bool) -> None:
        """`asks` False: no judge is asked, so only earlier answers count."""
        self._policy = policy
        self._batched = batched
        self._asks = asks
        self._fingerprints: set[str] = set()
        self._at_most: Counter[tuple[str, str]] = Counter()
        self._room: dict[tuple[str, str], int | None] = {}
        self._estimate = Estimate()

    def result(self, exchanges: int) -> Estimate:
        """Return the estimate for this number of exchanges; each session's worst case is limited by its cap."""
        rooms = [(amount, self._room[session]) for session, amount in self._at_most.items()]
        at_most = sum(amount if room is None else min(amount, room) for amount, room in rooms)
        expected = min(self._estimate.expected, at_most)
        return msgspec.structs.replace(self._estimate, exchanges=exchanges, at_most=at_most, expected=expected)

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> None:
        """Count the calls and costs of a task."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=self._batched)
        self._room[_session_of(judging_task)] = None if ledger.cap is None else max(0, ledger.cap - ledger.spent)
        self._estimate.tasks += 1
        score, questions = _questions_of(judging_task)
        for question, reply in questions:
            earlier, is_new = judging_task.earlier(question), question.fingerprint not in self._fingerprints
            # A later revision will find the answers to an earlier one.
            self._estimate.reused += not is_new or recorded_reply(earlier, judging_task.revision) is not None
            if self._asks and reply is not None:
                self._estimate.not_asked += question.fallback is None and not earlier
            elif self._asks and is_new:
                self._fingerprints.add(question.fingerprint)
                self._count_call(question, judging_task)
        purposes = {question.purpose for question, reply in questions if reply is None}
        if self._asks and purposes and (score.tier3_state, score.tier3_reason) == INVALID and TIER3 not in purposes:
            self._estimate.open += 1
            project = self._policy.for_project(task.project)
            question = tier3_question(encoded_exchange(task.exchange), project, project.methodology.tier3)
            self._count_at_most(question, judging_task)

    def _count_call(self, question: Question, judging_task: JudgingTask) -> None:
        self._estimate.calls += 1
        if judging_task.price is None:
            self._estimate.unpriced += 1
            return
        is_cached = self._estimate.calls > 1
        expected = estimate(question, judging_task.price, cached=is_cached, batched=self._batched)
        self._estimate.expected += expected.nano or 0
        self._count_at_most(question, judging_task)

    def _count_at_most(self, question: Question, judging_task: JudgingTask) -> None:
        if judging_task.price is not None:
            self._at_most[_session_of(judging_task)] += worst_case(question, judging_task.price, batched=self._batched)


class QuestionCollector:
    """A judge that scores nothing and collects the questions for the next batches; see `streams.replay.rescoring.ReplayJudge`."""

    def __init__(self, policy: Policy, reservations: dict[str, str], publish: Publish, now: Callable[[], datetime]) -> None:
        """`reservations` are the ids of unsettled reservations, by fingerprint."""
        self._policy = policy
        self._reservations = reservations
        self._publish = publish
        self._now = now
        self._ledgers: dict[tuple[str, str], Ledger] = {}
        self._questions: dict[str, Asked] = {}

    @property
    def questions(self) -> Sequence[Asked]:
        """The collected questions, in the order of the history."""
        return list(self._questions.values())

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> None:
        """Collect the open questions of a task: the first pass asks Tiers 2 and 2.5, the next one Tier 3, which depends on their answers."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=True)
        # One ledger per session, charged with all payments in the session, for whatever exchange.
        whole = self._ledgers.setdefault(_session_of(judging_task), Ledger(ledger.cap))
        whole.charge(max(0, ledger.spent - whole.spent))
        _, questions = _questions_of(judging_task)
        for index, question in enumerate([question for question, reply in questions if reply is None]):
            # A later revision will find the answers to an earlier one.
            if question.fingerprint not in self._questions and (question.purpose != TIER3 or index == 0):
                paying = msgspec.structs.replace(judging_task, ledger=whole)
                reserved = self._reservations.get(question.fingerprint)
                budget = DurableBudget(question, paying, self._publish, self._now, lambda: True, reservation_id=reserved)
                self._questions[question.fingerprint] = Asked(question, budget, budget)


async def ask_all(judge: BatchJudge, questions: Sequence[Asked], report: Callable[[], object]) -> None:
    """Ask the questions and record their judgements. StoppedError when they were cancelled; `report` is called for every verdict."""
    is_cancelled = False
    async with aclosing(judge.ask_all(questions)) as verdicts:
        async for question, verdict in verdicts:
            if verdict.error == CANCELLED:
                is_cancelled = True
            elif isinstance(question.tag, DurableBudget):
                await question.tag.judgement(verdict)
            report()
    if is_cancelled:
        raise StoppedError


def _session_of(judging_task: JudgingTask) -> tuple[str, str]:
    return judging_task.connection, judging_task.session_id
