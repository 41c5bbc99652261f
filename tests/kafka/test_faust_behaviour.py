"""The behaviour of Faust that the worker relies on or works around. A version that changes it fails here.

The transport replaces how records become messages and which offsets are committed; whether it does so is proven in test_transport.py.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.tables.recovery import Recovery
from faust.transport.consumer import Consumer, Fetcher
from faust.transport.drivers import aiokafka as driver
from kafka import KafkaAdminClient
from support.kafka_workers import EVENTS, FAST, Collecting, eventually, numbered, offsets, produce, until_committed, working

from streams.kafka.agents import SETTINGS
from streams.kafka.connection import KafkaConnection
from streams.kafka.transport import ChunkConsumer, ChunkConsumerThread

MakeTopics = Callable[..., None]
TOPIC = EVENTS.source


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (
            ChunkConsumer,
            driver.Consumer,
            ["_drain_messages", "_new_offset", "_filter_tps_with_pending_acks", "_new_consumer_thread", "perform_seek"],
        ),
        (ChunkConsumer, driver.Consumer, ["on_partitions_revoked", "on_partitions_assigned", "verify_event_path"]),
        (ChunkConsumerThread, driver.AIOKafkaConsumerThread, ["_create_worker_consumer"]),
    ],
)
def test_overridden_attributes_exist_in_faust(ours: type, theirs: type, names: list[str]) -> None:
    """An override that Faust no longer calls would silently do nothing."""
    for name in names:
        assert getattr(ours, name) is not getattr(theirs, name)
        assert list(inspect.signature(getattr(theirs, name)).parameters) == list(
            inspect.signature(getattr(ours, name)).parameters
        )


@pytest.mark.parametrize(
    ("caller", "called"),
    [
        (Fetcher, "_drain_messages("),
        (Consumer.force_commit, "_filter_tps_with_pending_acks("),
        (Consumer._filter_committable_offsets, "_new_offset("),
        (driver.AIOKafkaConsumerThread.on_start, "_create_consumer("),
        (Recovery._resume_streams, "consumer.perform_seek()"),
        (Recovery._resume_streams, "consumer.resume_flow()"),
        (driver.ConsumerRebalanceListener, "thread.on_partitions_revoked("),
    ],
)
def test_faust_still_calls_the_overridden_methods(caller: Any, called: str) -> None:
    """The transport relies on these calls."""
    assert called in inspect.getsource(caller)


def test_topics_without_acks_leave_offsets_to_the_transport(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Faust's own tracking of offsets would commit past a chunk, or grow without bound."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(100))
        never = Collecting(finish=lambda _chunk, _done: None)
        async with working(kafka, {EVENTS: never}, grace=0) as worker:
            await eventually(lambda: never.count == 100, "every record")
            await worker.consumer.commit()
            assert not worker.app.topics.acks_enabled_for(kafka.topic(TOPIC))
            assert dict(worker.consumer._acked) == {}
            assert dict(worker.consumer._gap) == {}
            assert list(worker.consumer.unacked) == []
        assert await offsets(kafka, TOPIC, 1) == ([0], [100])

    asyncio.run(run())


def test_a_commit_succeeds_while_partitions_are_revoked(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Work finished when a rebalance begins must not be repeated by the next owner."""
    make_topics(TOPIC, partitions=2)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(200))
        first, second = Collecting(), Collecting()
        async with working(kafka, {EVENTS: first}) as worker:
            worker.consumer.commit_interval = 3600.0
            await eventually(lambda: first.count == 200, "every record")
            async with working(kafka, {EVENTS: second}):
                await eventually(lambda: len(second.mine) == 1, "the second worker's partition")
                await until_committed(kafka, TOPIC, 2)
        assert second.count == 0
        assert first.count == 200

    asyncio.run(run())


def test_faust_creates_no_topic_and_listens_on_no_address(
    kafka: KafkaConnection, make_topics: MakeTopics, admin: KafkaAdminClient
) -> None:
    """By default Faust creates its own topics and serves its tables publicly on port 6066."""
    make_topics(TOPIC)

    async def run() -> None:
        async with working(kafka, {EVENTS: Collecting()}) as worker:
            assert worker.app.conf.web_enabled is False
            assert not [service for service in worker.app._children if isinstance(service, faust.web.Web)]
            await eventually(lambda: any(stage.partitions for stage in worker.stages), "partitions")

    asyncio.run(run())
    assert [name for name in admin.list_topics() if name.startswith(kafka.prefix)] == [kafka.topic(TOPIC)]


