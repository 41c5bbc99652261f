"""What a process does for itself: garbage collection and stop signals.

A collection of young objects stops every thread of the process for about a microsecond per object. So processes that work on large batches
collect rarely, and processes with waiting callers collect in short pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

_RARELY = (400_000, 50, 100)
_SHORTLY = (1_000, 10, 10)


def collect_rarely() -> None:
    """Let the collector leave alone what is there already, and look at new objects seldom: few of a batch's are in cycles.

    For a process of its own, before it begins its work: tens of thousands of its records live for a moment.
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)


def collect_in_short_pauses() -> None:
    """Let the collector leave alone what is there already, and look at few new objects at a time.

    For a process that answers callers, once it has started: the command line lets 50 000 objects come together while code loads.
    """
    gc.freeze()
    gc.set_threshold(*_SHORTLY)


class LoadedCode:
    """The periodic task that has the collector leave alone code that was loaded since the start: it is never garbage.

    Libraries load when they are first used: 30 000 objects, which each collection of old objects would look through again.
    """

    name = "loaded code"
    interval = 5.0

    def __init__(self) -> None:
        self._modules = len(sys.modules)

    async def run(self) -> None:
        """Collect what is garbage, and freeze what is left, if modules were loaded since the last run."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()


STOP = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[signal.Signals], object]


@contextlib.contextmanager
def handled_in_loop(handler: Handler, numbers: Sequence[signal.Signals] = STOP) -> Iterator[None]:
    """Have the running event loop call `handler` with each of these signals; afterwards they mean what they meant before.

    A loop outside of the main thread hears no signals: there, the context does nothing.
    """
    loop = asyncio.get_running_loop()
    before = {}
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in numbers:
            found = signal.getsignal(number)
            loop.add_signal_handler(number, handler, number)
            before[number] = found
    try:
        yield
    finally:
        for number, handler_before in before.items():
            loop.remove_signal_handler(number)
            # The loop leaves Python's own handler behind, also where a shell had started the process to ignore the signal.
            signal.signal(number, handler_before)


@contextlib.contextmanager
def handled(handler: Handler, numbers: Sequence[signal.Signals] = STOP) -> Iterator[None]:
    """Have `handler` called with each of these signals, in the main thread; afterwards they mean what they meant before."""
    before = {number: signal.signal(number, lambda found, _: handler(signal.Signals(found))) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def end_with_parent() -> None:
    """Have a worker process end when its parent is killed: what it does would be for nothing, and it may wait for ever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
