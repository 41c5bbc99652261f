"""Encrypted topics: no text of a session can be read on a broker, and after an erasure nobody can decrypt it any more."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import polars as pl
import pytest
from kafka import KafkaAdminClient
from support.builders import event, exchange, incident, judgement, score
from support.clients import bearer, exchange_body
from support.clocks import NOW, TickingClock
from support.erased_sessions import records_of_session, records_referring_to
from support.kafka_brokers import Broker, quick
from support.kafka_sinks import MakeTopics, gateway_over, land_all, tables, until
from support.kafka_workers import processing
from support.lakes import completed, lake_sink, rows, sinking
from support.maven import UnavailableError
from support.processes import skip_or_fail
from support.sample_records import SampleMaker, lawful
from support.servers import Home, nursery
from support.servers import until as wait_until

from analytics.deletion.compaction import compact
from analytics.deletion.deleting import ERASURES
from analytics.deletion.text_keys import SECRET_BYTES, KeyTree, TextKeys, is_encrypted
from analytics.lake import HIDDEN, Lake
from analytics.lake_sql import LakeQueryLimits, fetch_from_lake
from analytics.store.store import Partition, Store
from audit.fingerprints import canonical_json
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.errors import BrokerError, SettingsError
from schemas.records import Anchor, JudgingRequest, Record, ScoringTask
from schemas.registry import topics
from streams.kafka import encryption as encryption_module
from streams.kafka.administration import TopicAdministration, partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import TextEncryption
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.reading import POLL_SECONDS, PartitionReader, RawRecord, keep_encrypted
from streams.kafka.sink import rebuild
from streams.kafka.states import StateTopic, StoredState
from streams.kafka.topics import KEYS_SEGMENT_SECONDS, TEXT_KEYS, TOPICS
from streams.lake.history import LakeHistory
from streams.lake.maintenance import LakeMaintenance
from streams.stage_batches import decode_exchange
from streams.upkeep.deletion import ENCRYPTED_TOPICS, ErasureTask, erasure, erasures, request_erasure

SECRET = bytes(range(SECRET_BYTES))
REDACTOR = Redactor(Policy().redaction)
GONE, KEPT = "session-to-be-erased", "session-to-be-kept"
GONE_TEXT, KEPT_TEXT, PLAIN_TEXT = "Xq7Zgone", "Xq7Zkept", "Xq7Zplain"
USAGE = 2
"""The exit code for a setting that is missing."""
COMPUTED_BY_A_SERVER = {"failure_groups", "daily_failures"}
SOON = {"segment.ms": "100", "max.compaction.lag.ms": "100", "file.delete.delay.ms": "0"}


@pytest.fixture
def secret_kafka(kafka: KafkaConnection, make_topics: MakeTopics) -> KafkaConnection:
    """Return a connection that encrypts, with all topics."""
    make_topics(*topics(), "intake-state", "diagnosis-state", partitions=2)
    make_topics(TEXT_KEYS, partitions=1, configs={"cleanup.policy": "compact"})
    return dataclasses.replace(kafka, text_secret=SECRET)


@pytest.fixture
def bare_broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker of the test's own that stores batches uncompressed, so that its files can be searched."""
    try:
        started = Broker(tmp_path / "kafka", options=quick(), properties="compression.type=uncompressed\n")
        started.start()
    except UnavailableError as error:
        skip_or_fail(str(error))
    yield started
    started.kill()


async def raw_records(connection: KafkaConnection) -> dict[Partition, list[RawRecord]]:
    """Return every record of the topics as the broker has it."""
    names = [name for name in TOPICS if name in {*topics(), "intake-state", "diagnosis-state"}]
    partitions = await asyncio.to_thread(partitions_on, connection, names)
    records: dict[Partition, list[RawRecord]] = {}
    async with PartitionReader(connection, keep_encrypted) as reader:
        for partition, (beginning, end) in (await reader.ranges(partitions)).items():
            async with aclosing(reader.read_until(partition, beginning, end)) as batches:
                records[partition] = [record async for batch, _ in batches for record in batch]
    return records