def test_a_crash_inside_faust_is_noticed(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A broken consumer must end the process; Faust would only log the error."""
    make_topics(TOPIC)

    async def run() -> BaseException:
        async with working(kafka, {EVENTS: Collecting()}) as worker:
            await worker.consumer.crash(RuntimeError("the broker refused the commit"))
            return await asyncio.wait_for(worker.failed(), 120)

    assert str(asyncio.run(run())) == "the broker refused the commit"


def test_an_agents_exception_loses_the_event(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Any) -> None:
    """So no exception may escape an agent: it ends the process, and offsets are committed by the stages."""
    make_topics(TOPIC, partitions=1)
    plain = plain_app(kafka, tmp_path)
    events_seen: list[bytes] = []

    @plain.agent(plain.topic(kafka.topic(TOPIC), value_type=bytes, value_serializer="raw"))
    async def fragile(stream: Any) -> None:
        async for value in stream:
            events_seen.append(value)
            if len(events_seen) == 1:
                raise RuntimeError("once")

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(3))
        await plain.start()
        await eventually(lambda: len(events_seen) == 3, "every event, the first of them in vain")
        await plain.consumer.commit()
        await plain.stop()

    asyncio.run(run())
    assert events_seen == [b"value-0", b"value-1", b"value-2"]


def plain_app(kafka: KafkaConnection, folder: Path) -> faust.App:
    """Return a Faust app without our transport."""
    return faust.App(kafka.topic("plain"), broker=f"kafka://{kafka.bootstrap}", datadir=str(folder), **{**SETTINGS, **FAST})


def test_a_running_agent_is_cancelled_and_restarted_with_its_partition(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """So the transport lets stages end their work before Faust revokes partitions, and processes each chunk in a separate task.

    Otherwise a chunk would be interrupted, and an agent would remain for a partition of another process.
    """
    make_topics(TOPIC, partitions=2)
    begun, cancelled = Counter[str](), list[str]()
    first, second = plain_app(kafka, tmp_path / "first"), plain_app(kafka, tmp_path / "second")

    def add_agent(app: faust.App, name: str) -> None:
        @app.agent(app.topic(kafka.topic(TOPIC), value_type=bytes, value_serializer="raw"), isolated_partitions=True)
        async def slow(stream: Any) -> None:
            begun[name] += 1
            try:
                async for _ in stream:
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

    async def run() -> None:
        add_agent(first, "first")
        add_agent(second, "second")
        for partition in range(2):
            await produce(kafka, TOPIC, numbered(10), partition)
        await first.start()
        await eventually(lambda: begun["first"] == 2, "an agent for each partition")
        await second.start()
        await eventually(lambda: begun["first"] == 3, "the agent that was cut off to be started again")
        assert cancelled == ["first"]
        await second.stop()
        await first.stop()

    asyncio.run(run())


def test_a_worker_without_partitions_gets_one_back(
    kafka: KafkaConnection, make_topics: MakeTopics, caplog: pytest.LogCaptureFixture
) -> None:
    """Faust registers topics by owned partitions, so a lookup without partitions would find none to subscribe to."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(10))
        first, second = Collecting(), Collecting()
        async with AsyncExitStack() as stack:
            worker = await stack.enter_async_context(working(kafka, {EVENTS: first}))
            await eventually(lambda: first.count == 10, "the first records")
            async with working(kafka, {EVENTS: second}) as other:
                await eventually(lambda: len(first.ended) == 1 and len(first.mine | second.mine) == 1, "one of them to have it")
                await until_committed(kafka, TOPIC, 1)
                assert not worker.app.topics._subscription_changed.is_set()
                assert not other.app.topics._subscription_changed.is_set()
            await eventually(lambda: first.mine == {0}, "the partition to come back")
            await produce(kafka, TOPIC, numbered(10, 10))
            await eventually(lambda: first.count + second.count == 20, "the last records")
        assert "Restarting" not in caplog.text

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_faust_knows_the_settings() -> None:
    """A setting that Faust renamed must fail here, not in production."""
    app = faust.App("settings", broker="kafka://127.0.0.1:1", **SETTINGS)
    assert {name: getattr(app.conf, name) for name in SETTINGS} == dict(SETTINGS)
