"""The laws of the log for the log over Kafka, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from support.clocks import NOW, TickingClock
from support.kafka_sinks import QUICK, MakeTopics, until
from support.log_laws import LAWS, OpenLog

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.kafka.kafka_log import KafkaLog


def opened_over(store: Store, connection: KafkaConnection) -> OpenLog:
    """Opens logs over the topics of a test; after a kill, unwritten records remain on the topics."""

    @asynccontextmanager
    async def opened(*, is_killed: bool = False) -> AsyncIterator[KafkaLog]:
        clock = TickingClock(NOW + timedelta(days=1))
        log = KafkaLog(store, Redactor(Policy().redaction), clock, connection, sink_limits=QUICK)
        await log.start()
        await until(lambda: not log.backpressure_reason(), "the log to take records")
        yield log
        if is_killed:
            for task in log._sink._tasks:
                task.cancel()
        await log.stop()

    return opened


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_log_over_kafka_keeps_the_law(
    kafka: KafkaConnection, make_topics: MakeTopics, law: Callable[[Store, OpenLog], Awaitable[None]]
) -> None:
    """The engine relies on these laws with every log."""
    make_topics(*topics())
    with Store(None) as store:
        asyncio.run(asyncio.wait_for(law(store, opened_over(store, kafka)), 120))
