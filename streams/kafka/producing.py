"""Producing records under the keys that determine their partitions: a call returns when the broker has all records, or raises an error.

1. No call waits indefinitely: a call has `time_limit` seconds in total, and a stop has `STOP_SECONDS`.
2. After a failure the client is discarded and the next call makes a new one. aiokafka's idempotent producer retries indefinitely, and a single
   refused batch leaves a gap in its sequence numbers that makes the broker refuse all later batches.
3. So a failed message may still arrive, even after messages that were sent later: readers of a topic drop repetitions.
4. Without the key file, a producer refuses to connect to an installation that encrypts: its texts could be read for as long as the topics exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from schemas.codec.single_object import decode
from schemas.errors import BrokerError, SettingsError
from schemas.records import Record
from schemas.registry import schema_of
from streams.kafka.connection import KafkaConnection
from streams.kafka.reading import Connections, PartitionReader, keep_encrypted, words_of
from streams.kafka.topics import TEXT_KEYS
from streams.stage_batches import session_key

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest request: the state of a session is the largest message we send."""
BATCH_BYTES = 512 * 1024
"""Bytes of records that are sent together; a single record may be larger."""
TRIES = 3
"""The number of nodes that can be tried, one after another, within a time limit."""
STOP_SECONDS = 5.0
log = logging.getLogger(__name__)
Message = tuple[bytes, bytes]
"""Key and value."""


@functools.lru_cache(maxsize=100_000)
def partition_of(key: bytes, count: int) -> int:
    """Return the partition that Kafka's default partitioner gives a key; cached, because computing it takes longer than sending a record."""
    return int((murmur2(key) & 0x7FFFFFFF) % count)


def key_of(record: Record) -> bytes:
    """Return the key in UTF-8: connection and session if the record has a session, else the project, else the first field of the identity."""
    session = getattr(record, "session_id", None)
    if session is not None:
        return session_key(getattr(record, "connection", ""), session).encode()
    field = "project" if hasattr(record, "project") else schema_of(type(record).__name__).identity[0]
    return str(getattr(record, field)).encode()


def keyed(messages: Iterable[bytes]) -> list[Message]:
    """Return encoded records with their keys."""
    return [(key_of(decode(message)), message) for message in messages]


class Produced(NamedTuple):
    """The partition and offset of a record on the broker; the offset is -1 if the broker only reports a duplicate, or if it was not sent."""

    partition: int
    offset: int


class Sender(Protocol):
    """A producer of records, such as RecordProducer."""

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> object:
        """Produce; durable on return."""
        ...


class Encrypter(Protocol):
    """Encrypts texts, such as `streams.kafka.encryption.TextEncryption`."""

    def encrypt(self, topic: str, messages: Iterable[Message]) -> Sequence[Message | None]:
        """Return the messages with encrypted values; None in place of the messages of erased sessions."""
        ...


