"""What encryption costs: events out of Kafka to diagnoses, exchanges through the server to the tables and into a lake, and bytes on disk.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. Each round measures both ways in turns, and the ratio is the
median of those of the rounds. DRIFTLINE_BENCH_EVENTS sets how many events there are, DRIFTLINE_BENCH_RECORDS how many exchanges.
"""

import asyncio
import dataclasses
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaAdminClient

from analytics.lake import Lake
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.bench_stream import PARTITIONS
from benchmarks.measure import print_table
from benchmarks.streams.fleet import LENGTH, Message, fleet, produce
from benchmarks.streams.running import kafka, make_topics, whole_path
from schemas.records import Exchange
from service.setup.text_key import make_text_key
from service.setup.workspace import utc_now
from streams.engine.engine import Engine
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import open_encryption
from streams.kafka.kafka_log import KafkaLog
from streams.lake.sink import LakeSink

EVENTS = int(os.environ.get("DRIFTLINE_BENCH_EVENTS", "400000"))
RECORDS = int(os.environ.get("DRIFTLINE_BENCH_RECORDS", "20000"))
ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "5"))
BATCH, SESSION = 500, 20
TOPICS = "diagnoses"
BAR = 1.10
"""The seconds that encryption may take, beside those without."""
WORDS = Path("docs/handbook.md").read_text("utf-8").split()


class Measures(NamedTuple):
    """One run: microseconds per record, also of processor time, and bytes per record on the broker or in the lake."""

    seconds: float
    cpu: float
    size: float


def main() -> None:
    """Print what each way takes, and the ratios."""
    messages = fleet(EVENTS, PARTITIONS)
    exchanges = make_exchanges(RECORDS)
    runs: dict[tuple[str, bool], list[Measures]] = {}
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "text-key"
        secret = make_text_key(key_file)
        for number in range(ROUNDS):
            for is_encrypted in (False, True) if number % 2 else (True, False):
                connection = KafkaConnection(
                    bootstrap,
                    prefix=f"bench-{os.getpid()}-{number}-{is_encrypted}-",
                    text_secret=secret if is_encrypted else None,
                )
                make_topics(connection, PARTITIONS)
                os.environ.pop("DRIFTLINE_TEXT_KEY_FILE", None)
                if is_encrypted:
                    os.environ["DRIFTLINE_TEXT_KEY_FILE"] = str(key_file)
                runs.setdefault(("events to diagnoses", is_encrypted), []).append(measure_events(connection, messages))
                ingest = dataclasses.replace(connection, prefix=f"{connection.prefix}i-")
                make_topics(ingest, PARTITIONS)
                runs.setdefault(("exchanges to the tables", is_encrypted), []).append(
                    asyncio.run(measure_ingest(ingest, exchanges))
                )
                runs.setdefault(("exchanges into a lake", is_encrypted), []).append(asyncio.run(measure_lake(ingest)))
    print_measures(runs)