def files_with(folder: Path, content: bytes) -> list[str]:
    """Return the files of a folder that have these bytes."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and content in path.read_bytes():
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:  # the broker deletes segments meanwhile
            continue
    return found


def tables_with(store: Store, text: str) -> list[str]:
    """Return the tables that have a text."""
    return [name for name, rows in tables(store).items() if text in repr(rows)]


def valid(record: Record) -> Record:
    """Return the record as valid input of a topic, with the exchange that it carries."""
    changed = lawful(record)
    if not isinstance(record, Anchor | JudgingRequest | ScoringTask):
        return changed  # type: ignore[no-any-return]
    carried = decode_exchange(record.exchange)
    shared = {name: getattr(carried, name) for name in ("connection", "project", "exchange_id")}
    return msgspec.structs.replace(changed, exchange=record.exchange, **shared)  # type: ignore[no-any-return]


async def send(encryption: TextEncryption | None, connection: KafkaConnection, records: Sequence[tuple[str, Record]]) -> None:
    """Produce records to their topics."""
    producer = RecordProducer(connection, encryption=encryption)
    await producer.start()
    for topic, record in records:
        await producer.send(topic, [(key_of(record), encode(valid(record)))])
    await producer.stop()


async def started(connection: KafkaConnection, *, keeps_keys: bool = False) -> TextEncryption:
    """Return the started encryption of a connection."""
    encryption = TextEncryption(connection, SECRET, keeps_keys=keeps_keys)
    await encryption.start()
    return encryption


def test_no_byte_of_a_session_is_readable_on_a_broker_and_no_key_is_left_after_an_erasure(
    bare_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker is in every text that can belong to a session: no file of the broker, of the workers or of the database has it.

    After the erasure the broker deletes the seeds of its key from its files, and what is left derives no key that decrypts a value.
    """
    connection = KafkaConnection(bare_broker.bootstrap, text_secret=SECRET)
    spec = TOPICS[TEXT_KEYS]
    with TopicAdministration(
        connection, {**TOPICS, TEXT_KEYS: dataclasses.replace(spec, config={**spec.config, **SOON})}
    ) as admin:
        admin.create(2)
    samples = SampleMaker(7)
    monkeypatch.setattr(encryption_module, "KEYS_SEGMENT_SECONDS", 0.5)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "workers"))
    (tmp_path / "workers").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    database = tmp_path / "database" / "fleet.duckdb"
    database.parent.mkdir()
    broker_files = tmp_path / "kafka"

    async def run(store: Store) -> None:
        worker_encryption = await started(connection)
        async with gateway_over(store, connection) as gateway, processing(connection, encryption=worker_encryption):
            log = gateway._log
            encryption = log.encryption  # type: ignore[attr-defined]
            before = seeds_of(encryption.keys, [encryption.keys.erased_leaf("local", GONE)])
            await send(encryption, connection, records_of_session(samples, GONE, GONE_TEXT))
            await send(encryption, connection, records_of_session(samples, KEPT, KEPT_TEXT))
            await send(None, connection, [("exchanges", exchange("plain", 1, PLAIN_TEXT))])
            rows = "SELECT count(*) FROM log.{}"
            await until(
                lambda: (
                    not gateway.state().queues["sink"]
                    and store.cursor().execute(rows.format("diagnoses")).fetchall()[0][0] >= 2
                ),
                "the records to land",
            )
            for text in (GONE_TEXT, KEPT_TEXT):
                assert files_with(broker_files, text.encode()) == []
                assert files_with(tmp_path / "workers", text.encode()) == []
                assert len(tables_with(store, text)) >= 10
            assert files_with(broker_files, PLAIN_TEXT.encode()), "the search finds what is not encrypted"
            assert all(files_with(broker_files, seed) for seed in before)

            await request_erasure(gateway, erasure("local", GONE, "root", None, gateway.now()))
            await until(lambda: erasures(store), "the request to land")
            await until(lambda: gateway.state().ready, "the gateway")
            await ErasureTask(gateway).run()
            assert tables_with(store, GONE_TEXT) == []
            await until(lambda: worker_encryption.keys.is_erased(f"local/{GONE}".encode()), "the worker to know")
            await until(lambda: not any(files_with(broker_files, seed) for seed in before), "the broker to delete the seeds")
            # What belongs to no session is told apart from what does.
            stored = await raw_records(connection)
            await send(encryption, connection, [("agent-events", event(GONE, 9)), ("agent-events", event(KEPT, 9))])
            assert sum(map(len, (await raw_records(connection)).values())) >= sum(map(len, stored.values())) + 1
            await check_values(connection)
        await worker_encryption.stop()

    with Store(database) as store:
        asyncio.run(run(store))
    compact(database)
    assert files_with(database.parent, GONE_TEXT.encode()) == []
    assert files_with(database.parent, KEPT_TEXT.encode()) == ["fleet.duckdb"]
    assert files_with(broker_files, KEPT_TEXT.encode()) == []


