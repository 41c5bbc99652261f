"""State topics: the next owner of a partition reads the newest state of each session, at any size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer
from support.kafka_brokers import Broker
from support.kafka_workers import contents, produce

from schemas.errors import BrokerError
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.states import ENCODE, MAX_STATE_BYTES, StateTopic, StoredState, is_too_large

MakeTopics = Callable[..., None]
COMPACTED = {"cleanup.policy": "compact", "max.message.bytes": str(16 * 1024 * 1024)}
TOPIC = "diagnosis-state"


def state(next_offset: int, content: bytes = b"state") -> StoredState:
    """Return the state of a session at an offset."""
    return StoredState(next_offset, b"i" * 16, content)


class Opened:
    """A state topic with its own producer."""

    def __init__(self, kafka: KafkaConnection, source: str | None = None) -> None:
        self.producer = RecordProducer(kafka)
        self.topic = StateTopic(kafka, "diagnosis", self.producer, source=source)

    async def __aenter__(self) -> StateTopic:
        await self.producer.start()
        return self.topic

    async def __aexit__(self, *_: object) -> None:
        await self.producer.stop()
        self.topic.close()


def test_saved_states_are_read_by_the_next_owner(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """This includes an empty partition, and states of different partitions are separate."""
    make_topics(TOPIC, configs=COMPACTED)

    async def run() -> None:
        saved = {f"local/s{number}": state(number + 1, b"x" * number) for number in range(300)}
        async with Opened(kafka) as first:
            await first.load(1)
            await first.save(1, saved)
            assert first.get(1, saved) == saved
        async with Opened(kafka) as second:
            await asyncio.gather(*(second.load(partition) for partition in range(3)))
            assert second.get(1, [*saved, "local/unknown"]) == saved
            assert second.get(0, saved) == {}
            assert second.get(2, saved) == {}

    asyncio.run(run())


def test_the_most_advanced_state_survives_a_late_write(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A frozen worker may write after its successor; compaction would keep its state, and records would be lost."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)

    async def run() -> None:
        right, late = ENCODE(state(20, b"right")), ENCODE(state(10, b"late"))
        await produce(kafka, TOPIC, [(b"local/s", right), (b"local/other", late), (b"local/s", late)], 0)
        async with Opened(kafka) as topic:
            await topic.load(0)
            assert state(20, b"right") == topic.get(0, ["local/s"])["local/s"]
        assert right == [record.value for record in await contents(kafka, TOPIC, 1) if record.key == b"local/s"][-1]

    asyncio.run(run())


def test_an_invalid_state_stops_nobody_and_replaces_no_state(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Otherwise any producer could end every worker of the partition, or a session's history."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)

    async def run() -> None:
        right = ENCODE(state(20, b"right"))
        poison = [
            (key, value) for key in (b"local/s", b"local/x") for value in (b"", b"hello", b"\x91\xcd\x7f\xff", b"\xff" * 40)
        ]
        await produce(kafka, TOPIC, [(b"local/s", right), *poison], 0)
        async with Opened(kafka) as topic:
            await topic.load(0)
            assert topic.get(0, ["local/s", "local/x"]) == {"local/s": state(20, b"right")}
        assert right == [record.value for record in await contents(kafka, TOPIC, 1) if record.key == b"local/s"][-1]

    asyncio.run(run())


def test_states_of_a_recreated_topic_are_refused(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A recreated source begins at offset 0, and records of known sessions would silently be skipped."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)
    make_topics("agent-events", partitions=1)

    async def run() -> None:
        await produce(kafka, "agent-events", [(b"local/s", b"event")] * 20, 0)
        async with Opened(kafka) as first:
            await first.save(0, {"local/s": state(20)})
        async with Opened(kafka, source="agent-events") as second:
            await second.load(0)
            await second.save(0, {"local/s": state(21), "local/t": state(21)})
        async with Opened(kafka, source="agent-events") as third:
            with pytest.raises(BrokerError, match=r"agent-events, partition 0, .* offset 20, .*diagnosis-state .* up to 21"):
                await third.load(0)

    asyncio.run(run())


def test_a_deleted_state_is_gone(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """An operator resets a session with a tombstone."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)

    async def run() -> None:
        await produce(kafka, TOPIC, [(b"local/s", ENCODE(state(20)))], 0)
        async with Opened(kafka) as topic:
            await topic.load(0)
            await produce(kafka, TOPIC, [(b"local/s", None)], 0)  # type: ignore[list-item]
            await topic.load(0)
            assert topic.get(0, ["local/s"]) == {}

    asyncio.run(run())


def test_a_returned_partition_is_read_from_its_last_position(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance returns most partitions; reading all states each time would stop a large installation for minutes."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)
    offsets_read: list[int] = []

    class Counting(AIOKafkaConsumer):  # type: ignore[misc]
        async def getmany(self, **options: object) -> object:
            batches = await super().getmany(**options)
            offsets_read.extend(record.offset for records in batches.values() for record in records)
            return batches

    async def run() -> None:
        async with Opened(kafka) as topic, Opened(kafka) as other:
            await topic.save(0, {f"local/s{number}": state(1) for number in range(50)})
            await topic.load(0)
            offsets_read.clear()
            await other.save(0, {"local/s7": state(2, b"by another")})
            await topic.load(0)
            assert state(2, b"by another") == topic.get(0, ["local/s7"])["local/s7"]
            assert offsets_read == [50]

    monkeypatch.setattr("streams.kafka.reading.AIOKafkaConsumer", Counting)
    asyncio.run(run())


def test_a_state_of_several_megabytes_is_stored(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The state of intake contains whole exchanges that may be judged later."""
    make_topics(TOPIC, partitions=1, configs=COMPACTED)
    large = state(1, bytes(MAX_STATE_BYTES - 1000))
    assert is_too_large(large) is False
    assert is_too_large(state(1, bytes(MAX_STATE_BYTES + 1))) is True

    async def run() -> None:
        async with Opened(kafka) as topic:
            await topic.save(0, {"local/s": large})
        async with Opened(kafka) as topic:
            await topic.load(0)
            assert large == topic.get(0, ["local/s"])["local/s"]

    asyncio.run(run())


def test_a_silent_broker_ends_the_reading_of_states(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client only returns empty results, so the partition would silently stop."""
    connection = KafkaConnection(own_broker.bootstrap)
    with TopicAdministration(connection) as administration:
        administration.create(1)

    class Freezing(AIOKafkaConsumer):  # type: ignore[misc]
        """Freezes the broker as soon as reading begins."""

        async def getmany(self, **options: object) -> object:
            own_broker.freeze()
            self.seek(*self.assignment(), 0)
            return await super().getmany(**options)

    async def run() -> None:
        async with Opened(connection) as topic:
            await topic.save(0, {"local/s": state(1)})
            monkeypatch.setattr("streams.kafka.reading.AIOKafkaConsumer", Freezing)
            monkeypatch.setattr("streams.kafka.reading.QUIET_SECONDS", 1.0)
            async with asyncio.timeout(300):
                with pytest.raises(BrokerError, match=r"diagnosis-state, partition 0: .* the broker sent nothing for 1 s"):
                    await topic.load(0)
            own_broker.thaw()

    asyncio.run(run())
