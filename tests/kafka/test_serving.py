"""`driftline serve --kafka` as a process keeps all acknowledged records despite kills and broker outages."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from kafka import KafkaAdminClient
from support.clients import CUT_OFF, DUPLICATE, REFUSED, TAKEN, Load, bearer, exchange_body
from support.clients import until as soon
from support.effort import times
from support.kafka_brokers import Broker
from support.kafka_sinks import MakeTopics, tables
from support.servers import Child, Home, Nursery, nursery, until

from analytics.store.store import Store
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection

ROUNDS = times(3, soak=20)
EVENT = {"event": "memory_event", "action": "miss", "timestamp": "2026-10-01T09:00:00Z"}
PROJECTS = {"north": "ops", "south": "web"}


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of servers."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, kafka: KafkaConnection) -> Home:
    """Return a home whose server uses the test's topics."""
    return Home(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)


def ready(server: Child) -> str:
    """Return the server's address as soon as it accepts records."""
    url = server.serving()
    until(
        lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == httpx2.codes.OK or server.ended,
        "the server to take records",
    )
    assert not server.ended, server.logged[-4000:]
    return url


def landed(database: Path) -> Counter[tuple[str, str]]:
    """Return the number of rows of each exchange."""
    with Store(database) as store, closing(store.cursor()) as cursor:
        assert cursor.execute("SELECT reason, detail FROM dead_letters").fetchall() == []
        return Counter(cursor.execute("SELECT connection, exchange_id FROM log.exchanges").fetchall())


@pytest.mark.slow
def test_kills_lose_and_duplicate_nothing(
    kafka: KafkaConnection, make_topics: MakeTopics, home: Home, children: Nursery
) -> None:
    """After a power loss every record with a 201 is in the table once, and a rebuild gives the same tables."""
    make_topics(*topics())
    load = Load(home, PROJECTS, random.Random(20261101))

    async def one_life(*, last: bool) -> None:
        server = children.serve(home, "--kafka", kafka.bootstrap)
        load.fill(8)
        loading = asyncio.create_task(load.run(await asyncio.to_thread(ready, server)))
        if not last:
            target = load.seen[TAKEN] + load.chance.randrange(1, 25)
            await soon(lambda: load.seen[TAKEN] >= target or loading.done())
            await asyncio.sleep(load.chance.uniform(0.0, 0.1))
            assert server.kill() == -signal.SIGKILL
        await loading
        if last:
            server.send(signal.SIGTERM)
            assert server.wait() == 0, server.logged[-4000:]

    async def live() -> None:
        for _ in range(ROUNDS):
            await one_life(last=False)
        await one_life(last=True)

    asyncio.run(live())
    assert load.seen[CUT_OFF] > ROUNDS
    code, _ = children.run(home, "rebuild", "--kafka", kafka.bootstrap)
    assert code == 0
    with Store(home.database) as store:
        before = tables(store)
    assert dict.fromkeys(load.accepted, 1) == {
        key: count for key, count in landed(home.database).items() if key in load.accepted
    }
    assert set(landed(home.database).values()) == {1}
    rebuilding = children.start(home, "rebuild", "--kafka", kafka.bootstrap)
    until(lambda: rebuilding.ended or home.database.with_suffix(".duckdb.wal").exists(), "the rebuild to write")
    rebuilding.kill()
    assert children.run(home, "rebuild", "--kafka", kafka.bootstrap)[0] == 0
    with Store(home.database) as store:
        after = tables(store)
    for table in before.keys() - {"watermarks"}:
        assert after[table] == before[table], table


@pytest.mark.slow
def test_a_broker_outage_loses_nothing(own_broker: Broker, tmp_path: Path, children: Nursery) -> None:
    """During the outage senders must retry; afterwards all acknowledged records are there and new ones are accepted."""
    connection = KafkaConnection(own_broker.bootstrap)
    with closing(KafkaAdminClient(bootstrap_servers=own_broker.bootstrap)) as admin:
        topic_options = {"num_partitions": 3, "replication_factor": 1}
        admin.create_topics({connection.topic(name): topic_options for name in topics()}, wait_for_metadata=True)
    home = Home(tmp_path)
    load = Load(home, PROJECTS, random.Random(7))
    server = children.serve(home, "--kafka", own_broker.bootstrap)
    url = ready(server)

    async def run() -> None:
        load.fill(8)
        loading = asyncio.create_task(load.run(url))
        await soon(lambda: load.seen[TAKEN] >= 20)
        await asyncio.to_thread(own_broker.kill)
        await loading
        assert load.seen[REFUSED] >= 8, load.seen
        answer = await asyncio.to_thread(httpx2.get, f"{url}/readyz")
        assert answer.status_code == 503
        assert answer.json()["code"] == "not_ready"
        await asyncio.to_thread(own_broker.start)
        async with asyncio.timeout(600):
            while not all(session.ended for session in load.sessions):
                await load.run(url)
                await asyncio.sleep(0.2)

    asyncio.run(run())
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    server = children.serve(home, "--kafka", own_broker.bootstrap)
    ready(server)
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    counts = landed(home.database)
    assert set(counts.values()) == {1}
    assert load.accepted - counts.keys() == set()
    assert load.seen[DUPLICATE] + load.seen[TAKEN] >= len(load.accepted) > 20


