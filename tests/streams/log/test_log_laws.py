"""The laws of the log for the local log, in memory and in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.log_laws import LAWS, OpenLog, appended_records_survive_a_kill

from analytics.store.store import Store
from streams.log.local_log import LocalLog, local_log


def opened_over(store: Store) -> OpenLog:
    """Opens logs beside a store that survives a kill."""

    @asynccontextmanager
    async def opened(*, is_killed: bool = False) -> AsyncIterator[LocalLog]:
        log = local_log(store, flush_seconds=1e9)
        await log.start()
        yield log
        if is_killed and log._folder is not None and log._flusher is not None:
            log._flusher.cancel()
            log._folder.close()
        else:
            await log.stop()

    return opened


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_local_log_obeys_the_law(tmp_path: Path, place: str, law: Callable[[Store, OpenLog], Awaitable[None]]) -> None:
    """The engine relies on these laws with every log."""
    if place == "memory" and law is appended_records_survive_a_kill:
        pytest.skip("a database in memory does not survive a kill")
    with Store(tmp_path / "store.duckdb" if place == "file" else None) as store:
        asyncio.run(asyncio.wait_for(law(store, opened_over(store)), 60))
