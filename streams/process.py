"""Process-wide settings: garbage collection and stop signals.

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

_RARE_THRESHOLDS = (400_000, 50, 100)
_SHORT_PAUSE_THRESHOLDS = (1_000, 10, 10)


def collect_rarely() -> None:
    """Freeze existing objects, and collect new ones rarely: few objects of a batch are in cycles.

    For worker processes, before they start work: tens of thousands of their records live for a moment.
    """
    gc.freeze()
    gc.set_threshold(*_RARE_THRESHOLDS)


def collect_in_short_pauses() -> None:
    """Freeze existing objects, and collect few new ones at a time.

    For a process that answers callers, once it has started: the command line allows 50,000 new objects while code loads.
    """
    gc.freeze()
    gc.set_threshold(*_SHORT_PAUSE_THRESHOLDS)


class LoadedCode:
    """The periodic task that freezes code loaded since the start: it is never garbage.

    Libraries load at their first use, with 30,000 objects that each collection of old objects would scan again.
    """

    name = "loaded code"
    interval = 5.0

    def __init__(self) -> None:
        self._modules = len(sys.modules)

    async def run(self) -> None:
        """If modules were loaded since the last run, collect garbage and freeze the remaining objects."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()


STOP = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[signal.Signals], object]


@contextlib.contextmanager
def handled_in_loop(handler: Handler, numbers: Sequence[signal.Signals] = STOP) -> Iterator[None]:
    """Have the running event loop call `handler` with each of these signals; restores the previous handlers afterwards.

    A loop outside of the main thread receives no signals: there, the context does nothing.
    """
    loop = asyncio.get_running_loop()
    before = {}
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in numbers:
            previous = signal.getsignal(number)
            loop.add_signal_handler(number, handler, number)
            before[number] = previous
    try:
        yield
    finally:
        for number, handler_before in before.items():
            loop.remove_signal_handler(number)
            # The loop leaves Python's own handler behind, even if a shell had started the process with the signal ignored.
            signal.signal(number, handler_before)


@contextlib.contextmanager
def handled(handler: Handler, numbers: Sequence[signal.Signals] = STOP) -> Iterator[None]:
    """Have `handler` called with each of these signals, in the main thread; restores the previous handlers afterwards."""
    before = {number: signal.signal(number, lambda received, _: handler(signal.Signals(received))) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def end_with_parent() -> None:
    """End this worker process when its parent is killed: its work would be useless, and it might wait forever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
