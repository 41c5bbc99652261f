"""Requests to stop: handlers of signals, in force while a context is open, and the end of the parent."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

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
