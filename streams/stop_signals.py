"""Handlers of the signals that ask a process to stop, in force while a context is open."""

from __future__ import annotations

import asyncio
import contextlib
import signal
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
