"""The sink on a real broker: every record of every topic is in its table exactly once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing as closed
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from support.builders import event, exchange, score
from support.clocks import NOW, TickingClock
from support.kafka_sinks import MakeTopics, fill, land_all, produce, producing, samples, sink_over, tables, until
from support.kafka_workers import contents
from support.servers import PATIENCE

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.errors import BrokerError
from schemas.records import Label, Record
from schemas.registry import schema_of, topics
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.sink import (
    REBUILD,
    SinkLimits,
    SinkWriter,
    UnreportedError,
    _drop_rows,
    _read_ranges,
    is_interrupted,
    rebuild,
)

REDACTOR = Redactor(Policy().redaction)
KEPT_BY_THE_STORE = {"watermarks", "stage_state"}
"""Tables that say how far it has come, and which erasures it has done: a rebuild goes over all of them again."""
LETTERS = "SELECT source, partition, position, stage, reason FROM dead_letters ORDER BY ALL"


def found(store: Store, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    with closed(store.cursor()) as cursor:
        return cursor.execute(statement).fetchall()


def test_each_record_is_stored_once(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """Producers may repeat records, and a restarted sink continues."""
    make_topics(*topics())
    events = [event(f"s{number % 7}", number) for number in range(300)]

    async def run() -> None:
        async with producing(kafka) as producer:
            for part in (events[:200], events[100:], events):
                await produce(producer, "agent-events", part)
                with Store(tmp_path / "a.duckdb") as store:
                    await land_all(store, kafka)

    asyncio.run(run())
    with Store(tmp_path / "a.duckdb") as store:
        landed = found(store, "SELECT session_id, event_id, _partition FROM log.agent_events")
    assert sorted((one.session_id, one.event_id) for one in events) == sorted(row[:2] for row in landed)
    assert len({row[2] for row in landed}) > 1, "over several partitions"


def test_records_are_collected_until_a_caller_waits_for_them(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A transaction takes as long for one record as for hundreds, so few records wait for more, unless a reader waits."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        sink, moved = sink_over(store, kafka, limits=SinkLimits(gather_seconds=PATIENCE)), asyncio.Queue[int]()
        sink.on_progress = lambda: moved.put_nowait(len(tables(store)["agent_events"]))
        await sink.start()
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", 1)])
            assert await moved.get() == 1
            for seq in (2, 3):
                await produce(producer, "agent-events", [event("s", seq)])
            assert moved.empty()
            landed = 1
            while landed < 3:
                sink.hurry()
                landed = await moved.get()
        await sink.stop()
        assert landed == 3

    with Store(None) as store:
        asyncio.run(run(store))


def test_every_type_is_stored_in_its_table(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Every record on a topic must be queryable in a table."""
    make_topics(*topics())
    travelling = {name: topic for topic, names in topics().items() for name in names}

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            for name, topic in travelling.items():
                await produce(producer, topic, samples(name, 50))
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        counts = {name: found(store, f"SELECT count(*) FROM log.{schema_of(name).table}")[0][0] for name in travelling}
    assert dict.fromkeys(travelling, 50) == counts