def measure_events(connection: KafkaConnection, messages: Sequence[Message]) -> Measures:
    """Measure the worker and the sink, which find the key file in their environment."""
    asyncio.run(fill(connection, messages))
    size = bytes_on(connection, "agent-events")
    measures = whole_path(connection, EVENTS, EVENTS // LENGTH, TOPICS)
    return Measures(1e6 * measures["seconds"] / EVENTS, 1e6 * measures["cpu"] / EVENTS, size / EVENTS)


async def fill(connection: KafkaConnection, messages: Sequence[Message]) -> None:
    """Put the events on their topic."""
    async with open_encryption(connection) as encryption:
        if encryption is not None:
            pairs = encryption.encrypt("agent-events", [(message.key, message.value) for message in messages])
            messages = [
                Message(message.partition, *pair) for message, pair in zip(messages, pairs, strict=True) if pair is not None
            ]
        await produce(connection.bootstrap, connection.topic("agent-events"), messages, "zstd")


async def measure_ingest(connection: KafkaConnection, exchanges: Sequence[Exchange]) -> Measures:
    """Measure exchanges from the engine's door over the topics into the tables, in this process."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "bench.duckdb") as store:
        policy = Policy()
        redactor = Redactor(policy.redaction)
        log = KafkaLog(store, redactor, utc_now, connection)
        engine = Engine(store, policy, redactor, utc_now, judge_name="workers", log=log)
        await engine.start()
        try:
            while not engine.state().ready:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.01)
            begin, cpu = time.perf_counter(), time.process_time()
            for start in range(0, len(exchanges), BATCH):
                await engine.publish("exchanges", exchanges[start : start + BATCH])
            await engine.wait_for_tables("exchanges")
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        finally:
            await engine.stop()
    count = len(exchanges)
    return Measures(1e6 * seconds / count, 1e6 * cpu / count, bytes_on(connection, "exchanges") / count)


async def measure_lake(connection: KafkaConnection) -> Measures:
    """Measure the exchanges on their topic into a lake, in this process; the bytes are those of the lake."""
    with tempfile.TemporaryDirectory() as folder:
        sink = LakeSink(Lake(folder), connection, Redactor(Policy().redaction), utc_now)
        committed = asyncio.Event()
        sink.on_commit = committed.set
        await sink.start()
        begin, cpu = time.perf_counter(), time.process_time()
        while sink.committed < RECORDS:
            committed.clear()
            await committed.wait()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        await sink.stop()
        size = size_of(Path(folder, "exchanges"))
    return Measures(1e6 * seconds / RECORDS, 1e6 * cpu / RECORDS, size / RECORDS)


def size_of(table: Path) -> int:
    """Return the bytes of the files of a table."""
    return sum(path.stat().st_size for path in table.rglob("*.parquet"))


def bytes_on(connection: KafkaConnection, topic: str) -> int:
    """Return the bytes of a topic on the broker's disk."""
    client = KafkaAdminClient(bootstrap_servers=connection.servers)
    try:
        folders: Any = client.describe_log_dirs()
    finally:
        client.close()
    return sum(sizes_in(folders, connection.topic(topic)))


def sizes_in(answer: Any, topic: str) -> list[int]:
    """Return the sizes of the partitions of a topic in the broker's answer."""
    if isinstance(answer, dict):
        if topic in {answer.get("name"), answer.get("topic")}:
            return [int(partition.get("partition_size", partition.get("size", 0))) for partition in answer["partitions"]]
        return [size for part in answer.values() for size in sizes_in(part, topic)]
    return [size for part in answer for size in sizes_in(part, topic)] if isinstance(answer, list | tuple) else []


def make_exchanges(count: int) -> list[Exchange]:
    """Return exchanges whose texts have the words of a handbook in random order, some 900 bytes each."""
    chance = random.Random(7)

    def text(length: int) -> str:
        return " ".join(chance.choices(WORDS, k=length))

    now = utc_now()
    return [
        Exchange(
            exchange_id=f"x{number}",
            connection="fleet",
            project="billing",
            session_id=f"session-{number // SESSION:06}",
            occurred_at=now,
            ingested_at=now,
            user_message=text(40),
            agent_response=text(80),
            content_digest=f"{number:016x}",
        )
        for number in range(count)
    ]


def print_measures(runs: dict[tuple[str, bool], list[Measures]]) -> None:
    """Print each way's median, and the medians of the ratios."""
    rows = []
    for name in dict.fromkeys(name for name, _ in runs):
        plain, encrypted = runs[name, False], runs[name, True]
        for label, measures in (("plain", plain), ("encrypted", encrypted)):
            medians = [statistics.median(values) for values in zip(*measures, strict=True)]
            rows.append([f"{name}, {label}", *(f"{median:.1f}" for median in medians)])
        ratios = [
            statistics.median(ours / theirs for ours, theirs in zip(after, before, strict=True))
            for after, before in zip(zip(*encrypted, strict=True), zip(*plain, strict=True), strict=True)
        ]
        rows.append([f"{name}, ratio", *(f"{ratio:.2f}" for ratio in ratios)])
    print_table(["way", "µs/record", "CPU µs/record", "bytes/record"], rows)
    print(f"\nThe bar is {BAR:g} of the seconds and of the processor time.")


if __name__ == "__main__":
    main()
