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
    """Have the running event loop call `handler` with each of these signals.

    A loop outside of the main thread hears no signals: there, the context does nothing.
    """
    loop = asyncio.get_running_loop()
    heard = []
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in numbers:
            loop.add_signal_handler(number, handler, number)
            heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def handled(handler: Handler, numbers: Sequence[signal.Signals] = STOP) -> Iterator[None]:
    """Have `handler` called with each of these signals, in the main thread; afterwards they mean what they meant before."""
    before = {number: signal.signal(number, lambda found, _: handler(signal.Signals(found))) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
