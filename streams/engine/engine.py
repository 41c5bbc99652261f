"""The embedded engine of a server: takes records in, durable on return, and lets the stages work behind it.

One thread writes (group commit): it appends what callers bring, lets intake decide in the same transaction, and runs diagnosis when
nothing waits. The judged stages run in the event loop, because they wait for a judge most of the time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError, StoreError
from schemas.records import Exchange, Judgement, Record, Reservation
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine_state import EngineLimits, EngineState, Published
from streams.judges.protocol import Judge
from streams.judging.call_budget import ErasedError, settle_interrupted
from streams.judging.judge_calls import JudgeCalls
from streams.judging.judged_stages import JUDGED, JudgedStage
from streams.judging.judging_worker import JudgingWorker
from streams.judging.recorded_judgements import recorded_in
from streams.judging.rejudging import AT_ONCE, judging_requests, not_audited, unscored
from streams.judging.task_judge import TaskJudge
from streams.log.admission import Accepted, Admission, admissible, encoded_each
from streams.log.group_commit import Commits, GroupCommit
from streams.log.ingest_outcome import Taken, one_of, outcomes, placed
from streams.log.log_writer import WRITTEN, LogWriter, Submission
from streams.upkeep.closing import EXPLICIT, closings, idle_closings
from streams.upkeep.erased_now import ErasedNow

log = logging.getLogger(__name__)


class Engine:
    """See the module. `judge` None: the tiers that want one stay unscored; `judge_name` says in words who judges.

    Tasks of a judged stage that is not among `stages` wait for another engine: this one was not asked to pay for them.
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
    ) -> None:
        self.store = store
        self.policy = policy
        self.redactor = redactor
        self.now = now
        self.judge = judge
        self.judge_name = judge_name
        self._limits = limits or EngineLimits()
        self._stages = stages
        self._unjudged = () if judge is not None else tuple(stages)
        self._writer = LogWriter(store, EmbeddedRunner(store, policy, redactor, now), policy, unjudged=self._unjudged)
        self._log = GroupCommit(
            self._writer.commit,
            self._writer.rest,
            finish=self._writer.close,
            capacity=self._limits.waiting,
            at_once=self._limits.at_once,
        )
        self.broken = asyncio.Event()
        """Set when it cannot go on without a new process: the database gave up, or a stage ended by a fault of ours."""
        self._commits = Commits(self._log, self.broken)
        self._workers: tuple[JudgingWorker, ...] = ()
        self._is_started = self._stopping = False
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._calls = JudgeCalls()
        self._erased = ErasedNow(store)

    async def start(self) -> None:
        """Take up what the last process left, then work in the background."""
        await asyncio.to_thread(self._catch_up)
        if self.judge is not None:
            self._workers = tuple(self._worker(stage, self.judge) for stage in self._stages)
        loop = asyncio.get_running_loop()
        self._writer.on_moved = functools.partial(loop.call_soon_threadsafe, self._wake)
        self._writer.on_fatal = lambda error: loop.call_soon_threadsafe(self._commits.give_up_database, error)
        self._log.start()
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]
        for task in self._tasks:
            task.add_done_callback(self._judging_ended)
        self._tasks.append(asyncio.create_task(self._close_idle_sessions()))
        self._is_started = True

    async def stop(self, grace: float = 20.0) -> None:
        """Finish what is being judged, for `grace` seconds at most, commit what waits, and end.

        Called again while it stops, with less grace, it hurries.
        """
        if not self._is_started:
            return
        self._stopping = True
        await asyncio.gather(*(worker.stop(grace) for worker in self._workers))
        self._commits.give_up()
        self._tasks[-1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._log.close)
        if self.judge is not None:
            await self.judge.aclose()
        self._workers, self._is_started = (), False

    async def take_exchange(self, exchange: Exchange) -> Taken:
        """Take an exchange in: durable and decided on return.

        BusyError when too much waits already; RecordError when the record may not be written.
        """
        return one_of(await self.take_exchanges([exchange]))

    async def take_exchanges(self, exchanges: Sequence[Exchange]) -> list[Taken | RecordError]:
        """Take exchanges in together, durable and decided on return: what became of each, or why it may not be written.

        BusyError when too much waits already: then none was taken.
        """
        encoded = await encoded_each(exchanges)
        accepted, records = Accepted(), []
        for exchange, message in zip(exchanges, encoded, strict=True):
            if isinstance(message, bytes):
                accepted.add("exchanges", message)
                records.append(exchange)
        if not records:
            return [message for message in encoded if isinstance(message, RecordError)]
        committed = await self._commits.submit(Submission(outside=accepted, records={"exchanges": records}))
        fates = committed.fates["exchanges"]
        if WRITTEN in fates:
            self._wake()
        return await outcomes(exchanges, placed(encoded, fates), committed, self.policy, self.store)

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Append records from outside; durable on return. Known ones are left out, so that sending twice changes nothing."""
        accepted = Accepted()
        for record in records:
            accepted.add(topic, admissible(record))
        if not accepted.records:
            return Published.of([])
        committed = await self._commits.submit(Submission(outside=accepted, records={topic: records}))
        self._wake()
        return Published.of(committed.fates[topic])

    async def record(self, record: Judgement | Reservation) -> None:
        """Make a record of a judge call durable. ErasedError if the session was erased."""
        if self._erased.has(record.connection, record.session_id):
            raise ErasedError
        self._calls.note(record)
        accepted = Accepted()
        accepted.add("judgements", encode(record))
        await self._commits.insist(Submission(made=accepted))

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended; False where no record of it is there."""
        values = {"session": session_id, "connection": connection, "as_of": self.now()}
        await self.land_taken()
        rows = await asyncio.to_thread(query_rows, self.store.cursor(), "open_topics", values)
        if rows:
            await self._close(closings(rows, EXPLICIT, self.now()))
        return bool(rows)

    @property
    def has_judge(self) -> bool:
        """Whether anybody can be asked to judge."""
        return self.judge is not None

    async def landed(self, _topic: str) -> None:
        """Return when the store shows everything that was taken in."""
        await self.land_taken()

    async def land_taken(self) -> None:
        """Land what is in the write-ahead log alone."""
        if not self._writer.is_landed:
            await self._commits.submit(Submission(), must=True)

    def events_under_way(self, _connection: str, _session_id: str) -> Mapping[str, int]:
        """None: what was taken in is in the store."""
        return {}

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Ask for exchanges that stayed unscored to be judged again; answers how many."""
        await self.land_taken()
        without = not_audited(self.policy)
        rows = await asyncio.to_thread(unscored, self.store, project, reason, limit, without=without)
        written = 0
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            requests = await asyncio.to_thread(judging_requests, self.store, part, self.now())
            written += (await self.publish("exchanges", requests)).written
        return written

    def state(self) -> EngineState:
        """How it is at this moment."""
        why_not, queues = "it is not started", {"commits": 0, **{stage.queue: 0 for stage in self._stages}, "sessions": 0}
        if self._is_started:
            why_not = self._why_not()
            queues |= {"commits": self._log.waiting, "sessions": sum(worker.sessions for worker in self._workers)}
            queues |= {stage.queue: self._writer.pending(stage) for stage in self._unjudged}
            queues |= {
                worker.stage.queue: worker.pending + self._writer.unlanded_on(worker.stage.source) for worker in self._workers
            }
        return EngineState(not why_not, why_not, queues, self._calls.outcomes, self._calls.spent_usd)

    def _why_not(self) -> str:
        """Why it takes nothing, in words; nothing when it does."""
        ended = next((worker.stage.name for worker in self._workers if worker.failure is not None), "")
        if ended:
            return f"{ended} ended by a fault of Driftline"
        if self._log.waiting >= self._limits.waiting:
            return "too much waits to be committed"
        return self._commits.trouble or (self._writer.failing and f"what was taken in does not land: {self._writer.failing}")

    async def drained(self) -> None:
        """Return when everything that was taken in is judged. StoreError when that cannot be any more."""
        if not self._is_started:
            return
        await self.land_taken()
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._judged()), asyncio.create_task(self.broken.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        if self.broken.is_set():
            raise self.failure()

    async def _judged(self) -> None:
        for worker in self._workers:
            await worker.drained()
            await self.land_taken()
        while any(map(self._writer.pending, self._unjudged)):
            self._moved.clear()
            await self._moved.wait()

    def failure(self) -> StoreError:
        """Why it is broken, and what to do about it."""
        hint = "Make room where the file is, then start again: what was accepted is in the file, and is taken up."
        return StoreError(f"{self.store.path}: {self.state().why_not}", hint=hint)

    def _worker(self, stage: JudgedStage[Any], judge: Judge) -> JudgingWorker:
        task_judge = TaskJudge(stage, self.policy, judge, self.record, self.now)
        return JudgingWorker(
            stage,
            self.store,
            task_judge,
            recorded=recorded_in(self.store),
            landed=self._insist_landed,
            commit=self._commits.insist,
            erased=self._erased,
            admission=lambda: Admission(self.redactor, self.now()),
        )

    async def _insist_landed(self) -> None:
        """Land what is in the write-ahead log alone, as soon as the tables take it. StoppedError as `Commits.insist`."""
        if not self._writer.is_landed:
            await self._commits.insist(Submission())

    def _judging_ended(self, judging: asyncio.Task[None]) -> None:
        """Nothing ends a judged stage but a stop; where something does, another process has to take it up."""
        if not self._stopping and not judging.cancelled():
            log.critical("judging ended", exc_info=judging.exception())
            self.broken.set()

    def _catch_up(self) -> None:
        self._writer.recover()
        settled = settle_interrupted(self.store, self.now())
        if settled:
            log.warning("%d judge calls were under way when the last process ended: charged in full", settled)
        self._writer.catch_up()

    async def _close(self, closings: Accepted) -> None:
        """Record that sessions ended."""
        records = {topic: list(map(decode, messages)) for topic, messages in closings.messages.items()}
        await self._commits.submit(Submission(outside=closings, records=records))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        for worker in self._workers:
            worker.wake()

    async def _close_idle_sessions(self) -> None:
        """Record the end of sessions of which nothing was heard for longer than the session gap, again and again."""
        while True:
            await asyncio.sleep(self._limits.idle_check)
            try:
                await self.land_taken()
                for part in await asyncio.to_thread(list, idle_closings(self.store, self.policy, self.now())):
                    await self._close(part)
            except Exception:
                log.exception("sessions that fell idle could not be closed; trying again in %.0f s", self._limits.idle_check)
