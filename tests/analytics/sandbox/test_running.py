"""Processes that an event loop starts are waited for, however often their caller is cancelled."""

from __future__ import annotations

import asyncio
import os

import pytest

from analytics.subprocesses import start_module


def has_ended(process_id: int) -> bool:
    """Tell whether a child of ours has been waited for: a zombie has not."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("cancellations", [1, 2, 5])
def test_a_process_is_reaped_however_often_its_caller_is_cancelled(cancellations: int) -> None:
    """A closing loop cancels twice, and an unreaped process would remain a zombie as long as the server runs."""

    async def run() -> tuple[int, bool]:
        is_running = asyncio.Event()
        process_id = 0

        async def hold() -> None:
            nonlocal process_id
            async with start_module("http.server", ["0"]) as process:
                process_id = process.pid
                is_running.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await is_running.wait()
        for _ in range(cancellations):
            holder.cancel()
            await asyncio.sleep(0)
        result = (await asyncio.gather(holder, return_exceptions=True))[0]
        return process_id, isinstance(result, asyncio.CancelledError)

    process_id, is_cancelled = asyncio.run(run())

    assert is_cancelled
    assert has_ended(process_id)