class RecordProducer:
    """Produces to the topics of an installation: idempotent, acknowledged by all replicas in sync. Belongs to one event loop.

    With `encryption`, the messages of erased sessions are not sent, as if the broker had them.
    """

    def __init__(self, connection: KafkaConnection, *, time_limit: float = 30.0, encryption: Encrypter | None = None) -> None:
        self._connection = connection
        self._encryption = encryption
        self._time_limit = time_limit
        self._client: AIOKafkaProducer | None = None
        self._connections = Connections()
        self._client_lock = asyncio.Lock()
        self._has_required_key = False
        """Whether `require_text_key` has passed."""

    async def start(self) -> None:
        """Connect. Raises BrokerError if no broker answers in time, and SettingsError if the installation encrypts and no key file is set."""
        with self._broker_errors("the topics"):
            async with asyncio.timeout(self._time_limit):
                await self._connected()

    async def stop(self) -> None:
        """Disconnect. Waiting calls fail."""
        await self._discard(self._client)

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> list[Produced]:
        """Produce to a topic, named without prefix; durable on return. Return the partition and offset of each message, in their order.

        A message goes to the partition that Kafka's default partitioner gives its key, or to `partition` if given. Messages of one
        partition keep their order. Raises BrokerError if the time limit is over or the broker refuses a message. The broker may
        then have some of the messages; all of them may be sent again. Raises SettingsError as `start` does.
        """
        client: AIOKafkaProducer | None = None
        try:
            with self._broker_errors(f"topic {self._connection.topic(topic)}"):
                async with asyncio.timeout(self._time_limit):
                    client = await self._connected()
                    encrypted = messages if self._encryption is None else self._encryption.encrypt(topic, messages)
                    return await self._send(client, self._connection.topic(topic), messages, encrypted, partition)
        except BrokerError:
            await self._discard(client)
            raise

    async def _send(
        self,
        client: AIOKafkaProducer,
        topic: str,
        messages: Sequence[Message],
        encrypted: Sequence[Message | None],
        partition: int | None,
    ) -> list[Produced]:
        count = len(await client.partitions_for(topic))
        deliveries: list[asyncio.Future[Any]] = []
        for (key, _), message in zip(messages, encrypted, strict=True):
            number = partition_of(key, count) if partition is None else partition
            if message is None:
                deliveries.append(_not_sent(number))
                continue
            future = await client.send(topic, message[1], key, partition=number)
            # If another send fails first, nobody awaits this one, and asyncio would report its unretrieved error.
            future.add_done_callback(_retrieve_error)
            deliveries.append(future)
        return [Produced(metadata.partition, metadata.offset) for metadata in await asyncio.gather(*deliveries)]

    async def _connected(self) -> AIOKafkaProducer:
        async with self._client_lock:
            if self._client is None:
                options: dict[str, Any] = {
                    "enable_idempotence": True,
                    "compression_type": "zstd",
                    "max_request_size": MAX_MESSAGE_BYTES,
                    "max_batch_size": BATCH_BYTES,
                    # If a node is frozen, enough time is left to ask the new leader.
                    "request_timeout_ms": int(self._time_limit * 1000 / TRIES),
                }
                client = AIOKafkaProducer(**self._connection.for_aiokafka() | options)
                # A batch that waits for a leader may use the whole time limit.
                client._message_accumulator._batch_ttl = self._time_limit  # noqa: SLF001 - by default it is the time limit of a request
                connections = Connections()
                try:
                    with connections.tracked():
                        await client.start()
                    if not self._has_required_key:
                        await require_text_key(self._connection)
                        self._has_required_key = True
                except BaseException:
                    await asyncio.shield(_close(client, connections))
                    raise
                self._client = client
                self._connections = connections
            return self._client

    async def _discard(self, client: AIOKafkaProducer | None) -> None:
        """Discard a client; callers that wait for its messages get an error."""
        if client is not None and client is self._client:
            self._client = None
            await asyncio.shield(_close(client, self._connections))

    @contextlib.contextmanager
    def _broker_errors(self, what: str) -> Iterator[None]:
        """Raise errors of producing as BrokerError."""
        try:
            yield
        except TimeoutError as error:
            raise BrokerError(f"{what}: the broker did not take the records in {self._time_limit:g} s") from error
        except KafkaError as error:
            raise BrokerError(f"{what}: {words_of(error)}") from error


async def require_text_key(connection: KafkaConnection) -> None:
    """Raise SettingsError if the installation encrypts texts, so its topic of keys has or had records, and the connection has no secret."""
    if connection.text_secret is not None:
        return
    async with PartitionReader(connection, keep_encrypted) as reader:
        if not await reader.has_topic(TEXT_KEYS):
            return
        partition = (TEXT_KEYS, 0)
        bounds = (await reader.ranges([partition]))[partition]
    if bounds.end > 0:
        raise SettingsError(
            f"topic {connection.topic(TEXT_KEYS)}: this installation encrypts texts, and DRIFTLINE_TEXT_KEY_FILE is not set",
            hint="Set it to the key file of this installation.",
        )


def _not_sent(partition: int) -> asyncio.Future[Any]:
    """Return the delivery of a message that is not sent."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(Produced(partition, -1))
    return future


def _retrieve_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def _close(client: AIOKafkaProducer, connections: Connections) -> None:
    """Close a client within STOP_SECONDS, even with unsent messages."""
    error = KafkaError("the connection was closed")
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # The client's own stop waits until everything is sent, which never happens without a broker. So fail its batches first.
            accumulator = client._message_accumulator  # noqa: SLF001
            queued = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001
            in_flight = list(accumulator._pending_batches)  # noqa: SLF001
            accumulator.fail_all(error)
            # Nobody awaits these any more, and asyncio would report their unretrieved errors.
            for batch in queued + in_flight:
                batch.future.exception()
            for batch in queued:
                batch._drain_waiter.exception()  # noqa: SLF001
            await client.client.close()
            await client.stop()
    except Exception as failure:  # noqa: BLE001 - errors of aborted requests are irrelevant
        log.debug("error while closing a producer: %s", words_of(failure))
    finally:
        connections.close()