def test_an_unreadable_record_of_any_topic_is_a_dead_letter(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A bad record affects no other; its bytes are kept with its offset and the reason."""
    make_topics(*topics(), partitions=1)
    bad = {"framing": b"hello", "malformed_body": encode(score("s", 1))[:-2], "unknown_schema": b"\xc3\x01" + bytes(9)}

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            for topic in topics():
                wrong = encode(score("s", 1) if topic != "scores" else exchange("s", 1))
                await producer.send(topic, [(b"k", value) for value in (*bad.values(), wrong)])
                await produce(producer, topic, samples(topics()[topic][0], 1))
        await land_all(store, kafka)
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        reasons = [*bad, "unexpected_type"]
        expected = sorted((topic, 0, place, "decoding", reasons[place]) for topic in topics() for place in range(4))
        letters = found(store, LETTERS.replace("ORDER", "WHERE stage = 'decoding' ORDER"))
        assert letters == expected
        ((body, digest),) = found(store, "SELECT body, digest FROM dead_letters WHERE source = 'exchanges' AND position = 0")
    assert body == b"hello"
    assert digest == hashlib.sha256(b"hello").hexdigest()


@pytest.mark.parametrize("at_once", [1, 1000])
def test_conflicting_content_is_a_dead_letter(kafka: KafkaConnection, make_topics: MakeTopics, at_once: int) -> None:
    """Two different exchanges with one id conflict, and the valid one must not depend on the batches."""
    make_topics(*topics(), partitions=1)
    records = [exchange("s", 1), exchange("s", 1), exchange("s", 1, "No.", content_digest="f" * 16), exchange("s", 2)]

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", records)
        await land_all(store, kafka, limits=SinkLimits(batch_size=at_once, check_seconds=0.1))

    with Store(None) as store:
        asyncio.run(run(store))
        stored = found(store, "SELECT exchange_id, agent_response FROM exchanges ORDER BY ALL")
        assert stored == [("s:1", "It is done."), ("s:2", "It is done.")]
        assert found(store, LETTERS) == [("exchanges", 0, 2, "admission", "conflicting_id")]


def test_a_durable_commit_that_reports_a_failure_is_not_repeated(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may report a failure although the commit is durable, so a retry must not write twice."""
    make_topics(*topics(), partitions=1)
    add_rows = KnownIdentities.add_rows
    failed: list[bool] = []

    def fail_once(self: KnownIdentities, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        if topic == "agent-events" and not failed:
            failed.append(True)
            raise duckdb.IOException("No space left on device")
        add_rows(self, topic, frames)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", number) for number in range(10)])
            await producer.send("agent-events", [(b"k", b"hello")])
        monkeypatch.setattr(KnownIdentities, "add_rows", fail_once)
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        assert failed
        assert found(store, "SELECT seq FROM log.agent_events ORDER BY 1") == [(number,) for number in range(10)]
        assert found(store, LETTERS) == [("agent-events", 0, 10, "decoding", "framing")]


def test_a_gap_is_reported_by_one_letter_before_it_is_skipped() -> None:
    """After a kill, or a failed but durable commit, the same dead letter is produced again and stored once."""
    with Store(None) as store:
        writer, letters = SinkWriter(store, REDACTOR, lambda: NOW), list[str]()
        for _ in range(2):
            with pytest.raises(UnreportedError) as caught:
                writer.skip_removed(("exchanges", 0), 5, 9)
            letters += caught.value.dead_letters
            assert writer.positions() == {}
        assert letters[0] == letters[1]
        writer.produced_letters.update(letters)
        writer.skip_removed(("exchanges", 0), 5, 9)
        assert writer.positions() == {("exchanges", 0): 9}


def test_dead_letters_of_the_sink_are_on_their_topic_and_stored_once(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most topics are read by the sink alone: its dead letters must be on their topic, so that they can be listed and put back.

    The first sink dies after producing its dead letters, before the transaction.
    """
    make_topics(*topics(), partitions=1)
    write, flushes = SinkWriter.write, list[bool]()

    def dies(self: SinkWriter, *arguments: Any) -> None:
        flushes.append(True)
        if self.produced_letters:
            raise RuntimeError("killed")
        write(self, *arguments)

    async def run(stores: Sequence[Store]) -> list[bytes]:
        async with producing(kafka) as producer:
            for topic in topics():
                await producer.send(topic, [(b"k", b"hello")])
        with monkeypatch.context() as patch:
            patch.setattr(SinkWriter, "write", dies)
            with pytest.raises(RuntimeError, match="killed"):
                await land_all(stores[0], kafka)
        assert len(flushes) > 1
        for store in (stores[0], *stores):
            await land_all(store, kafka)
        records = await contents(kafka, "dead-letters", 1)
        return [record.value for record in records if record.value != b"hello"]

    expected = sorted((topic, 0, 0, "decoding", "framing") for topic in topics())
    with Store(None) as first, Store(None) as second:
        on_topic = asyncio.run(run([first, second]))
        for store in (first, second):
            assert found(store, LETTERS) == expected
            assert found(store, "SELECT DISTINCT _partition FROM log.dead_letters") == [(0,)], "from their topic"
    assert len(topics()) == len(set(on_topic))


def test_the_score_of_an_exchange_with_a_model_is_in_the_table(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Its labels name the model, which an exchange's own labels may not."""
    make_topics(*topics(), partitions=1)
    labels = (Label(name="arrival", value="later"), Label(name="model", value="model-1"))

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "scores", [score("s", 1, labels=labels)])
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        assert found(store, "SELECT label.value FROM scores, unnest(labels) AS t(label) ORDER BY ALL") == [
            ("later",),
            ("model-1",),
        ]
        assert found(store, LETTERS) == []


def test_a_record_under_another_sessions_key_is_a_dead_letter(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The session's other records may be on another partition, so its spending is unknown here."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            right = (key_of(exchange("s", 1)), encode(exchange("s", 1)))
            await producer.send("exchanges", [right, (b"local/t", encode(exchange("s", 2))), (b"", encode(exchange("s", 3)))])
            await producer.send("agent-events", [(b"local/t", encode(event("s", 1)))])
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        assert found(store, "SELECT exchange_id FROM exchanges") == [("s:1",)]
        places = [("agent-events", 0, 0), ("exchanges", 0, 1), ("exchanges", 0, 2)]
        assert found(store, LETTERS) == [(*place, "decoding", "wrong_key") for place in places]
        ((detail,),) = set(found(store, "SELECT detail FROM dead_letters"))
        assert "key" in detail
        assert "local/s" in detail


def test_equal_letters_of_worker_and_sink_are_one(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Worker and sink both reject the record, with the same dead letter."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await producer.send("exchanges", [(b"k", b"hello")])
            with Store(None) as other:
                await land_all(other, kafka)
                letter = samples_of_letters(other)
            await produce(producer, "dead-letters", letter)
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        assert found(store, LETTERS) == [("exchanges", 0, 0, "decoding", "framing")]


def samples_of_letters(store: Store) -> list[Record]:
    """Return the dead letters of a store."""
    from schemas.codec.arrow import rows_as_records

    return list(rows_as_records("DeadLetter", store.read("dead-letters", 0, 10)["DeadLetter"]))


def test_records_deleted_unread_by_retention_are_reported(
    kafka: KafkaConnection, make_topics: MakeTopics, admin: KafkaAdminClient
) -> None:
    """An unreported gap would look like a quiet fleet."""
    make_topics(*topics(), partitions=1)
    partition = TopicPartition(kafka.topic("agent-events"), 0)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", number) for number in range(10)])
            await land_all(store, kafka)
            await produce(producer, "agent-events", [event("s", number) for number in range(10, 30)])
            await asyncio.to_thread(admin.delete_records, {partition: 25})
            await land_all(store, kafka)
            await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        assert found(store, "SELECT seq FROM agent_events ORDER BY 1") == [(number,) for number in (*range(10), *range(25, 30))]
        assert found(store, LETTERS) == [("agent-events", 0, 10, "sink", "removed_by_retention")]
        ((detail,),) = found(store, "SELECT detail FROM dead_letters")
    assert "offsets 10 to 24" in detail


def test_a_position_out_of_range_is_corrected(kafka: KafkaConnection, make_topics: MakeTopics, admin: KafkaAdminClient) -> None:
    """If retention removed records before they were read, the sink continues with the rest and reports the gap."""
    make_topics(*topics(), partitions=1)
    partition = TopicPartition(kafka.topic("agent-events"), 0)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", number) for number in range(10)])
            await asyncio.to_thread(admin.delete_records, {partition: 4})
            sink = sink_over(store, kafka)
            await sink.start()
            await sink.caught_up()
            sink._reader.move(("agent-events", 0), 1)
            await asyncio.sleep(0)
            await produce(producer, "agent-events", [event("s", 10)])
            await until(lambda: sink.progress.positions["agent-events", 0] == 11, "the last event to land")
            sink.progress.positions["agent-events", 0] = 2
            sink._reader.move(("agent-events", 0), 1)
            await until(lambda: found(store, LETTERS), "the gap to be told")
            await sink.stop()

    with Store(None) as store:
        asyncio.run(run(store))
        assert found(store, "SELECT seq FROM agent_events ORDER BY 1") == [(number,) for number in range(4, 11)]
        assert found(store, LETTERS) == [("agent-events", 0, 2, "sink", "removed_by_retention")]


def test_a_recreated_topic_is_refused(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Offsets of a recreated topic mean other records, some of which would silently be skipped."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> None:
        with store.transaction() as transaction:
            transaction.set_watermarks("sink", {("exchanges", 0): 5})
        for attempt in (land_all(store, kafka), rebuild(store, kafka, REDACTOR, TickingClock())):
            with pytest.raises(BrokerError, match="up to offset 5, but the partition ends at 0"):
                await attempt

    with Store(None) as store:
        asyncio.run(run(store))


def test_added_partitions_are_read(kafka: KafkaConnection, make_topics: MakeTopics, admin: KafkaAdminClient) -> None:
    """Partitions may be added while the sink runs."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store, producer: RecordProducer) -> None:
        sink = sink_over(store, kafka)
        await sink.start()
        await produce(producer, "reviews", samples("Review", 1))
        await asyncio.to_thread(admin.create_partitions, {kafka.topic("reviews"): 3})
        await until(lambda: ("reviews", 2) in sink.progress.positions, "the partitions to be found")
        await until(lambda: len(await_partitions(producer, kafka)) == 3, "the producer to see them")
        for number, record in enumerate(samples("Review", 3)):
            await producer.send("reviews", [(b"k", encode(record))], partition=number)
        await until(lambda: store.count("reviews") == 3, "what was produced to them to land")
        await sink.stop()

    async def begin(store: Store) -> None:
        async with producing(kafka) as producer:
            await run(store, producer)

    with pytest.MonkeyPatch.context() as patch, Store(None) as store:
        patch.setattr("streams.kafka.connection.METADATA_MILLISECONDS", 100)
        asyncio.run(begin(store))


def await_partitions(producer: RecordProducer, connection: KafkaConnection) -> set[int]:
    """Wait until a producer knows the partitions of the topic reviews."""
    assert producer._client is not None
    producer._client.client.force_metadata_update()
    return set(producer._client.client.cluster.partitions_for_topic(connection.topic("reviews")) or ())


def test_a_rebuild_stores_the_same_rows(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """After a rebuild every table has the same rows, dead letters included."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await fill(producer)
        await land_all(store, kafka)
        before = tables(store)
        assert all(before[schema_of(name).table] for names in topics().values() for name in names)
        await rebuild(store, kafka, REDACTOR, TickingClock(NOW))
        after = tables(store)
        assert before.keys() == after.keys()
        for table in before.keys() - KEPT_BY_THE_STORE:
            assert after[table] == before[table], table

    with Store(None) as store:
        asyncio.run(run(store))
        assert not is_interrupted(store)


def test_a_rebuild_keeps_records_that_left_the_topics(
    kafka: KafkaConnection, make_topics: MakeTopics, admin: KafkaAdminClient
) -> None:
    """The tables keep records longer than the topics, and a rebuild must not delete them."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await fill(producer)
        await land_all(store, kafka)
        before = tables(store)
        places = {TopicPartition(kafka.topic(topic), 0): 30 for topic in topics()}
        await asyncio.to_thread(admin.delete_records, places)
        await rebuild(store, kafka, REDACTOR, TickingClock(NOW))
        after = tables(store)
        for table in before.keys() - KEPT_BY_THE_STORE:
            assert after[table] == before[table], table

    with Store(None) as store:
        asyncio.run(run(store))


def test_an_interrupted_rebuild_continues(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """After a kill, the next call writes the rest instead of starting again."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await fill(producer)
        await land_all(store, kafka)
        before = tables(store)
        _drop_rows(store, {partition: bounds.beginning for partition, bounds in (await _read_ranges(kafka)).items()})
        assert is_interrupted(store)
        assert not tables(store)["exchanges"]
        await rebuild(store, kafka, REDACTOR, TickingClock(NOW))
        after = tables(store)
        assert after["exchanges"] == before["exchanges"]
        assert after["dead_letters"] == before["dead_letters"]
        with store.transaction() as transaction:
            assert transaction.watermark(REBUILD, "") == 0

    with Store(None) as store:
        asyncio.run(run(store))
