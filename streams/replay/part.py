"""One part of a replay, from opening its file to its digests; and the parts in separate processes, with their progress reports."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from analytics.queries import query_rows
from analytics.store.connection import IN_USE_HINT
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import DriftlineError, StoreError
from schemas.records import Judgement, Reservation
from streams.judges.protocol import Judge
from streams.judging.call_budget import CallRecorder, StoppedError, settle_interrupted_calls
from streams.judging.judged_stages import SCORING, Subject, judgement_reader
from streams.judging.judging_partition import TaskJudge
from streams.judging.shared_caps import SharedCaps
from streams.process import collect_rarely, end_with_parent, handled_in_loop
from streams.replay.history import EXCHANGES, History, Tables, origin_of_tables
from streams.replay.plan import JudgeMode, Part, ReplayFiles, ReplayPlan, Scope, write_digests
from streams.replay.rescoring import (
    Estimate,
    Estimator,
    QuestionCollector,
    Report,
    Rescoring,
    SessionStates,
    WindowResult,
    ask_all,
)

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge

REPLAY = "replay"
"""Consumer whose watermark is a part's position."""
TAKEOVER_SECONDS = 15.0
"""Seconds that a killed process may take to release its file."""


class PartFile(SessionStates):
    """A part's DuckDB file: scores, calls, session states and the position. Belongs to one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StoreError if another process has it open for longer than a killed process takes to end."""
        self._store = open_store(path)
        self.recorded = judgement_reader(self._store)
        """The judgements that this replay has paid for."""
        self.publish = CallRecorder(self._store).publish
        """Makes a record of a judge call durable."""

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    @property
    def position(self) -> int:
        """See `SessionStates`."""
        with self._store.transaction() as transaction:
            return transaction.watermark(REPLAY, EXCHANGES)

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """See `SessionStates`."""
        with self._store.transaction() as transaction:
            return transaction.states(stage, keys)

    def commit(self, result: WindowResult) -> None:
        """See `SessionStates`; rule 6 of `README.md`."""
        with self._store.transaction() as transaction:
            for topic, messages in result.output.messages.items():
                transaction.append(topic, messages, are_own=True)
            for stage, states in result.states.items():
                transaction.set_states(stage, states, result.end)
            transaction.set_watermark(REPLAY, EXCHANGES, result.end)

    def settle(self, now: datetime) -> None:
        """Charge the calls that a killed process left running; no call may be running now."""
        settle_interrupted_calls(self._store, now)

    def reservations(self) -> dict[str, str]:
        """Return the ids of the unsettled reservations, by fingerprint."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return {row["fingerprint"]: row["reservation_id"] for row in query_rows(cursor, "open_reservations")}


def open_store(path: Path) -> Store:
    """Open the store in a file, after waiting for a killed process to release it."""
    retry = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.hint == IN_USE_HINT),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TAKEOVER_SECONDS),
        reraise=True,
    )
    return retry(Store, path, is_browsed=False)


class _Judgements:
    """The judgements of exchanges: those of the history, then those that this replay has paid for so far."""

    def __init__(self, history: History, file: PartFile) -> None:
        self._history = history
        self._file = file
        self._window_judgements: dict[Subject, list[Judgement]] = {}

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """Return the judgements of a window's exchanges.

        The mapping grows during the scoring of the window, so that a later revision finds the answers to an earlier one.
        """
        self._window_judgements = defaultdict(list)
        for read_judgements in (self._history.recorded, self._file.recorded):
            for subject, judgements in read_judgements(subjects).items():
                self._window_judgements[subject] += judgements
        return self._window_judgements

    async def publish(self, record: Judgement | Reservation) -> None:
        """Make the record of a call durable."""
        await self._file.publish(record)
        if isinstance(record, Judgement):
            self._window_judgements[record.connection, record.subject_id].append(record)


@dataclass(frozen=True)
class PartWork:
    """The work on a part: the plan, the part's number, and the judges that the plan needs."""

    plan: ReplayPlan
    number: int
    files: ReplayFiles
    policy: Policy
    redactor: Redactor
    now: Callable[[], datetime]
    judge: Judge | None = None
    batch_judge: BatchJudge | None = None
    shared_caps: SharedCaps | None = None

    async def estimate(self, history: History, tell: Tell) -> Estimate:
        """Estimate the calls and costs of the part; questions that this replay has already paid for cost nothing."""
        asking = self.plan.asking
        estimator = Estimator(self.policy, batched=asking is JudgeMode.BATCH, asks=asking.pays)
        with contextlib.closing(PartFile(self.files.part(self.number))) as file:
            recorded = _Judgements(history, file).recorded
            exchanges = await self._rescoring.run(history, SessionStates(), estimator, recorded, self._report(tell))
        return estimator.result(exchanges)

    async def replay(self, history: History, tell: Tell) -> None:
        """Score the rest of the part, and write its digests, which mark it as done.

        Raises StoppedError if it was stopped before the end.
        """
        path = self.files.part(self.number)
        with contextlib.closing(PartFile(path)) as file:
            if self.batch_judge is not None and file.position == 0:
                await self._ask_in_passes(self.batch_judge, history, file, tell)
            # No call is running now: open reservations belong to a process that was killed.
            file.settle(self.now())
            judgements = _Judgements(history, file)
            judge = TaskJudge(SCORING, self.policy, self.judge, judgements.publish, self.now, shared_caps=self.shared_caps)
            with handled_in_loop(lambda _: judge.close(), [signal.SIGTERM]):
                await self._rescoring.run(history, file, judge, judgements.recorded, self._report(tell))
        with Tables(origin_of_tables(path)) as replayed:
            write_digests(self.files.digests(self.number), replayed.scores(Scope(), Part(self.number)), history.scores())

    async def _ask_in_passes(self, judge: BatchJudge, history: History, file: PartFile, tell: Tell) -> None:
        """Ask all questions of the part, pass by pass, until none is left."""
        recorded = _Judgements(history, file).recorded
        with handled_in_loop(lambda _: judge.cancel(), [signal.SIGTERM]):
            while True:
                collector = QuestionCollector(self.policy, file.reservations(), file.publish, self.now, self.shared_caps)
                await self._rescoring.run(history, SessionStates(), collector, recorded, lambda _position, _seen: None)
                if not collector.questions:
                    return
                await ask_all(judge, collector.questions, lambda: tell(PartProgress(self.number, answered=1)))

    def _report(self, tell: Tell) -> Report:
        return lambda position, seen: tell(PartProgress(self.number, position, seen))

    @property
    def _rescoring(self) -> Rescoring:
        return Rescoring(self.plan, self.policy, self.redactor, self.now)


