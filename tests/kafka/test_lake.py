"""The sink of the lake writes every record of every topic exactly once, whatever happens to its processes."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from support.builders import event, exchange
from support.clocks import NOW
from support.effort import times
from support.kafka_sinks import MakeTopics, fill, land_all, produce, producing, samples
from support.kafka_workers import contents, eventually
from support.lakes import TYPES, completed, digest, fill_lake, rows, sinking
from support.servers import Child, Home, Nursery, nursery, until

from analytics.lake import DAY, PROJECT, Lake, no_records, rows_of
from analytics.store.store import Partition, Store
from audit.policy import Policy
from schemas.errors import LakeError, SettingsError
from schemas.registry import schema_of, topics
from streams.kafka.connection import KafkaConnection
from streams.lake.maintenance import LakeMaintenance
from streams.upkeep.deletion import erasure

ROUNDS = times(3, soak=50)
SHORT_SESSION = "import streams.kafka.reading as reading; reading.SESSION_MILLISECONDS = 2_000"
"""A killed process loses its partitions after two seconds."""


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of sinks."""
    with nursery() as opened:
        yield opened


def produce_all(connection: KafkaConnection) -> None:
    """Fill the topics with records of each type, duplicates, conflicts, and invalid values."""

    async def run() -> None:
        async with producing(connection) as producer:
            await fill(producer)

    asyncio.run(run())


