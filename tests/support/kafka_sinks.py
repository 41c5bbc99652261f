"""Sinks for tests: over a store of one's own, with what is produced beside them, and what tables hold as plain rows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from typing import Any

import msgspec
from support.builders import event, exchange, score
from support.clocks import NOW, TickingClock
from support.sample_records import SampleMaker, lawful
from support.servers import PATIENCE

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Record
from schemas.registry import current_schemas, schema_of, topics
from streams.engine.engine import Engine
from streams.engine.record_intake import EngineLimits
from streams.kafka.connection import KafkaConnection
from streams.kafka.kafka_log import KafkaLog
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.sink import Sink, SinkLimits

MakeTopics = Callable[..., None]
"""Makes topics of a test's own."""
QUICK = SinkLimits(check_seconds=0.1)


@asynccontextmanager
async def producing(connection: KafkaConnection) -> AsyncIterator[RecordProducer]:
    """Yield a producer and stop it at the end."""
    producer = RecordProducer(connection)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def produce(producer: RecordProducer, topic: str, records: Sequence[Record]) -> None:
    """Produce records under their keys."""
    await producer.send(topic, [(key_of(record), encode(record)) for record in records])


def samples(name: str, count: int) -> list[Record]:
    """Return records of a type with different identities; erasures name a connection without records."""
    field = schema_of(name).identity[-1] if name == "AgentEvent" else schema_of(name).identity[0]
    fixed: dict[str, Any] = {"connection": "nobody", "session_id": None} if name == "Erasure" else {}
    return [
        lawful(msgspec.structs.replace(record, **{field: f"{name}-{number}".lower()}, **fixed))
        for number, record in enumerate(SampleMaker(7).records(name, count))
    ]


async def fill(producer: RecordProducer) -> None:
    """Produce records of each type, duplicates, conflicts, and an invalid value on each topic."""
    for topic, names in topics().items():
        for name in names:
            await produce(producer, topic, samples(name, 50))
            await produce(producer, topic, samples(name, 10))
        await producer.send(topic, [(b"poison", b""), (b"poison", b"hello"), (b"poison", encode(exchange("s", 1))[:-3])])
        await produce(producer, topic, [score("s", 1) if topic != "scores" else exchange("s", 1)])
    await produce(producer, "exchanges", [exchange("c", 1), exchange("c", 1, "No.", content_digest="f" * 16)])
    await produce(producer, "agent-events", [event("c", 1), msgspec.structs.replace(event("c", 1), payload='{"other": 1}')])


def sink_over(store: Store, connection: KafkaConnection, **options: Any) -> Sink:
    """Return a sink that is not started."""
    return Sink(
        store, connection, Redactor(Policy().redaction), TickingClock(NOW + timedelta(days=1)), **{"limits": QUICK} | options
    )


async def land_all(store: Store, connection: KafkaConnection, **options: Any) -> None:
    """Flush every record of the topics."""
    sink = sink_over(store, connection, **options)
    await sink.start()
    try:
        await sink.caught_up()
    finally:
        await sink.stop()


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every log table, by table. The offset of a letter that is on no topic is left out: it has no meaning."""
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


@asynccontextmanager
async def gateway_over(
    store: Store, connection: KafkaConnection, limits: EngineLimits | None = None, **options: Any
) -> AsyncIterator[Engine]:
    """Yield an engine over Kafka that accepts records, and stop it at the end."""
    policy = Policy()
    now, redactor = TickingClock(NOW + timedelta(days=1)), Redactor(policy.redaction)
    log = KafkaLog(store, redactor, now, connection, **{"sink_limits": QUICK} | options)
    gateway = Engine(store, policy, redactor, now, judge_name="workers", limits=limits, log=log)
    await gateway.start()
    try:
        await until(lambda: gateway.state().ready, "the gateway to take records")
        yield gateway
    finally:
        await gateway.stop()


async def until(condition: Callable[[], object], description: str) -> None:
    """Return as soon as the condition holds; if it never does, fail with the description of the condition."""
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at, f"waited {PATIENCE:g} s for {description}"
        await asyncio.sleep(0.005)


def sink_of(gateway: Engine) -> Sink:
    """Return the sink of an engine over Kafka."""
    assert isinstance(gateway._log, KafkaLog)
    return gateway._log._sink


@contextmanager
def held_back(gateway: Engine) -> Iterator[None]:
    """Hold back every flush while the context is open."""
    writer, gate = sink_of(gateway).writer, threading.Event()
    write = writer.write

    def wait_and_write(*arguments: Any) -> None:
        assert gate.wait(PATIENCE)
        write(*arguments)

    writer.write = wait_and_write  # type: ignore[method-assign]
    try:
        yield
    finally:
        gate.set()
        writer.write = write  # type: ignore[method-assign]
