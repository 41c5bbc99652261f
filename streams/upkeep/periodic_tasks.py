"""Periodic tasks: what a serving process does by the clock, beside taking records in.

1. Each periodic task runs by itself: once at the start, then its interval after it ended, or soon after it was poked.
2. A periodic task that fails is logged and tried again; it holds up no other.
3. No periodic task runs twice at a time. What pokes it while it runs makes it run once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Protocol

RETRY_SECONDS = 30.0
"""The longest time after a failure until a periodic task is tried again."""
log = logging.getLogger(__name__)


class PeriodicTask(Protocol):
    """Something to be done again and again. What it does must be safe to do twice: a kill can cut it off anywhere."""

    @property
    def name(self) -> str:
        """The name in the log and for pokes."""
        ...

    @property
    def interval(self) -> float:
        """Seconds from the end of the last run to the next."""
        ...

    async def run(self) -> None:
        """Do it once. Work that takes a while belongs into a thread."""
        ...


class PeriodicTasks:
    """Runs periodic tasks in the background of one event loop."""

    def __init__(self, periodic_tasks: Iterable[PeriodicTask]) -> None:
        self._periodic_tasks = {periodic_task.name: periodic_task for periodic_task in periodic_tasks}
        self._pokes = {name: asyncio.Event() for name in self._periodic_tasks}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begin; every periodic task runs once now."""
        self._stopping = False
        self._tasks = [
            asyncio.create_task(self._repeat(periodic_task), name=name) for name, periodic_task in self._periodic_tasks.items()
        ]

    async def stop(self, grace: float = 5.0) -> None:
        """End: what is being done has `grace` seconds to come to its end, then it is cut off."""
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
        """Have a periodic task run soon; nothing where there is none of that name."""
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