log = logging.getLogger(__name__)
# Forked processes would inherit DuckDB's and polars' locks without the threads that hold them.
_SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 60.0
"""Seconds that parts may take to finish running calls."""


class PartProgress(NamedTuple):
    """A progress report of a part: its position, and the numbers of further exchanges and answers since the last report."""

    number: int
    position: int = 0
    seen: int = 0
    answered: int = 0


Tell = Callable[[PartProgress], None]
Work = Callable[[int, Tell], Any]
"""Works on the part with a number and reports its progress; it must be picklable."""


class PartError(DriftlineError):
    """Raised if a bug of Driftline ended a part of a replay."""


@dataclass(frozen=True)
class _FinishedPart:
    number: int
    result: Any


def in_processes(work: Work, numbers: Sequence[int], workers: int, tell: Tell) -> list[Any]:
    """Work on the parts in parallel, each in its own process; with a single process, one after another in this process.

    Return the result of each. Raises the first DriftlineError of a part, after an orderly stop of the others. Raises StoppedError if a part
    was stopped.
    """
    if workers == 1 or len(numbers) == 1:
        return [work(number, tell) for number in numbers]
    waiting = list(numbers)
    running: dict[Connection, SpawnProcess] = {}
    results: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, sender = _SPAWN.Pipe(duplex=False)
                number = waiting.pop(0)
                running[receiver] = _SPAWN.Process(target=_run, args=(work, number, sender), name=f"replay part {number}")
                running[receiver].start()
                sender.close()
            for receiver in [ready for ready in wait(list(running)) if isinstance(ready, Connection)]:
                message = _receive(receiver, running[receiver])
                if isinstance(message, PartProgress):
                    tell(message)
                elif isinstance(message, _FinishedPart):
                    results[message.number] = message.result
                    running.pop(receiver).join()
                    receiver.close()
                else:
                    raise message
    finally:
        _stop(running)
    return [results[number] for number in numbers]


def _receive(receiver: Connection, process: SpawnProcess) -> PartProgress | _FinishedPart | Exception:
    try:
        message: PartProgress | _FinishedPart | Exception = receiver.recv()
    except EOFError:
        process.join()
        return PartError(f"{process.name} ended with {process.exitcode}", hint="Run the command again to continue.")
    return message


def _stop(running: dict[Connection, SpawnProcess]) -> None:
    """Ask the running parts for an orderly stop, and kill those that do not stop in time."""
    for process in running.values():
        with contextlib.suppress(OSError):
            process.terminate()
    for receiver, process in running.items():
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        receiver.close()


def _run(work: Work, number: int, sender: Connection) -> None:
    """Run a part in its process, and send the parent the result or the error. The process ends with its parent, which handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    end_with_parent()
    try:
        message: _FinishedPart | Exception = _FinishedPart(number, work(number, sender.send))
    except (DriftlineError, StoppedError) as error:
        message = error
    except BaseException as error:
        log.exception("part %d of the replay failed", number)
        message = PartError(f"part {number}: {type(error).__name__}: {error}")
    sender.send(message)
    sender.close()
    # DuckDB's bindings print a page about leaked references at interpreter shutdown; everything is closed by now.
    os._exit(0)
