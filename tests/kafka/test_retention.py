"""Retention and erasure with Kafka: records that are still on the topics return with a rebuild and are deleted again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from support.builders import event, exchange, judgement, score
from support.clocks import NOW, TickingClock
from support.kafka_sinks import MakeTopics, gateway_over, land_all, produce, producing, until

from analytics.snapshots import copy_database
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.records import Exchange
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.kafka.sink import rebuild
from streams.upkeep.deletion import ErasureTask, erasure, erasures, purge, request_erasure

POLICY = Policy()
REDACTOR = Redactor(POLICY.redaction)
OLD, NEW = NOW - timedelta(days=100), NOW - timedelta(days=10)


def said(session: str, number: int) -> Exchange:
    """Return an exchange that is old or new, as its session's name says."""
    at = OLD if session == "old" else NEW
    return exchange(session, number, occurred_at=at, ingested_at=at)


def ids(store: Store, table: str, column: str = "session_id") -> list[str]:
    """Return a column of a log table."""
    return [one for (one,) in store.cursor().execute(f"SELECT {column} FROM log.{table} ORDER BY ALL").fetchall()]


def test_what_retention_deleted_lands_again_and_goes_again(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Deleted rows are not a gap on the topic: there is no dead letter, the sink continues, and a rebuild deletes them again."""
    make_topics(*topics(), partitions=2)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [said(name, n) for name in ("old", "new") for n in range(3)])
            await produce(producer, "scores", [score("old", 1, exchange_at=OLD), score("new", 1, exchange_at=NEW)])
            await produce(producer, "judgements", [judgement("old", 1, judged_at=NEW)])
            await land_all(store, kafka)
            assert ((found := purge(store, POLICY, NOW)).exchanges, found.scores) == (3, 1)
            await produce(producer, "exchanges", [said("new", 3)])
            await land_all(store, kafka)
        assert ids(store, "exchanges") == ["new"] * 4
        assert ids(store, "scores") == ["new"]
        assert ids(store, "judgements") == []
        assert ids(store, "dead_letters", "reason") == []
        await rebuild(store, kafka, REDACTOR, TickingClock(NOW))
        assert ids(store, "exchanges") == ["new"] * 4 + ["old"] * 3
        assert ((found := purge(store, POLICY, NOW)).exchanges, found.scores) == (3, 1)
        assert ids(store, "exchanges") == ["new"] * 4
        assert ids(store, "dead_letters", "reason") == []

    with Store(None) as store:
        asyncio.run(run(store))


def test_what_was_erased_does_not_land_again(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The topics still have the records and the request: later records are dropped, and a rebuild erases them again."""
    make_topics(*topics(), partitions=2)

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            await gateway.publish("exchanges", [said(name, n) for name in ("gone", "new") for n in range(3)])
            await gateway.publish("agent-events", [event("gone", 1)])
            await until(lambda: len(ids(store, "exchanges")) == 6 and ids(store, "agent_events"), "the exchanges to land")
            await request_erasure(gateway, erasure("local", "gone", "root", None, gateway.now()))
            await until(lambda: erasures(store), "the request to land")
            periodic_task = ErasureTask(gateway)
            await periodic_task.run()
            assert ids(store, "exchanges") == ["new"] * 3
            assert ids(store, "agent_events") == []
            await gateway.publish("exchanges", [said("gone", 4), said("new", 4)])
            await until(
                lambda: len(ids(store, "exchanges")) == 4 and not gateway.state().queues["sink"], "the last exchange to land"
            )
            assert ids(store, "exchanges") == ["new"] * 4
        await rebuild(store, kafka, REDACTOR, TickingClock(NOW))
        assert ids(store, "exchanges") == ["new"] * 4
        assert ids(store, "agent_events") == []

    with Store(None) as store:
        asyncio.run(run(store))


def test_a_restored_backup_erases_what_was_erased_since(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """The erasures are on their topic, and the backup has not read them."""
    make_topics(*topics(), partitions=2)

    async def run(store: Store, *, is_restored: bool) -> None:
        async with gateway_over(store, kafka) as gateway:
            if not is_restored:
                await gateway.publish("exchanges", [said(name, 1) for name in ("gone", "new")])
                await until(lambda: len(ids(store, "exchanges")) == 2, "the exchanges to land")
                await asyncio.to_thread(copy_database, store, tmp_path / "backup.duckdb")
                await request_erasure(gateway, erasure("local", "gone", "root", None, gateway.now()))
            await until(lambda: erasures(store) and gateway.state().ready, "the request to land")
            await ErasureTask(gateway).run()
            assert ids(store, "exchanges") == ["new"]

    with Store(tmp_path / "live.duckdb") as store:
        asyncio.run(run(store, is_restored=False))
    with Store(tmp_path / "backup.duckdb") as store:
        assert ids(store, "exchanges") == ["gone", "new"]
        asyncio.run(run(store, is_restored=True))
