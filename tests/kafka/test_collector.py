"""The stage of a Collector's topics on a broker: despite kills, each message is read at least once, and its spans are stored once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from support import builders as build
from support.effort import times
from support.kafka_sinks import land_all
from support.kafka_workers import contents, until_committed, working
from support.otel_collector import agent_span, traces_request
from support.servers import Child, Home, Nursery, nursery, until
from typer.testing import CliRunner

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.records import DeadLetter, Span
from schemas.registry import topics
from service.cli.main import application
from service.setup.workspace import utc_now
from streams.kafka.collector import collector_stages
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.topics import COLLECTOR
from streams.log.admission import DEAD_LETTERS

MakeTopics = Callable[..., None]
PARTITIONS = 3
POLICY = Policy()
SPANS_TOPIC, LOGS_TOPIC = "otlp_spans", "otlp_logs"
ROUNDS = times(3, soak=20)
KILLS_AFTER = 200
Message = tuple[bytes | None, bytes]


def full_topic_name(kafka: KafkaConnection, topic: str) -> str:
    """Return the name of a Collector's topic; it has the prefix of the test's topics and is removed with them."""
    return f"{kafka.prefix}{topic}"


@asynccontextmanager
async def collecting(kafka: KafkaConnection, *, spans: str = SPANS_TOPIC, logs: str = LOGS_TOPIC) -> AsyncIterator[None]:
    """Run a worker with this stage alone."""
    producer = RecordProducer(kafka)
    await producer.start()
    collector_topics = {full_topic_name(kafka, spans): "traces", full_topic_name(kafka, logs): "logs"}
    stages = collector_stages(
        collector_topics, policy=POLICY, redactor=Redactor(POLICY.redaction), now=utc_now, producer=producer
    )
    try:
        async with working(kafka, {}, foreign=stages):
            yield
    finally:
        await producer.stop()


async def produce_messages(
    kafka: KafkaConnection, topic: str, messages: Sequence[Message], compression: str | None = "zstd"
) -> None:
    """Produce as a Collector does: with or without a trace's key, on any partition, compressed or not."""
    rng = random.Random(len(messages))
    producer = AIOKafkaProducer(**kafka.for_aiokafka(), compression_type=compression)
    await producer.start()
    for key, value in messages:
        await producer.send(full_topic_name(kafka, topic), value, key, partition=rng.randrange(PARTITIONS))
    await producer.stop()


async def read_spans(kafka: KafkaConnection) -> list[Span]:
    """Return the spans on our topic, including duplicates."""
    records = [decode(record.value) for record in await contents(kafka, "spans", PARTITIONS)]
    return [span for span in records if isinstance(span, Span)]


async def read_letters(kafka: KafkaConnection) -> list[DeadLetter]:
    """Return the dead letters, each once."""
    letters = {record.value: decode(record.value) for record in await contents(kafka, DEAD_LETTERS, PARTITIONS)}
    return [letter for letter in letters.values() if isinstance(letter, DeadLetter)]


def build_messages(numbers: Sequence[int], traces_per_message: int = 5) -> list[Message]:
    """Return messages with a trace for each of these numbers."""
    parts = [numbers[start : start + traces_per_message] for start in range(0, len(numbers), traces_per_message)]
    return [(None, traces_request(*(agent_span(number, build.START) for number in part)).as_protobuf) for part in parts]


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_any_key_partition_and_compression_is_read(
    kafka: KafkaConnection, make_topics: MakeTopics, compression: str | None
) -> None:
    """The Collector's exporter has settings for all three, which the worker must accept."""
    make_topics(*topics(), SPANS_TOPIC, LOGS_TOPIC, partitions=PARTITIONS)
    messages = [(key, value) for (_, value), key in zip(build_messages(range(1, 31)), (None, b"", bytes(16)) * 2, strict=True)]

    async def run() -> None:
        await produce_messages(kafka, SPANS_TOPIC, messages, compression)
        async with collecting(kafka):
            await until_committed(kafka, SPANS_TOPIC, PARTITIONS)
        assert Counter(span.session_id for span in await read_spans(kafka)) == Counter(
            f"session-{number}" for number in range(1, 31)
        )
        assert await read_letters(kafka) == []

    asyncio.run(run())


