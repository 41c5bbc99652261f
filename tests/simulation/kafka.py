"""The Kafka world: a server that takes records in and fills the tables, and two workers that run the stages, over a cluster in memory.

Each process has an event loop of its own, and a round of one of them runs at a time. So a process can be killed, or stand still while
the others go on, at any moment.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import duckdb
from simulation.cluster import Cluster, SimulatedConsumer, SimulatedProducer, partitions_on
from simulation.disk import SimulatedStore
from simulation.embedded import LIMITS, RESTART_SECONDS, STOP_GRACE, small_bounds
from simulation.history import History
from simulation.judge import SimulatedJudge
from simulation.laws import check_tables
from simulation.loop import KilledError, SimulatedLoop
from simulation.senders import Answers, Sender
from simulation.workers import CONNECTION, STAGES, SimulatedWorker
from simulation.world import LawBrokenError, World

from audit.redaction import Redactor
from schemas.errors import BrokerError, BusyError, StoreError
from schemas.registry import topics
from streams.engine.engine import Engine
from streams.kafka.kafka_log import KafkaLog
from streams.kafka.sink import Progress, SinkLimits

WORKERS = ("worker 1", "worker 2")
PATIENCE = 3600.0
"""Seconds until everything is read."""
SINK = SinkLimits(batch_size=20, gather_seconds=1.5, check_seconds=5.0)
MOST_ROUNDS = 200_000
_TROUBLE = (BrokerError, BusyError, StoreError, duckdb.OperationalError, duckdb.FatalException)


class Process:
    """A process of the world; `serve` ends it when it returns, and whatever leaves it is a fault of ours."""

    def __init__(self, name: str, loop: SimulatedLoop, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.loop = loop
        self.main = loop.create_task(serve())
        self.stands_still_until = 0.0
        self.stands_still_for = 0.0
        """Seconds for which it is to stand still as soon as nothing is ready to run: what it has begun to send is on its way then."""

    def next_time(self) -> float | None:
        """When it runs next."""
        at, now = self.loop.next_time(), self.loop.time()
        if self.stands_still_for and (at is None or at > now):
            self.stands_still_until, self.stands_still_for = now + self.stands_still_for, 0.0
        return None if at is None else max(at, self.stands_still_until)


class KafkaWorld(World):
    """See the module. `store` may have served other histories."""

    def __init__(self, history: History, store: SimulatedStore) -> None:
        super().__init__(history)
        self.store = store
        self.answers = Answers(self)
        self.cluster = Cluster(self, self._at, {stage.source for stage in STAGES})
        self.judge = SimulatedJudge(self, lambda: self.cluster.calls, lambda _: False)
        numbers = sorted({step.sender for step in history.steps})
        self.senders = [
            Sender(self, self.answers, number, [step for step in history.steps if step.sender == number]) for number in numbers
        ]
        self._order = random.Random(f"order {history.seed}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._processes: list[Process] = []
        self._running: Process | None = None
        self._workers: dict[str, SimulatedWorker] = {}
        self._is_read = self._is_over = False
        """Whether the workers have read everything, and whether the tables have it."""
        self._size = 0
        """The number of records that there were when the workers had read everything."""

    def now(self) -> float:
        """Virtual seconds."""
        return self.time

    def run(self) -> LawBrokenError | None:
        """Live through the history; the law that it broke, if any."""
        try:
            self.store.begin_history(self)
            with small_bounds(), ExitStack() as stack:
                for name, value in self._in_place_of_clients().items():
                    stack.enter_context(patch(name, value))
                self._run_processes()
            self.store.end_history()
            check_tables(self, self.store, self.answers, self.judge.bill, self.cluster.spent())
        except LawBrokenError as broken:
            return broken
        finally:
            self.store.end_history()
            for process in self._processes:
                self._abandon(process)
        return None

    def _in_place_of_clients(self) -> dict[str, Any]:
        return {
            "streams.kafka.reading.AIOKafkaConsumer": lambda **_: SimulatedConsumer(self.cluster),
            "streams.kafka.producing.AIOKafkaProducer": lambda **_: SimulatedProducer(self.cluster),
            "streams.kafka.sink.partitions_on": lambda _, names: partitions_on(self.cluster, names),
            "streams.kafka.sink.Progress": partial(Progress, clock=self.now),
        }

    def _at(self, time: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), call))

    def _run_processes(self) -> None:
        self._start_server()
        for name in WORKERS:
            self._start_worker(name)
        self._at(1.0, self._pass_second)
        rounds = 0
        while not self._is_over:
            rounds += 1
            self.require(rounds < MOST_ROUNDS, "a history comes to its end", "it works without end")
            times = {process: time for process in self._processes if (time := process.next_time()) is not None}
            at = max(self.time, min([*times.values(), *(event[0] for event in self._events[:1])]))
            self.time = at
            if self._events and self._events[0][0] <= at:
                heapq.heappop(self._events)[2]()
                continue
            ready = [process for process, time in times.items() if time <= at]
            self._run_round(ready[0] if len(ready) == 1 else self._order.choice(ready))

    def _run_round(self, process: Process) -> None:
        self._running = process
        try:
            process.loop.run_round(self.time)
        except LawBrokenError:
            raise
        except KilledError:
            self._end(process, "is killed")
        else:
            if process.main.done():
                error = process.main.exception()
                self.require(error is None, "nothing fails by a fault of ours", repr(error))
                self._end(process, "ends")
        finally:
            self._running = None

    def _begin_round(self) -> None:
        fault, process = self.pass_point("round"), self._running
        if fault is None or process is None:
            return
        self.note(f"{process.name}: {fault.what}")
        if fault.what == "killed":
            self.kill()
        if fault.what == "stands still":
            process.stands_still_for = fault.amount * 8.0
        elif process.name in self._workers:
            self._workers[process.name].stop(fault.amount)

    def _end(self, process: Process, how: str) -> None:
        self.note(f"{process.name} {how}")
        self._processes.remove(process)
        self._abandon(process)
        if process.name == "server":
            if not self._is_over:
                self._at(self.time + RESTART_SECONDS, self._start_server)
        else:
            del self._workers[process.name]
            self._at(self.time + RESTART_SECONDS, lambda: self._start_worker(process.name.partition(",")[0]))

    def _abandon(self, process: Process) -> None:
        self.is_running = False
        process.loop.abandon()
        self.is_running = True

    def _start_worker(self, name: str) -> None:
        if self._is_read:  # it may be needed again
            self._at(self.time + RESTART_SECONDS, lambda: self._start_worker(name))
            return
        name = f"{name}, process {next(self._numbers)}"
        worker = self._workers[name] = SimulatedWorker(self, self.cluster, name, self.judge)
        self._start(name, worker.serve)

    def _start_server(self) -> None:
        self.store.restart()
        self._start("server", self._serve)

    def _start(self, name: str, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.note(f"{name} begins")
        self._processes.append(Process(name, SimulatedLoop(self.chance, self.time, self._begin_round), serve))

    def _pass_second(self) -> None:
        self._at(self.time + 1.0, self._pass_second)
        fault = self.pass_point("second")
        if fault is None:
            return
        if fault.what == "clock jumps":
            self.jump(fault.amount)
            return
        self.note(fault.what)
        {"partitions move": self.cluster.group.change, "compaction": self.cluster.compact, "marks": self.cluster.mark}[
            fault.what
        ]()

    async def _serve(self) -> None:
        redactor = Redactor(self.policy.redaction)
        log = KafkaLog(self.store, redactor, self.read_clock, CONNECTION, sink_limits=SINK)
        engine = Engine(self.store, self.policy, redactor, self.read_clock, limits=LIMITS, clock=self.now, log=log)
        try:
            await engine.start()
        except _TROUBLE as error:
            self.note(f"the server does not start: {error}")
            return
        working = asyncio.create_task(self._work(engine))
        broken = asyncio.create_task(engine.broken.wait())
        await asyncio.wait([working, broken], return_when=asyncio.FIRST_COMPLETED)
        is_done = working.done() and not engine.broken.is_set()
        working.cancel()
        broken.cancel()
        outcome = (await asyncio.gather(working, return_exceptions=True))[0]
        await engine.stop(0.0 if engine.broken.is_set() else STOP_GRACE)
        if isinstance(outcome, Exception) and not isinstance(outcome, _TROUBLE):
            self.require(False, "nothing fails by a fault of ours", repr(outcome))
        if is_done and outcome is None:
            # What came meanwhile, such as the end of a session that fell idle, is worked on, too.
            self._is_over, self._is_read = self.cluster.size() == self._size, False

    async def _work(self, engine: Engine) -> None:
        await asyncio.gather(*(sender.run(engine) for sender in self.senders))
        until = self.time + PATIENCE
        while not (self._is_read or self.cluster.group.is_read()):
            self.require(self.time < until, "every stage reads everything", f"{self.cluster.group.committed}")
            await asyncio.sleep(0.5)
        if not self._is_read:
            self._is_read, self._size = True, self.cluster.size()
        for worker in self._workers.values():
            worker.stop(STOP_GRACE)
        while self._workers:  # noqa: ASYNC110 - they end in loops of their own
            await asyncio.sleep(0.5)
        for topic in topics():
            await self._see(engine, topic)

    async def _see(self, engine: Engine, topic: str) -> None:
        """Return when the tables have all of a topic."""
        until = self.time + PATIENCE
        while True:
            try:
                await engine.wait_for_tables(topic)
            except _TROUBLE:
                self.require(self.time < until, "everything lands", topic)
                await asyncio.sleep(1.0)
            else:
                return
