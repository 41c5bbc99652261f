"""The engine of a server: accepts records, durable on return, and runs the stages behind it. Start reading here.

1. One loop, `_commit_submissions`, commits everything: the records of callers and of stages, in groups as they arrive. It skips known
   records, lets intake decide, appends to the log, and answers.
2. Behind it, each stage reads its topic from the tables, processes it, and submits its records with its state and position.
3. The log is flushed to the tables: every half second, when much is pending, and before reads.
4. Over Kafka (`streams.kafka.kafka_log`) the same loop appends to topics, workers run the stages, and a sink fills the tables.
5. If the log refuses a caller's records, the caller gets the error and may send them again. A stage's records were promised or paid for,
   so they are resubmitted until the log takes them: a full disk may be temporary.
6. After a fatal error only another process can open the database again: `broken` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from analytics.deletion.deleting import ERASURES
from analytics.store.positions import KnownSessions, states_of_stages, stored_states
from analytics.store.store import Store
from analytics.store.tables import PARTITION
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import BrokerError, BusyError, DriftlineError, StoreError, first_line
from schemas.records import Judgement, Record, Score, ScoringTask
from streams.engine.embedded import EmbeddedRunner, StageOutcome, StageRuns, next_batch
from streams.engine.record_intake import EngineLimits, RecordIntake
from streams.judges.protocol import Judge
from streams.judging.call_budget import ErasedError, StoppedError, settle_interrupted
from streams.judging.judged_stages import JUDGED, SCORING, STATE, JudgedStage, JudgedState, Subject, recorded_in
from streams.judging.judging_partition import JudgingContext, JudgingPartition, Pending
from streams.log.admission import WRITTEN, Committed, ErasedNow, Submission
from streams.log.local_log import local_log
from streams.log.log import Commit, Log, move_forward
from streams.log.sink import note_fatal, trouble
from streams.stage_batches import RecordBatch, StageBatch, named_session, session_key
from streams.stage_progress import Reading, stage_progress
from streams.topology import Stage, stage_named

SESSIONS = 100_000
"""Sessions whose states are kept in memory; beyond that all are dropped and read again when needed."""
READ_BACK = frozenset({ERASURES, "anchors", "baselines", "incidents"})
"""Topics that are flushed before their sender gets an answer: their writers read the tables to make the next record."""
TASKS_AT_ONCE = 50
"""Tasks that are read together for a judge; each holds texts of up to a megabyte."""
RETRY_SECONDS = 1.0
"""Seconds before a stage that could not read its topic tries again."""
PAUSES = wait_exponential(multiplier=0.5, max=10.0)
"""Seconds between two tries to commit a stage's records: half a second, then twice as long, up to ten."""
RECENT = 30.0
"""Seconds for which a failed commit makes the engine unready, unless another commit succeeds before."""
log = logging.getLogger(__name__)


@cache
def refusals() -> tuple[type[Exception], ...]:
    """Return the errors of a log that refuses every record at the moment."""
    return *trouble(), BrokerError, BusyError


class _Waiting(NamedTuple):
    """A submission, and the future of the caller that waits for its result."""

    submission: Submission
    answer: asyncio.Future[Committed]