def seeds_of(keys: TextKeys, leaves: Sequence[int]) -> list[bytes]:
    """Return the seeds, as they are stored, from which the leaves are derived."""
    seeds = []
    for tree in keys.trees.values():
        for leaf in leaves:
            node = tree._covering_node(leaf)
            assert node is not None
            seeds.append(node[2])
    return seeds


async def check_values(connection: KafkaConnection) -> None:
    """Check that no remaining key decrypts a value of the erased session, and that each other value is decrypted."""
    fresh = await started(connection)
    decrypted, forgotten = [], 0
    for (topic, _), records in (await raw_records(connection)).items():
        for record in records:
            if is_encrypted(record.value):
                value = fresh.decrypt_value(topic, record.key or b"", record.value or b"")
                forgotten += value is None
                decrypted.append(value or b"")
    await fresh.stop()
    assert forgotten > 15
    assert not [value for value in decrypted if GONE_TEXT.encode() in value]
    assert [value for value in decrypted if KEPT_TEXT.encode() in value]


def test_an_erased_session_is_skipped_by_every_reader_and_is_no_dead_letter(secret_kafka: KafkaConnection) -> None:
    """A rebuild from the topics skips what nobody can decrypt, redacts incidents, and reads all the rest, encrypted or not."""

    async def run(store: Store) -> None:
        encryption = await started(secret_kafka, keeps_keys=True)
        evidence = {
            "rule": "r",
            "exchanges": [{"connection": "local", "sessionId": name, "reason": name} for name in (GONE, KEPT)],
        }
        moved = incident(metadata=canonical_json(evidence))
        exchanges = [("exchanges", exchange(name, number)) for name in (GONE, KEPT) for number in (1, 2)]
        await send(encryption, secret_kafka, [*exchanges, ("incidents", moved)])
        await send(None, secret_kafka, [("exchanges", exchange("plain", 1))])
        await land_all(store, secret_kafka, encryption=encryption)
        assert column(store, "exchanges") == ["plain", GONE, GONE, KEPT, KEPT]
        assert column(store, "incidents", "metadata") == [moved.metadata]

        await send(encryption, secret_kafka, [(ERASURES, erasure("local", GONE, "root", None, NOW))])
        await until(lambda: encryption.keys.is_erased(f"local/{GONE}".encode()), "the erasure")
        # Neither the producer that knows of the erasure nor one that does not encrypt brings the session back.
        await send(encryption, secret_kafka, [("exchanges", exchange(GONE, 3))])
        await send(None, secret_kafka, [("exchanges", exchange(GONE, 4))])
        assert await rebuild(store, secret_kafka, REDACTOR, TickingClock(NOW)) == 3
        assert column(store, "exchanges") == ["plain", KEPT, KEPT]
        assert column(store, "dead_letters", "reason") == []
        redacted = {"rule": "r", "exchanges": [{"erased": True}, evidence["exchanges"][1]]}
        assert column(store, "incidents", "metadata") == [canonical_json(redacted)]
        await encryption.stop()

        fresh = await started(secret_kafka)
        async with PartitionReader(secret_kafka, fresh.decrypt) as reader:
            for partition, (beginning, end) in (await reader.ranges([("exchanges", 0), ("exchanges", 1)])).items():
                async for _ in reader.read_until(partition, beginning, end):
                    pass
        assert fresh.erased == {"exchanges": 3}
        await fresh.stop()

    with Store(None) as store:
        asyncio.run(run(store))