def test_spans_are_produced_under_their_sessions_key(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The sink would reject a span on another partition than its session's."""
    make_topics(*topics(), SPANS_TOPIC, LOGS_TOPIC, partitions=PARTITIONS)

    async def run() -> None:
        await produce_messages(kafka, SPANS_TOPIC, build_messages(range(1, 31)))
        async with collecting(kafka):
            await until_committed(kafka, SPANS_TOPIC, PARTITIONS)
        with Store(None) as store:
            await land_all(store, kafka)
            assert store.count("spans") == 30
            assert store.count("dead_letters") == 0

    asyncio.run(run())


def test_an_unreadable_message_is_a_dead_letter_with_its_offset(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Only partition and offset identify the message of another program."""
    make_topics(*topics(), SPANS_TOPIC, LOGS_TOPIC, partitions=PARTITIONS)
    messages = [value for message in build_messages(range(1, 31)) for value in ((None, b"garbage"), message)]

    async def run() -> None:
        await produce_messages(kafka, SPANS_TOPIC, messages)
        async with collecting(kafka):
            await until_committed(kafka, SPANS_TOPIC, PARTITIONS)
        garbage_offsets = {
            (full_topic_name(kafka, SPANS_TOPIC), record.partition, record.offset)
            for record in await contents(kafka, SPANS_TOPIC, PARTITIONS)
            if record.value == b"garbage"
        }
        assert len(garbage_offsets) == 6
        assert {(letter.source, letter.partition, letter.position) for letter in await read_letters(kafka)} == garbage_offsets
        assert len(await read_spans(kafka)) == 30

    asyncio.run(run())


def test_a_topic_that_is_created_later_is_read(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A Collector creates its topics with the first message, and may never send logs: the worker must not wait for them."""
    make_topics(*topics(), LOGS_TOPIC, partitions=PARTITIONS)

    async def run() -> None:
        async with collecting(kafka):
            await until_committed(kafka, LOGS_TOPIC, PARTITIONS)
            make_topics(SPANS_TOPIC, partitions=PARTITIONS)
            await produce_messages(kafka, SPANS_TOPIC, build_messages(range(1, 11)))
            await until_committed(kafka, SPANS_TOPIC, PARTITIONS)
        assert len(await read_spans(kafka)) == 10

    asyncio.run(run())


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of processes."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, kafka: KafkaConnection) -> Home:
    """Return the settings of a worker process."""
    names = {
        "DRIFTLINE_KAFKA_OTLP_SPANS": full_topic_name(kafka, SPANS_TOPIC),
        "DRIFTLINE_KAFKA_OTLP_LOGS": full_topic_name(kafka, LOGS_TOPIC),
    }
    return Home(tmp_path, DRIFTLINE_KAFKA=kafka.bootstrap, DRIFTLINE_KAFKA_PREFIX=kafka.prefix, **names)


def working_processes(supervisor: Child) -> list[int]:
    """Return the child processes of a supervisor."""
    return [int(pid) for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()]


def test_kills_lose_no_span_and_store_each_once(
    children: Nursery, home: Home, kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """Unacknowledged messages are read again with the same ids, so the tables have each span once."""
    make_topics(*topics(), SPANS_TOPIC, LOGS_TOPIC, partitions=PARTITIONS)
    supervisor = children.start(home, "worker", "--stages", COLLECTOR)
    count = ROUNDS * KILLS_AFTER

    async def grown(least: int) -> None:
        while True:
            if len(await contents(kafka, "spans", PARTITIONS)) >= least:
                return
            await asyncio.sleep(0.02)

    async def new_workers(killed: set[int]) -> set[int]:
        while True:
            if workers := set(working_processes(supervisor)) - killed:
                return workers
            await asyncio.sleep(0.02)

    async def run() -> None:
        workers = set[int]()
        for number in range(ROUNDS):
            # What the killed worker sent last can still come to the topic: it must not pass for work of the next one.
            workers = await new_workers(workers)
            began = len(await contents(kafka, "spans", PARTITIONS))
            await produce_messages(
                kafka, SPANS_TOPIC, build_messages(range(1 + number * KILLS_AFTER, 1 + (number + 1) * KILLS_AFTER))
            )
            await grown(began + 1)
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        await until_committed(kafka, SPANS_TOPIC, PARTITIONS)
        with Store(None) as store:
            await land_all(store, kafka)
            with closing(store.cursor()) as cursor:
                landed = cursor.execute("SELECT trace_id FROM log.spans").fetchall()
            assert store.count("dead_letters") == 0
        assert Counter(trace for (trace,) in landed) == {f"{number:032x}": 1 for number in range(1, count + 1)}

    asyncio.run(run())
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.logged[-4000:]
    assert supervisor.logged.count("ended with -9") == ROUNDS


def doctor(home: Home) -> list[dict[str, str]]:
    """Return the doctor's lines about the Collector's topics."""
    result = CliRunner().invoke(application(), ["doctor", "--json"], env=home.environment)
    return [check for check in json.loads(result.output) if check["subject"] == "Collector"]


def test_the_doctor_reports_missing_topics_and_the_lag_of_the_stage(
    home: Home, kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """This distinguishes a Collector that sends nothing from a worker that is not running."""
    spans = full_topic_name(kafka, SPANS_TOPIC)
    make_topics(*topics(), partitions=PARTITIONS)
    (nothing,) = doctor(home)
    assert f"no topic {spans}" in nothing["detail"]
    make_topics(SPANS_TOPIC, partitions=PARTITIONS)
    asyncio.run(produce_messages(kafka, SPANS_TOPIC, build_messages(range(1, 21))))
    unread, logs = doctor(home)
    assert unread["detail"] == f"{spans}: nothing has been read yet"
    assert unread["advice"] == "driftline worker --stages collector"
    assert logs["detail"] == f"there is no topic {full_topic_name(kafka, LOGS_TOPIC)}"

    async def read() -> None:
        async with collecting(kafka):
            await until_committed(kafka, SPANS_TOPIC, PARTITIONS)

    asyncio.run(read())
    assert doctor(home)[0]["detail"] == f"{spans}: 3 partitions, 0 messages not read yet"
    asyncio.run(produce_messages(kafka, SPANS_TOPIC, build_messages(range(21, 31))))
    assert doctor(home)[0]["detail"] == f"{spans}: 3 partitions, 2 messages not read yet"


def test_a_worker_reports_missing_topics(
    children: Nursery, home: Home, kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """A mistyped name would otherwise be waited for silently."""
    make_topics(*topics(), SPANS_TOPIC, partitions=PARTITIONS)
    worker = children.start(home, "worker", "--stages", COLLECTOR)
    until(lambda: "1 worker process" in worker.printed and '"assigned: ' in worker.logged, "a worker at work")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert f"{full_topic_name(kafka, SPANS_TOPIC)} (3 partitions)" in worker.printed
    assert f"there is no topic {full_topic_name(kafka, LOGS_TOPIC)} yet" in worker.printed


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"DRIFTLINE_KAFKA_OTLP_SPANS": "{prefix}spans"}, "is a topic of Driftline"),
        ({"DRIFTLINE_KAFKA_OTLP_SPANS": "a,b", "DRIFTLINE_KAFKA_OTLP_LOGS": "b"}, "b cannot hold both"),
        ({"DRIFTLINE_KAFKA_OTLP_SPANS": "a b"}, "KAFKA_OTLP_SPANS"),
    ],
)
def test_names_that_cannot_be_a_collectors_topics_are_refused(
    children: Nursery, home: Home, kafka: KafkaConnection, names: dict[str, str], words: str
) -> None:
    """A worker that read its own topic as requests would reject every span."""
    variables = {name: value.format(prefix=kafka.prefix) for name, value in names.items()}
    worker = children.start(home, "worker", "--stages", COLLECTOR, environment=variables)
    assert worker.wait() == 2
    assert words in worker.logged
