"""Withdrawing: deletes the scores of exchanges that turned out to be part of another one, including scores that are made later."""

from __future__ import annotations

import asyncio

from analytics.deletion.retention import forget_withdrawn
from streams.engine.record_intake import RecordIntake

INTERVAL = 60.0
"""Seconds between two runs: an exchange may be withdrawn while its judge call is running."""


class Withdrawing:
    """See the module. A periodic task."""

    name = "withdrawing"
    interval = INTERVAL

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Delete the scores of withdrawn exchanges."""
        if self._engine.state().ready:
            await self._engine.flush("scores")
            await asyncio.to_thread(forget_withdrawn, self._engine.store)
