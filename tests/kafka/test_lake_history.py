"""A database is filled from a lake and its topics as it would be from topics that had kept everything."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from support.builders import event, exchange, score
from support.clocks import NOW
from support.kafka_sinks import MakeTopics, fill, land_all, produce, producing, sink_over, tables
from support.kafka_workers import contents
from support.lakes import fill_lake, put
from support.servers import Child, Home, Nursery, nursery, until

from analytics.lake import Lake, no_records, rows_of
from analytics.store.store import Partition, Store
from schemas.codec.single_object import decode
from schemas.errors import LakeError, SettingsError
from schemas.registry import topics
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.sink import Batch, SinkWriter, rebuild
from streams.lake import history
from streams.lake.history import LakeHistory
from streams.log.admission import DEAD_LETTERS
from streams.log.log import SINK
from streams.upkeep.deletion import erase, erasure

OWN = {"watermarks", "stage_state"}
"""Tables that say how a database got its rows."""


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of servers."""
    with nursery() as opened:
        yield opened


def history_in(root: Path) -> LakeHistory:
    """Return the history in a lake."""
    return LakeHistory(Lake(str(root)))


def remove_all(kafka: KafkaConnection) -> None:
    """Remove every record from the topics, as retention does."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
        partitions = partitions_on(kafka, topics())
        admin.delete_records({TopicPartition(kafka.topic(topic), number): -1 for topic, number in partitions})


def records_in(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every table, apart from those that say how they came."""
    return {table: rows for table, rows in tables(store).items() if table not in OWN}


def positions_in(store: Store) -> dict[Partition, int]:
    """Return the positions from which the sink reads on, without dead letters: each sink produces those that it makes again."""
    with store.transaction() as transaction:
        return {partition: end for partition, end in transaction.watermarks(SINK).items() if partition[0] != DEAD_LETTERS}


