"""The embedded engine of a server: takes records in, durable on return, and lets the stages work behind it. Start reading here.

1. Everything is committed by one loop, `_commit_submissions`: what callers bring and what the stages made, as much at once as has come
   together. It leaves out what is known, lets intake decide, appends to the log, and answers.
2. Behind it, each stage reads its topic from the tables, works, and submits what it made with its state and position.
3. The sink flushes the log to the tables: every half second, when much is pending, and whenever somebody reads.
4. What callers bring fails if the log does not take it: they are told, and may bring it again. What a stage made was promised or paid
   for: it is submitted again until the log takes it, for a full disk may pass.
5. A database that gives up altogether has to be opened again, which takes another process: `broken` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from analytics.deletion.erased import ERASURES
from analytics.store.stage_states import stored_states
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.errors import BusyError, StoreError, first_line
from schemas.lazy.duckdb import duckdb
from schemas.records import Record, Score, ScoringTask
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine_state import EngineLimits
from streams.engine.record_intake import RecordIntake
from streams.engine.session_states import SessionStates
from streams.engine.stage_runs import StageOutcome, StageRuns, next_batch
from streams.judges.protocol import Judge
from streams.judging.call_budget import StoppedError, settle_interrupted
from streams.judging.judged_stages import JUDGED, SCORING, JudgedStage
from streams.judging.judged_state import STATE
from streams.judging.judging_partition import JudgingContext
from streams.judging.local_tasks import LocalTasks
from streams.judging.recorded_judgements import Subject, recorded_in
from streams.log.admission import WRITTEN, Committed, Submission
from streams.log.local_log import Commit
from streams.log.new_records import NewRecords
from streams.log.sink import flush, local_log, recover
from streams.stage_batches import RecordBatch, StageBatch, named_session, session_key
from streams.stage_progress import stage_progress
from streams.topology import Stage, stage_named
from streams.upkeep.erased_now import ErasedNow

INTAKE, DIAGNOSIS = stage_named("intake"), stage_named("diagnosis")
READ_BACK = frozenset({ERASURES, "anchors", "baselines", "incidents"})
"""Topics that are flushed before their sender is answered: whoever writes one reads it from the tables for the next one."""
FLUSH_RECORDS = 5_000
"""Pending records that are flushed before their time."""
MOST_PENDING = 50_000
"""Pending records; beyond that the tables have to take some first."""
AGAIN_SECONDS = 1.0
"""Seconds after which a flush, or a stage that could not read, is tried again."""
PAUSES = wait_exponential(multiplier=0.5, max=10.0)
"""Seconds between two tries to commit what a stage made: half a second, then twice as long, up to ten."""
RECENT = 30.0
"""Seconds for which a failed commit counts as trouble, unless one succeeds before: then a caller has to try again."""
log = logging.getLogger(__name__)


@cache
def trouble() -> tuple[type[Exception], ...]:
    """Return the errors that keep the database from taking records whatever they hold, such as a full disk."""
    return StoreError, duckdb.OperationalError, duckdb.FatalException


class _Waiting(NamedTuple):
    """A submission, and who waits for what becomes of it."""

    submission: Submission
    answer: asyncio.Future[Committed]


class Engine(RecordIntake):
    """See the module. `judge` None: the tiers that want one stay unscored; `judge_name` says in words who judges.

    Tasks of a judged stage that is not among `stages` wait for another engine: this one was not asked to pay for them. `clock` is
    monotonic, in seconds.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        judge: Judge | None = None,
        judge_name: str = "none",
        limits: EngineLimits | None = None,
        stages: Sequence[JudgedStage[Any]] = JUDGED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, policy, redactor, now, judge_name=judge_name, limits=limits)
        self.judge = judge
        self._stages = stages
        self._clock = clock
        self._runs = StageRuns(policy, recorded_in(store), redactor, now)
        self._log = local_log(store)
        self._new = NewRecords(store)
        self._states = SessionStates(store, self._log, (INTAKE.name, SCORING.name))
        self._unjudged = () if judge is not None else tuple(stage_named(stage.name) for stage in stages)
        self._positions: dict[str, int] = {}
        """The offset that each stage without a judge reads next."""
        self._workers: tuple[LocalTasks, ...] = ()
        self._waiting: deque[_Waiting] = deque()
        self._has_waiting, self._has_pending, self._has_much = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._moved, self._given_up = asyncio.Event(), asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._failed_at = -RECENT
        self._not_flushed = ""
        """Why the tables do not take what is pending; empty if they do."""
        self._is_started = self._stopping = False
        self._judging: list[asyncio.Task[None]] = []
        self._computing: list[asyncio.Task[None]] = []
        self._committing: asyncio.Task[None] | None = None
        self._upkeep: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take up what the last process left, then work in the background."""
        await asyncio.to_thread(self._recover)
        if self.judge is not None:
            self._workers = tuple(self._worker(stage, self.judge) for stage in self._stages)
        self._committing = asyncio.create_task(self._commit_submissions())
        self._computing = [asyncio.create_task(self._compute(stage)) for stage in (DIAGNOSIS, *self._unjudged)]
        self._judging = [asyncio.create_task(worker.run()) for worker in self._workers]
        for task in (*self._judging, *self._computing, self._committing):
            task.add_done_callback(self._note_end)
        self._upkeep = [asyncio.create_task(self._flush_when_due()), asyncio.create_task(self._close_idle_sessions())]
        self._is_started = True

    async def stop(self, grace: float = 20.0) -> None:
        """Finish what is being judged, for `grace` seconds at most, commit what waits, flush, and end.

        Called again while it stops, with less grace, it hurries.
        """
        if not self._is_started or self._committing is None:
            return
        self._stopping = True
        self._wake()
        await asyncio.gather(*(worker.stop(grace) for worker in self._workers))
        self._given_up.set()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, *self._judging, *self._computing, return_exceptions=True)
        self._has_waiting.set()
        await asyncio.gather(self._committing, return_exceptions=True)
        if self._is_started:  # another call of `stop` may have been here first
            self._workers, self._is_started = (), False
            try:
                await self.flush()
            except trouble() as error:
                log.warning("the log stays for the next start: %s", error)
            self._log.close()
            if self.judge is not None:
                await self.judge.aclose()

    async def _commit_submissions(self) -> None:
        """The loop: commit what was submitted, as much at once as has come together, until the engine stops."""
        while self._waiting or not self._given_up.is_set():
            if not self._waiting:
                self._has_waiting.clear()
                await self._has_waiting.wait()
                continue
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.at_once))]
            await self._commit_group(group)

    async def _commit_group(self, group: Sequence[_Waiting]) -> None:
        try:
            committed = await self._commit([waiting.submission for waiting in group])
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever submitted it is told
            if len(group) > 1:
                log.warning("%d submissions could not be committed together: %s", len(group), first_line(error))
                for waiting in group:
                    await self._commit_group([waiting])
            elif not group[0].answer.done():
                group[0].answer.set_exception(error)
            return
        for waiting, outcome in zip(group, committed, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(outcome)

    async def _commit(self, group: Sequence[Submission]) -> list[Committed]:
        """Make all of the group durable, or nothing if an exception leaves: leave out what is known, decide, append."""
        if self._log.waiting.total() >= MOST_PENDING:
            await self.flush()
        outcomes = await self._outcomes(group)
        records, messages = _new_records(group, outcomes)
        decided, spent = await self._decide(records.get(INTAKE.source, ()), messages.get(INTAKE.source, ()))
        commit = self._commit_of(group, messages, decided)
        if commit.records or commit.states or commit.positions:
            self._log.append(commit)
            for topic, of_topic in records.items():
                self._new.add(topic, of_topic, self._log.end_of(topic))
            self._states.add(commit.states)
            self._has_pending.set()
            if self._log.waiting.total() >= FLUSH_RECORDS:
                self._has_much.set()
        decisions = _decisions(decided.records)
        return [Committed(of_submission, decisions, spent) for of_submission in outcomes]

    async def _outcomes(self, group: Sequence[Submission]) -> list[dict[str, list[str]]]:
        """What becomes of the records from outside: by topic, for each submission of the group."""
        by_topic: dict[str, list[Record]] = defaultdict(list)
        encoded: dict[str, list[bytes]] = defaultdict(list)
        for submission in group:
            for topic, records in submission.records.items():
                by_topic[topic] += records
                encoded[topic] += submission.messages[topic]
        if not self._new.has_read(by_topic):
            await asyncio.to_thread(self._new.read, list(by_topic))
        rest = {topic: iter(await self._outcomes_of(topic, records, encoded[topic])) for topic, records in by_topic.items()}
        return [
            {topic: [next(rest[topic]) for _ in records] for topic, records in submission.records.items()}
            for submission in group
        ]

    async def _outcomes_of(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        outcomes = self._new.outcomes(topic, records)
        doubtful = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if doubtful:
            await self.flush()
            found = await asyncio.to_thread(self._new.in_tables, topic, [messages[index] for index in doubtful])
            for index, outcome in zip(doubtful, found, strict=True):
                outcomes[index] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    async def _decide(self, records: Sequence[Record], messages: Sequence[bytes]) -> tuple[StageOutcome, dict[str, int]]:
        """Let intake decide on new records that go to the end of its topic; with what their sessions have spent, in nano-USD."""
        if not records:
            return StageOutcome(), {}
        keys = [named_session(record.connection, record.session_id) for record in records]  # type: ignore[attr-defined]
        if not self._states.has_read(keys):
            await asyncio.to_thread(self._states.read, keys)
        start = self._log.end_of(INTAKE.source)
        rows = [(start + index, key, record) for index, (key, record) in enumerate(zip(keys, records, strict=True))]
        outcome = self._runs.run(INTAKE, RecordBatch(rows, messages), self._states.of(INTAKE.name, keys))
        sampled = {session_key(record) for _, record in outcome.records if isinstance(record, ScoringTask)}
        spent = {key: STATE.decode(state).spent for key, state in self._states.of(SCORING.name, sampled).items()}
        return outcome, spent

    def _commit_of(self, group: Sequence[Submission], messages: Mapping[str, Sequence[bytes]], decided: StageOutcome) -> Commit:
        """All of the group with what intake decided, as one commit at the end of the topics."""
        records: dict[str, list[bytes]] = defaultdict(list)
        states: dict[str, dict[str, bytes]] = defaultdict(dict)
        positions: dict[str, int] = {}
        for submission in group:
            for topic, made in submission.made.messages.items():
                records[topic] += made
            if submission.stage:
                states[submission.stage] |= submission.states
                positions[submission.stage] = max(submission.position, positions.get(submission.stage, 0))
        for part in (messages, decided.made.messages, decided.dead.messages):
            for topic, of_topic in part.items():
                records[topic] += of_topic
        offsets = {topic: self._log.end_of(topic) for topic in records}
        if messages.get(INTAKE.source):
            states[INTAKE.name] |= decided.states
            positions[INTAKE.name] = offsets[INTAKE.source] + len(messages[INTAKE.source])
        return Commit(dict(records), offsets, dict(states), positions)

    async def _submit(self, submission: Submission) -> Committed:
        """Commit what is submitted, with whatever else comes in this turn of the event loop."""
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(submission, answer))
        self._has_waiting.set()
        try:
            committed = await answer
        except trouble() as error:
            self._failed_at = self._clock()
            if isinstance(error, duckdb.FatalException):
                self._give_up_database(error)
            raise
        self._failed_at = -RECENT
        return committed

    async def _insist(self, work: Callable[..., Awaitable[object]], *values: object) -> None:
        """Submit or flush as soon as the database takes it. StoppedError if that is not to be waited for any longer."""
        again = AsyncRetrying(
            retry=retry_if_exception(self._may_pass), wait=PAUSES, sleep=self._pause, before_sleep=_warn, reraise=True
        )
        try:
            await again(work, *values)
        except trouble() as error:
            raise StoppedError from error

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, trouble()) and not self.broken.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait; StoppedError as soon as the engine gives up."""
        try:
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        except TimeoutError:
            return
        raise StoppedError

    async def flush(self, topic: str | None = None) -> None:
        """Return when the tables have everything that was appended up to now, if any of it is of the topic (None: all)."""
        if topic is not None and not self._log.waiting[topic]:
            return
        end = self._log.pending.end
        while not self._log.is_empty and self._log.pending.end - len(self._log.pending.commits) < end:
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush_pending())
            # Whoever waits may be cancelled; the flush goes on.
            await asyncio.shield(self._flushing)

    async def _flush_pending(self) -> None:
        pending = self._log.pending
        try:
            await asyncio.to_thread(flush, self.store, pending)
        except trouble() as error:
            self._not_flushed = first_line(error)
            if isinstance(error, duckdb.FatalException):
                self._give_up_database(error)
            raise
        finally:
            self._flushing = None
        self._not_flushed = ""
        self._log.trim(pending.end)
        self._wake()

    async def _flush_when_due(self) -> None:
        """Flush when the oldest pending record has waited for long enough, or much is pending."""
        while True:
            if self._log.is_empty:
                self._has_pending.clear()
                self._has_much.clear()
                await self._has_pending.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.flush_seconds):
                    await self._has_much.wait()
            self._has_much.clear()
            try:
                await self.flush()
            except trouble() as error:
                log.warning("the tables do not take what was accepted, trying again: %s", first_line(error))
                await asyncio.sleep(AGAIN_SECONDS)

    async def _compute(self, stage: Stage) -> None:
        """Let a stage that asks no judge take up its topic, batch by batch, until the engine stops."""
        while not self._stopping:
            moved = self._moved
            try:
                if not await self._take_up_batch(stage):
                    await moved.wait()
            except trouble() as error:
                self._not_flushed = first_line(error)
                log.warning("%s could not take up its next batch, trying again: %s", stage.name, self._not_flushed)
                await asyncio.sleep(AGAIN_SECONDS)
            except StoppedError:
                return

    async def _take_up_batch(self, stage: Stage) -> bool:
        """Let a stage take up its next batch and commit what it made; answers whether there was one."""
        start = self._positions[stage.name]
        batch, end = await asyncio.to_thread(next_batch, self.store, stage.source, start, stage.records_at_once)
        if end <= start:
            return False
        outcome = await asyncio.to_thread(self._run, stage, batch)
        outcome.made.extend(outcome.dead)
        submission = Submission(made=outcome.made, stage=stage.name, states=outcome.states, position=end)
        await self._insist(self._submit, submission)
        self._positions[stage.name] = end
        self._wake()
        return True

    def _run(self, stage: Stage, batch: StageBatch) -> StageOutcome:
        return self._runs.run(stage, batch, self._newest_states(stage.name, batch.keys()))

    def _newest_states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The newest states of sessions that nobody else works on in this stage meanwhile; for any thread."""
        # The log first: what it has now may be in the tables a moment later, but not the other way round.
        pending = self._log.states(stage, keys)
        with contextlib.closing(self.store.cursor()) as cursor:
            return stored_states(cursor, stage, keys) | pending

    @property
    def has_judge(self) -> bool:
        """Whether anybody can be asked to judge."""
        return self.judge is not None

    async def wait_for_tables(self, _topic: str) -> None:
        """Return when the tables have everything that was taken in."""
        await self.flush()

    async def _take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        if self._given_up.is_set() or len(self._waiting) >= self._limits.waiting:
            raise BusyError("the log is closed" if self._given_up.is_set() else "the log cannot take more at the moment")
        committed = await self._submit(Submission({topic: records}, {topic: messages}))
        if topic in READ_BACK:
            await self.flush()
        return committed

    async def _settled(self, _connection: str, _session_id: str) -> None:
        await self.flush()

    async def _shows_now(self) -> bool:
        await self.flush()
        return True

    def _queues(self) -> Mapping[str, int]:
        queues = {"commits": 0, **{stage.queue: 0 for stage in self._stages}, "sessions": 0}
        if self._is_started:
            queues |= {"commits": len(self._waiting), "sessions": sum(worker.sessions for worker in self._workers)}
            queues |= {stage.judged.queue: self._unread(stage) for stage in self._unjudged if stage.judged is not None}
            queues |= {worker.stage.queue: worker.pending + self._log.waiting[worker.stage.source] for worker in self._workers}
        return queues

    def _unread(self, stage: Stage) -> int:
        """How many positions wait for a stage without a judge."""
        return max(0, self._log.end_of(stage.source) - self._positions[stage.name])

    def _why_not(self) -> str:
        if not self._is_started:
            return "it is not started"
        ended = next((worker.stage.name for worker in self._workers if worker.failure is not None), "")
        if ended:
            return f"{ended} ended by a fault of Driftline"
        if self.broken.is_set():
            return "the database has given up and has to be opened again"
        if len(self._waiting) >= self._limits.waiting:
            return "too much waits to be committed"
        if self._clock() - self._failed_at < RECENT:
            return "the log did not take a record"
        return self._not_flushed and f"the tables do not take what was accepted: {self._not_flushed}"

    async def drained(self) -> None:
        """Return when everything that was taken in is judged. StoreError when that cannot be any more."""
        if not self._is_started:
            return
        await self.flush()
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._judged()), asyncio.create_task(self.broken.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if self.broken.is_set():
            raise self.failure()

    async def _judged(self) -> None:
        for worker in self._workers:
            await worker.drained()
            await self.flush()
        while any(map(self._unread, self._unjudged)):
            await self.flush()
            moved = self._moved
            if any(map(self._unread, self._unjudged)):
                await moved.wait()
        await self.flush()

    def failure(self) -> StoreError:
        """Why it is broken, and what to do about it."""
        hint = "Make room where the file is, then start again: what was accepted is in the file, and is taken up."
        return StoreError(f"{self.store.path}: {self.state().why_not}", hint=hint)

    def _worker(self, stage: JudgedStage[Any], judge: Judge) -> LocalTasks:
        return LocalTasks(
            JudgingContext(
                stage=stage, policy=self.policy, judge=judge, redactor=self.redactor, now=self.now, calls=self._calls
            ),
            self.store,
            states=self._newest_states,
            commit=partial(self._insist, self._submit),
            flush=partial(self._insist, self.flush),
            erased=ErasedNow(self.store),
        )

    def _give_up_database(self, error: BaseException) -> None:
        """Say that another process has to open the database again."""
        log.critical("the database has given up and has to be opened again: %s", first_line(error))
        self.broken.set()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Nothing ends a stage or the loop but a stop; if something does, another process has to take it up."""
        if not self._stopping and not task.cancelled():
            log.critical("a stage ended", exc_info=task.exception())
            self.broken.set()

    def _recover(self) -> None:
        if count := recover(self.store, self._log):
            log.warning("%d records were not in the tables when the last process ended: they are now", count)
        settle_interrupted(self.store, self.now())
        EmbeddedRunner(self.store, self.policy, self.redactor, self.now).catch_up()
        self._positions = {stage.name: stage_progress(self.store, stage).position for stage in (DIAGNOSIS, *self._unjudged)}

    def _wake(self) -> None:
        """Have every stage look at its topic: the tables have more."""
        self._moved.set()
        self._moved = asyncio.Event()
        for worker in self._workers:
            worker.wake()


def _new_records(
    group: Sequence[Submission], outcomes: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[dict[str, list[Record]], dict[str, list[bytes]]]:
    """The records from outside that are new, and their encodings, by topic."""
    records: dict[str, list[Record]] = defaultdict(list)
    messages: dict[str, list[bytes]] = defaultdict(list)
    for submission, by_topic in zip(group, outcomes, strict=True):
        for topic, of_topic in by_topic.items():
            new = [index for index, outcome in enumerate(of_topic) if outcome == WRITTEN]
            if new:
                records[topic] += [submission.records[topic][index] for index in new]
                messages[topic] += [submission.messages[topic][index] for index in new]
    return records, messages


def _decisions(made: Sequence[tuple[str, Record]]) -> dict[Subject, ScoringTask | Score]:
    """What intake decided on exchanges that came now; what it made of earlier ones is no news of them."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in made
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _warn(tried: RetryCallState) -> None:
    error = tried.outcome.exception() if tried.outcome else None
    log.warning("the log took no record of a stage, trying again in %g s: %s", tried.upcoming_sleep, first_line(error))