class Engine(RecordIntake):
    """See the module. `judge` None: the tiers that need a judge stay unscored; `judge_name` is the judge's display name.

    Tasks of a judged stage that is not among `stages` wait for another engine, because this engine may not pay for them. `clock` is
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
        log: Log | None = None,
    ) -> None:
        """`log` None means the local log beside the store."""
        super().__init__(store, policy, redactor, now, judge_name=judge_name, limits=limits)
        self.judge = judge
        self._stages = stages
        self._clock = clock
        self._runs = StageRuns(policy, recorded_in(store), redactor, now)
        self._log: Log = log or local_log(store, self._limits.flush_seconds)
        self._log.flushed = self._wake
        self.broken = self._log.broken
        self._states = SessionStates(store, self._log, (INTAKE.name, SCORING.name))
        self._unjudged = () if judge is not None else tuple(stage_named(stage.name) for stage in stages)
        self._positions: dict[str, int] = {}
        """The offset that each stage resumes from after a kill."""
        self._judging: tuple[JudgingPartition, ...] = ()
        self._waiting: deque[_Waiting] = deque()
        self._committing: Sequence[_Waiting] = ()
        self._has_waiting, self._moved, self._given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failed_at = -RECENT
        self._stuck = ""
        """Why a stage cannot process its next batch; empty if none is stuck."""
        self._is_started = self._stopping = False
        self._has_all = False
        """Whether the stages have ended, so that nothing more is submitted."""
        self._loop: asyncio.Task[None] | None = None
        self._at_work: list[asyncio.Task[None]] = []
        self._upkeep: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Finish the work of the last process, then run in the background. Raises BrokerError, SettingsError or StoreError."""
        try:
            await self._log.start()
            if self._log.runs_stages:
                await asyncio.to_thread(self._catch_up)
        except BaseException:
            await self._log.stop()
            raise
        self._loop = asyncio.create_task(self._commit_submissions())
        if self._log.runs_stages:
            if self.judge is not None:
                self._judging = tuple(self._begin_judging(stage, self.judge) for stage in self._stages)
            computed = [self._work(stage.name, partial(self._take_up_batch, stage)) for stage in (DIAGNOSIS, *self._unjudged)]
            judged = [self._work(partition.stage.name, partial(self._take_up_tasks, partition)) for partition in self._judging]
            self._at_work = [asyncio.create_task(work) for work in (*computed, *judged)]
        for task in (*self._at_work, self._loop):
            task.add_done_callback(self._note_end)
        self._upkeep = asyncio.create_task(self._close_idle_sessions())
        self._is_started = True

    async def stop(self, grace: float = 20.0) -> None:
        """Finish the work in progress, for `grace` seconds at most, commit waiting submissions, flush, and end.

        A second call with less grace shortens the stop.
        """
        if not self._is_started or self._loop is None or self._upkeep is None:
            return
        await asyncio.gather(*(partition.end(grace) for partition in self._judging))
        self._given_up.set()
        self._stopping = True
        self._wake()
        self._upkeep.cancel()
        await asyncio.gather(self._upkeep, *self._at_work, return_exceptions=True)
        self._has_all = True
        self._has_waiting.set()
        # Waiting for a broker may take long; waiting for a database does not.
        await asyncio.wait([self._loop], timeout=None if self._log.runs_stages else grace)
        if self._is_started:  # a concurrent call of `stop` may have finished first
            self._judging, self._is_started = (), False
            self._loop.cancel()
            await self._log.stop()
            if self.judge is not None:
                await self.judge.aclose()

    async def _commit_submissions(self) -> None:
        """Commit submissions in groups as they arrive, until the engine stops."""
        while self._waiting or not self._has_all:
            if not self._waiting:
                self._has_waiting.clear()
                await self._has_waiting.wait()
                continue
            self._committing = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.at_once))]
            await self._commit_group(self._committing)
            self._committing = ()

    async def _commit_group(self, group: Sequence[_Waiting]) -> None:
        try:
            committed = await self._commit([waiting.submission for waiting in group])
        except Exception as error:  # noqa: BLE001 - the callers get the error, whatever it is
            if len(group) > 1 and not isinstance(error, refusals()):
                log.warning("%d submissions could not be committed together: %s", len(group), first_line(error))
                for waiting in group:
                    await self._commit_group([waiting])
                return
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, outcome in zip(group, committed, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(outcome)

    async def _commit(self, group: Sequence[Submission]) -> list[Committed]:
        """Make the whole group durable, or nothing if an exception escapes: skip known records, decide, append."""
        outcomes = await self._outcomes(group)
        records, messages = _new_records(group, outcomes)
        decided, spent = StageOutcome(), dict[str, int]()
        if self._log.runs_stages:
            decided, spent = await self._decide(records.get(INTAKE.source, ()), messages.get(INTAKE.source, ()))
        commit = self._commit_of(group, messages, decided)
        if commit.records or commit.positions:
            await self._log.append(commit, records)
            self._states.add(commit.states)
        decisions = _decisions(decided.records)
        return [Committed(of_submission, decisions, spent) for of_submission in outcomes]

    async def _outcomes(self, group: Sequence[Submission]) -> list[dict[str, list[str]]]:
        """Return the outcomes of the records from outside: by topic, for each submission of the group."""
        by_topic: dict[str, list[Record]] = defaultdict(list)
        encoded: dict[str, list[bytes]] = defaultdict(list)
        for submission in group:
            for topic, records in submission.records.items():
                by_topic[topic] += records
                encoded[topic] += submission.messages[topic]
        rest = {topic: iter(await self._log.outcomes(topic, records, encoded[topic])) for topic, records in by_topic.items()}
        return [
            {topic: [next(rest[topic]) for _ in records] for topic, records in submission.records.items()}
            for submission in group
        ]

    async def _decide(self, records: Sequence[Record], messages: Sequence[bytes]) -> tuple[StageOutcome, dict[str, int]]:
        """Let intake decide on new records at the end of its topic; also returns the spending of their sessions, in nano-USD."""
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
        """Return a single commit of the group and intake's decisions, at the end of the topics."""
        records: dict[str, list[bytes]] = defaultdict(list)
        states: dict[str, dict[str, bytes]] = defaultdict(dict)
        positions: dict[str, dict[int, int]] = {}
        for submission in group:
            for topic, made in submission.commit.records.items():
                records[topic] += made
            for stage, changed in submission.commit.states.items():
                states[stage] |= changed
            move_forward(positions, submission.commit.positions)
        for part in (messages, decided.made.messages, decided.dead.messages):
            for topic, of_topic in part.items():
                records[topic] += of_topic
        offsets = {topic: self._log.end_of(topic) for topic in records}
        if messages.get(INTAKE.source) and self._log.runs_stages:
            states[INTAKE.name] |= decided.states
            positions[INTAKE.name] = {PARTITION: offsets[INTAKE.source] + len(messages[INTAKE.source])}
        return Commit(dict(records), offsets, dict(states), positions)

    async def commit(self, submission: Submission) -> None:
        """See `RecordIntake`."""
        await self._submit(submission)

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """See `RecordIntake`."""
        return self._log.ends_in_tables(topic)

    async def _submit(self, submission: Submission) -> Committed:
        """Commit a submission, together with all others of this turn of the event loop."""
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(submission, answer))
        self._has_waiting.set()
        try:
            committed = await answer
        except refusals() as error:
            if self._clock() - self._failed_at >= RECENT:
                log.warning("%s takes no records: %s", self._log.name, first_line(error))
            self._failed_at = self._clock()
            note_fatal(error, self.broken)
            raise
        self._failed_at = -RECENT
        return committed

    async def _insist(self, work: Callable[..., Awaitable[Any]], *values: object) -> Any:
        """Retry a submission, flush or read until the database allows it. Raises StoppedError once the engine gives up."""
        again = AsyncRetrying(
            retry=retry_if_exception(self._may_pass), wait=PAUSES, sleep=self._pause, before_sleep=_warn, reraise=True
        )
        try:
            return await again(work, *values)
        except trouble() as error:
            raise StoppedError from error

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, trouble()) and not self.broken.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises StoppedError as soon as the engine gives up."""
        try:
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        except TimeoutError:
            return
        raise StoppedError

    async def _work(self, name: str, take_up: Callable[[], Awaitable[bool]]) -> None:
        """Let a stage process its topic, batch by batch, until the engine stops; `take_up` returns whether there was a batch.

        At a stop it processes one more batch, so that a stopped server's database shows no finished work as open.
        """
        is_last = False
        while not is_last:
            moved, is_last = self._moved, self._stopping
            try:
                if is_last:
                    await self.flush()
                if not await take_up() and not is_last:
                    await moved.wait()
            except trouble() as error:
                self._stuck = f"{name} could not take up its next batch: {first_line(error)}"
                log.warning("%s; trying again", self._stuck)
                note_fatal(error, self.broken)
                if not is_last:
                    await asyncio.sleep(RETRY_SECONDS)
            except StoppedError:
                return

    async def _take_up_batch(self, stage: Stage) -> bool:
        """Let a stage process its next batch and commit the results; returns whether there was a batch."""
        start = self._positions[stage.name]
        batch, end = await asyncio.to_thread(next_batch, self.store, stage.source, start, stage.records_at_once)
        if end <= start:
            return False
        outcome = await asyncio.to_thread(self._run, stage, batch)
        outcome.made.extend(outcome.dead)
        commit = Commit(outcome.made.messages, states={stage.name: outcome.states}, positions={stage.name: {PARTITION: end}})
        await self._insist(self._submit, Submission(commit=commit))
        self._positions[stage.name], self._stuck = end, ""
        self._wake()
        return True

    async def _take_up_tasks(self, partition: JudgingPartition) -> bool:
        """Hand the next tasks to the judge, and advance the position to the first unfinished task; returns whether there was work."""
        stage, position = partition.stage, partition.position
        if has_moved := position > self._positions[stage.name]:
            await self._insist(self._submit, Submission(commit=Commit(positions={stage.name: {PARTITION: position}})))
            self._positions[stage.name], self._stuck = position, ""
            self._wake()
        batch, end = await asyncio.to_thread(next_batch, self.store, stage.source, partition.taken, TASKS_AT_ONCE)
        if partition.is_closed or end <= partition.taken:
            return has_moved
        await partition.take(await asyncio.to_thread(list, batch.records()), end, self._wake)
        return True

    def _run(self, stage: Stage, batch: StageBatch) -> StageOutcome:
        return self._runs.run(stage, batch, self._newest_states(stage.name, batch.keys()))

    def _newest_states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the newest states of sessions that no other task of this stage is processing; for any thread."""
        # Read the log first: its states may move to the tables in the meantime, but never the other way round.
        pending = self._log.states(stage, keys)
        with contextlib.closing(self.store.cursor()) as cursor:
            return stored_states(cursor, stage, keys) | dict(pending)

    @property
    def has_judge(self) -> bool:
        """Whether there is a judge. Kafka workers have settings of their own: without a judge they leave exchanges unscored."""
        return self.judge is not None or not self._log.runs_stages

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything that is on the topic at this moment. Raises BusyError if that takes too long."""
        await self._log.wait_for_tables(topic)

    async def flush(self, topic: str | None = None) -> None:
        """Flush this process's own log to the tables, if it has pending records of the topic (None: of any topic)."""
        if self._log.runs_stages:
            await self._log.flush(topic)

    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:
        """Return the pending events of a session, which the store does not show yet: id and position."""
        return self._log.pending_events(named_session(connection, session_id))

    async def _commit_records(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        if not records:
            return Committed({topic: ()}, {}, {})
        if self._given_up.is_set():
            raise BusyError("the log is closed")
        if reason := self._backpressure_reason():
            raise BusyError(reason)
        committed = await self._submit(Submission({topic: records}, {topic: messages}))
        if topic in READ_BACK:
            await self.flush()
        return committed

    async def _flush_session(self, connection: str, session_id: str) -> None:
        await self._log.flush_session(named_session(connection, session_id))

    async def _shows_now(self) -> bool:
        await self.flush()
        return self._log.is_current()

    def _backpressure_reason(self) -> str:
        """Return the reason why no more records can be accepted at the moment; empty if they can."""
        is_full = len(self._waiting) + len(self._committing) >= self._limits.waiting
        return "too many records wait to be committed" if is_full else self._log.backpressure_reason()

    def _queues(self) -> Mapping[str, int]:
        queues = dict(self._log.queues(len(self._waiting) + len(self._committing)))
        if not self._log.runs_stages:
            return queues
        queues |= {stage.queue: 0 for stage in self._stages} | {
            "sessions": sum(len(partition.sessions) for partition in self._judging)
        }
        if self._is_started:
            queues |= {stage.judged.queue: self._unread(stage) for stage in self._unjudged if stage.judged is not None}
            queues |= {
                partition.stage.queue: self._log.end_of(partition.stage.source) - partition.taken + len(partition.under_way)
                for partition in self._judging
            }
        return queues

    def _unread(self, stage: Reading) -> int:
        """Return the number of positions that wait for a stage, or that it is processing."""
        return max(0, self._log.end_of(stage.source) - self._positions[stage.name])

    def _why_not(self) -> str:
        if not self._is_started:
            return "it is not started"
        ended = next((partition.stage.name for partition in self._judging if partition.failure is not None), "")
        if ended:
            return f"{ended} ended by a fault of Driftline"
        if self.broken.is_set():
            return self._log.warning()
        if self._clock() - self._failed_at < RECENT:
            return f"{self._log.name} did not take a record"
        return self._log.warning() or self._stuck or self._backpressure_reason()

    async def drained(self) -> None:
        """Return when everything accepted is judged. Raises StoreError if that is no longer possible."""
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
        while True:
            moved = self._moved
            await self.flush()
            judged: list[Reading] = [partition.stage for partition in self._judging if not partition.is_closed]
            if not any(map(self._unread, [*judged, *self._unjudged])):
                # A stage may have committed records during the flush above.
                await self.flush()
                return
            await moved.wait()

    def failure(self) -> DriftlineError:
        """Return the error that broke the engine, with a hint."""
        hint = "Free disk space beside the file, then restart: accepted records are in the file and will be processed."
        return self._log.failure() or StoreError(f"{self.store.path}: {self.state().why_not}", hint=hint)

    def _begin_judging(self, stage: JudgedStage[Any], judge: Judge) -> JudgingPartition:
        context = JudgingContext(
            stage=stage, policy=self.policy, judge=judge, redactor=self.redactor, now=self.now, calls=self._calls
        )
        tasks = EngineTaskLog(
            stage,
            self.store,
            states=partial(self._insist, asyncio.to_thread, self._newest_states),
            recorded=partial(self._insist, asyncio.to_thread, recorded_in(self.store)),
            submit=partial(self._insist, self._submit),
            flush=partial(self._insist, self.flush),
        )
        return JudgingPartition(tasks, context, self._note_fault, self._positions[stage.name])

    def _note_fault(self, error: BaseException) -> None:
        """Note that a bug ended the judging of a session: nothing more is judged until the next start."""
        log.critical("judging ended by a fault of Driftline", exc_info=error)
        self._wake()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a stage or of the loop. They end only at a stop; if one fails, another process has to take over."""
        if not self._stopping and not task.cancelled():
            log.critical("a stage ended", exc_info=task.exception())
            self.broken.set()

    def _catch_up(self) -> None:
        settle_interrupted(self.store, self.now())
        EmbeddedRunner(self.store, self.policy, self.redactor, self.now).catch_up()
        stages: Sequence[Reading] = (DIAGNOSIS, *self._stages)
        self._positions = {stage.name: stage_progress(self.store, stage).position for stage in stages}

    def _wake(self) -> None:
        """Wake every stage: the tables have more records."""
        self._moved.set()
        self._moved = asyncio.Event()
        self.has_more()


def _new_records(
    group: Sequence[Submission], outcomes: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[dict[str, list[Record]], dict[str, list[bytes]]]:
    """Return the new records from outside, and their encodings, by topic."""
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
    """Return intake's decisions on the exchanges of this group, without further revisions of earlier exchanges."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in made
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _warn(tried: RetryCallState) -> None:
    error = tried.outcome.exception() if tried.outcome else None
    log.warning("the log accepted no record of a stage; trying again in %g s: %s", tried.upcoming_sleep, first_line(error))


class SessionStates:
    """States of some stages by session key. Belongs to one event loop, except that `read` runs in a thread."""

    def __init__(self, store: Store, log: Log, stages: Sequence[str]) -> None:
        self._store = store
        self._log = log
        self._stages = stages
        self._states: dict[str, dict[str, bytes | None]] = {stage: {} for stage in stages}
        """By stage and session key; None: the session has no state."""
        self._sessions = KnownSessions(stages)
        self._changes = self._rebuilds = -1

    def has_read(self, keys: Iterable[str]) -> bool:
        """Return whether the states of these sessions are in memory; sessions that never had a state count as read."""
        if not self._is_current or self._is_full:
            return False
        missing = self._missing(keys)
        if missing and len(self._sessions.unknown(missing)) == len(missing):
            self._take_in(missing, {})
            return True
        return not missing

    def read(self, keys: Iterable[str]) -> None:
        """Read the states of sessions from the tables, unless they are in memory."""
        # A direct write to the tables, such as a deletion, has changed states.
        if not self._is_current or self._is_full:
            self._states = {stage: {} for stage in self._stages}
        wanted = self._missing(keys)
        with contextlib.closing(self._store.cursor()) as cursor:
            if not self._is_current:
                changes, rebuilds = self._count_changes(), self._store.state_changes(())
                if rebuilds != self._rebuilds:
                    self._sessions, self._rebuilds = KnownSessions(self._stages), rebuilds
                self._sessions.read(cursor)
                self._changes = changes
            # A table scan for the states of a few sessions takes as long as for many.
            rest = list(set(wanted).difference(self._sessions.unknown(wanted)))
            stored = states_of_stages(cursor, self._stages, rest) if rest else {}
        self._take_in(wanted, stored)

    def of(self, stage: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the states of the sessions, which were read before; a session without a state is missing."""
        states = self._states[stage]
        return {key: state for key in keys if (state := states[key]) is not None}

    def add(self, changed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Update the states in memory from a commit to the log, by stage and session key; states of other sessions are read when needed."""
        for stage, in_memory in self._states.items():
            states = changed.get(stage, {})
            self._sessions.add(self._sessions.unknown([key for key in states if in_memory.get(key) is None]))
            in_memory |= {key: state for key, state in states.items() if key in in_memory}

    def _missing(self, keys: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(key for key in keys for states in self._states.values() if key not in states))

    def _take_in(self, keys: Sequence[str], stored: Mapping[str, Mapping[str, bytes]]) -> None:
        for stage, states in self._states.items():
            newest = {**stored.get(stage, {}), **self._log.states(stage, keys)}
            for key in keys:
                states.setdefault(key, newest.get(key))

    @property
    def _is_full(self) -> bool:
        return any(len(states) > SESSIONS for states in self._states.values())

    @property
    def _is_current(self) -> bool:
        return self._changes == self._count_changes()

    def _count_changes(self) -> int:
        return self._store.state_changes(self._stages)


class EngineTaskLog:
    """The task log of an engine: reads states and calls from the log and the tables, and submits results to the engine.

    `states` finds the newest states of a stage by session key; `flush` returns when the tables show every record of a call.
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
        self._erased = ErasedNow(store)
        # Tasks before this offset may have been started by an earlier process.
        self._begun_before = store.end_of(stage.source)

    async def state_of(self, pending: Pending) -> JudgedState | None:
        """See `TaskLog`."""
        states = await self._states(self._stage.name, [pending.key])
        return STATE.decode(states[pending.key]) if pending.key in states else JudgedState()

    async def recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """See `TaskLog`."""
        if pending.offset >= self._begun_before and not self._stage.may_have_judgements(pending.task):
            return ()
        await self._flush()
        subject = self._stage.subject_of(pending.task)
        return (await self._recorded([subject])).get(subject, ())

    async def append(self, commit: Commit, about: Record) -> None:
        """See `TaskLog`."""
        if self._erased.has(about.connection, about.session_id):  # type: ignore[attr-defined]
            raise ErasedError
        await self._submit(Submission(commit=commit))


INTAKE, DIAGNOSIS = stage_named("intake"), stage_named("diagnosis")
