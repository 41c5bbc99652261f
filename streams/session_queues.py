"""Queues by session: items of one session are worked off in their order, one at a time, and no session waits for another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from streams.purses import StoppedError

Item = TypeVar("Item")


class SessionQueues(Generic[Item]):
    """The queues, and a task for each session that has items. Belongs to one event loop.

    `work` does one item. StoppedError from it ends everything without a word; whatever else leaves it does, too, and goes to `fail`.
    """

    def __init__(self, work: Callable[[str, Item], Awaitable[None]], fail: Callable[[BaseException], None]) -> None:
        self._work = work
        self._fail = fail
        self._waiting: dict[str, deque[Item]] = {}
        self._runners: dict[str, asyncio.Task[None]] = {}
        self.closed = False
        """No item is begun any more."""

    def __len__(self) -> int:
        """How many sessions have items."""
        return len(self._waiting)

    def __contains__(self, key: str) -> bool:
        """Whether the session has items."""
        return key in self._waiting

    def put(self, key: str, item: Item) -> None:
        """Add an item to its session's queue."""
        self._waiting.setdefault(key, deque()).append(item)
        if not self.closed and key not in self._runners:
            runner = self._runners[key] = asyncio.create_task(self._work_off(key), name=f"session {key}")
            runner.add_done_callback(self._note_failure)

    def close(self) -> None:
        """Begin nothing more; what is under way goes on."""
        self.closed = True

    async def end(self, grace: float) -> None:
        """Begin nothing more, wait for what is under way for so many seconds at most, and give up the rest."""
        self.close()
        running = list(self._runners.values())
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=grace)
        for one in late:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _work_off(self, key: str) -> None:
        """Work off the session's items, one after the other."""
        items = self._waiting[key]
        try:
            while items and not self.closed:
                await self._work(key, items[0])
                items.popleft()
        except StoppedError:
            self.close()
        finally:
            del self._runners[key]
            if not items:
                del self._waiting[key]

    def _note_failure(self, runner: asyncio.Task[None]) -> None:
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self.close()
            self._fail(error)
