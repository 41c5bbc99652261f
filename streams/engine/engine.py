"""The engine of a server: it makes records durable before it answers, and runs the stages in the background. Start reading here.

1. One loop, `_commit_submissions`, commits the records of callers and stages in groups, as they arrive. For each group it skips known
   records, runs intake, appends to the log, and answers.
2. Each stage reads its topic from the tables, processes a batch, and submits its records together with its state and position.
3. The log is flushed to the tables every half second, when many records are pending, and before reads.
4. Over Kafka (`streams.kafka.kafka_log`) the same loop appends to topics, workers run the stages, and a sink fills the tables.
5. If the log refuses a caller's records, the caller gets the error and may send them again. Records of a stage were promised or paid
   for, so the engine resubmits them until the log accepts them: a full disk may be temporary.
6. After a fatal error only another process can open the database again: `broken` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from analytics.deletion.deleting import ERASURES
from analytics.deletion.text_keys import ForgetTexts
from analytics.store.positions import KnownSessions, read_states, read_states_of_stages
from analytics.store.store import Store
from analytics.store.tables import PARTITION
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import BrokerError, BusyError, DriftlineError, StoreError, first_line
from schemas.records import Judgement, Record, Reservation, Score, ScoringTask
from streams.engine.embedded import EmbeddedRunner, StageOutcome, StageRunner, read_next_batch
from streams.engine.record_intake import EngineLimits, RecordIntake
from streams.judges.protocol import Judge
from streams.judging.batch_rounds import BatchRounds, SessionEvidence, WaitingExchanges, read_urgent_projects
from streams.judging.call_budget import ErasedError, StoppedError, settle_interrupted_calls
from streams.judging.judged_stages import JUDGED, SCORING, STATE, JudgedStage, JudgedState, Subject, judgement_reader
from streams.judging.judging_partition import JudgingContext, JudgingPartition, PendingTask
from streams.judging.shared_caps import SharedCaps, open_shared_caps
from streams.log.local_log import local_log
from streams.log.log import WRITTEN, Commit, CommitResult, Log, Submission, move_forward
from streams.log.new_records import ErasedSessions
from streams.log.sink import database_errors, note_fatal
from streams.stage_batches import RecordBatch, StageBatch, session_key, session_key_of
from streams.stage_progress import StageSource, stage_progress
from streams.topology import Stage, stage_named

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge

MAX_CACHED_SESSIONS = 100_000
"""Sessions whose states are cached. A full cache is emptied, and states are read again when needed."""
FLUSHED_BEFORE_ANSWER = frozenset({ERASURES, "anchors", "baselines", "incidents"})
"""Topics that are flushed before their sender gets an answer, because their writers read the tables to make the next record."""
TASK_BATCH_SIZE = 50
"""Tasks in one read for a judge; each holds texts of up to a megabyte."""
RETRY_SECONDS = 1.0
"""Seconds until a stage that could not read its topic tries again."""
COMMIT_BACKOFF = wait_exponential(multiplier=0.5, max=10.0)
"""The pause between two tries to commit a stage's records: half a second, doubled each time up to ten seconds."""
UNREADY_SECONDS = 30.0
"""Seconds for which a failed commit makes the engine unready, unless a later commit succeeds."""
log = logging.getLogger(__name__)


