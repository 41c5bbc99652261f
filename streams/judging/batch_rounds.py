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
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import Ledger
from audit.exchanges.questions import ANSWERED, BATCH_REVISIONS, INTERRUPTED
from audit.policy import Policy
from schemas.records import Judgement, JudgingRequest, Reservation, ScoringTask
from streams.judges.batch_plans import CANCELLED, BatchQuestion
from streams.judging.call_budget import DurableBudget, ErasedError, Publish, batch_question
from streams.judging.judged_stages import SCORING, STATE, JudgingTask, Subject, find_beginning, judgement_reader
from streams.judging.shared_caps import SharedCaps
from streams.log.dead_letters import repeat_task
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
    def read(cls, store: Store, policy: Policy) -> WaitingExchanges:
        """Read them from the tables. The projects matter only if the policy lets exchanges wait."""
        with contextlib.closing(store.cursor()) as cursor:
            tasks = list(query_records(cursor, "waiting_tasks", ScoringTask, {"revisions": BATCH_REVISIONS}))
            rows = query_rows(cursor, "judged_projects") if _lets_wait(policy) else []
        return cls(tasks, frozenset(row["project"] for row in rows))


@dataclass(frozen=True)
class SessionEvidence:
    """What the next questions about some exchanges depend on."""

    judgements: Mapping[Subject, Sequence[Judgement]]
    held: Mapping[Subject, int]
    """What the cap of the session keeps for the batch of an exchange, in nano-USD."""
    reservations: dict[str, str]
    """Ids of unsettled reservations of planned questions, by fingerprint."""

    @classmethod
    def read(
        cls,
        store: Store,
        tasks: Sequence[ScoringTask],
        planned: Container[str],
        states: Callable[[str, Sequence[str]], Mapping[str, bytes]],
    ) -> SessionEvidence:
        """Read it from the tables, which must have all records."""
        connections = {session_key_of(task): task.connection for task in tasks}
        held = {
            (connections[key], amount.subject_id): amount.amount
            for key, state in states(SCORING.name, list(connections)).items()
            for amount in STATE.decode(state).held
        }
        with contextlib.closing(store.cursor()) as cursor:
            reservations = query_records(cursor, "open_reservations", Reservation)
            reserved = {row.fingerprint: row.reservation_id for row in reservations if row.fingerprint in planned}
        judgements = judgement_reader(store)([SCORING.subject_of(task) for task in tasks])
        return cls(judgements, held, reserved)


def _lets_wait(policy: Policy) -> bool:
    """Return whether the policy lets exchanges of any project wait."""
    return any(policy.for_project(name).settings.judge_within_hours is not None for name in ("", *policy.projects))


def read_urgent_projects(store: Store) -> frozenset[str]:
    """Return the projects with an open incident: their exchanges do not wait."""
    with contextlib.closing(store.cursor()) as cursor:
        return frozenset(row["project"] for row in query_rows(cursor, "open_incidents", {"project": None, "now": None}))


class _Case(NamedTuple):
    """A waiting exchange in a round."""

    task: ScoringTask
    judging_task: JudgingTask
    questions: Sequence[BatchQuestion]
    """The questions to ask now."""
    seconds: float
    """Seconds until its time is over; negative if it is."""


class BatchRounds:
    """The exchanges that wait for a batch, as the module describes. Belongs to one event loop.

    `read` returns the evidence about tasks, given the questions in batches; `read_urgent` the projects with an open incident. `record_call`
    makes the record of a call durable, and `request` publishes requests to score exchanges again.
    """

    def __init__(
        self,
        judge: BatchJudge,
        policy: Policy,
        now: Callable[[], datetime],
        waiting: WaitingExchanges,
        *,
        read: Callable[[Sequence[ScoringTask], Container[str]], Awaitable[SessionEvidence]],
        read_urgent: Callable[[], Awaitable[frozenset[str]]],
        record_call: Publish,
        request: Callable[[Sequence[JudgingRequest]], Awaitable[object]],
        shared_caps: SharedCaps | None,
    ) -> None:
        self._judge = judge
        self._policy = policy
        self._now = now
        self._read = read
        self._read_urgent = read_urgent
        self._record_call = record_call
        self._request = request
        self._shared_caps = shared_caps
        self._tasks = {SCORING.subject_of(task): task for task in waiting.tasks}
        self._due_at: dict[Subject, datetime] = dict.fromkeys(self._tasks, now())
        """When each exchange that is in no round is asked about."""
        self._judged_projects = set(waiting.judged_projects)
        self._urgent_projects: frozenset[str] = frozenset()
        self._rounds: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self) -> None:
        """Start the rounds."""
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

    def _allowed(self, task: ScoringTask) -> timedelta:
        return timedelta(hours=self._policy.for_project(task.project).settings.judge_within_hours or 0)

    async def _run(self) -> None:
        while True:
            try:
                if _lets_wait(self._policy):
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
        batch_round = asyncio.create_task(self._run_round(set(subjects)), name="batch round")
        self._rounds.add(batch_round)
        batch_round.add_done_callback(self._rounds.discard)

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
        planned = self._judge.planned
        evidence = await self._read(tasks, planned)
        cases = []
        for task in tasks:
            subject = SCORING.subject_of(task)
            recorded = evidence.judgements.get(subject, ())
            beginning = find_beginning(recorded)
            if beginning is None:
                subjects.discard(subject)
                del self._tasks[subject]
                continue
            again = msgspec.structs.replace(task, revision=beginning.subject_revision + BATCH_REVISIONS, earlier_judgements=())
            cap = self._policy.for_project(task.project).cap
            ledger = Ledger(None if cap is None else evidence.held.get(subject, 0))
            judging_task = SCORING.open(again, self._policy, recorded, ledger=ledger, batched=True)
            seconds = (beginning.judged_at + self._allowed(task) - self._now()).total_seconds()
            questions = judging_task.open_questions()
            if seconds <= 0:
                # Answers that may have been paid for are still read.
                questions = [question for question in questions if question.fingerprint in planned]
            funded = [
                batch_question(question, judging_task, self._record_call, self._now, evidence.reservations, self._shared_caps)
                for question in questions
            ]
            cases.append(_Case(again, judging_task, funded, seconds))
        return cases

    async def _ask(self, cases: Sequence[_Case]) -> None:
        """Ask the questions of the cases in batches, and record the judgements."""
        questions = [question for case in cases for question in case.questions]
        async with aclosing(self._judge.ask_all(questions, min(case.seconds for case in cases))) as verdicts:
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
        revision = case.task.revision
        live_request = repeat_task(case.task, self._now())
        request = msgspec.structs.replace(live_request, revision=revision)
        failed = any(
            record.subject_revision == revision and record.outcome not in _FINAL_OUTCOMES
            for record in case.judging_task.recorded
        )
        return [request, live_request] if failed else [request]
