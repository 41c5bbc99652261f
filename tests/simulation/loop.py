"""An event loop whose time is virtual and whose order follows a seed: no thread, no socket and no clock of the machine.

1. Nothing waits. When nothing is ready, time jumps to the next timer; when there is no timer either, `StuckError` says so.
2. What the product hands to a thread runs in one piece, at a moment that the seed draws, and its result comes at a later one.
3. Tasks and futures are hashed by their number, so that a set of them has the same order in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import warnings
from asyncio import base_events, events
from collections.abc import Callable
from itertools import count
from typing import Any, Self

LONG = 0.25
"""The share of calls to a thread that take long."""
_IDLE_STEPS = 20_000
"""Steps of the loop without a moment of time between them, after which it is taken for stuck."""


class KilledError(SystemExit):
    """The process is killed. Of all errors, asyncio lets those of this kind out of the loop at once: nothing else runs."""


class StuckError(Exception):
    """Nothing will ever happen any more, or it happens for ever."""


class _Task(asyncio.Task[Any]):
    number: int

    def __new__(cls, *_: object, loop: SimulatedLoop, **__: object) -> Self:
        task = super().__new__(cls)
        task.number = loop.next_number()
        return task

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    number: int

    def __new__(cls, *, loop: SimulatedLoop) -> Self:
        future = super().__new__(cls)
        future.number = loop.next_number()
        return future

    def __hash__(self) -> int:
        return self.number


class _Selector:
    """Stands in for the selector of a loop: waiting for input is where time passes."""

    def __init__(self, select: Callable[[float | None], None]) -> None:
        self._select = select

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass that the loop would wait for."""
        self._select(timeout)
        return []


class SimulatedLoop(base_events.BaseEventLoop):
    """See the module. `on_step` is called before each round of callbacks with the number of that round; it may raise KilledError."""

    def __init__(self, chance: random.Random, start: float, on_step: Callable[[], None]) -> None:
        self._numbers = count()
        self._now = start
        self._moved_at = 0
        self._steps = 0
        self._chance = chance
        self._on_step = on_step
        self._all: list[_Task] = []
        super().__init__()
        self._selector = _Selector(self._pass_time)
        self.set_task_factory(self._make_task)
        # A process that was killed leaves tasks and errors behind that nobody waits for.
        self.set_exception_handler(lambda *_: None)

    def next_number(self) -> int:
        """The number of the next task or future."""
        return next(self._numbers)

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """A future that is hashed by its number."""
        return _Future(loop=self)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002 - there is none
        """Run a function as a thread would: all of it at a moment in between."""
        future = self.create_future()

        def begin() -> None:
            if future.cancelled():  # before a thread took it up
                return
            try:
                value, error = func(*args), None
            except Exception as raised:  # noqa: BLE001 - whoever waits gets it
                value, error = None, raised
            self.call_later(self.draw_delay(), end, value, error)

        def end(value: object, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self.call_later(self.draw_delay(), begin)
        return future

    def next_time(self) -> float | None:
        """When it has something to do; None where nothing will ever happen by itself."""
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        return self._now if self._ready else timers[0]._when if timers else None  # type: ignore[attr-defined]

    def run_round(self, now: float) -> None:
        """Run one round of callbacks at this time, for who runs several loops side by side."""
        if now > self._now:
            self._now, self._moved_at = now, self._steps
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)

    def draw_delay(self) -> float:
        """The seconds until a thread gets its turn, or its result is heard of: microseconds mostly, sometimes up to a second."""
        return self._chance.random() * (1.0 if self._chance.random() < LONG else 0.001)

    def abandon(self) -> None:
        """End the loop of a process that was killed, or has ended: none of its coroutines goes on."""
        running = events._get_running_loop()
        # Without a running loop, what a coroutine awaits while it is closed would make one that nobody closes.
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # what it begins when it is closed is awaited by nobody
                for task in self._all:
                    if not task.done():
                        task._log_destroy_pending = False
                        with contextlib.suppress(BaseException):
                            task.get_coro().close()  # type: ignore[union-attr]
        finally:
            events._set_running_loop(running)
        self._all.clear()
        self.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _Task:
        task = _Task(coroutine, loop=loop, **options)  # type: ignore[arg-type]
        self._all.append(task)
        return task

    def _pass_time(self, timeout: float | None) -> None:
        self._steps += 1
        if timeout is None:
            raise StuckError("nothing will ever happen any more")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
            self._moved_at = self._steps
        elif self._steps > self._moved_at + _IDLE_STEPS:
            raise StuckError("it works without end")
        self._on_step()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing to wake: there are no threads."""
