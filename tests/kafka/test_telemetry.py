"""The watchdog of a server on Kafka: heartbeats and session ends arrive through the sink."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from support.builders import exchange
from support.kafka_sinks import MakeTopics, gateway_over, until

from analytics.store.store import Store
from schemas.records import Heartbeat
from schemas.registry import topics
from service.alerts.delivery import Alerts
from service.read.telemetry import listening_of, open_sessions
from service.server.periodic_tasks import SilenceWatchdog
from streams.engine.engine import Engine
from streams.kafka.connection import KafkaConnection


def beat(now: datetime) -> Heartbeat:
    """Return a heartbeat."""
    return Heartbeat(connection="local", project="ops", session_id="s1", occurred_at=now, ingested_at=now)


def listed(gateway: Engine, now: datetime) -> list[tuple[str, str]]:
    """Return the watched sessions with their colours."""
    sessions = open_sessions(gateway.store.cursor(), gateway.policy, now, listening_of(gateway))
    return [(session.session.session_id, session.session.status) for session in sessions]


def test_sessions_are_watched_by_stored_records(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Records on the topics count as signs of life; ended sessions are no longer watched."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            watchdog = SilenceWatchdog(gateway, Alerts(store, (), gateway.redactor, gateway.now))
            await until(lambda: gateway.state().ready, "the gateway to take records")
            await watchdog.run()
            now = gateway.now()
            await gateway.publish("heartbeats", [beat(now)])
            await gateway.publish("exchanges", [exchange("s2", 1, occurred_at=now, ingested_at=now)])
            await until(lambda: not gateway.state().queues["unlanded"], "the records to land")
            assert sorted(listed(gateway, now)) == [("s1", "green"), ("s2", "green")]
            assert sorted(listed(gateway, now + timedelta(minutes=16))) == [("s1", "red"), ("s2", "green")]
            assert await gateway.finalize("local", "s2")
            await until(lambda: listed(gateway, now) == [("s1", "green")], "the end to land")

    with Store(None) as store:
        asyncio.run(run(store))