def test_a_database_from_the_lake_equals_one_from_the_topics(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """Identities, conflicts, run numbers and outlines come from the same code, also where the topics have lost everything."""
    make_topics(*topics())

    async def run(first: Store, second: Store) -> None:
        async with producing(kafka) as producer:
            await fill(producer)
            await land_all(first, kafka)
            await fill_lake(tmp_path, kafka)
            await asyncio.to_thread(remove_all, kafka)
            await produce(producer, "exchanges", [exchange("later", 1)])
        await land_all(first, kafka)
        await land_all(second, kafka, history=history_in(tmp_path))

    with Store(None) as first, Store(None) as second:
        asyncio.run(run(first, second))
        expected = records_in(first)
        assert ("later:1",) in second.cursor().execute("SELECT exchange_id FROM exchanges").fetchall()
        assert expected["run_numbers"]
        assert expected["incident_outlines"]
        assert records_in(second) == expected
        assert positions_in(second) == positions_in(first)


def test_conflicts_in_the_lake_are_the_dead_letters_of_the_topics(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """The first database over a lake must report what contradicts an earlier record, under the id that any sink would give it."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> set[str]:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [exchange("s", 1), exchange("s", 1, "No.", content_digest="f" * 16)])
        await fill_lake(tmp_path, kafka)
        await land_all(store, kafka, history=history_in(tmp_path))
        with Store(None) as other:
            await land_all(other, kafka)
        return {decode(record.value).dead_letter_id for record in await contents(kafka, "dead-letters", 1)}  # type: ignore[attr-defined]

    with Store(None) as store:
        letters = asyncio.run(run(store))
        stored = store.cursor().execute("SELECT dead_letter_id, reason, position FROM dead_letters").fetchall()
        assert stored == [(letters.pop(), "conflicting_id", 1)]
        assert not letters


def test_an_interrupted_fill_continues_where_it_stopped(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start without the lake must report what is missing, and a start with it must write the rest once."""
    make_topics(*topics(), partitions=2)
    monkeypatch.setattr(history, "BATCH_ROWS", 20)
    write, written = SinkWriter.write_batches, list[str]()

    def write_some(self: SinkWriter, batches: Sequence[Batch], positions: Mapping[Partition, int]) -> None:
        if len(written) == 8:
            raise RuntimeError("killed")
        write(self, batches, positions)
        written.append(batches[0].topic)

    async def run(first: Store, second: Store) -> None:
        async with producing(kafka) as producer:
            await fill(producer)
        await land_all(first, kafka)
        await fill_lake(tmp_path, kafka)
        await asyncio.to_thread(remove_all, kafka)
        with monkeypatch.context() as patch:
            patch.setattr(SinkWriter, "write_batches", write_some)
            with pytest.raises(RuntimeError, match="killed"):
                await land_all(second, kafka, history=history_in(tmp_path))
        assert len(written) == 8
        assert len(positions_in(second)) == 2 * len(topics()) - 2
        await land_all(second, kafka, history=history_in(tmp_path))

    with Store(None) as first, Store(None) as second:
        asyncio.run(run(first, second))
        assert records_in(second) == records_in(first)
        assert positions_in(second) == positions_in(first)


def test_a_lake_that_cannot_be_read_is_tried_again(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink of the lake may replace files while they are read."""
    make_topics(*topics(), partitions=1)
    read, failed = Lake.read, list[str]()

    def fail_once(self: Lake, name: str, condition: str) -> Any:
        if not failed:
            failed.append(name)
            raise LakeError("the file is gone")
        return read(self, name, condition)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", number) for number in range(5)])
        await fill_lake(tmp_path, kafka)
        await asyncio.to_thread(remove_all, kafka)
        monkeypatch.setattr(Lake, "read", fail_once)
        await land_all(store, kafka, history=history_in(tmp_path))

    with Store(None) as store:
        asyncio.run(run(store))
        assert failed
        assert store.count("agent_events") == 5
        assert store.count("dead_letters") == 0


def test_a_session_that_was_erased_is_not_filled_in_again(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """A lake without upkeep still has the rows, and the tables must not get them."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [exchange("erased", 1), exchange("kept", 1)])
            await produce(producer, "erasures", [erasure("local", "erased", "root", None, NOW)])
        await fill_lake(tmp_path, kafka)
        await land_all(store, kafka, history=history_in(tmp_path))
        erase(store, NOW)

    with Store(None) as store:
        asyncio.run(run(store))
        assert store.cursor().execute("SELECT session_id FROM exchanges").fetchall() == [("kept",)]


def test_a_lake_of_other_topics_is_refused(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """Its offsets would be taken for those of the topics."""
    make_topics(*topics(), partitions=1)
    lake = Lake(str(tmp_path / "lake"))
    lake.create()
    lake.commit("Score", rows_of("Score", "scores", no_records("Score")), {("scores", 0): 7})
    with Store(None) as store:
        with pytest.raises(SettingsError, match="scores"):
            asyncio.run(land_all(store, kafka, history=LakeHistory(lake)))
        with pytest.raises(LakeError, match="not a lake"):
            asyncio.run(land_all(store, kafka, history=history_in(tmp_path / "none")))
        assert positions_in(store) == {}


def test_a_rebuild_reads_the_lake_and_then_the_topics(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """Rows that only the lake still has are written again too; rows from before the lake are kept."""
    make_topics(*topics(), partitions=1)

    async def run(store: Store) -> list[Any]:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event("s", number) for number in range(10)])
            await land_all(store, kafka)
            with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
                admin.delete_records({TopicPartition(kafka.topic("agent-events"), 0): 3})
            await fill_lake(tmp_path, kafka)
            await asyncio.to_thread(remove_all, kafka)
            await produce(producer, "agent-events", [event("s", number) for number in range(10, 15)])
        await land_all(store, kafka)
        before = records_in(store)["agent_events"]
        cursor = store.cursor()
        cursor.execute("UPDATE log.agent_events SET event = 'damaged'")
        sink = sink_over(store, kafka)
        await rebuild(store, kafka, sink.writer._redactor, lambda: NOW, history=history_in(tmp_path))
        return before

    with Store(None) as store:
        before = asyncio.run(run(store))
        after = records_in(store)["agent_events"]
        assert len(after) == len(before) == 15
        assert [row for row in after if "damaged" not in row] == [row for row in before if row[2] >= 3]
        assert store.count("dead_letters") == 0


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_fills_continues(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, children: Nursery
) -> None:
    """An empty server answers /readyz with what is left, and after kill -9 at any moment it ends up with every row once."""
    make_topics(*topics(), partitions=2)
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    lake, count = tmp_path / "lake", 3_000
    small = "import streams.lake.history as history; history.BATCH_ROWS = 100"

    async def prepare() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [event(f"s{number}", 1) for number in range(count)])
        await fill_lake(lake, kafka)
        await asyncio.to_thread(remove_all, kafka)

    asyncio.run(prepare())

    def start() -> Child:
        return children.serve(home, "--kafka", kafka.bootstrap, "--lake", str(lake), before=small)

    for _ in range(3):
        server = start()
        answer = httpx2.get(f"{server.serving()}/readyz", timeout=60)
        assert answer.status_code == 503, answer.text
        assert "records are left" in json.dumps(answer.json())
        server.kill()
    server = start()
    url = server.serving()
    until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == httpx2.codes.OK, "the server to be filled")
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    with Store(home.database) as store, closing(store.cursor()) as cursor:
        assert cursor.execute("SELECT count(*), count(DISTINCT session_id) FROM log.agent_events").fetchall() == [
            (count, count)
        ]
        assert store.count("dead_letters") == 0


def test_a_lake_without_kafka_is_refused(tmp_path: Path, children: Nursery) -> None:
    """The option would do nothing, silently."""
    home = Home(tmp_path)
    put(tmp_path / "lake", [("agent-events", event("s", 1))])
    for command in (("serve", "--port", "0"), ("rebuild",)):
        code, _ = children.run(home, *command, "--lake", str(tmp_path / "lake"))
        assert code == 2
    assert home.log.read_text().count("DRIFTLINE_LAKE") == 2


@pytest.mark.slow
def test_a_server_keeps_hot_days_and_fetches_the_others(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, children: Nursery
) -> None:
    """From an empty folder: fill, cool, and answer for a session of seven weeks ago as if it had never left."""
    make_topics(*topics(), partitions=2)
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    now = datetime.now(UTC)
    times = {"old": now - timedelta(days=50), "other": now - timedelta(days=40), "new": now - timedelta(minutes=5)}

    async def prepare() -> None:
        async with producing(kafka) as producer:
            for name, at in times.items():
                await produce(producer, "exchanges", [exchange(name, 1, f"Done by {name}.", occurred_at=at, ingested_at=at)])
                await produce(producer, "scores", [score(name, 1, exchange_at=at, scored_at=at)])
        await fill_lake(tmp_path / "lake", kafka)
        await asyncio.to_thread(remove_all, kafka)

    asyncio.run(prepare())
    server = children.serve(home, "--kafka", kafka.bootstrap, "--lake", str(tmp_path / "lake"), "--hot-days", "30")
    url = server.serving()
    counted = ("sql", "SELECT string_agg(session_id, ' ' ORDER BY session_id) AS names FROM exchanges", "--csv")
    until(lambda: children.run(home, *counted) == (0, "names\nnew\n"), "the old session to leave")
    headers = {"Authorization": f"Bearer {home.operator()}"}
    answer = httpx2.get(f"{url}/api/audit/ops/sessions/old", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "Done by old." in answer.text
    until(lambda: children.run(home, *counted) == (0, "names\nnew old\n"), "the old session to be back")
    day = f"{times['other']:%Y-%m-%d}"
    code, printed = children.run(home, "lake", "fetch", "--project", "ops", "--since", day, "--json")
    assert (code, json.loads(printed)) == (0, {"rows": 2})
    until(lambda: children.run(home, *counted) == (0, "names\nnew old other\n"), "the other session to be back")
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    assert children.run(home, "lake", "fetch", "--project", "ops", "--since", day)[0] == 2
    assert "driftline serve" in home.log.read_text()


def test_hot_days_that_mean_nothing_are_refused(tmp_path: Path, children: Nursery) -> None:
    """Without a lake nothing may leave, and without the days of the baseline incidents would compare with nothing."""
    home = Home(tmp_path)
    for options, message in (
        (("--hot-days", "30"), "DRIFTLINE_LAKE"),
        (("--hot-days", "30", "--lake", str(tmp_path / "lake")), "no Kafka cluster is named"),
        (("--hot-days", "20", "--lake", str(tmp_path / "lake"), "--kafka", "127.0.0.1:1"), "at least 21"),
    ):
        code, _ = children.run(home, "serve", "--port", "0", *options)
        assert code == 2
        assert message in home.log.read_text(), message
        home.log.write_text("")
