"""Lock striping: a fixed number of locks for any number of names. Calls that share a name take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterable


class Stripes:
    """Locks of one event loop. Names may share a lock, so a call may wait for one that has nothing to do with it."""

    def __init__(self, count: int) -> None:
        self._locks = tuple(asyncio.Lock() for _ in range(count))

    @contextlib.asynccontextmanager
    async def held(self, names: Iterable[Hashable]) -> AsyncIterator[None]:
        """Hold the locks of these names."""
        async with contextlib.AsyncExitStack() as held:
            # In one order, so that two calls never wait for each other.
            for index in sorted({hash(name) % len(self._locks) for name in names}):
                await held.enter_async_context(self._locks[index])
            yield
