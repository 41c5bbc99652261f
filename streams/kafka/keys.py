"""The key of a record on its topic, which decides on its partition."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from aiokafka.partitioner import murmur2

from schemas.codec.single_object import decode
from schemas.records import Record
from schemas.registry import schema_of
from streams.stage_batches import named_session


@functools.lru_cache(maxsize=100_000)
def partition_of(key: bytes, count: int) -> int:
    """The partition that Kafka's default partitioner gives a key; kept, because working it out takes longer than sending a record."""
    return int((murmur2(key) & 0x7FFFFFFF) % count)


def key_of(record: Record) -> bytes:
    """Connection and session for what belongs to a session, else the project, else the first field of the identity; UTF-8."""
    session = getattr(record, "session_id", None)
    if session is not None:
        return named_session(getattr(record, "connection", ""), session).encode()
    field = "project" if hasattr(record, "project") else schema_of(type(record).__name__).identity[0]
    return str(getattr(record, field)).encode()


def keyed(messages: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Encoded records, each under its key."""
    return [(key_of(decode(message)), message) for message in messages]
