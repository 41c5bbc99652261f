"""Estimate of a replay: goes through all of it without asking any judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from audit.cost.estimate import estimate
from audit.cost.prices import worst_case
from audit.cost.session_ledger import Ledger
from audit.exchanges.cascade import INVALID, drive
from audit.exchanges.judgements import recorded_reply
from audit.exchanges.questions import Question, Reply
from audit.policy.policy import Policy
from audit.prompts.exchange_prompts import tier3_question
from schemas.records import Judgement, Score, ScoringTask
from streams.judging.judged_stages import SCORING, JudgingTask
from streams.stage_batches import encoded_exchange


class Estimate(msgspec.Struct):
    """Counts of a replay that has not been made. Money is in nano-USD."""

    exchanges: int = 0
    """Exchanges in the scope."""
    tasks: int = 0
    """Exchanges that are sampled; once more for each later revision."""
    reused: int = 0
    """Questions that were answered before."""
    calls: int = 0
    """Questions that will be asked."""
    open: int = 0
    """Exchanges of which Tier 3 may be asked, too: that depends on the answers."""
    unpriced: int = 0
    """Questions whose judge has no known price; they count in no sum."""
    not_asked: int = 0
    """Questions that will not be asked, because a cap needs a price and none is known, or leaves no room."""
    expected: int = 0
    at_most: int = 0
    """With Tier 3 wherever it may be asked, and no session beyond its cap."""

    def add(self, other: Estimate) -> None:
        """Add the counts of another part."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Estimator:
    """A court that scores nothing and counts what scoring would take; see `streams.replay.rescoring.Court`."""

    def __init__(self, policy: Policy, *, batched: bool, asks: bool) -> None:
        """`asks` False: no judge is asked, so only earlier answers count."""
        self._policy = policy
        self._batched = batched
        self._asks = asks
        self._seen: set[str] = set()
        self._most: Counter[tuple[str, str]] = Counter()
        self._room: dict[tuple[str, str], int | None] = {}
        self.found = Estimate()

    def result(self) -> Estimate:
        """Return the estimate, with each session's most bounded by its cap."""
        rooms = [(amount, self._room[session]) for session, amount in self._most.items()]
        self.found.at_most = most = sum(amount if room is None else min(amount, room) for amount, room in rooms)
        self.found.expected = min(self.found.expected, most)
        return self.found

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> Score | None:
        """Count what the task would take."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=self._batched)
        self._room[_session(task)] = None if ledger.cap is None else max(0, ledger.cap - ledger.spent)
        self.found.tasks += 1
        asked: list[str] = []
        score = drive(judging_task.judging(), partial(self._reply, judging_task, asked))
        if asked and (score.tier3_state, score.tier3_reason) == INVALID and "tier3" not in asked:
            self.found.open += 1
            project = self._policy.for_project(task.project)
            self._count_most(tier3_question(encoded_exchange(task.exchange), project, project.methodology.tier3), judging_task)
        return None

    def _reply(self, judging_task: JudgingTask, asked: list[str], question: Question) -> Reply:
        """Return the known reply, or one that stops nothing, so that later questions are counted, too."""
        earlier = judging_task.earlier(question)
        if recorded_reply(earlier, judging_task.revision) is not None or question.fingerprint in self._seen:
            # A later revision asks what an earlier one will have been answered.
            self.found.reused += 1
        settled = judging_task.settle(question, earlier)
        if settled is not None or not self._asks:
            self.found.not_asked += self._asks and question.fallback is None and not earlier
            return settled or judging_task.unasked(question)
        asked.append(question.purpose)
        if question.fingerprint not in self._seen:
            self._seen.add(question.fingerprint)
            self._count(question, judging_task)
        return Reply(state=INVALID, judgements=earlier)

    def _count(self, question: Question, judging_task: JudgingTask) -> None:
        price = judging_task.price
        self.found.calls += 1
        if price is None:
            self.found.unpriced += 1
            return
        cached = self.found.calls > 1
        self.found.expected += estimate(question, price, cached=cached, batched=self._batched).nano or 0
        self._count_most(question, judging_task)

    def _count_most(self, question: Question, judging_task: JudgingTask) -> None:
        price = judging_task.price
        if price is not None:
            self._most[_session(judging_task)] += worst_case(question, price, batched=self._batched)


def _session(task: ScoringTask | JudgingTask) -> tuple[str, str]:
    return task.connection, task.session_id