@pytest.mark.parametrize("session_id", [GONE, None])
def test_a_copy_of_a_lake_loses_the_texts_of_an_erased_session(
    secret_kafka: KafkaConnection, tmp_path: Path, session_id: str | None
) -> None:
    """No file of a lake has a text that can be read; a copy from before an erasure gives back all sessions but the erased one."""
    lake, copy = tmp_path / "lake", tmp_path / "copy"

    async def filled_from(history: LakeHistory | None) -> dict[str, list[tuple[Any, ...]]]:
        encryption = await started(secret_kafka)
        with Store(None) as store:
            await land_all(store, secret_kafka, encryption=encryption, history=history)
            await encryption.stop()
            return {name: rows for name, rows in tables(store).items() if name not in {"watermarks", "dead_letters"}}

    async def run() -> None:
        encryption = await started(secret_kafka)
        for name, text in ((GONE, GONE_TEXT), (KEPT, KEPT_TEXT)):
            await send(encryption, secret_kafka, records_with_texts(name, text))
        await send(None, secret_kafka, [("exchanges", exchange("plain", 1, PLAIN_TEXT))])
        upkeep = LakeMaintenance(str(lake), Policy(), lambda: NOW)
        async with sinking(lake, secret_kafka, maintenance=upkeep) as sink:
            await completed(lake, secret_kafka, sink)
            shutil.copytree(lake, copy)
            assert [text for text in (GONE_TEXT, KEPT_TEXT, PLAIN_TEXT) if text in texts_in(lake)] == []
            assert KEPT in texts_in(lake)
            answers = query(lake, "SELECT DISTINCT user_message, agent_response FROM exchanges")
            assert answers == [(HIDDEN, HIDDEN)]
            views = [name for (name,) in query(lake, "SELECT name FROM (SHOW TABLES)") if name not in COMPUTED_BY_A_SERVER]
            assert len(views) > 20
            assert [name for name in views if KEPT_TEXT in repr(query(lake, f"SELECT * FROM {name}"))] == []
            from_topics = await filled_from(None)
            assert GONE_TEXT in repr(from_topics)
            assert await filled_from(LakeHistory(Lake(str(copy)))) == from_topics
            without_key = LakeHistory(Lake(str(copy)))
            with pytest.raises(SettingsError, match="are encrypted"):
                list(without_key.batches({}, without_key.ends(await asyncio.to_thread(partitions_on, secret_kafka, topics()))))

            await send(encryption, secret_kafka, [(ERASURES, erasure("local", session_id, "root", None, NOW))])
            await until(lambda: encryption.keys.is_erased(f"local/{GONE}".encode()), "the erasure")
            # Dead letters that do not name their session are the last to be found.
            await until(lambda: encryption.keys.is_erased(f"letter {GONE} unread".encode()), "their keys to be forgotten")
            await until(lambda: GONE not in sessions_in(lake), "the lake to erase")
        from_copy = await filled_from(LakeHistory(Lake(str(copy))))
        assert [name for name, table in from_copy.items() if GONE_TEXT in repr(table)] == []
        assert (KEPT_TEXT in repr(from_copy)) == (session_id is not None)
        await encryption.stop()

    asyncio.run(run())


def records_with_texts(session: str, text: str) -> list[tuple[str, Record]]:
    """Return records that have a text in each column of the lake with texts of sessions."""
    spoken = exchange(session, 1, f"{text} answer", user_message=f"{text} asks", agent_thinking=f"{text} thinks")
    judged = score(session, 1, tier2_flag_reason=f"{text} flagged", anomaly_reasons=(f"{text} odd",))
    referring = records_referring_to(SampleMaker(7), spoken, judged, text)
    return [
        ("exchanges", spoken),
        ("scores", judged),
        ("judgements", judgement(session, 1, answer=f"{text} said", error=text)),
        ("agent-events", event(session, 1, type="tool_call", note=text)),
        # The evaluation to which one of the reviews refers is not there.
        *(pair for pair in referring if not getattr(pair[1], "subject_id", "").startswith("evaluation")),
    ]