@cache
def unavailable_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a log that accepts no records at the moment."""
    return *database_errors(), BrokerError, BusyError


class _PendingSubmission(NamedTuple):
    """A submission that waits for its commit, and the future that its caller awaits."""

    submission: Submission
    result: asyncio.Future[CommitResult]


class Engine(RecordIntake):
    """See the module.

    Without a `judge`, the tiers that need one stay unscored. `judge_name` is its display name. Tasks of a judged stage outside `stages`
    wait for another engine, because this engine may not pay for them. With a `batch_judge`, exchanges wait for batches where the policy
    lets them. `clock` is monotonic, in seconds.
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
        batch_judge: BatchJudge | None = None,
        limits: EngineLimits | None = None,
        stages: Sequence[JudgedStage[Any]] = JUDGED,
        clock: Callable[[], float] = time.monotonic,
        log: Log | None = None,
    ) -> None:
        """Use the local log beside the store unless `log` is given."""
        super().__init__(store, policy, redactor, now, judge_name=judge_name, limits=limits)
        self.judge = judge
        self._batch_judge = batch_judge
        self.batches: BatchRounds | None = None
        """The exchanges that wait for a batch; None if none may."""
        self._stages = stages
        self._clock = clock
        self._runner = StageRunner(policy, judgement_reader(store), redactor, now)
        self._log: Log = log or local_log(store, self._limits.flush_seconds)
        self._log.on_flushed = self._wake
        self.broken = self._log.broken
        self._states = SessionStates(store, self._log, (INTAKE.name, SCORING.name))
        self._unjudged_stages = () if judge is not None else tuple(stage_named(stage.name) for stage in stages)
        self._shared_caps: SharedCaps | None = None
        self._positions: dict[str, int] = {}
        """The offset that each stage resumes from after a kill."""
        self._judging_partitions: tuple[JudgingPartition, ...] = ()
        self._pending: deque[_PendingSubmission] = deque()
        self._current_group: Sequence[_PendingSubmission] = ()
        self._has_pending = asyncio.Event()
        self._tables_changed = asyncio.Event()
        self._abandoned = asyncio.Event()
        """Set when the engine stops retrying the records of its stages."""
        self._failed_at = -UNREADY_SECONDS
        self._stuck = ""
        """Why a stage cannot process its next batch; empty if none is stuck."""
        self._is_started = False
        self._is_stopping = False
        self._has_stopped_submitting = False
        """Whether the stages have ended, so that nothing more is submitted."""
        self._commit_loop: asyncio.Task[None] | None = None
        self._stage_tasks: list[asyncio.Task[None]] = []
        self._idle_check: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Finish the work of the last process and start the background tasks. Raises BrokerError, SettingsError or StoreError."""
        try:
            await self._log.start()
            if self._log.runs_stages:
                await asyncio.to_thread(self._finish_earlier_work)
        except BaseException:
            await self._log.stop()
            raise
        self._commit_loop = asyncio.create_task(self._commit_submissions())
        if self._log.runs_stages:
            if self.judge is not None:
                if self._batch_judge is not None and SCORING in self._stages:
                    self.batches = await self._open_batches(self._batch_judge)
                self._judging_partitions = tuple(self._start_judging(stage, self.judge) for stage in self._stages)
                if self.batches is not None:
                    self.batches.start()
            computed = [
                self._run_stage(stage.name, partial(self._process_batch, stage))
                for stage in (DIAGNOSIS, *self._unjudged_stages)
            ]
            judged = [
                self._run_stage(partition.stage.name, partial(self._hand_over_tasks, partition))
                for partition in self._judging_partitions
            ]
            self._stage_tasks = [asyncio.create_task(work) for work in (*computed, *judged)]
        for task in (*self._stage_tasks, self._commit_loop):
            task.add_done_callback(self._handle_task_end)
        self._idle_check = asyncio.create_task(self._close_idle_sessions())
        self._is_started = True

    async def stop(self, grace: float = 20.0) -> None:
        """Finish the work in progress for at most `grace` seconds, commit pending submissions, and flush.

        A second call with less grace shortens the stop.
        """
        if not self._is_started or self._commit_loop is None or self._idle_check is None:
            return
        if self.batches is not None:
            await self.batches.stop()
        await asyncio.gather(*(partition.stop(grace) for partition in self._judging_partitions))
        self._abandoned.set()
        self._is_stopping = True
        self._wake()
        self._idle_check.cancel()
        await asyncio.gather(self._idle_check, *self._stage_tasks, return_exceptions=True)
        self._has_stopped_submitting = True
        self._has_pending.set()
        # Waiting for a broker may take long; waiting for a database does not.
        await asyncio.wait([self._commit_loop], timeout=None if self._log.runs_stages else grace)
        if self._is_started:  # a concurrent call of `stop` may have finished first
            self._judging_partitions = ()
            self._is_started = False
            self._commit_loop.cancel()
            await self._log.stop()
            if self.judge is not None:
                await self.judge.aclose()

    async def _commit_submissions(self) -> None:
        """Commit submissions in groups as they arrive, until the engine stops."""
        while self._pending or not self._has_stopped_submitting:
            if not self._pending:
                self._has_pending.clear()
                await self._has_pending.wait()
                continue
            self._current_group = [self._pending.popleft() for _ in range(min(len(self._pending), self._limits.max_group_size))]
            await self._commit_group(self._current_group)
            self._current_group = ()

    async def _commit_group(self, group: Sequence[_PendingSubmission]) -> None:
        """Commit a group and answer its callers. If the group fails, commit each submission alone, so that a bad one fails alone."""
        try:
            results = await self._commit_all([pending.submission for pending in group])
        except Exception as error:  # noqa: BLE001 - the callers get the error, whatever it is
            if len(group) > 1 and not isinstance(error, unavailable_errors()):
                log.warning("%d submissions could not be committed together: %s", len(group), first_line(error))
                for pending in group:
                    await self._commit_group([pending])
                return
            for pending in group:
                if not pending.result.done():
                    pending.result.set_exception(error)
            return
        for pending, result in zip(group, results, strict=True):
            if not pending.result.done():
                pending.result.set_result(result)

    async def _commit_all(self, group: Sequence[Submission]) -> list[CommitResult]:
        """Make the whole group durable: skip known records, run intake, append. If this raises, nothing was committed."""
        outcomes = await self._find_outcomes(group)
        records, messages = _select_new_records(group, outcomes)
        intake = StageOutcome()
        spent: dict[str, int] = {}
        if self._log.runs_stages and records.get(INTAKE.source):
            intake, spent = await self._run_intake(records[INTAKE.source], messages[INTAKE.source])
        commit = self._build_commit(group, messages, intake)
        if commit.records or commit.positions:
            await self._log.append(commit, records)
            self._states.add(commit.states)
        decisions = _decisions_by_exchange(intake.records)
        return [CommitResult(submission_outcomes, decisions, spent) for submission_outcomes in outcomes]

    async def _find_outcomes(self, group: Sequence[Submission]) -> list[dict[str, list[str]]]:
        """Return the outcomes of the records from outside: for each submission, by topic."""
        records_by_topic: dict[str, list[Record]] = defaultdict(list)
        messages_by_topic: dict[str, list[bytes]] = defaultdict(list)
        for submission in group:
            for topic, records in submission.records.items():
                records_by_topic[topic] += records
                messages_by_topic[topic] += submission.messages[topic]
        outcomes = {
            topic: iter(await self._log.outcomes(topic, records, messages_by_topic[topic]))
            for topic, records in records_by_topic.items()
        }
        return [
            {topic: list(islice(outcomes[topic], len(records))) for topic, records in submission.records.items()}
            for submission in group
        ]

    async def _run_intake(self, records: Sequence[Record], messages: Sequence[bytes]) -> tuple[StageOutcome, dict[str, int]]:
        """Run intake over new records at the end of its topic. Also return the spending of the sampled sessions, in nano-USD."""
        keys = [session_key(record.connection, record.session_id) for record in records]  # type: ignore[attr-defined]
        if not self._states.has_read(keys):
            await asyncio.to_thread(self._states.read, keys)
        start = self._log.end_of(INTAKE.source)
        rows = [(start + index, key, record) for index, (key, record) in enumerate(zip(keys, records, strict=True))]
        outcome = self._runner.run(INTAKE, RecordBatch(rows, messages), self._states.of(INTAKE.name, keys))
        sampled = {session_key_of(record) for _, record in outcome.records if isinstance(record, ScoringTask)}
        spent = {key: STATE.decode(state).spent for key, state in self._states.of(SCORING.name, sampled).items()}
        return outcome, spent

    def _build_commit(
        self, group: Sequence[Submission], messages: Mapping[str, Sequence[bytes]], intake: StageOutcome
    ) -> Commit:
        """Return one commit of the group and of intake's results, with offsets at the end of the topics."""
        records: dict[str, list[bytes]] = defaultdict(list)
        states: dict[str, dict[str, bytes]] = defaultdict(dict)
        positions: dict[str, dict[int, int]] = {}
        for submission in group:
            for topic, stage_messages in submission.commit.records.items():
                records[topic] += stage_messages
            for stage, changed in submission.commit.states.items():
                states[stage] |= changed
            move_forward(positions, submission.commit.positions)
        for messages_by_topic in (messages, intake.output.messages, intake.dead_letters.messages):
            for topic, encoded in messages_by_topic.items():
                records[topic] += encoded
        offsets = {topic: self._log.end_of(topic) for topic in records}
        if messages.get(INTAKE.source) and self._log.runs_stages:
            states[INTAKE.name] |= intake.states
            positions[INTAKE.name] = {PARTITION: offsets[INTAKE.source] + len(messages[INTAKE.source])}
        return Commit(dict(records), offsets, dict(states), positions)

    async def commit(self, submission: Submission) -> None:
        """See `RecordIntake`."""
        await self._submit(submission)

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """See `RecordIntake`."""
        return self._log.ends_in_tables(topic)

    async def _submit(self, submission: Submission) -> CommitResult:
        """Commit a submission, together with all others of this turn of the event loop."""
        pending = _PendingSubmission(submission, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._has_pending.set()
        try:
            committed = await pending.result
        except unavailable_errors() as error:
            if self._clock() - self._failed_at >= UNREADY_SECONDS:
                log.warning("%s accepts no records: %s", self._log.name, first_line(error))
            self._failed_at = self._clock()
            note_fatal(error, self.broken)
            raise
        self._failed_at = -UNREADY_SECONDS
        return committed

    async def _retry(self, operation: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        """Retry a submission, flush or read until the database allows it. Raises StoppedError once the engine gives up."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_retryable),
            wait=COMMIT_BACKOFF,
            sleep=self._pause,
            before_sleep=_warn_of_retry,
            reraise=True,
        )
        try:
            return await retrying(operation, *arguments)
        except database_errors() as error:
            raise StoppedError from error

    def _is_retryable(self, error: BaseException) -> bool:
        return isinstance(error, database_errors()) and not self.broken.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises StoppedError as soon as the engine gives up."""
        try:
            async with asyncio.timeout(seconds):
                await self._abandoned.wait()
        except TimeoutError:
            return
        raise StoppedError

    async def _run_stage(self, name: str, process_next: Callable[[], Awaitable[bool]]) -> None:
        """Let a stage process its topic, batch by batch, until the engine stops; `process_next` returns whether there was a batch.

        At a stop the stage processes one more batch, so that a stopped server's database shows no finished work as open.
        """
        is_last = False
        while not is_last:
            # Read the event first: records that arrive during the batch set it, and the wait below returns at once.
            tables_changed = self._tables_changed
            is_last = self._is_stopping
            try:
                if is_last:
                    await self.flush()
                if not await process_next() and not is_last:
                    await tables_changed.wait()
            except database_errors() as error:
                self._stuck = f"{name} could not process its next batch: {first_line(error)}"
                log.warning("%s; trying again", self._stuck)
                note_fatal(error, self.broken)
                if not is_last:
                    await asyncio.sleep(RETRY_SECONDS)
            except StoppedError:
                return

    async def _process_batch(self, stage: Stage) -> bool:
        """Let a stage process its next batch and commit the results; returns whether there was a batch."""
        start = self._positions[stage.name]
        batch, end = await asyncio.to_thread(read_next_batch, self.store, stage.source, start, stage.records_at_once)
        if end <= start:
            return False
        outcome = await asyncio.to_thread(self._run_step, stage, batch)
        records = outcome.output
        records.extend(outcome.dead_letters)
        await self._commit_progress(stage, end, Commit(records.messages, states={stage.name: outcome.states}))
        return True

    async def _hand_over_tasks(self, partition: JudgingPartition) -> bool:
        """Hand the next tasks to the judge, and advance the position to the first unfinished task; returns whether there was work."""
        stage = partition.stage
        has_moved = partition.position > self._positions[stage.name]
        if has_moved:
            await self._commit_progress(stage, partition.position, Commit())
        batch, end = await asyncio.to_thread(read_next_batch, self.store, stage.source, partition.next_offset, TASK_BATCH_SIZE)
        if partition.is_closed or end <= partition.next_offset:
            return has_moved
        await partition.enqueue(await asyncio.to_thread(list, batch.records()), end, self._wake)
        return True

    async def _commit_progress(self, stage: StageSource, position: int, commit: Commit) -> None:
        """Commit a stage's records and states together with its new position."""
        commit = msgspec.structs.replace(commit, positions={stage.name: {PARTITION: position}})
        await self._retry(self._submit, Submission(commit=commit))
        self._positions[stage.name] = position
        self._stuck = ""
        self._wake()

    def _run_step(self, stage: Stage, batch: StageBatch) -> StageOutcome:
        return self._runner.run(stage, batch, self._newest_states(stage.name, batch.keys()))

    def _newest_states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the newest states of sessions that no other task of this stage is processing; safe in any thread."""
        # Read the log first: states move from the log to the tables, never back.
        pending = self._log.states(stage, keys)
        with contextlib.closing(self.store.cursor()) as cursor:
            return read_states(cursor, stage, keys) | dict(pending)

    @property
    def has_judge(self) -> bool:
        """Whether exchanges may be judged. On Kafka this is assumed, because only the workers' own settings tell."""
        return self.judge is not None or not self._log.runs_stages

    @property
    def forget_texts(self) -> ForgetTexts | None:
        """See `RecordIntake`."""
        return self._log.forget_texts

    async def wait_for_tables(self, topic: str) -> None:
        """See `RecordIntake`."""
        await self._log.wait_for_tables(topic)

    async def flush(self, topic: str | None = None) -> None:
        """See `RecordIntake`."""
        if self._log.runs_stages:
            await self._log.flush(topic)

    def pending_events(self, connection: str, session_id: str) -> Mapping[str, int]:
        """See `RecordIntake`."""
        return self._log.pending_events(session_key(connection, session_id))

    async def _commit_records(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> CommitResult:
        if not records:
            return CommitResult({topic: ()}, {}, {})
        if self._abandoned.is_set():
            raise BusyError("the log is closed")
        reason = self._backpressure_reason()
        if reason:
            raise BusyError(reason)
        committed = await self._submit(Submission({topic: records}, {topic: messages}))
        if topic in FLUSHED_BEFORE_ANSWER:
            await self.flush()
        return committed

    async def _flush_session(self, connection: str, session_id: str) -> None:
        await self._log.flush_session(session_key(connection, session_id))

    async def _refresh_store(self) -> bool:
        await self.flush()
        return self._log.is_current()

    def _backpressure_reason(self) -> str:
        """Return the reason why no more records can be accepted at the moment; empty if they can."""
        is_full = len(self._pending) + len(self._current_group) >= self._limits.max_waiting
        return "too many records wait to be committed" if is_full else self._log.backpressure_reason()

    def _erased(self) -> Mapping[str, int]:
        return self._log.erased()

    def _queues(self) -> Mapping[str, int]:
        queues = dict(self._log.queues(len(self._pending) + len(self._current_group)))
        if not self._log.runs_stages:
            return queues
        queues |= {stage.queue: 0 for stage in self._stages}
        if self.batches is not None:
            queues["waiting for a batch"] = len(self.batches)
        queues["sessions"] = sum(len(partition.sessions) for partition in self._judging_partitions)
        if self._is_started:
            queues |= {
                stage.judged.queue: self._count_unread(stage) for stage in self._unjudged_stages if stage.judged is not None
            }
            queues |= {
                partition.stage.queue: self._log.end_of(partition.stage.source)
                - partition.next_offset
                + len(partition.unfinished)
                for partition in self._judging_partitions
            }
        return queues

    def _count_unread(self, stage: StageSource) -> int:
        """Return the number of records on a stage's topic that it has not finished."""
        return max(0, self._log.end_of(stage.source) - self._positions[stage.name])

    def _not_ready_reason(self) -> str:
        if not self._is_started:
            return "the engine is not started"
        for partition in self._judging_partitions:
            if partition.failure is not None:
                return f"{partition.stage.name} was ended by a bug in Driftline"
        if self.broken.is_set():
            return self._log.warning()
        if self._clock() - self._failed_at < UNREADY_SECONDS:
            return f"{self._log.name} did not accept a record"
        return self._log.warning() or self._stuck or self._backpressure_reason()

    async def wait_until_drained(self) -> None:
        """Return when every accepted record is judged. Raises StoreError if that is no longer possible."""
        if not self._is_started:
            return
        await self.flush()
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._wait_until_judged()),
            asyncio.create_task(self.broken.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if self.broken.is_set():
            raise self.failure()

    async def _wait_until_judged(self) -> None:
        while True:
            tables_changed = self._tables_changed
            await self.flush()
            open_stages: list[StageSource] = [
                partition.stage for partition in self._judging_partitions if not partition.is_closed
            ]
            open_stages += self._unjudged_stages
            if not any(self._count_unread(stage) for stage in open_stages):
                # A stage may have committed records during the flush above.
                await self.flush()
                return
            await tables_changed.wait()

    def failure(self) -> DriftlineError:
        """Return the error that broke the engine, with a hint."""
        hint = "Free disk space beside the file, then restart: accepted records are in the file and will be processed."
        return self._log.failure() or StoreError(f"{self.store.path}: {self.state().not_ready_reason}", hint=hint)

    def _start_judging(self, stage: JudgedStage[Any], judge: Judge) -> JudgingPartition:
        context = JudgingContext(
            stage=stage,
            policy=self.policy,
            judge=judge,
            redactor=self.redactor,
            now=self.now,
            calls=self._calls,
            shared_caps=self._shared_caps,
            batches=self.batches if stage is SCORING else None,
        )
        tasks = EngineTaskLog(
            stage,
            self.store,
            states=partial(self._retry, asyncio.to_thread, self._newest_states),
            recorded=partial(self._retry, asyncio.to_thread, judgement_reader(self.store)),
            submit=partial(self._retry, self._submit),
            flush=partial(self._retry, self.flush),
        )
        return JudgingPartition(tasks, context, self._handle_judging_fault, self._positions[stage.name])

    async def _open_batches(self, judge: BatchJudge) -> BatchRounds:
        """Return the exchanges that wait for a batch, those of earlier processes included."""
        waiting = await asyncio.to_thread(WaitingExchanges.read, self.store, self.policy)
        return BatchRounds(
            judge,
            self.policy,
            self.now,
            waiting,
            read=partial(self._retry, self._read_for_batches),
            read_urgent=partial(asyncio.to_thread, read_urgent_projects, self.store),
            record_call=self._record_batch_call,
            request=partial(self.publish, INTAKE.source),
            shared_caps=self._shared_caps,
        )

    async def _read_for_batches(self, tasks: Sequence[ScoringTask], planned: Container[str]) -> SessionEvidence:
        """Read what the next questions about these exchanges depend on."""
        await self.flush()
        return await asyncio.to_thread(SessionEvidence.read, self.store, tasks, planned, self._newest_states)

    async def _record_batch_call(self, record: Judgement | Reservation) -> None:
        """Make the record of a call in a batch durable."""
        await self._judging_partitions[self._stages.index(SCORING)].record_call(record)

    def _handle_judging_fault(self, error: BaseException) -> None:
        """Log a bug that ended the judging of a session: nothing more is judged until the next start."""
        log.critical("a bug in Driftline ended the judging; restart the server to continue", exc_info=error)
        self._wake()

    def _handle_task_end(self, task: asyncio.Task[None]) -> None:
        """Set `broken` if a stage or the commit loop ended before the stop: another process has to take over."""
        if not self._is_stopping and not task.cancelled():
            log.critical("a stage or the commit loop ended unexpectedly", exc_info=task.exception())
            self.broken.set()

    def _finish_earlier_work(self) -> None:
        settle_interrupted_calls(self.store, self.now())
        if self.judge is not None:
            self._shared_caps = open_shared_caps(self.policy, self.store, self.now())
        EmbeddedRunner(self.store, self.policy, self.redactor, self.now).catch_up()
        stages: Sequence[StageSource] = (DIAGNOSIS, *self._stages)
        self._positions = {stage.name: stage_progress(self.store, stage).position for stage in stages}

    def _wake(self) -> None:
        """Wake the stages, because the tables have more records."""
        self._tables_changed.set()
        self._tables_changed = asyncio.Event()
        self.has_more()


def _select_new_records(
    group: Sequence[Submission], outcomes: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[dict[str, list[Record]], dict[str, list[bytes]]]:
    """Return the new records from outside, and their encodings, by topic."""
    records: dict[str, list[Record]] = defaultdict(list)
    messages: dict[str, list[bytes]] = defaultdict(list)
    for submission, outcomes_by_topic in zip(group, outcomes, strict=True):
        for topic, topic_outcomes in outcomes_by_topic.items():
            new_indexes = [index for index, outcome in enumerate(topic_outcomes) if outcome == WRITTEN]
            if new_indexes:
                records[topic] += [submission.records[topic][index] for index in new_indexes]
                messages[topic] += [submission.messages[topic][index] for index in new_indexes]
    return records, messages


def _decisions_by_exchange(records: Sequence[tuple[str, Record]]) -> dict[Subject, ScoringTask | Score]:
    """Return intake's decisions on new exchanges; decisions on later revisions are left out."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in records
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _warn_of_retry(retry: RetryCallState) -> None:
    error = retry.outcome.exception() if retry.outcome else None
    log.warning("the log accepted no records of a stage; trying again in %g s: %s", retry.upcoming_sleep, first_line(error))


class SessionStates:
    """A cache of the states of some stages, by session key. Belongs to one event loop, except that `read` runs in a thread."""

    def __init__(self, store: Store, log: Log, stages: Sequence[str]) -> None:
        self._store = store
        self._log = log
        self._stages = stages
        self._states: dict[str, dict[str, bytes | None]] = {stage: {} for stage in stages}
        """By stage and session key; None if the session has no state."""
        self._sessions = KnownSessions(stages)
        self._changes = self._rebuilds = -1

    def has_read(self, keys: Iterable[str]) -> bool:
        """Return whether the states of these sessions are in memory; sessions that never had a state count as read."""
        if not self._is_current or self._is_cache_full:
            return False
        missing = self._missing_keys(keys)
        if missing and len(self._sessions.find_unknown(missing)) == len(missing):
            self._store_states(missing, {})
            return True
        return not missing

    def read(self, keys: Iterable[str]) -> None:
        """Read the states of sessions from the tables, unless they are in memory."""
        # The cache is stale after a direct write to the tables, such as a deletion.
        if not self._is_current or self._is_cache_full:
            self._states = {stage: {} for stage in self._stages}
        missing = self._missing_keys(keys)
        with contextlib.closing(self._store.cursor()) as cursor:
            if not self._is_current:
                # Count before reading: a change during the read makes the cache stale again.
                changes = self._count_changes()
                rebuilds = self._store.state_changes(())
                if rebuilds != self._rebuilds:
                    self._sessions = KnownSessions(self._stages)
                    self._rebuilds = rebuilds
                self._sessions.read(cursor)
                self._changes = changes
            # A table scan for the states of a few sessions takes as long as for many.
            stored_keys = list(set(missing).difference(self._sessions.find_unknown(missing)))
            stored = read_states_of_stages(cursor, self._stages, stored_keys) if stored_keys else {}
        self._store_states(missing, stored)

    def of(self, stage: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the states of sessions that were read before; sessions without a state are missing."""
        states = self._states[stage]
        return {key: state for key in keys if (state := states[key]) is not None}

    def add(self, changed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Update cached states from a commit to the log, by stage and session key. States of other sessions are read when needed."""
        for stage, cached in self._states.items():
            states = changed.get(stage, {})
            self._sessions.add(self._sessions.find_unknown([key for key in states if cached.get(key) is None]))
            cached |= {key: state for key, state in states.items() if key in cached}

    def _missing_keys(self, keys: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(key for key in keys for states in self._states.values() if key not in states))

    def _store_states(self, keys: Sequence[str], stored: Mapping[str, Mapping[str, bytes]]) -> None:
        for stage, states in self._states.items():
            newest = {**stored.get(stage, {}), **self._log.states(stage, keys)}
            for key in keys:
                states.setdefault(key, newest.get(key))

    @property
    def _is_cache_full(self) -> bool:
        return any(len(states) > MAX_CACHED_SESSIONS for states in self._states.values())

    @property
    def _is_current(self) -> bool:
        return self._changes == self._count_changes()

    def _count_changes(self) -> int:
        return self._store.state_changes(self._stages)


class EngineTaskLog:
    """The task log of an engine: reads states and calls from the log and the tables, and submits results to the engine.

    `states` finds the newest states of a stage by session key. `flush` returns when the tables have all pending records.
    """

    number = PARTITION
    keeps_calls = False

    def __init__(
        self,
        stage: JudgedStage[Any],
        store: Store,
        *,
        states: Callable[[str, Sequence[str]], Awaitable[Mapping[str, bytes]]],
        recorded: Callable[[Sequence[Subject]], Awaitable[Mapping[Subject, Sequence[Judgement]]]],
        submit: Callable[[Submission], Awaitable[object]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._stage = stage
        self._states = states
        self._submit = submit
        self._flush = flush
        self._recorded = recorded
        self._erasures = ErasedSessions(store)
        # Tasks before this offset may have been started by an earlier process.
        self._earlier_end = store.end_of(stage.source)

    async def read_state(self, pending: PendingTask) -> JudgedState | None:
        """See `TaskLog`."""
        states = await self._states(self._stage.name, [pending.key])
        return STATE.decode(states[pending.key]) if pending.key in states else JudgedState()

    async def read_judgements(self, pending: PendingTask) -> Sequence[Judgement]:
        """See `TaskLog`."""
        if pending.offset >= self._earlier_end and not self._stage.may_have_judgements(pending.task):
            return ()
        await self._flush()
        subject = self._stage.subject_of(pending.task)
        return (await self._recorded([subject])).get(subject, ())

    async def append(self, commit: Commit, record: Record) -> None:
        """See `TaskLog`."""
        if self._erasures.covers(record.connection, record.session_id):  # type: ignore[attr-defined]
            raise ErasedError
        await self._submit(Submission(commit=commit))


INTAKE = stage_named("intake")
DIAGNOSIS = stage_named("diagnosis")
