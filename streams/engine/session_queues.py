"""Queues by session: items of one session are worked off in their order, one at a time, and no session waits for another."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from streams.engine.turns import Turns
from streams.judging.call_budget import StoppedError

Item = TypeVar("Item")


class _Place(NamedTuple):
    """A session whose first item can be begun; the item that came first goes first."""

    number: int
    key: str


class SessionQueues(Generic[Item]):
    """The queues, and a task for each item that is under way. Belongs to one event loop.

    `work` does one item. StoppedError from it ends everything without a word; whatever else leaves it does, too, and goes to `fail`.
    An item is begun when `turns` has a turn for it, the earliest first; without `turns` at once.
    """

    def __init__(
        self,
        work: Callable[[str, Item], Awaitable[None]],
        fail: Callable[[BaseException], None],
        turns: Turns | None = None,
    ) -> None:
        self._work = work
        self._fail = fail
        self._turns = turns or Turns()
        self._numbers = itertools.count()
        self._waiting: dict[str, deque[tuple[int, Item]]] = {}
        self._ready: list[_Place] = []
        self._runners: dict[str, asyncio.Task[bool]] = {}
        self._having_turns: set[str] = set()
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
        items = self._waiting.setdefault(key, deque())
        items.append((next(self._numbers), item))
        if len(items) == 1:
            self._make_ready(key)

    def end_turn(self, key: str) -> None:
        """The item that is under way there goes on without its turn, which another may have. Without this, it ends with the item."""
        if key in self._having_turns:
            self._having_turns.remove(key)
            self._turns.give_back()

    def close(self) -> None:
        """Begin nothing more; what is under way goes on."""
        self.closed = True
        self._turns.withdraw(self._begin)
        self._ready.clear()

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

    def _make_ready(self, key: str) -> None:
        if not self.closed:
            heapq.heappush(self._ready, _Place(self._waiting[key][0][0], key))
            self._turns.ask(self._begin)

    def _begin(self) -> None:
        """Begin the earliest item that can be."""
        key = heapq.heappop(self._ready).key
        self._having_turns.add(key)
        runner = self._runners[key] = asyncio.create_task(self._work_on(key), name=f"session {key}")
        # Not in the task itself: one that is cancelled before its first step does nothing.
        runner.add_done_callback(partial(self._end_item, key))

    async def _work_on(self, key: str) -> bool:
        """Work on the session's first item; answers whether it is done."""
        if self.closed:
            return False
        try:
            await self._work(key, self._waiting[key][0][1])
        except StoppedError:
            self.close()
            return False
        return True

    def _end_item(self, key: str, runner: asyncio.Task[bool]) -> None:
        """Go on with the session's next item; one that is not done stays."""
        del self._runners[key]
        if not runner.cancelled():
            self._note_outcome(key, runner)
        self.end_turn(key)

    def _note_outcome(self, key: str, runner: asyncio.Task[bool]) -> None:
        error, items = runner.exception(), self._waiting[key]
        if error is not None:
            self.close()
            self._fail(error)
        elif runner.result():
            items.popleft()
            if items:
                self._make_ready(key)
            else:
                del self._waiting[key]
