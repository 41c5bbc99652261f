"""Scoring a part's history again, and the questions that this leaves open.

The intake step runs over each window, and the cascade over its tasks (rules 3 to 7 of `README.md`). Open questions are counted for an
estimate, or collected for batches (rules 9 and 12).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from audit.cost import Ledger, max_cost
from audit.exchanges.cascade import INVALID, questions_about
from audit.exchanges.prompts import ExchangeQuestions
from audit.exchanges.questions import Question, charged, estimate, recorded_reply
from audit.exchanges.sampling import JUDGE_TAMPERING
from audit.exchanges.states import TIER3, TIERS_2_AND_3
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Score, ScoringTask
from streams.engine.embedded import StageRunner, stage_failure
from streams.judges.batch_plans import CANCELLED, BatchQuestion
from streams.judging.call_budget import DurableBudget, Publish, StoppedError, batch_question
from streams.judging.judged_stages import SCORING, STATE, JudgedState, JudgementReader, JudgingTask, Subject, read_no_judgements
from streams.judging.shared_caps import SharedCaps
from streams.log.admission import Admission, EncodedRecords, RecordOrigin
from streams.replay.history import History, Window
from streams.replay.plan import JudgeMode, ReplayPlan
from streams.stage_batches import decode_exchange, session_key_of
from streams.topology import stage_named

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge

INTAKE = stage_named("intake")
Report = Callable[[int, int], None]
"""Called with the position reached, and the number of further exchanges in scope."""
log = logging.getLogger(__name__)


class ReplayJudge(Protocol):
    """Judges a task, or only inspects it and gives no score."""

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> Record | None:
        """Return the score of a task; its cost is in the ledger of its session."""
        ...


@dataclass
class WindowResult:
    """The result of a window: encoded scores and dead letters, and the changed states by stage and session."""

    end: int
    """The position after the window."""
    output: EncodedRecords = field(default_factory=EncodedRecords)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)


class SessionStates:
    """Session states in memory, for a pass over history that stores nothing; `PartFile` keeps them on disk."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, bytes]] = {}

    @property
    def position(self) -> int:
        """The position where reading continues."""
        return 0

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the states of a stage by session; sessions without a state are missing."""
        states = self._states.get(stage, {})
        return {key: states[key] for key in keys if key in states}

    def commit(self, result: WindowResult) -> None:
        """Store the whole result of a window, or nothing."""
        for stage, states in result.states.items():
            self._states.setdefault(stage, {}).update(states)


class Rescoring:
    """Scores windows of history by the plan. `now` stamps dead letters and nothing else."""

    def __init__(self, plan: ReplayPlan, policy: Policy, redactor: Redactor, now: Callable[[], datetime]) -> None:
        self._plan = plan
        self._policy = policy
        self._redactor = redactor
        self._now = now
        self._withdrawn: Collection[Subject] = ()
        self._intake = StageRunner(policy, read_no_judgements, redactor, now)

    async def run(
        self, history: History, store: SessionStates, judge: ReplayJudge, recorded: JudgementReader, report: Report
    ) -> int:
        """Score a part from the store's position to its end; returns the number of exchanges in scope that it saw.

        Raises StoppedError if the judge makes no more calls.
        """
        total = 0
        self._withdrawn = history.withdrawn
        async with aclosing(history.windows(store.position)) as windows:
            async for window in windows:
                result, exchanges = await self._score_window(window, store, judge, recorded)
                store.commit(result)
                report(window.end, exchanges)
                total += exchanges
        return total

    async def _score_window(
        self, window: Window, store: SessionStates, judge: ReplayJudge, recorded: JudgementReader
    ) -> tuple[WindowResult, int]:
        """Score a window; return its result, and the number of its exchanges that are in scope."""
        outcome = self._intake.run(INTAKE, window.batch, store.states(INTAKE.name, window.batch.keys()))
        result = WindowResult(window.end, outcome.dead_letters, {INTAKE.name: outcome.states, SCORING.name: {}})
        sessions: dict[str, list[ScoringTask]] = {}
        exchanges = 0
        for topic, record in outcome.records:
            if isinstance(record, Score):
                if self._is_in_scope(record):
                    result.output.add(topic, encode(record))
                    exchanges += record.revision == 0
            elif isinstance(record, ScoringTask):
                sessions.setdefault(session_key_of(record), []).append(record)
                exchanges += record.revision == 0 and self._is_in_scope(record)
        states = store.states(SCORING.name, list(sessions))
        subjects = [SCORING.subject_of(task) for tasks in sessions.values() for task in tasks]
        judgements = {} if self._plan.asking is JudgeMode.NONE else recorded(subjects)
        results = await asyncio.gather(
            *(
                self._score_session(
                    tasks, STATE.decode(states[key]).spent if key in states else 0, judge, judgements, result.end
                )
                for key, tasks in sessions.items()
            ),
            return_exceptions=True,
        )
        # Add results in the order of the tasks, not of completion. If a session fails, wait for the others first: their calls cost money.
        for key, session in zip(sessions, results, strict=True):
            if isinstance(session, BaseException):
                raise session
            spent, scores = session
            result.states[SCORING.name][key] = msgspec.msgpack.encode(JudgedState(0, spent))
            result.output.extend(scores)
        return result, exchanges

    async def _score_session(
        self,
        tasks: Sequence[ScoringTask],
        spent: int,
        judge: ReplayJudge,
        judgements: Mapping[Subject, Sequence[Judgement]],
        end: int,
    ) -> tuple[int, EncodedRecords]:
        """Score the tasks of a session one after another, given its spending."""
        output = EncodedRecords()
        mode = self._plan.asking
        for task in tasks:
            cap = self._policy.for_project(task.project).cap
            ledger = Ledger(cap, spent)
            try:
                recorded = judgements.get(SCORING.subject_of(task), ())
                counted = [] if mode is JudgeMode.NONE else SCORING.select_judgements(task, recorded)
                if mode.pays:
                    counted = self._select_policy_judgements(task, counted)
                if self._is_in_scope(task):
                    bare = msgspec.structs.replace(task, earlier_judgements=())  # the judgements that count are in `counted`
                    score = await judge.judge(bare, counted, ledger)
                    if isinstance(score, Score) and not mode.pays and not _answers_all(score, counted):
                        ledger = Ledger(cap, spent)
                        score = await judge.judge(bare, self._select_policy_judgements(task, counted), ledger)
                    if score is not None:
                        output.add(SCORING.sink, encode(score))
                else:
                    ledger.charge(charged(counted, task.revision))
            except StoppedError:
                raise
            except Exception as error:
                log.exception("exchange %s could not be scored and becomes a dead letter", task.exchange_id)
                origin = RecordOrigin(SCORING.source, end - 1, 0)
                refusal = stage_failure(SCORING.name, error)
                Admission(self._redactor, self._now()).add_dead_letter(output, origin, refusal, encode(task))
            spent = ledger.spent
        return spent, output

    def _select_policy_judgements(self, task: ScoringTask, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of questions that the policy asks, and those of the exchange's earlier revisions.

        Judgements of another policy were not paid for these scores: they neither use up a session's cap nor count as the cost of a
        score. A judgement from before the present revision was about an earlier one: it counts, even if the texts have changed.
        """
        if not judgements:
            return []
        exchange = decode_exchange(task.exchange)
        questions = questions_about(exchange, self._policy.for_project(task.project), task.earlier_turns, judgements)
        fingerprints = {question.fingerprint for question in questions}
        return [
            judgement
            for judgement in judgements
            if judgement.fingerprint in fingerprints or (exchange.revision and judgement.judged_at < exchange.ingested_at)
        ]

    def _is_in_scope(self, record: Score | ScoringTask) -> bool:
        """Return whether an exchange is to be scored, given its score or its task."""
        scope = self._plan.scope
        if (record.connection, record.exchange_id) in self._withdrawn:
            return False
        if scope.since is None and scope.until is None:
            return scope.project in {None, record.project}
        occurred_at = record.exchange_at if isinstance(record, Score) else decode_exchange(record.exchange).occurred_at
        return scope.holds(record.project, occurred_at)


