"""The embedded world: the real engine over the real local log and a real DuckDB, in one process after another on one disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from unittest.mock import patch

import duckdb
from simulation.disk import LogDisk, SimulatedFolder, SimulatedStore
from simulation.history import History
from simulation.judge import SimulatedJudge
from simulation.laws import check_tables, stored_spent
from simulation.loop import KilledError, SimulatedLoop, StuckError
from simulation.senders import Answers, Sender
from simulation.world import LawBrokenError, World

from audit.redaction import Redactor
from schemas.errors import StoreError
from service.setup.workspace import describe_lag
from streams.engine.engine import Engine
from streams.engine.record_intake import EngineLimits
from streams.upkeep.deletion import ErasureTask
from streams.upkeep.periodic_tasks import PeriodicTasks

LIMITS = EngineLimits(max_waiting=20, max_group_size=4, flush_seconds=2.5, idle_check_seconds=30.0)
SMALL_LIMITS = {
    "streams.log.local_log": {"FLUSH_RECORDS": 40, "MAX_PENDING": 60},
    "streams.engine.record_intake": {"REQUEST_BATCH_SIZE": 2},
    "streams.engine.engine": {"MAX_CACHED_SESSIONS": 1, "TASK_BATCH_SIZE": 2},
    "streams.judging.judging_partition": {"WINDOW_TASKS": 3},
}
"""Limits that a history of a few records reaches."""
RESTART_SECONDS = 2.0
"""Seconds until the next process starts."""
MAX_PROCESSES = 30
MOST_ROUNDS = 10_000
STOP_GRACE = 20.0
PATIENCE = 10
"""Seconds until the stages have read what is there."""
_TROUBLE = (StoreError, duckdb.OperationalError, duckdb.FatalException)


class EmbeddedWorld(World):
    """See the module. `store` may have served other histories."""

    def __init__(self, history: History, store: SimulatedStore) -> None:
        super().__init__(history)
        self.store = store
        self.disk = LogDisk(self)
        self.answers = Answers(self)
        self.judge = SimulatedJudge(self, self.disk.calls, self.answers.erased.__contains__)
        numbers = sorted({step.sender for step in history.steps})
        self.senders = [
            Sender(self, self.answers, number, [step for step in history.steps if step.sender == number]) for number in numbers
        ]
        self._is_over = False
        self._rounds = 0
        self._stop_grace = STOP_GRACE
        self._stop = asyncio.Event()

    def run(self) -> LawBrokenError | None:
        """Live through the history; the law that it broke, if any."""
        try:
            self.store.begin_history(self)
            with small_bounds(), patch("streams.log.local_log.LogFolder", lambda path: SimulatedFolder(path, self.disk)):
                processes = 0
                while not self._is_over:
                    processes += 1
                    self.require(
                        processes < MAX_PROCESSES, "a history comes to its end", "the server is started again and again"
                    )
                    self._live()
            self.store.end_history()
            self.require(not self.disk.is_there, "a clean stop leaves no log", f"{len(self.disk.entries)} entries")
            check_tables(self, self.store, self.answers, self.judge.bill, stored_spent(self.store))
        except LawBrokenError as broken:
            return broken
        finally:
            self.store.end_history()
        return None

    def _live(self) -> None:
        """Run one process, until it ends or is killed."""
        self._stop, self._stop_grace = asyncio.Event(), STOP_GRACE
        self._loop = loop = SimulatedLoop(self.chance, self.time + RESTART_SECONDS, self._begin_round)
        self.store.restart()
        self.note("a process begins")
        try:
            loop.run_until_complete(self._serve())
        except LawBrokenError:
            raise
        except KilledError:
            self.note("killed")
        except StuckError as error:
            self.require(False, "a history comes to its end", str(error))
        finally:
            self.time = loop.time()
            self._loop, self.is_running = None, False
            loop.abandon()
            self.is_running = True

    def _begin_round(self) -> None:
        fault = self.pass_point("round")
        self._rounds += 1
        self.require(self._rounds < MOST_ROUNDS, "a history comes to its end", "it works without end")
        if fault is None:
            return
        if fault.what == "killed":
            self.kill()
        self._stop_grace = fault.amount if fault.what == "stopped" else 0.0
        self._stop.set()

    async def _serve(self) -> None:
        engine = Engine(
            self.store,
            self.policy,
            Redactor(self.policy.redaction),
            self.read_clock,
            judge=self.judge,
            judge_name="simulated",
            limits=LIMITS,
            clock=self.now,
        )
        jumping = asyncio.create_task(self._jump())
        try:
            await engine.start()
        except _TROUBLE as error:
            self.note(f"the server does not start: {error}")
            return
        tasks = PeriodicTasks([ErasureTask(engine)])
        tasks.start()
        working = asyncio.create_task(self._work(engine))
        ends = [working, asyncio.create_task(engine.broken.wait()), asyncio.create_task(self._stop.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in (*ends, jumping):
            task.cancel()
        outcome = (await asyncio.gather(working, return_exceptions=True))[0]
        await tasks.stop()
        await engine.stop(0.0 if engine.broken.is_set() else self._stop_grace)
        self.note("the server has stopped")
        if isinstance(outcome, Exception) and not isinstance(outcome, _TROUBLE):
            self.require(False, "nothing fails by a fault of ours", repr(outcome))
        self._is_over = outcome is None

    async def _work(self, engine: Engine) -> None:
        await asyncio.gather(*(sender.run(engine) for sender in self.senders))
        await engine.wait_until_drained()
        for _ in range(PATIENCE):
            await asyncio.sleep(1.0)
            await engine.flush()
            if not describe_lag(self.store):
                return
        self.require(False, "every stage reads everything", describe_lag(self.store))

    async def _jump(self) -> None:
        while True:
            await asyncio.sleep(1)
            fault = self.pass_point("second")
            if fault is not None:
                self.jump(fault.amount)


@contextlib.contextmanager
def small_bounds() -> Iterator[None]:
    """Lower the bounds of the product, and have it log nothing."""
    with contextlib.ExitStack() as stack:
        for module, bounds in SMALL_LIMITS.items():
            stack.enter_context(patch.multiple(module, **bounds))
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        yield
