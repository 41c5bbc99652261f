"""Periodic tasks: scheduled work of a serving process, beside accepting records.

1. Each task runs independently: once at the start, then an interval after its last run ended, or soon after a poke.
2. A failure of a task is logged, and the task is tried again; it delays no other task.
3. No task runs twice at the same time. A poke during a run makes the task run once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Protocol

RETRY_SECONDS = 30.0
"""The longest time in seconds between a failure of a periodic task and the next try."""
log = logging.getLogger(__name__)


class PeriodicTask(Protocol):
    """A task to run periodically. It must be safe to repeat, because a kill can interrupt it anywhere."""

    @property
    def name(self) -> str:
        """The name in the log and for pokes."""
        ...

    @property
    def interval(self) -> float:
        """Seconds from the end of the last run to the next."""
        ...

    async def run(self) -> None:
        """Run once. Do long work in a thread."""
        ...


class PeriodicTasks:
    """Runs periodic tasks in the background of one event loop."""

    def __init__(self, periodic_tasks: Iterable[PeriodicTask]) -> None:
        self._periodic_tasks = {periodic_task.name: periodic_task for periodic_task in periodic_tasks}
        self._pokes = {name: asyncio.Event() for name in self._periodic_tasks}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Start; every periodic task runs once now."""
        self._stopping = False
        self._tasks = [
            asyncio.create_task(self._repeat(periodic_task), name=name) for name, periodic_task in self._periodic_tasks.items()
        ]

    async def stop(self, grace: float = 5.0) -> None:
        """Stop: running tasks have `grace` seconds to finish, then they are cancelled."""
        self._stopping = True
        for name in self._periodic_tasks:
            self.poke(name)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def poke(self, name: str) -> None:
        """Run a periodic task soon; an unknown name has no effect."""
        if name in self._pokes:
            self._pokes[name].set()

    async def _repeat(self, periodic_task: PeriodicTask) -> None:
        poke = self._pokes[periodic_task.name]
        while not self._stopping:
            poke.clear()
            try:
                await periodic_task.run()
                pause = periodic_task.interval
            except Exception:
                pause = min(periodic_task.interval, RETRY_SECONDS)
                log.exception("%s failed; trying again in %.0f s", periodic_task.name, pause)
            with contextlib.suppress(TimeoutError):
                if not self._stopping:
                    await asyncio.wait_for(poke.wait(), pause)