def _answers_all(score: Score, judgements: Sequence[Judgement]) -> bool:
    """Return whether every judgement is of a question that the score rests on. It nearly always is, so this is checked first."""
    fingerprints = {judgement.fingerprint for judgement in judgements if judgement.judgement_id in score.judgement_ids}
    return all(judgement.fingerprint in fingerprints for judgement in judgements)


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
    """Questions whose judge has no known price; the sums leave them out."""
    not_asked: int = 0
    """Questions that will not be asked, because the cap leaves no room, or because there is a cap and the price is unknown."""
    expected: int = 0
    at_most: int = 0
    """The cost with Tier 3 wherever it may be needed; every session is limited by its cap."""

    def add(self, other: Estimate) -> None:
        """Add the counts of another part."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Estimator:
    """A judge that scores nothing and counts the calls that scoring would need; see `streams.replay.rescoring.ReplayJudge`."""

    def __init__(self, policy: Policy, *, batched: bool, asks: bool) -> None:
        """With `asks` False no judge is asked, so only earlier answers count."""
        self._policy = policy
        self._batched = batched
        self._asks = asks
        self._fingerprints: set[str] = set()
        self._upper_bounds: Counter[tuple[str, str]] = Counter()
        self._room: dict[tuple[str, str], int | None] = {}
        self._estimate = Estimate()

    def result(self, exchanges: int) -> Estimate:
        """Return the estimate for this number of exchanges; each session's worst case is limited by its cap."""
        rooms = [(amount, self._room[session]) for session, amount in self._upper_bounds.items()]
        at_most = sum(amount if room is None else min(amount, room) for amount, room in rooms)
        expected = min(self._estimate.expected, at_most)
        return msgspec.structs.replace(self._estimate, exchanges=exchanges, at_most=at_most, expected=expected)

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> None:
        """Count the calls and costs of a task."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=self._batched)
        self._room[_session_key(judging_task)] = None if ledger.cap is None else max(0, ledger.cap - ledger.spent)
        self._estimate.tasks += 1
        score, questions = judging_task.settled_questions()
        is_judged_twice = any(reason.startswith(JUDGE_TAMPERING) for reason in score.anomaly_reasons)
        for question, reply in questions:
            earlier, is_new = judging_task.earlier(question), question.fingerprint not in self._fingerprints
            # A later revision will find the answers to an earlier one.
            self._estimate.reused += not is_new or recorded_reply(earlier, judging_task.revision) is not None
            if self._asks and reply is not None:
                self._estimate.not_asked += question.fallback is None and not earlier
            elif self._asks and is_new:
                self._fingerprints.add(question.fingerprint)
                # The questions about the middle of long texts, and without passages that may address the judge, are asked after the answer.
                followers = 2 if is_judged_twice and not question.masked_passages else 1
                for _ in range(followers * (2 if question.is_cut and question.part == 1 else 1)):
                    self._count_call(question, judging_task)
        purposes = {question.purpose for question, reply in questions if reply is None}
        may_need_tier3 = purposes.isdisjoint({TIER3, TIERS_2_AND_3}) and (score.tier3_state, score.tier3_reason) == INVALID
        if self._asks and purposes and may_need_tier3:
            self._estimate.open += 1
            project = self._policy.for_project(task.project)
            questions_of_task = ExchangeQuestions(decode_exchange(task.exchange), project, earlier_turns=task.earlier_turns)
            question = questions_of_task.tier3(project.methodology.tier3)
            self._add_upper_bound(question, judging_task)

    def _count_call(self, question: Question, judging_task: JudgingTask) -> None:
        self._estimate.calls += 1
        price = judging_task.price_of(question.model)
        if price is None:
            self._estimate.unpriced += 1
            return
        is_cached = self._estimate.calls > 1
        expected = estimate(question, price, cached=is_cached, batched=self._batched)
        self._estimate.expected += expected.nano or 0
        self._add_upper_bound(question, judging_task)

    def _add_upper_bound(self, question: Question, judging_task: JudgingTask) -> None:
        price = judging_task.price_of(question.model)
        if price is not None:
            self._upper_bounds[_session_key(judging_task)] += max_cost(question, price, batched=self._batched)


class QuestionCollector:
    """A judge that scores nothing and collects the questions for the next batches; see `streams.replay.rescoring.ReplayJudge`."""

    def __init__(
        self,
        policy: Policy,
        reservations: dict[str, str],
        publish: Publish,
        now: Callable[[], datetime],
        shared_caps: SharedCaps | None = None,
    ) -> None:
        """`reservations` are the ids of unsettled reservations, by fingerprint."""
        self._shared_caps = shared_caps
        self._policy = policy
        self._reservations = reservations
        self._publish = publish
        self._now = now
        self._ledgers: dict[tuple[str, str], Ledger] = {}
        self._questions: dict[str, BatchQuestion] = {}

    @property
    def questions(self) -> Sequence[BatchQuestion]:
        """The collected questions, in the order of the history."""
        return list(self._questions.values())

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> None:
        """Collect the open questions of a task: the first pass asks Tiers 2 and 2.5, the next one Tier 3, which depends on their answers."""
        judging_task = SCORING.open(task, self._policy, recorded, ledger=ledger, batched=True)
        # One ledger per session, charged with the payments for all of its exchanges.
        session_ledger = self._ledgers.setdefault(_session_key(judging_task), Ledger(ledger.cap))
        session_ledger.charge(max(0, ledger.spent - session_ledger.spent))
        for question in judging_task.open_questions():
            # A later revision will find the answers to an earlier one.
            if question.fingerprint not in self._questions:
                paying = msgspec.structs.replace(judging_task, ledger=session_ledger)
                self._questions[question.fingerprint] = batch_question(
                    question, paying, self._publish, self._now, self._reservations, self._shared_caps
                )


async def ask_all(judge: BatchJudge, questions: Sequence[BatchQuestion], report: Callable[[], object]) -> None:
    """Ask the questions and record their judgements. Raises StoppedError if they were cancelled; `report` is called for every verdict."""
    is_cancelled = False
    async with aclosing(judge.ask_all(questions)) as verdicts:
        async for question, verdict in verdicts:
            if verdict.error == CANCELLED:
                is_cancelled = True
            elif isinstance(question.tag, DurableBudget):
                await question.tag.record_judgement(verdict)
            report()
    if is_cancelled:
        raise StoppedError


def _session_key(judging_task: JudgingTask) -> tuple[str, str]:
    return judging_task.connection, judging_task.session_id