def test_answers_equal_those_of_the_local_log(
    kafka: KafkaConnection, make_topics: MakeTopics, home: Home, children: Nursery
) -> None:
    """Senders get the same answers as with the local log: 201 for new, 200 for known, 409 for other content; events by position."""
    make_topics(*topics())
    server = children.serve(home, "--kafka", kafka.bootstrap)
    url, headers = ready(server), bearer(home.connection("north"))
    body = exchange_body("s", 1, "It is done.")
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        first = client.post("/api/audit/ingest", json=body)
        assert first.status_code == 201
        assert first.json()["scored"] is None
        assert first.json()["reason"] == "queued"
        repeated = client.post("/api/audit/ingest", json=body)
        assert repeated.status_code == 200
        assert repeated.json() == first.json() | {"duplicate": True}
        assert client.post("/api/audit/ingest", json=exchange_body("s", 1, "It is not done.")).status_code == 409
        for start in (0, 2, 1):
            events = [EVENT | {"event_id": f"e{number}"} for number in range(start, start + 2)]
            response = client.post("/api/audit/events", json={"session_id": "s", "events": events})
            document = response.json()
            assert (response.status_code, tuple(document.values())) == (201, (0, 2, []) if start == 1 else (2, 0, [])), (
                response.text
            )
        assert client.post("/api/audit/sessions/s/finalize", json={}).status_code == 200
        nothing = 'driftline_queue_size{queue="unlanded"} 0.0'
        until(lambda: nothing in client.get("/metrics").text, "everything to land")
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    assert "driftline worker" in server.printed
    with Store(home.database) as store, closing(store.cursor()) as cursor:
        places = cursor.execute("SELECT seq FROM log.agent_events ORDER BY seq").fetchall()
    assert places == [(0,), (1,), (2,), (3,)]


def test_reading_commands_work_beside_the_server_and_writing_ones_use_the_topics(
    kafka: KafkaConnection, home: Home, children: Nursery, make_topics: MakeTopics
) -> None:
    """Records written to the tables alone would be invisible to workers, and lost by a rebuild."""
    make_topics(*topics())
    server = children.serve(home, "--kafka", kafka.bootstrap)
    with httpx2.Client(base_url=ready(server), headers=bearer(home.connection("north")), timeout=60) as client:
        assert client.post("/api/audit/ingest", json=exchange_body("s", 1, "It is done.")).status_code == 201
    counted = ("sql", "SELECT count(*) AS n FROM exchanges", "--csv")
    until(lambda: children.run(home, *counted) == (0, "n\n1\n"), "what was accepted to land and be seen")

    assert children.run(home, "runs")[0] == 0
    assert children.run(home, "finalize", "s")[0] == 2
    assert "is filled from Kafka" in server.logged
    assert children.run(home, "backup", str(home.database.parent / "backup"))[0] == 0
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def test_a_database_has_one_kind_of_writer(
    kafka: KafkaConnection, make_topics: MakeTopics, home: Home, children: Nursery, tmp_path: Path
) -> None:
    """An import into a database filled by Kafka would bypass the topics and the workers, and the other way round."""
    code, _ = children.run(home, "serve", "--port", "0", "--kafka", kafka.bootstrap)
    assert code == 2
    assert "driftline topics create" in home.log.read_text()
    make_topics(*topics())
    server = children.serve(home, "--kafka", kafka.bootstrap)
    ready(server)
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps(EVENT | {"session_id": "s"}) + "\n")
    for command in (["serve", "--port", "0"], ["rebuild"], ["import", "events", str(events)], ["rejudge", "--dry-run"]):
        code, _ = children.run(home, *command)
        assert code == 2, command
        assert "is filled from Kafka" in home.log.read_text(), command
        home.log.write_text("")
    (tmp_path / "other").mkdir()
    other = Home(tmp_path / "other", DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    assert children.run(other, "import", "events", str(events))[0] == 0
    for command in (["serve", "--port", "0"], ["rebuild"]):
        assert children.run(other, *command, "--kafka", kafka.bootstrap)[0] == 2
        assert "did not come from Kafka" in other.log.read_text(), command
        other.log.write_text("")


def test_a_rebuild_without_a_file_uses_the_topics(
    kafka: KafkaConnection, make_topics: MakeTopics, home: Home, children: Nursery
) -> None:
    """After the loss of a machine with its file, the topics are enough to rebuild the tables."""
    make_topics(*topics())
    server = children.serve(home, "--kafka", kafka.bootstrap)
    with httpx2.Client(base_url=ready(server), headers=bearer(home.connection("north")), timeout=60) as client:
        assert client.post("/api/audit/ingest", json=exchange_body("s", 1, "It is done.")).status_code == 201
        events = [EVENT | {"event_id": f"e{number}"} for number in range(3)]
        assert client.post("/api/audit/events", json={"session_id": "s", "events": events}).status_code == 201
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    code, printed = children.run(home, "rebuild", "--kafka", kafka.bootstrap)
    assert code == 0, home.log.read_text()
    with Store(home.database) as store:
        before = tables(store)
    home.database.unlink()
    assert children.run(home, "rebuild", "--kafka", kafka.bootstrap) == (0, printed), home.log.read_text()
    with Store(home.database) as store:
        after = tables(store)
    assert landed(home.database) == {("north", "s:1"): 1}
    for table in before.keys() - {"watermarks"}:
        assert after[table] == before[table], table


def test_a_rebuild_without_a_file_or_topics_gives_the_reason(
    kafka: KafkaConnection, make_topics: MakeTopics, home: Home, children: Nursery
) -> None:
    """An empty database would look like a successful rebuild."""
    silent = ["rebuild", "--kafka", "127.0.0.1:1"]
    arguments = ["rebuild", "--kafka", kafka.bootstrap]
    for command, make, fragments in (
        (silent, (), "127.0.0.1:1"),
        (arguments, (), "driftline topics create"),
        (arguments, topics(), f"no topic that begins with {kafka.prefix} at {kafka.bootstrap} has a record"),
    ):
        if make:
            make_topics(*make)
        assert children.run(home, *command)[0] == 2, home.log.read_text()
        assert fragments in " ".join(home.log.read_text().split())
        assert not home.database.exists(), command
        home.log.write_text("")
