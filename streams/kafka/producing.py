"""Producing records: all of them are with the broker when a call returns, or the caller hears that they may not be.

1. Nothing waits for ever: a call has `time_limit` seconds for everything, and a stop has `STOP_SECONDS`.
2. After a failure the client is thrown away and the next call makes another. aiokafka's idempotent producer retries for ever, and one
   batch that is refused leaves a gap in its sequence numbers at which the broker refuses all that follow.
3. So what was sent in vain may yet arrive, even after what was sent later: readers of a topic drop repetitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from schemas.errors import BrokerError
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import partition_of

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest request: the state of a session is the largest message we send."""
BATCH_BYTES = 512 * 1024
"""Records that are sent together; a single one may be larger."""
TOGETHER = 16
"""From so many records for a partition on, they are made into batches here, which takes a tenth of the time of one by one."""
TRIES = 3
"""The number of nodes that can be asked, one after the other, within a time limit."""
STOP_SECONDS = 5.0
log = logging.getLogger(__name__)
logging.getLogger("aiokafka").setLevel(
    logging.CRITICAL
)  # ten lines a second while a broker is away; what it comes to is raised
Message = tuple[bytes, bytes]
"""Key and value."""
Found = TypeVar("Found")


class Produced(NamedTuple):
    """The place where the broker put a record; the offset is -1 if the broker only says that it had it already."""

    partition: int
    offset: int


class Sender(Protocol):
    """A producer of records, such as RecordProducer."""

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> object:
        """Produce; durable on return."""
        ...


class RecordProducer:
    """Produces to the topics of an installation: idempotent, acknowledged by all replicas in sync. Belongs to one event loop."""

    def __init__(self, connection: KafkaConnection, *, time_limit: float = 30.0) -> None:
        self._connection = connection
        self._time_limit = time_limit
        self._client: AIOKafkaProducer | None = None
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Connect; BrokerError when no broker answers in time."""
        with self._failures("the topics"):
            async with asyncio.timeout(self._time_limit):
                await self._connected()

    async def stop(self) -> None:
        """Let go of the broker. What calls are still waiting for is given up."""
        await self._give_up(self._client)

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> list[Produced]:
        """Produce to a topic, named without prefix; the broker has all of the messages on return, and answers where, in their order.

        A message goes to the partition that Kafka's default partitioner gives its key, or to the one that is named. Messages of one
        partition keep their order. BrokerError when the time limit is over or the broker refuses a message: some of them may be there,
        and all may be sent again.
        """
        client: AIOKafkaProducer | None = None
        try:
            with self._failures(f"topic {self._connection.topic(topic)}"):
                async with asyncio.timeout(self._time_limit):
                    client = await self._connected()
                    return await self._send(client, self._connection.topic(topic), messages, partition)
        except BrokerError:
            await self._give_up(client)
            raise

    async def _send(
        self, client: AIOKafkaProducer, topic: str, messages: Sequence[Message], partition: int | None
    ) -> list[Produced]:
        count = len(await client.partitions_for(topic))
        if len(messages) < TOGETHER:
            singles = [
                await client.send(topic, value, key, partition=partition_of(key, count) if partition is None else partition)
                for key, value in messages
            ]
            return [Produced(found.partition, found.offset) for found in await _all(singles)]
        places: dict[int, list[int]] = defaultdict(list)
        for place, (key, _) in enumerate(messages):
            places[partition_of(key, count) if partition is None else partition].append(place)
        produced: list[Produced] = [Produced(-1, -1)] * len(messages)
        for part in await _all([_send_part(client, topic, number, messages, part) for number, part in places.items()]):
            for place, where in part.items():
                produced[place] = where
        return produced

    async def _connected(self) -> AIOKafkaProducer:
        async with self._making:
            if self._client is None:
                options: dict[str, Any] = {
                    "enable_idempotence": True,
                    "compression_type": "zstd",
                    "max_request_size": MAX_MESSAGE_BYTES,
                    "max_batch_size": BATCH_BYTES,
                    # A node that is frozen leaves time for another that leads in its place.
                    "request_timeout_ms": int(self._time_limit * 1000 / TRIES),
                }
                client = AIOKafkaProducer(**self._connection.for_aiokafka() | options)
                # What waits for a leader may do so for the whole of it.
                client._message_accumulator._batch_ttl = self._time_limit  # noqa: SLF001 - it takes it from the time of a request
                try:
                    await clients.start(client)
                except BaseException:
                    await asyncio.shield(_close(client))
                    raise
                self._client = client
            return self._client

    async def _give_up(self, client: AIOKafkaProducer | None) -> None:
        """Throw a client away; callers that wait for what it sends hear that it was not sent."""
        if client is not None and client is self._client:
            self._client = None
            await asyncio.shield(_close(client))

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Raise the errors that keep records from the broker as BrokerError."""
        try:
            yield
        except TimeoutError as error:
            raise BrokerError(f"{what}: the broker did not take the records in {self._time_limit:g} s") from error
        except KafkaError as error:
            raise BrokerError(f"{what}: {_words(error)}") from error


async def _send_part(
    client: AIOKafkaProducer, topic: str, partition: int, messages: Sequence[Message], places: Sequence[int]
) -> dict[int, Produced]:
    """Send the messages at these places to one partition, in batches; answers where each is."""
    sent: list[tuple[list[int], Awaitable[RecordMetadata]]] = []
    batch, members = client.create_batch(), list[int]()
    for place in places:
        key, value = messages[place]
        if batch.append(timestamp=None, key=key, value=value) is None:
            sent.append((members, await _submit(client, batch, topic, partition)))
            batch, members = client.create_batch(), list[int]()
            batch.append(timestamp=None, key=key, value=value)
        members.append(place)
    sent.append((members, await _submit(client, batch, topic, partition)))
    found = await _all([future for _, future in sent])
    return {
        place: Produced(partition, metadata.offset + step if metadata.offset >= 0 else -1)
        for (places_of_batch, _), metadata in zip(sent, found, strict=True)
        for step, place in enumerate(places_of_batch)
    }


async def _submit(client: AIOKafkaProducer, batch: BatchBuilder, topic: str, partition: int) -> Awaitable[RecordMetadata]:
    batch.close()
    future: Awaitable[RecordMetadata] = await client.send_batch(batch, topic, partition=partition)
    return future


async def _all(waits: Sequence[Awaitable[Found]]) -> list[Found]:
    """Wait for all and return their results; raise the first failure once all have ended, so that none is left unheard."""
    done = await asyncio.gather(*waits, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


async def _close(client: AIOKafkaProducer) -> None:
    """Close a client within STOP_SECONDS, whatever it still has to send."""
    error = KafkaError("the connection was given up")
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # Its own stop waits until all is sent, for ever when the broker is away: so it is told first that nothing will be.
            accumulator = client._message_accumulator  # noqa: SLF001
            queued = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001
            under_way = list(accumulator._pending_batches)  # noqa: SLF001
            accumulator.fail_all(error)
            # Nobody waits for these any more, and what nobody hears is reported as a fault.
            for future in [*(batch.future for batch in queued + under_way), *(batch._drain_waiter for batch in queued)]:  # noqa: SLF001
                future.exception()
            await client.client.close()
            await client.stop()
    except Exception as failure:  # noqa: BLE001 - what it stumbles over while its requests break off is of no use to anybody
        log.debug("a producer was closed roughly: %s", _words(failure))
    finally:
        clients.close(client)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
