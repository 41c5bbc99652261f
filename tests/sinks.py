"""Sinks for tests: over a store of one's own, with what is produced beside them, and what tables hold as plain rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import Any

from engines import NOW, Clock

from analytics.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec import encode
from schemas.records import Record
from schemas.registry import current_schemas
from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import key_of
from streams.kafka.producing import RecordProducer
from streams.kafka.sink import Sink, SinkLimits

MakeTopics = Callable[..., None]
"""Makes topics of a test's own."""
QUICK = SinkLimits(check_every=0.1)


@asynccontextmanager
async def producing(connection: KafkaConnection) -> AsyncIterator[RecordProducer]:
    """A producer, stopped at the end."""
    producer = RecordProducer(connection)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def produce(producer: RecordProducer, topic: str, records: Sequence[Record]) -> None:
    """Produce records under their keys."""
    await producer.send(topic, [(key_of(record), encode(record)) for record in records])


def sink_over(store: Store, connection: KafkaConnection, **options: Any) -> Sink:
    """A sink that was not started."""
    return Sink(store, connection, Redactor(Policy().redaction), Clock(NOW + timedelta(days=1)), **{"limits": QUICK} | options)


async def land_all(store: Store, connection: KafkaConnection, **options: Any) -> None:
    """Land everything that is on the topics."""
    sink = sink_over(store, connection, **options)
    await sink.start()
    try:
        await sink.caught_up()
    finally:
        await sink.stop()


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every log table, by table. Where a letter that is on no topic stands is left out: that is nobody's business."""
    with closing(store.cursor()) as cursor:
        return {
            schema.table: sorted(
                cursor.execute(
                    f"SELECT * REPLACE (CASE WHEN _partition >= 0 THEN _offset END AS _offset) FROM log.{schema.table}"
                ).fetchall(),
                key=repr,
            )
            for schema in current_schemas().values()
        }
