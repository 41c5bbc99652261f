"""The log of spending on Kafka: one partition that every worker appends to and reads, so that all of them keep the shared caps.

1. A reservation counts if it fits at its offset, by the entries before it and by the caps that it names. Every reader comes to the same
   result, so no worker has to ask another one.
2. A worker makes the call only after it has read its own reservation back. An entry that does not fit is void.
3. A call is recorded even where no cap applies, so that a new cap counts the whole month.
4. An entry that a worker could not act on, because it was killed or lost its partition, counts in full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Self

import msgspec

from audit.spending import ENTRY, Entry, Reserved, Settled, Spending, account_of
from schemas.errors import BrokerError
from streams.judging.shared_caps import RETRY_SECONDS
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Sender
from streams.kafka.reading import POLL_SECONDS, OutOfRangeError, PartitionReader, RawRecord
from streams.kafka.topics import SPENDING

PARTITION = (SPENDING, 0)
"""The only partition that is used, however many there are."""
_MAX_CLOCK_SKEW = timedelta(days=1)
"""The largest expected difference between the clocks of workers and brokers."""
log = logging.getLogger(__name__)


class SpendingTopic:
    """The `streams.judging.shared_caps.SpendingLog` of the workers; a context manager. Belongs to one event loop.

    With `reads` False no cap applies: entries are written, and nothing is read.
    """

    keeps_all = True

    def __init__(self, connection: KafkaConnection, producer: Sender, now: Callable[[], datetime], *, reads: bool) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._connection = connection
        self._producer = producer
        self._now = now
        self._reads = reads
        self._spending = Spending()
        self._position: int | None = None
        """The next offset to read; None before the start is known."""
        self._is_current = asyncio.Event()
        """Set when everything was read that was on the topic at the start."""
        self._waiting: dict[bytes, asyncio.Future[str | None]] = {}
        """By encoded entry: what this process waits to read back."""
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._reads:
            self._following = asyncio.create_task(self._follow(), name="spending")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def spending(self, at: datetime) -> Spending:  # noqa: ARG002 - one log has all months
        """See `SpendingLog`."""
        return self._spending

    async def reserve(self, entry: Reserved) -> str | None:
        """See `SpendingLog`."""
        if self._reads:
            await self._is_current.wait()
            cap = self._spending.refusing_cap(entry)
            if cap is not None:
                return cap
        return await self._append(entry, account_of(entry.project))

    async def settle(self, entry: Settled) -> None:
        """See `SpendingLog`."""
        await self._append(entry, entry.reservation_ids[0])

    async def _append(self, entry: Entry, key: str) -> str | None:
        """Produce an entry and, if a cap may apply, read it back. Return the cap that refuses it."""
        value = msgspec.json.encode(entry)
        result: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if self._reads:
            self._waiting[value] = result
        else:
            result.set_result(None)
        try:
            while True:
                try:
                    await self._producer.send(SPENDING, [(key.encode(), value)], partition=0)
                    return await result
                except BrokerError as error:
                    log.warning("%s; trying again", error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._waiting.pop(value, None)

    async def _follow(self) -> None:
        """Read the topic, from the beginning of the month on, until this task is cancelled."""
        while True:
            try:
                await self._read()
            except OutOfRangeError:
                log.warning("topic %s: retention removed entries that were not read yet", SPENDING)
                self._position = None
            except BrokerError as error:
                log.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        async with PartitionReader(self._connection) as reader:
            # Look up the end first: an entry that arrives meanwhile lies behind it.
            end = (await reader.ranges([PARTITION]))[PARTITION].end
            if self._position is None:
                since = self._now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0) - _MAX_CLOCK_SKEW
                start = (await reader.offsets_at(int(since.timestamp() * 1000), [PARTITION]))[PARTITION]
                self._position = end if start is None else start
            reader.read_from({PARTITION: self._position})
            while True:
                if self._position >= end:
                    self._is_current.set()
                read = await reader.read(None, POLL_SECONDS)
                for chunk in read.chunks:
                    self._add(chunk.records)
                self._position = read.positions.get(PARTITION, self._position)

    def _add(self, records: Iterable[RawRecord]) -> None:
        for record in records:
            try:
                cap = self._spending.add(ENTRY.decode(record.value or b""))
            except msgspec.DecodeError as error:  # every reader ignores it
                log.warning("topic %s, offset %d: not an entry: %s", SPENDING, record.offset, error)
                continue
            waiting = self._waiting.get(record.value or b"")
            if waiting is not None and not waiting.done():
                waiting.set_result(cap)
        self.on_change()