def query(lake: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement over a lake."""
    return list(fetch_from_lake(Lake(str(lake)), statement, 100, LakeQueryLimits()).frame.rows())


def texts_in(lake: Path) -> str:
    """Return everything that is in the files of a lake."""
    files = [path for path in lake.rglob("*") if path.is_file()]
    return "".join(
        repr(pl.read_parquet(path).rows()) if path.suffix == ".parquet" else path.read_bytes().decode("latin-1")
        for path in files
    )


def column(store: Store, table: str, name: str = "session_id") -> list[str]:
    """Return a column of a log table."""
    return [value for (value,) in store.cursor().execute(f"SELECT {name} FROM log.{table} ORDER BY ALL").fetchall()]


def test_an_interrupted_erasure_is_completed_by_the_next_process(secret_kafka: KafkaConnection) -> None:
    """A process that was killed after it had stored the leaf leaves a part that still derives its key."""
    leaf = TextKeys(SECRET).erased_leaf("local", GONE)

    async def run() -> None:
        killed = await started(secret_kafka)
        await killed._send([(encryption_module._LEAF_KEY.pack(b"E", leaf), b"\1")])
        await killed.stop()
        assert await has_key(secret_kafka, leaf)
        completing = await started(secret_kafka, keeps_keys=True)
        await completing.stop()
        assert not await has_key(secret_kafka, leaf)
        repeating = await started(secret_kafka, keeps_keys=True)
        end = dict(repeating._positions)
        await repeating.stop()
        again = await started(secret_kafka, keeps_keys=True)
        assert again._positions == end, "a completed erasure writes nothing more"
        await again.stop()

    asyncio.run(run())


async def has_key(connection: KafkaConnection, leaf: int) -> bool:
    """Return whether the newest parts on the topic derive a leaf, whatever the erased leaves are."""
    buckets: dict[bytes, bytes] = {}
    async with PartitionReader(connection, keep_encrypted) as reader:
        ((partition, (beginning, end)),) = (await reader.ranges([(TEXT_KEYS, 0)])).items()
        async for records, _ in reader.read_until(partition, beginning, end):
            buckets |= {record.key: record.value or b"" for record in records if record.key and record.key[:1] == b"S"}
    tree = KeyTree(b"tree", {int.from_bytes(key[-2:], "big"): bucket for key, bucket in buckets.items()})
    assert tree.is_complete
    return tree.value(leaf) is not None


def test_a_record_that_begins_no_segment_is_followed_by_another(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our clock may be ahead of the broker's, which begins a segment by its own; without one it keeps the replaced seeds."""
    make_topics(TEXT_KEYS, partitions=1, configs={"cleanup.policy": "compact"})
    make_topics(ERASURES, partitions=1)
    monkeypatch.setattr(encryption_module, "time", SimpleNamespace(time=lambda: time.time() + 2 * KEYS_SEGMENT_SECONDS))

    async def run() -> None:
        encryption = await started(dataclasses.replace(kafka, text_secret=SECRET), keeps_keys=True)
        await encryption.catch_up()
        async with PartitionReader(encryption._connection, keep_encrypted) as reader:
            ((partition, (beginning, end)),) = (await reader.ranges([(TEXT_KEYS, 0)])).items()
            keys = [record.key async for records, _ in reader.read_until(partition, beginning, end) for record in records]
        assert encryption_module._ROLL in keys
        assert encryption._rolls_at is not None
        # The broker's clock is now past the hour.
        encryption._note_change(encryption._changed_at + KEYS_SEGMENT_SECONDS + 1, is_roll=True)
        assert encryption._rolls_at is None
        await encryption.stop()

    asyncio.run(run())


def test_no_new_keys_are_created_over_damaged_ones(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The proof is written last: where it is, every part was there, and something has deleted some of them."""
    make_topics(TEXT_KEYS, partitions=1, configs={"cleanup.policy": "compact"})
    connection = dataclasses.replace(kafka, text_secret=SECRET)

    async def run() -> None:
        damaging = TextEncryption(connection, SECRET)
        await damaging._send([(encryption_module._PROOF + b"tree", damaging.keys.proof(b"tree"))])
        await damaging.stop()
        with pytest.raises(SettingsError, match="1024 of the 1024 parts"):
            await started(connection)

    asyncio.run(run())


def test_records_are_read_again_if_their_keys_could_not_be_read(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The client is past records that it has delivered: without another read they would be lost."""
    make_topics("exchanges", partitions=1)
    failures = [BrokerError("the broker is away")]

    async def decrypt(_: str, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
        if failures:
            raise failures.pop()
        return records

    async def read_two(reader: PartitionReader) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < 2:
            offsets += [record.offset for chunk in (await reader.read(1, POLL_SECONDS)).chunks for record in chunk.records]
        return offsets

    async def run() -> None:
        await send(None, kafka, [("exchanges", exchange("s", number)) for number in (1, 2)])
        async with PartitionReader(kafka, decrypt) as reader:
            reader.read_from({("exchanges", 0): 0})
            with pytest.raises(BrokerError):
                await read_two(reader)
            assert await read_two(reader) == [0, 1]

    asyncio.run(run())


def test_concurrent_first_starts_and_erasures_agree(secret_kafka: KafkaConnection) -> None:
    """Several processes may create trees at once, and each decrypts what the others encrypt; so do their erasures converge."""

    async def run() -> None:
        processes = await asyncio.gather(*(started(secret_kafka, keeps_keys=True) for _ in range(3)))
        for number, process in enumerate(processes):
            await send(process, secret_kafka, [("exchanges", exchange(f"s{number}", 1))])
        exchanges = {
            partition: records
            for partition, records in (await raw_records(secret_kafka)).items()
            if partition[0] == "exchanges"
        }
        for process in processes:
            decrypted = [await process.decrypt(topic, records) for (topic, _), records in exchanges.items()]
            assert sorted(decode(record.value or b"").session_id for records in decrypted for record in records) == [
                "s0",
                "s1",
                "s2",
            ]  # type: ignore[attr-defined]
        await asyncio.gather(*(process.forget([f"name {number}"]) for number, process in enumerate(processes)))
        leaves = [TextKeys(SECRET).session_leaf(f"name {number}".encode()) for number in range(3)]
        await until(
            lambda: all(process.keys.is_forgotten(leaf) for process in processes for leaf in leaves), "all to know all erasures"
        )
        for process in processes:
            await process.stop()
        last = await started(secret_kafka, keeps_keys=True)
        await last.stop()
        for tree in last.keys.trees.values():
            assert [tree.value(leaf) for leaf in leaves] == [None] * 3

    asyncio.run(run())


def test_a_process_without_the_right_key_is_refused(secret_kafka: KafkaConnection, admin: KafkaAdminClient) -> None:
    """Without a key, records must not become dead letters; with another key, nothing must be encrypted."""

    async def run(store: Store) -> None:
        encryption = await started(secret_kafka)
        await send(encryption, secret_kafka, [("exchanges", exchange("s", 1))])
        await encryption.stop()
        with pytest.raises(SettingsError, match="DRIFTLINE_TEXT_KEY_FILE"):
            await TextEncryption(secret_kafka, os.urandom(SECRET_BYTES)).start()
        without_key = dataclasses.replace(secret_kafka, text_secret=None)
        with pytest.raises(SettingsError, match="exchanges"):
            await land_all(store, without_key)
        assert column(store, "dead_letters", "reason") == []
        admin.delete_topics([secret_kafka.topic(TEXT_KEYS)])
        await until(lambda: secret_kafka.topic(TEXT_KEYS) not in admin.list_topics(), "the topic to be deleted")
        with pytest.raises(SettingsError, match=TEXT_KEYS):
            await started(secret_kafka)

    with Store(None) as store:
        asyncio.run(run(store))


def test_a_producer_without_a_key_is_refused_by_an_installation_that_encrypts(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """It would write texts that everybody can read, for as long as it reads no encrypted record."""
    make_topics(*topics(), "intake-state", "diagnosis-state", partitions=1)

    async def send_plain() -> None:
        await send(None, kafka, [("exchanges", exchange("plain", 1))])

    async def start_lake() -> None:
        sink = lake_sink(tmp_path / "lake", kafka)
        try:
            await sink.start()
        finally:
            await sink.stop()

    async def start_server() -> None:
        with Store(None) as store:
            async with gateway_over(store, kafka):
                pass

    async def encrypt() -> None:
        await (await started(dataclasses.replace(kafka, text_secret=SECRET))).stop()

    asyncio.run(send_plain())
    make_topics(TEXT_KEYS, partitions=1, configs={"cleanup.policy": "compact"})
    asyncio.run(send_plain())
    asyncio.run(encrypt())
    for produce in (send_plain, start_lake, start_server):
        with pytest.raises(SettingsError, match="DRIFTLINE_TEXT_KEY_FILE"):
            asyncio.run(produce())
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    with nursery() as children:
        code, _ = children.run(home, "worker", "--stages", "intake", "--kafka", kafka.bootstrap)
    assert (code, "DRIFTLINE_TEXT_KEY_FILE" in home.log.read_text()) == (USAGE, True), home.log.read_text()
    counts_by_topic = {topic: len(records) for (topic, _), records in asyncio.run(raw_records(kafka)).items() if records}
    assert counts_by_topic == {"exchanges": 2}


def test_a_lake_is_complete_when_only_records_of_erased_sessions_are_left(
    secret_kafka: KafkaConnection, tmp_path: Path
) -> None:
    """Otherwise each start would read them again, and retention would report them as removed before they were read."""

    async def run() -> None:
        encryption = await started(secret_kafka, keeps_keys=True)
        await encryption.forget([f"local/{GONE}"])
        async with sinking(tmp_path / "lake", secret_kafka) as sink:
            await send(None, secret_kafka, [("exchanges", exchange(GONE, number)) for number in (1, 2)])
            await completed(tmp_path / "lake", secret_kafka, sink)
            assert sink.committed == 0
        await encryption.stop()

    asyncio.run(run())


def test_every_process_of_an_installation_encrypts(kafka: KafkaConnection, tmp_path: Path) -> None:
    """Server, workers and the sink of the lake get the key file as a setting; the answer to an erasure says what is left."""
    key_file = tmp_path / "text-key"
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix, DRIFTLINE_TEXT_KEY_FILE=str(key_file))
    broker = ("--kafka", kafka.bootstrap)
    with nursery() as children:
        code, printed = children.run(home, "text-key", str(key_file))
        assert code == 0
        code, again = children.run(home, "text-key", str(key_file), "--json")
        assert (code, json.loads(again)) == (0, {"fingerprint": printed.strip(), "file": str(key_file)})
        assert children.run(home, "topics", "create", *broker, "--partitions", "2")[0] == 0
        assert children.run(home, "topics", "check", *broker)[0] == 0
        server = children.serve(home, *broker)
        worker = children.start(home, "worker", *broker, "--stages", "intake,diagnosis")
        lake = children.start(home, "lake", "sink", str(tmp_path / "lake"), *broker, "--every", "0.1")
        url = server.serving()
        wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == httpx2.codes.OK, "the server to take records")
        sender, operator = bearer(home.connection("north")), bearer(home.operator())
        for name in (GONE, KEPT):
            body = exchange_body(name, 1, f"{GONE_TEXT if name == GONE else KEPT_TEXT} is healthy")
            assert httpx2.post(f"{url}/api/audit/ingest", json=body, headers=sender, timeout=60).status_code in {201, 202}
        connection = dataclasses.replace(kafka, text_secret=bytes.fromhex(key_file.read_text()))
        produced = {"exchanges": 2, "scoring-tasks": 2, "intake-state": 2}
        wait_until(lambda: counts(connection, produced) == produced, "the workers to decide")
        records = asyncio.run(raw_records(connection))
        assert [topic for (topic, _), batch in records.items() for record in batch if TEXTS & {*texts_of(record)}] == []
        assert all(is_encrypted(record.value) for (topic, _), batch in records.items() if topic in produced for record in batch)
        wait_until(lambda: sessions_in(tmp_path / "lake") == {GONE, KEPT}, "the lake to have the records")

        answer = httpx2.post(
            f"{url}/api/audit/erasures", json={"connection": "north", "session_id": GONE}, headers=operator, timeout=60
        )
        assert answer.status_code == httpx2.codes.ACCEPTED
        assert ENCRYPTED_TOPICS in answer.json()["remains"]
        wait_until(lambda: sessions_in(tmp_path / "lake") == {KEPT}, "the lake to erase")
        wait_until(lambda: asyncio.run(forgotten(connection)) == 3, "the keys to be forgotten")
        for child in (lake, worker, server):
            child.send(signal.SIGTERM)
            assert child.wait() == 0, child.logged[-4000:]
        assert children.run(home, "lake", "maintain", str(tmp_path / "lake"))[0] == USAGE, "it needs the cluster for the keys"
        assert "DRIFTLINE_KAFKA" in home.log.read_text()
        home.environment["DRIFTLINE_KAFKA"] = kafka.bootstrap
        code, printed = children.run(home, "lake", "maintain", str(tmp_path / "lake"), "--json")
        assert (code, json.loads(printed)["erased"]) == (0, {})
        code, printed = children.run(home, "rebuild", *broker)
        assert code == 0, home.log.read_text()[-4000:]
        assert "of erased sessions" in home.log.read_text()
        with Store(home.database) as store:
            assert column(store, "exchanges") == [KEPT]
            assert column(store, "dead_letters", "reason") == []


TEXTS = {GONE_TEXT, KEPT_TEXT}


def texts_of(record: RawRecord) -> set[str]:
    """Return the markers that can be read in a record."""
    return {text for text in TEXTS if text.encode() in (record.value or b"") + (record.key or b"")}


def counts(connection: KafkaConnection, wanted: Collection[str]) -> dict[str, int]:
    """Return the numbers of records on topics."""
    records = asyncio.run(raw_records(connection))
    return {name: sum(len(batch) for (topic, _), batch in records.items() if topic == name) for name in wanted}


def sessions_in(root: Path) -> set[str]:
    """Return the sessions with exchanges in a lake."""
    lake = Lake(str(root))
    return {*rows(root, "Exchange")["session_id"].to_list()} if lake.exists() else set()


async def forgotten(connection: KafkaConnection) -> int:
    """Count the values that no key is left for."""
    fresh = TextEncryption.of(connection)
    assert fresh is not None
    await fresh.start()
    values = [
        fresh.decrypt_value(topic, record.key or b"", record.value or b"")
        for (topic, _), records in (await raw_records(connection)).items()
        for record in records
    ]
    await fresh.stop()
    return sum(value is None for value in values)


def test_states_are_encrypted_on_the_topic_and_on_the_worker_s_disk(secret_kafka: KafkaConnection) -> None:
    """The state of a session holds its exchanges; that of an erased session is gone, and none is saved."""
    state = StoredState(0, b"", GONE_TEXT.encode())

    async def run() -> None:
        encryption = await started(secret_kafka, keeps_keys=True)
        producer = RecordProducer(secret_kafka, encryption=encryption)
        topics_of_states = [StateTopic(secret_kafka, "intake", producer, encryption=encryption) for _ in range(2)]
        saved, loaded = topics_of_states
        key = f"local/{GONE}"
        await saved.save(0, {key: state, f"local/{KEPT}": state})
        await loaded.load(0)
        for topic in topics_of_states:
            assert topic.get(0, [key]) == {key: state}
            (on_disk,) = topic._local.get(0, [key.encode()]).values()
            assert is_encrypted(on_disk)
            assert GONE_TEXT.encode() not in on_disk
        await encryption.forget([key])
        await saved.save(0, {key: state})
        await loaded.load(0)
        for topic in topics_of_states:
            assert topic.get(0, [key, f"local/{KEPT}"]) == {f"local/{KEPT}": state}
            topic.close()
        stored = (await raw_records(secret_kafka))["intake-state", 0]
        assert [record.key for record in stored] == [key.encode(), f"local/{KEPT}".encode()]
        await producer.stop()
        await encryption.stop()

    asyncio.run(run())
