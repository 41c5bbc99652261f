"""Periodic tasks run repeatedly, one run at a time, also after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from streams.upkeep.periodic_tasks import PeriodicTasks

LONG = 3600.0


@dataclass
class Counted:
    """A periodic task that counts its runs, and the most concurrent ones."""

    name: str = "counted"
    interval: float = LONG
    failing: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    runs: int = 0
    at_once: int = 0
    most_at_once: int = 0
    finished: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def run(self) -> None:
        """Count the run and wait for the test."""
        self.runs += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            if self.failing:
                raise ValueError("it does not work")
            self.finished += 1
        finally:
            self.at_once -= 1


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after a while."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


def test_a_task_runs_at_the_start_and_after_each_interval() -> None:
    """Work left by the last process must not wait for the first interval."""

    async def run() -> None:
        often, rarely = Counted("often", 0.001), Counted("rarely")
        periodic_tasks = PeriodicTasks([often, rarely])
        periodic_tasks.start()
        await until(lambda: often.runs >= 3)
        await periodic_tasks.stop()
        assert rarely.runs == 1

    asyncio.run(run())


def test_a_poke_triggers_a_run_and_runs_never_overlap() -> None:
    """Pokes come with every commit, so runs must not pile up behind a long one."""

    async def run() -> None:
        periodic_task = Counted()
        periodic_task.gate.clear()
        periodic_tasks = PeriodicTasks([periodic_task])
        periodic_tasks.start()
        await until(lambda: periodic_task.runs == 1)
        for _ in range(3):
            periodic_tasks.poke("counted")
        await asyncio.sleep(0)
        assert periodic_task.runs == 1
        periodic_task.gate.set()
        await until(lambda: periodic_task.finished == 2)
        periodic_tasks.poke("counted")
        await until(lambda: periodic_task.finished == 3)
        periodic_tasks.poke("nobody")
        await periodic_tasks.stop()
        assert periodic_task.runs == 3
        assert periodic_task.most_at_once == 1

    asyncio.run(run())


def test_a_failure_is_logged_and_does_not_stop_the_task(caplog: pytest.LogCaptureFixture) -> None:
    """A busy database or a failing webhook may work the next time."""

    async def run() -> None:
        bad, good = Counted("bad", 0.001, failing=True), Counted("good", 0.001)
        periodic_tasks = PeriodicTasks([bad, good])
        periodic_tasks.start()
        await until(lambda: bad.runs >= 3 and good.runs >= 3)
        await periodic_tasks.stop()

    asyncio.run(run())
    assert "bad failed; trying again" in caplog.text
    assert "good failed" not in caplog.text


def test_a_stop_waits_for_a_run_up_to_a_limit() -> None:
    """A server must stop in time, and a run that is nearly finished should not be repeated."""

    async def run() -> None:
        ending, hanging = Counted("ending"), Counted("hanging")
        ending.gate.clear()
        hanging.gate.clear()
        periodic_tasks = PeriodicTasks([ending, hanging])
        periodic_tasks.start()
        await until(lambda: ending.at_once == hanging.at_once == 1)
        stopping = asyncio.create_task(periodic_tasks.stop(grace=0.2))
        await asyncio.sleep(0)
        ending.gate.set()
        await stopping
        assert ending.finished == 1
        assert hanging.finished == 0
        assert hanging.at_once == 0

    asyncio.run(run())