def test_every_record_is_a_row_with_its_origin(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """The lake must have what the tables of a database have, under the same names."""
    make_topics(*topics())
    produce_all(kafka)

    async def run() -> None:
        with Store(None) as store:
            await land_all(store, kafka)
            await fill_lake(tmp_path / "lake", kafka)
            for name in TYPES:
                schema = schema_of(name)
                columns = ", ".join(f'"{column}"' for column in ("_topic", "_partition", "_offset", *schema.identity))
                expected = store.cursor().execute(f"SELECT {columns} FROM log.{schema.table}").fetchall()
                actual = rows(tmp_path / "lake", name).select("_topic", "_partition", "_offset", *schema.identity)
                in_utc = [
                    tuple(value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value for value in row)
                    for row in actual.rows()
                ]
                assert expected
                assert set(expected) <= set(in_utc), name
                if schema.identity and not schema.has_revisions:
                    assert {row[3:] for row in expected} == {row[3:] for row in in_utc}, name

    asyncio.run(run())


def test_a_table_is_partitioned_by_project_and_day(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """Retention drops whole partitions, and a reader of one project and month opens only their files."""
    make_topics(*topics())
    produce_all(kafka)
    asyncio.run(fill_lake(tmp_path, kafka))
    for name in TYPES:
        table = Lake(str(tmp_path)).table(name)
        assert table.metadata().partition_columns == [PROJECT, DAY]
        folders = {Path(file).parent.relative_to(tmp_path / schema_of(name).table).as_posix() for file in table.file_uris()}
        assert all(folder.count("=") == 2 and "_day=2" in folder for folder in folders), name
    projects = set(rows(tmp_path, "Exchange")["project"].to_list())
    paths = DeltaTable(str(tmp_path / "exchanges")).file_uris()
    assert {path.split(f"{PROJECT}=")[1].split("/")[0] for path in paths} == projects


def test_an_unreadable_record_is_a_dead_letter_before_it_is_passed(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """A bad value must be found by its origin; a database that reads the same topics makes the same dead letter."""
    make_topics(*topics(), partitions=1)

    async def run() -> list[bytes]:
        async with producing(kafka) as producer:
            await producer.send("exchanges", [(b"k", b"hello")])
            await produce(producer, "exchanges", [exchange("s", 1)])
        await fill_lake(tmp_path, kafka)
        with Store(None) as store:
            await land_all(store, kafka)
            assert store.cursor().execute("SELECT dead_letter_id FROM dead_letters").fetchall() == [
                (rows(tmp_path, "DeadLetter")["dead_letter_id"][0],)
            ]
        return [record.value for record in await contents(kafka, "dead-letters", 1)]

    assert len(set(asyncio.run(run()))) == 1
    letters = rows(tmp_path, "DeadLetter")
    assert letters.select("source", "partition", "position", "reason", "body").rows()[0] == (
        "exchanges", 0, 0, "framing", b"hello",
    )  # fmt: skip
    assert rows(tmp_path, "Exchange")["exchange_id"].to_list() == ["s:1"]


def test_two_processes_share_the_partitions(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """More processes must take over a part of the work, and each record must still be one row."""
    make_topics(*topics(), partitions=4)
    first_count = 40

    async def run() -> None:
        async with producing(kafka) as producer, sinking(tmp_path / "lake", kafka) as first:
            await produce(producer, "agent-events", [event(f"s{number}", 1) for number in range(first_count)])
            await completed(tmp_path / "lake", kafka, first)
            async with sinking(tmp_path / "lake", kafka) as second:
                number = first_count
                async with asyncio.timeout(120):
                    while not second.committed or first.committed == first_count:
                        await produce(producer, "agent-events", [event(f"s{number}", 1)])
                        number += 1
                        await asyncio.sleep(0.01)
                await completed(tmp_path / "lake", kafka, first, second)
                assert first.committed + second.committed >= number
        await fill_lake(tmp_path / "alone", kafka)

    asyncio.run(run())
    assert digest(tmp_path / "lake") == digest(tmp_path / "alone")


def test_a_process_that_lost_its_partitions_writes_nothing(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """A process that was frozen between reading and committing must not repeat what its successor has committed."""
    make_topics(*topics(), partitions=1)

    async def run() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", samples("AgentEvent", 20))
        frozen = Lake(str(tmp_path))
        frozen.create()
        assert frozen.position("AgentEvent", ("agent-events", 0)) is None
        await fill_lake(tmp_path, kafka)
        late = rows(tmp_path, "AgentEvent")
        with pytest.raises(LakeError):
            frozen.commit("AgentEvent", late, {("agent-events", 0): 20})

    asyncio.run(run())
    assert rows(tmp_path, "AgentEvent").height == 20


def test_a_failed_commit_that_is_durable_is_not_repeated(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store may report a failure although it has the commit."""
    make_topics(*topics(), partitions=1)
    commit, failed = Lake.commit, list[str]()

    def fail_once(self: Lake, name: str, frame: pl.DataFrame, positions: Mapping[Partition, int]) -> None:
        commit(self, name, frame, positions)
        if name == "AgentEvent" and not failed:
            failed.append(name)
            raise LakeError("the connection was reset")

    monkeypatch.setattr(Lake, "commit", fail_once)

    async def run() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [*samples("AgentEvent", 20), *samples("SessionClosed", 5)])
        await fill_lake(tmp_path, kafka)

    asyncio.run(run())
    assert failed
    assert rows(tmp_path, "AgentEvent").height == 20
    assert rows(tmp_path, "SessionClosed").height == 5


def test_a_kill_between_the_tables_of_a_topic_doubles_nothing(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closings are in a table of their own: it may be ahead of the table of events."""
    make_topics(*topics(), partitions=1)
    commit, failed = Lake.commit, list[str]()

    def fail_before_the_main_table(self: Lake, name: str, frame: pl.DataFrame, positions: Mapping[Partition, int]) -> None:
        if name == "AgentEvent" and not failed:
            failed.append(name)
            raise LakeError("killed")
        commit(self, name, frame, positions)

    monkeypatch.setattr(Lake, "commit", fail_before_the_main_table)

    async def run() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", [*samples("SessionClosed", 5), *samples("AgentEvent", 20)])
        await fill_lake(tmp_path, kafka)

    asyncio.run(run())
    assert failed
    assert rows(tmp_path, "AgentEvent").height == 20
    assert rows(tmp_path, "SessionClosed").height == 5


def test_an_added_field_is_an_added_column(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """A new version adds fields; the lake must take them, and rows from before must stay readable beside an older version's."""
    make_topics(*topics(), partitions=1)
    lake = Lake(str(tmp_path))
    lake.create()
    uri = lake.uri("AgentEvent")
    older = rows_of("AgentEvent", "agent-events", no_records("AgentEvent")).drop("labels", "action")
    write_deltalake(uri, older, mode="overwrite", schema_mode="overwrite", partition_by=[PROJECT, DAY])
    assert "labels" not in DeltaTable(uri).schema().to_json()

    async def run() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", samples("AgentEvent", 20))
        await fill_lake(tmp_path, kafka)

    asyncio.run(run())
    newer = rows(tmp_path, "AgentEvent")
    assert newer.height == 20
    lake.reload()
    lake.commit("AgentEvent", newer.drop("labels", "action"), {("agent-events", 0): 40})
    assert pl.read_delta(uri)["labels"].null_count() == 20


def test_removed_records_are_reported(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """A sink that was away for longer than the topics keep records has a gap, which must be visible."""
    make_topics(*topics(), partitions=1)

    async def run() -> None:
        async with producing(kafka) as producer:
            await produce(producer, "agent-events", samples("AgentEvent", 10))
            await fill_lake(tmp_path, kafka)
            await produce(producer, "agent-events", samples("AgentEvent", 20))
            with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
                admin.delete_records({TopicPartition(kafka.topic("agent-events"), 0): 25})
            await fill_lake(tmp_path, kafka)

    asyncio.run(run())
    assert rows(tmp_path, "AgentEvent")["_offset"].to_list() == [*range(10), *range(25, 30)]
    letters = rows(tmp_path, "DeadLetter").select("dead_letter_id", "position", "reason").unique()
    assert letters.drop("dead_letter_id").rows() == [(10, "removed_by_retention")]


def test_topics_that_did_not_fill_the_lake_are_refused(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """Offsets of another cluster would silently leave records out."""
    make_topics(*topics(), partitions=1)
    lake = Lake(str(tmp_path))
    lake.create()
    lake.commit("Score", rows_of("Score", "scores", no_records("Score")), {("scores", 0): 7})
    with pytest.raises(SettingsError, match="scores"):
        asyncio.run(fill_lake(tmp_path, kafka))


def test_errors_name_what_is_missing(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, children: Nursery
) -> None:
    """A sink that cannot start must say what to do, and write nothing."""
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    silent = ("--kafka", "127.0.0.1:1")
    here = ("--kafka", kafka.bootstrap)
    no_extra = "import importlib.util as util; real = util.find_spec; util.find_spec = lambda name, *a: None if name == 'deltalake' else real(name, *a)"
    for root, options, before, message in (
        ("lake", silent, no_extra, "driftline[lake]"),
        ("lake", silent, "", "127.0.0.1:1"),
        ("lake", here, "", "driftline topics create"),
        ("other", here, "", "notes.txt"),
        ("file/lake", here, "", "file/lake"),
    ):
        if root == "other":
            make_topics(*topics())
        code, _ = children.run(home, "lake", "sink", str(tmp_path / root), *options, before=before)
        assert code == 2, home.log.read_text()
        assert message in home.log.read_text(), message
        home.log.write_text("")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_an_erasure_on_its_topic_is_carried_out(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, children: Nursery
) -> None:
    """Nobody starts a command for it: the sink that meets the request erases."""
    make_topics(*topics())
    lake = tmp_path / "lake"

    async def run() -> None:
        upkeep = LakeMaintenance(str(lake), Policy(), lambda: NOW)
        async with producing(kafka) as producer, sinking(lake, kafka, maintenance=upkeep) as sink:
            await produce(producer, "exchanges", [exchange("erased", 1), exchange("kept", 1)])
            await completed(lake, kafka, sink)
            assert rows(lake, "Exchange").height == 2
            await produce(producer, "erasures", [erasure("local", "erased", "root", None, NOW)])
            await eventually(lambda: rows(lake, "Exchange").height == 1, "the erasure")

    asyncio.run(run())
    assert rows(lake, "Exchange")["session_id"].to_list() == ["kept"]
    code, printed = children.run(Home(tmp_path), "lake", "maintain", str(lake), "--json")
    assert code == 0
    assert json.loads(printed)["erased"] == {}


def test_the_sink_with_the_first_partition_of_erasures_keeps_the_lake_in_order(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files must become large ones without a command, also while the sink goes on."""
    make_topics(*topics(), partitions=1)
    monkeypatch.setattr("streams.lake.sink.MAINTENANCE_SECONDS", 0.5)

    async def run() -> None:
        upkeep = LakeMaintenance(str(tmp_path), Policy(), lambda: NOW)
        async with producing(kafka) as producer, sinking(tmp_path, kafka, maintenance=upkeep) as sink:
            for number in range(5):
                await produce(producer, "agent-events", [event("s", number)])
                await completed(tmp_path, kafka, sink)
            table = Lake(str(tmp_path)).table("AgentEvent")

            def is_one_file() -> bool:
                table.update_incremental()
                return len(table.file_uris()) == 1

            await eventually(is_one_file, "the files to be compacted")

    asyncio.run(run())
    assert rows(tmp_path, "AgentEvent")["seq"].to_list() == [0, 1, 2, 3, 4]


def test_kills_lose_and_double_nothing(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path, children: Nursery
) -> None:
    """After kills at any moment, of one of two processes, the lake must be that of a sink that nothing disturbed."""
    make_topics(*topics())
    chance = random.Random(42)
    home = Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    lake = tmp_path / "lake"

    def start() -> Child:
        arguments = ["lake", "sink", str(lake), "--every", "0.1", "--kafka", kafka.bootstrap]
        return children.start(home, *arguments, before=SHORT_SESSION)

    def commits() -> int:
        return sum(1 for _ in lake.glob("*/_delta_log/*.json"))

    async def live() -> None:
        running = [start(), start()]
        async with producing(kafka) as producer:
            for life in range(ROUNDS):
                await fill(producer)
                await produce(producer, "agent-events", [event(f"s{life}-{number}", 1) for number in range(200)])
                target = commits() + chance.randrange(1, 25)
                await asyncio.to_thread(until, lambda least=target: commits() >= least, f"{target} commits")
                victim = chance.randrange(2)
                assert running[victim].kill() == -signal.SIGKILL
                running[victim] = start()
        await completed(lake, kafka)
        for child in running:
            child.send(signal.SIGTERM)
            assert child.wait() == 0, child.logged[-4000:]
        await fill_lake(tmp_path / "alone", kafka)

    asyncio.run(live())
    undisturbed = digest(tmp_path / "alone")
    assert undisturbed["AgentEvent"][0] >= 200 * ROUNDS
    assert digest(lake) == undisturbed
