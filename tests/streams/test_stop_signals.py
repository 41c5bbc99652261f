"""Stop signals: they are handled while the context is open, and no longer."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from streams.process import STOP, handled, handled_in_loop


@pytest.mark.parametrize("number", STOP)
def test_a_signal_is_handled_while_the_context_is_open(number: signal.Signals) -> None:
    """Work that is asked to stop finishes its current step."""
    before, heard = signal.getsignal(number), []
    with handled(heard.append):
        os.kill(os.getpid(), number)
    assert heard == [number]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", STOP)
def test_a_loop_handles_a_signal_while_the_context_is_open(number: signal.Signals) -> None:
    """The handler runs between two steps of the event loop, so that it may set events."""
    before = signal.getsignal(number)

    async def work() -> signal.Signals:
        heard: asyncio.Queue[signal.Signals] = asyncio.Queue()
        with handled_in_loop(heard.put_nowait):
            os.kill(os.getpid(), number)
            return await heard.get()

    assert asyncio.run(work()) == number
    assert signal.getsignal(number) == before


def test_an_ignored_signal_is_ignored_again_afterwards() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and this must hold after a loop has run."""

    async def work() -> None:
        with handled_in_loop(lambda _: None):
            assert signal.getsignal(signal.SIGINT) != signal.SIG_IGN

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(work())
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loop_outside_the_main_thread_works_without_signals() -> None:
    """A caller that embeds Driftline in a thread keeps its own handlers."""
    ended = []

    async def work() -> None:
        with handled_in_loop(ended.append):
            ended.append("worked")

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()
    assert ended == ["worked"]
