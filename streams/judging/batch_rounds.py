"""Exchanges that wait for a batch: routine turns of projects whose policy has `judgeWithinHours`, at half the price.

1. A routine task is not judged. A judgement with the outcome `awaiting_batch` records that it waits, and its score says so. Its session's
   cap keeps the largest possible cost of its batch from then on.
2. Waiting tasks are asked about in rounds, one every 24th part of the time that the policy allows. A round asks the open questions of
   its exchanges in batches, until each exchange has all its answers.
3. Then a request scores the exchange again, `BATCH_REVISIONS` higher, from the recorded answers. The reservations and judgements of the
   batch carry this revision, so nothing before it depends on when the batch was answered.
4. At the end of the time, batches are cancelled. Their open questions are asked live, and so are failed ones, in one more revision.
5. A process that was killed loses nothing: the waiting tasks are in the tables, the batches in their journal, and reservations of planned
   questions stay open until the next process has read the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import Ledger
from audit.exchanges.questions import ANSWERED, AWAITING_BATCH, BATCH_REVISIONS, INTERRUPTED, Question
from audit.policy import Policy
from schemas.records import Judgement, JudgingRequest, Reservation, ScoringTask
from streams.judges.batch_plans import CANCELLED, BatchQuestion
from streams.judging.call_budget import DurableBudget, ErasedError, Publish, planned_questions
from streams.judging.judged_stages import SCORING, STATE, JudgingTask, Subject, judgement_reader
from streams.judging.shared_caps import SharedCaps
from streams.stage_batches import session_key_of

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge

ROUNDS = 24
"""Rounds in the time that the policy allows: an exchange waits for at most this part of it before it is asked about."""
TICK_SECONDS = 15.0
"""Seconds between two looks at the waiting tasks."""
_FINAL_OUTCOMES = frozenset([ANSWERED, "refused", INTERRUPTED])
"""Outcomes after which a live call would not help."""
log = logging.getLogger(__name__)


class WaitingExchanges(NamedTuple):
    """What an earlier process left: the newest task of each waiting exchange, and the projects that need no wait to be judged."""

    tasks: Sequence[ScoringTask]
    judged_projects: frozenset[str]
    """Projects with an answer of a judge. The first exchange of any other project is judged at once."""

    @classmethod
    def read(cls, store: Store) -> WaitingExchanges:
        """Read them from the tables."""
        with contextlib.closing(store.cursor()) as cursor:
            tasks = list(query_records(cursor, "waiting_tasks", ScoringTask, {"revisions": BATCH_REVISIONS}))
            projects = frozenset(row["project"] for row in query_rows(cursor, "judged_projects"))
        return cls(tasks, projects)


@dataclass(frozen=True)
class SessionEvidence:
    """What the next questions about some exchanges depend on."""

    judgements: Mapping[Subject, Sequence[Judgement]]
    held: Mapping[Subject, int]
    """What the cap of the session keeps for the batch of an exchange, in nano-USD."""
    reservations: Mapping[str, str]
    """Ids of unsettled reservations of planned questions, by fingerprint."""
    planned: frozenset[str]
    """Fingerprints of the questions in batches that were planned and whose answers were not read to the end."""

    @classmethod
    def read(
        cls, store: Store, tasks: Sequence[ScoringTask], states: Callable[[str, Sequence[str]], Mapping[str, bytes]]
    ) -> SessionEvidence:
        """Read it from the tables, which must have all records."""
        by_session = states(SCORING.name, list({session_key_of(task) for task in tasks}))
        held = {
            (task.connection, amount.subject_id): amount.amount
            for task in tasks
            if (state := by_session.get(session_key_of(task))) is not None
            for amount in STATE.decode(state).held
        }
        planned = frozenset(planned_questions(store))
        with contextlib.closing(store.cursor()) as cursor:
            reservations = query_records(cursor, "open_reservations", Reservation)
            reserved = {row.fingerprint: row.reservation_id for row in reservations if row.fingerprint in planned}
        judgements = judgement_reader(store)([SCORING.subject_of(task) for task in tasks])
        return cls(judgements, held, reserved, planned)


def read_urgent_projects(store: Store) -> frozenset[str]:
    """Return the projects with an open incident: their exchanges do not wait."""
    with contextlib.closing(store.cursor()) as cursor:
        return frozenset(row["project"] for row in query_rows(cursor, "open_incidents", {"project": None}))


class _Case(NamedTuple):
    """A waiting exchange in a round."""

    task: ScoringTask
    judging_task: JudgingTask
    questions: Sequence[Question]
    """The questions to ask now."""
    reservations: Mapping[str, str]
    """See `SessionEvidence`."""
    seconds: float
    """Seconds until its time is over; negative if it is."""


class BatchRounds:
    """The exchanges that wait for a batch, as the module describes. Belongs to one event loop.

    `read` returns the evidence about tasks, `read_urgent` the projects with an open incident, and `request` publishes requests to score
    exchanges again.
    """

    def __init__(
        self,
        judge: BatchJudge,
        policy: Policy,
        now: Callable[[], datetime],
        waiting: WaitingExchanges,
        *,
        read: Callable[[Sequence[ScoringTask]], Awaitable[SessionEvidence]],
        read_urgent: Callable[[], Awaitable[frozenset[str]]],
        request: Callable[[Sequence[JudgingRequest]], Awaitable[object]],
        shared_caps: SharedCaps | None,
    ) -> None:
        self._judge = judge
        self._policy = policy
        self._now = now
        self._read = read
        self._read_urgent = read_urgent
        self._request = request
        self._shared_caps = shared_caps
        self._tasks = {SCORING.subject_of(task): task for task in waiting.tasks}
        self._due_at: dict[Subject, datetime] = dict.fromkeys(self._tasks, now())
        """When each exchange that is in no round is asked about."""
        self._judged_projects = set(waiting.judged_projects)
        self._urgent_projects: frozenset[str] = frozenset()
        self._rounds: set[asyncio.Task[None]] = set()
        self._record_call: Publish | None = None
        self._loop: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, record_call: Publish) -> None:
        """Start the rounds. `record_call` makes the record of a call durable."""
        self._record_call = record_call
        self._loop = asyncio.create_task(self._run(), name="batch rounds")

    async def stop(self) -> None:
        """Stop asking. Batches go on at their providers, and the next process reads their answers."""
        tasks = [*self._rounds, *([self._loop] if self._loop is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._judge.aclose()

    def may_wait(self, task: ScoringTask) -> bool:
        """See `WaitingTasks`: not if the project has an open incident, or if this is its first exchange for a judge."""
        if task.project not in self._judged_projects:
            self._judged_projects.add(task.project)
            return False
        return task.project not in self._urgent_projects

    def add(self, task: ScoringTask) -> None:
        """See `WaitingTasks`."""
        subject = SCORING.subject_of(task)
        if subject not in self._tasks:
            self._due_at[subject] = self._now() + self._allowed(task) / ROUNDS
        self._tasks[subject] = task

    async def ask_now(self) -> None:
        """Ask about all exchanges that wait, and return when their scores were requested."""
        self._start_round(list(self._due_at))
        await asyncio.gather(*self._rounds)

    def _allowed(self, task: ScoringTask) -> timedelta:
        return timedelta(hours=self._policy.for_project(task.project).settings.judge_within_hours or 0)

    async def _run(self) -> None:
        while True:
            try:
                self._urgent_projects = await self._read_urgent()
                now = self._now()
                self._start_round([subject for subject, due_at in self._due_at.items() if due_at <= now])
            except Exception:
                log.exception("the exchanges that wait for a batch cannot be looked at; trying again")
            await asyncio.sleep(TICK_SECONDS)

    def _start_round(self, subjects: Sequence[Subject]) -> None:
        if not subjects:
            return
        for subject in subjects:
            del self._due_at[subject]
        asking = asyncio.create_task(self._run_round(set(subjects)), name="batch round")
        self._rounds.add(asking)
        asking.add_done_callback(self._rounds.discard)

    async def _run_round(self, subjects: set[Subject]) -> None:
        """Ask about exchanges until all are answered. After a bug they wait for the next start, so that nothing is paid for twice."""
        from streams.judges.batch_api import JudgeUnavailableError  # noqa: PLC0415 - the client of the API takes a second to load

        is_available = True
        try:
            while subjects:
                cases = await self._read_cases(subjects)
                finished = [case for case in cases if not case.questions or not is_available]
                await self._score_again(finished)
                subjects.difference_update(SCORING.subject_of(case.task) for case in finished)
                open_cases = [case for case in cases if case.questions]
                if not subjects:
                    return
                try:
                    await self._ask(open_cases)
                except JudgeUnavailableError as error:
                    is_available = False
                    log.warning("exchanges that waited for a batch are judged live: %s", error)
                except ErasedError:
                    log.info("a session was erased while its exchanges waited for a batch")
        except Exception:
            log.exception("%d exchanges wait for their batch until the next start", len(subjects))

    async def _read_cases(self, subjects: set[Subject]) -> list[_Case]:
        """Return the cases of a round. Exchanges whose sessions were erased are dropped."""
        tasks = [self._tasks[subject] for subject in subjects]
        evidence = await self._read(tasks)
        cases = []
        for task in tasks:
            subject = SCORING.subject_of(task)
            recorded = evidence.judgements.get(subject, ())
            waits = next((record for record in recorded if record.outcome == AWAITING_BATCH.reason), None)
            if waits is None:
                subjects.discard(subject)
                del self._tasks[subject]
                continue
            again = msgspec.structs.replace(task, revision=waits.subject_revision + BATCH_REVISIONS, earlier_judgements=())
            cap = self._policy.for_project(task.project).cap
            ledger = Ledger(None if cap is None else evidence.held.get(subject, 0))
            judging_task = SCORING.open(again, self._policy, recorded, ledger=ledger, batched=True)
            seconds = (waits.judged_at + self._allowed(task) - self._now()).total_seconds()
            questions = judging_task.open_questions()
            if seconds <= 0:
                # Answers that may have been paid for are still read.
                questions = [question for question in questions if question.fingerprint in evidence.planned]
            cases.append(_Case(again, judging_task, questions, evidence.reservations, seconds))
        return cases

    async def _ask(self, cases: Sequence[_Case]) -> None:
        """Ask the questions of the cases in batches, and record the judgements."""
        record_call = self._record_call
        if record_call is None:
            return
        asked = []
        for case in cases:
            for question in case.questions:
                reserved = case.reservations.get(question.fingerprint)
                budget = DurableBudget(
                    question,
                    case.judging_task,
                    record_call,
                    self._now,
                    lambda: True,
                    shared_caps=self._shared_caps,
                    reservation_id=reserved,
                )
                asked.append(BatchQuestion(question, budget, tag=budget))
        async with aclosing(self._judge.ask_all(asked, min(case.seconds for case in cases))) as verdicts:
            async for batch_question, verdict in verdicts:
                if verdict.error != CANCELLED and isinstance(batch_question.tag, DurableBudget):
                    await batch_question.tag.record_judgement(verdict)

    async def _score_again(self, cases: Sequence[_Case]) -> None:
        """Request the scores of cases whose batches have ended."""
        if not cases:
            return
        requests = [request for case in cases for request in self._build_requests(case)]
        await self._request(requests)
        for case in cases:
            self._tasks.pop(SCORING.subject_of(case.task), None)

    def _build_requests(self, case: _Case) -> list[JudgingRequest]:
        """Return the request for the score with the batch's answers, and one more if a question failed: that one asks it live."""
        task = case.task
        request = JudgingRequest(
            connection=task.connection,
            project=task.project,
            session_id=task.session_id,
            exchange_id=task.exchange_id,
            revision=task.revision,
            exchange=task.exchange,
            turn_number=task.turn_number,
            sampling_reason=task.sampling_reason,
            sampling_probability=task.sampling_probability,
            ingested_at=self._now(),
            earlier_turns=task.earlier_turns,
        )
        failed = any(
            record.subject_revision == task.revision and record.outcome not in _FINAL_OUTCOMES
            for record in case.judging_task.recorded
        )
        return [request, msgspec.structs.replace(request, revision=task.revision + 1)] if failed else [request]
