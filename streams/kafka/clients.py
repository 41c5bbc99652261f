"""Clients of aiokafka: started and stopped so that no connection of theirs stays open, and reading records at half the cost.

1. aiokafka loses sight of two connections: the first one, when a start is cancelled while the node is silent, and one that a task of the
   client's opens while the client closes. They would stay open until the garbage collector comes by, which warns of them.
2. A consumer whose `value_deserializer` is `as_parsed` reads what aiokafka's parser makes, which has all that a stage looks at, and not
   a copy of it with eleven fields for each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import aiokafka.client
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.consumer import fetcher


class Client(Protocol):
    """A consumer or a producer of aiokafka."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def stop(self) -> None:
        """Let go of the brokers."""
        ...


class _Connections:
    """The connections that the tasks of one client have opened."""

    def __init__(self) -> None:
        self._open: WeakSet[AIOKafkaConnection] = WeakSet()
        self._closed = False

    def add(self, connection: AIOKafkaConnection) -> None:
        """Take note of a connection; one that comes after `close` is closed at once."""
        self._open.add(connection)
        if self._closed:
            connection.close()

    def close(self) -> None:
        """Close what is open and what comes later."""
        self._closed = True
        for connection in list(self._open):
            connection.close()


_of_owner: WeakKeyDictionary[object, _Connections] = WeakKeyDictionary()
_of_task: ContextVar[_Connections | None] = ContextVar("connections of a client", default=None)
"""Tasks that a client begins while it starts, and the tasks that those begin, have it from there."""


async def _noted(*arguments: Any, **options: Any) -> AIOKafkaConnection:
    connection = await create_conn(*arguments, **options)
    if (connections := _of_task.get()) is not None:
        connections.add(connection)
    return connection


def as_parsed(value: bytes) -> bytes:
    """Return a value as it is: the `value_deserializer` of a consumer that wants records as they are parsed."""
    return value


class _Records(fetcher.PartitionRecords):  # type: ignore[misc]  # it has no types
    """The records of a partition in one answer of a broker."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self._value_deserializer is as_parsed:
            self._consumer_record = lambda _, record: record


class _Fetched(fetcher.FetchResult):  # type: ignore[misc]  # it has no types
    """What is left of such an answer."""

    def getall(self, max_records: int | None = None) -> list[Any]:
        """Take so many records, or all; as aiokafka's own, without a call for each."""
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        records: Any = self._partition_records
        found = list(islice(records._records_iterator, max_records))  # noqa: SLF001 - the library offers one by one only
        self._update_position()
        if max_records is None or len(found) < max_records:
            self._partition_records: Any = None
        return found


aiokafka.client.create_conn = _noted
fetcher.PartitionRecords, fetcher.FetchResult = _Records, _Fetched


async def start(client: Client) -> None:
    """Start a client. `stop` or `close` it, even where this fails or is cancelled."""
    with noting(client):
        await client.start()


@contextmanager
def noting(owner: object) -> Iterator[None]:
    """Take note of the connections that are opened by what is started here; `close` the owner in the end."""
    before = _of_task.set(_of_owner.setdefault(owner, _Connections()))
    try:
        yield
    finally:
        _of_task.reset(before)


async def stop(client: Client) -> None:
    """Stop a client, and close what it leaves open."""
    try:
        await client.stop()
    finally:
        close(client)


def close(owner: object) -> None:
    """Close what a client, or its caller, has open, now and later."""
    if (connections := _of_owner.pop(owner, None)) is not None:
        connections.close()
