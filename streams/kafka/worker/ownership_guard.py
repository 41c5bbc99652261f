"""Ownership guard: repeats a partition's calls to the broker until they succeed or the partition is lost.

Nothing begins while the group may have given the partition to another, and nothing counts as done that was done meanwhile: a broker that
stood still takes what came to it before, and what its new owner sends, one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from schemas.errors import BrokerError
from streams.judging.call_budget import StoppedError
from streams.kafka.producing import Message, Sender

RETRY_SECONDS = 1.0
LAST_SECONDS = 5.0
"""Seconds to wait for work begun with the broker when a partition goes away: the next owner must not miss it."""
log = logging.getLogger(__name__)


class OwnershipGuard:
    """See the module. `lease` raises when this process stood still, and then `on_lost` is called.

    `is_sure` tells whether no other worker can have the partition.
    """

    def __init__(
        self, producer: Sender, lease: Callable[[], None], is_sure: Callable[[], bool], on_lost: Callable[[], None]
    ) -> None:
        self._producer = producer
        self._lease = lease
        self._is_sure = is_sure
        self._on_lost = on_lost
        self._given_up = False
        self._under_way: set[asyncio.Task[object]] = set()
        self.lost: Exception | None = None
        """Why the partition may not be ours any more."""

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> None:
        """Produce; durable on return. StoppedError once the partition is not ours."""
        if messages:
            await self.insist(lambda: self._producer.send(topic, messages, partition=partition))

    async def insist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do something with the broker until it is done. StoppedError once the partition is not ours.

        A caller that is cancelled here leaves at once, and what was begun goes on: what was handed to the broker may arrive, and the client
        swallows a cancellation that meets it while it closes. `end` waits for it.
        """
        while True:
            await self._ours()
            try:
                await asyncio.shield(self._begun(work))
            except BrokerError as error:
                log.warning("%s; trying again", error)
            else:
                break
            await asyncio.sleep(RETRY_SECONDS)
        if not self._is_sure():
            await self._ours()

    async def _ours(self) -> None:
        """Return when the partition is certainly ours. StoppedError when it is not."""
        self._check()
        while not self._is_sure():
            await asyncio.sleep(RETRY_SECONDS)
            self._check()

    async def end(self) -> None:
        """Begin nothing more."""
        self._given_up = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_SECONDS)

    def _begun(self, work: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
        async def do() -> object:
            return await work()

        begun = asyncio.create_task(do())
        self._under_way.add(begun)
        begun.add_done_callback(self._note_end)
        return begun

    def _note_end(self, begun: asyncio.Task[object]) -> None:
        self._under_way.discard(begun)
        if not begun.cancelled():
            begun.exception()  # whoever waits has it; where nobody does any more, nobody is to be warned

    def _check(self) -> None:
        if self._given_up or self.lost is not None:
            raise StoppedError
        try:
            self._lease()
        except Exception as error:
            self.lost = error
            self._on_lost()
            raise StoppedError from error
