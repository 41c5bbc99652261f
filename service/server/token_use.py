"""Writes down when tokens were last used, so that people see which of them may go."""

from __future__ import annotations

import asyncio

from service.setup.access.access import AccessStore

INTERVAL = 60.0
"""Seconds between two entries: a use is known to the minute."""


class TokenUse:
    """The periodic task `token use`. Entries are batched: each one makes every server look tokens up again."""

    name = "token use"
    interval = INTERVAL

    def __init__(self, access: AccessStore) -> None:
        self._access = access

    async def run(self) -> None:
        """Write down the uses since the last run."""
        await asyncio.to_thread(self._access.note_use)
