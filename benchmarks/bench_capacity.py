"""What an exchange takes: bytes on the topics, in DuckDB and in the lake, and processor time of a worker and of the sinks.

docs/deploying.md computes with these figures. Exchanges of random words are measured twice on an Apache Kafka: judged by a simulated judge,
and left out by sampling. One process runs intake, then one runs scoring, then the sink of `driftline serve` reads all of it into a new file,
and that of `driftline lake sink` into a new lake.
--exchanges and --judged set how many there are.
"""

import argparse
import asyncio
import itertools
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaAdminClient

from analytics.lake import Lake
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.bench_lag import PATIENCE, Watcher, worker
from benchmarks.measure import print_table
from benchmarks.streams.fleet import Message, produce
from benchmarks.streams.running import kafka, make_topics
from schemas.codec.single_object import encode
from schemas.records import Exchange
from service.server.supervisor import serving
from service.setup.workspace import utc_now
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import key_of, partition_of
from streams.kafka.sink import Sink
from streams.lake.sink import LakeSink
from streams.topology import stage_named

PARTITIONS = 4
TURNS = 20
"""Exchanges of a session."""
AT_ONCE = 100
"""Sessions under way at the same time."""
WORDS = 20_000
QUESTION, ANSWER = 40, 160
"""Words of a message of the user and of an answer."""
START = datetime(2026, 11, 1, tzinfo=UTC)
ALL, NONE = "judged", "left out by sampling"
POLICIES = {
    ALL: "version: 1\ndefaults: {sampling: {enabled: false}, costCapPerSession: null}\n",
    NONE: "version: 1\ndefaults: {sampling: {routineInterval: 10000, alwaysScoreFirst: 0, alwaysScoreLast: 0, alwaysScoreDisagreement: false, "
    "alwaysScoreLongResponses: false}}\n",
}
STATES = "states"
"""The name under which the topics of states are counted: compaction leaves the last state of each session."""


class Measures(NamedTuple):
    """What the exchanges of one kind took."""

    exchanges: int
    text_bytes: int
    topics: Counter[str]
    """Bytes by topic, as the broker has them on its disk, one copy."""
    rows: int
    file_bytes: int
    intake_seconds: float
    """Processor time, with the start of the process."""
    scoring_seconds: float
    sink_seconds: float
    sink_processor: float
    lake_bytes: int
    lake_processor: float


def exchanges(count: int) -> Iterator[Exchange]:
    """Yield exchanges of concurrent sessions in the order in which they arrive; the same ones every time."""
    chance = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (1 + index) for index in range(len(letters))]
    vocabulary = ["".join(chance.choices(letters, weights, k=chance.randint(2, 10))) for _ in range(WORDS)]
    frequencies = list(itertools.accumulate(1 / (1 + rank) for rank in range(WORDS)))

    def text(words: int) -> str:
        return " ".join(chance.choices(vocabulary, cum_weights=frequencies, k=words))

    for group in range(0, count, TURNS * AT_ONCE):
        sessions = [f"{chance.getrandbits(64):016x}" for _ in range(AT_ONCE)]
        for turn, (number, session) in itertools.islice(itertools.product(range(TURNS), enumerate(sessions)), count - group):
            at = START + timedelta(seconds=group + turn * 30, milliseconds=chance.randrange(1000))
            yield Exchange(
                exchange_id=f"{chance.getrandbits(128):032x}", connection="fleet", project=f"project-{number % 20}",
                agent=f"agent-{number}", session_id=session, turn_number=turn + 1, occurred_at=at,
                ingested_at=at + timedelta(milliseconds=200), user_message=text(QUESTION), agent_response=text(ANSWER),
                agent_model="claude-haiku-4-5", input_tokens=chance.randrange(200, 4000), output_tokens=chance.randrange(50, 400),
                content_digest=f"{chance.getrandbits(64):016x}",
            )  # fmt: skip


def measure(bootstrap: str, kind: str, count: int, folder: Path) -> Measures:
    """Bring exchanges to new topics, run both stages and the sink, and return what they took."""
    topics = KafkaConnection(bootstrap, prefix=f"bench-capacity-{time.time_ns()}-")
    make_topics(topics, PARTITIONS)
    records = list(exchanges(count))
    messages = [Message(partition_of(key := key_of(record), PARTITIONS), key, encode(record)) for record in records]
    asyncio.run(produce(bootstrap, topics.topic("exchanges"), messages, "zstd"))
    intake = _run_stage(topics, "intake", folder, kind)
    scoring = _run_stage(topics, "scoring", folder, kind) if kind == ALL else 0.0
    sizes = _topic_sizes(topics)
    with Store(folder / f"empty-{time.time_ns()}.duckdb") as store:
        empty_bytes = _used_bytes(store)
    seconds, processor, rows, file_bytes = asyncio.run(_fill(topics, folder / f"{time.time_ns()}.duckdb"))
    lake = folder / f"lake-{time.time_ns()}"
    lake_processor = asyncio.run(_fill_lake(topics, lake, rows))
    lake_bytes = sum(file.stat().st_size for file in lake.rglob("*") if file.is_file())
    text_bytes = sum(len(record.user_message.encode()) + len(record.agent_response.encode()) for record in records)
    return Measures(
        count,
        text_bytes,
        sizes,
        rows,
        file_bytes - empty_bytes,
        intake,
        scoring,
        seconds,
        processor,
        lake_bytes,
        lake_processor,
    )


def _run_stage(topics: KafkaConnection, stage: str, folder: Path, kind: str) -> float:
    """Run a worker until the stage has read everything; return its processor seconds."""
    (folder / "own-policy.yaml").write_text(POLICIES[kind])
    environment = {"DRIFTLINE_JUDGE": "none"}
    with ExitStack() as stack:
        if stage == "scoring":
            url = stack.enter_context(serving(["simulate-judge", "--port", "0"], {}, folder / "judge.log"))
            environment = {"ANTHROPIC_BASE_URL": url, "DRIFTLINE_JUDGE_CONCURRENCY": "16"}
        before = _children_seconds()
        with worker(topics, stage, folder, DRIFTLINE_POLICY=str(folder / "own-policy.yaml"), **environment):
            asyncio.run(_wait(topics, stage))
        return _children_seconds() - before


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _wait(topics: KafkaConnection, stage: str) -> None:
    async with Watcher(topics, stage_named(stage), PARTITIONS) as watcher:
        looks = await watcher.follow(PATIENCE)
        if looks[-1].committed != await watcher.ends():
            raise RuntimeError(f"{stage} has not read its topic within {PATIENCE:.0f} s: {looks[-1]}")


def _topic_sizes(topics: KafkaConnection) -> Counter[str]:
    """Return the bytes of each topic's log on the broker's disk, those of the state topics together."""
    sizes: Counter[str] = Counter()
    client = KafkaAdminClient(**topics.for_kafka_python())
    try:
        directories = [directory for broker in client.describe_log_dirs() for directory in broker["log_dirs"]]
    finally:
        client.close()
    for topic in itertools.chain.from_iterable(directory["topics"] for directory in directories):
        if topic["name"].startswith(topics.prefix):
            name = topic["name"].removeprefix(topics.prefix)
            sizes[STATES if name.endswith("-state") else name] += sum(part["partition_size"] for part in topic["partitions"])
    return +sizes


async def _fill(topics: KafkaConnection, file: Path) -> tuple[float, float, int, int]:
    """Read the topics into a new file with the real sink; return seconds, processor seconds, rows and bytes in the file."""
    with Store(file) as store:
        sink = Sink(store, topics, Redactor(Policy().redaction), utc_now)
        began, processor = time.perf_counter(), time.process_time()
        await sink.start()
        await sink.progress.reached.wait()
        used = time.perf_counter() - began, time.process_time() - processor
        rows = sum(sink.progress.positions.values())
        await sink.stop()
        return *used, rows, _used_bytes(store)


async def _fill_lake(topics: KafkaConnection, root: Path, rows: int) -> float:
    """Read the topics into a new lake with the real sink; return processor seconds."""
    sink, moved = LakeSink(Lake(str(root)), topics, Redactor(Policy().redaction), utc_now), asyncio.Event()
    sink.on_commit = moved.set
    await sink.start()
    processor = time.process_time()
    while sink.committed < rows:
        await moved.wait()
        moved.clear()
    used = time.process_time() - processor
    await sink.stop()
    return used


def _used_bytes(store: Store) -> int:
    """Return the bytes of a file's blocks that are in use after a checkpoint; free ones would be used next."""
    store.checkpoint()
    with store.cursor() as cursor:
        ((used, size),) = cursor.execute("SELECT used_blocks, block_size FROM pragma_database_size()").fetchall()
        return int(used * size)


def main(arguments: Sequence[str] = ()) -> None:
    """Print what an exchange takes, judged and left out."""
    parser = argparse.ArgumentParser("benchmarks capacity")
    parser.add_argument("--exchanges", type=int, default=50_000, help="exchanges that sampling leaves out")
    parser.add_argument("--judged", type=int, default=2_000, help="exchanges that are judged")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, kafka() as bootstrap:
        runs = {
            kind: measure(bootstrap, kind, count, Path(name))
            for kind, count in ((ALL, options.judged), (NONE, options.exchanges))
        }
    topics = sorted(set().union(*(run.topics for run in runs.values())))
    lines = {
        "exchanges": lambda run: f"{run.exchanges:,}",
        "bytes of text": lambda run: f"{run.text_bytes / run.exchanges:,.0f}",
        **{f"bytes on `{topic}`": lambda run, topic=topic: f"{run.topics[topic] / run.exchanges:,.0f}" for topic in topics},
        "bytes on all topics": lambda run: f"{sum(run.topics.values()) / run.exchanges:,.0f}",
        "rows in DuckDB": lambda run: f"{run.rows / run.exchanges:.1f}",
        "bytes in DuckDB": lambda run: f"{run.file_bytes / run.exchanges:,.0f}",
        "intake, µs of processor": lambda run: f"{1e6 * run.intake_seconds / run.exchanges:,.0f}",
        "scoring, µs of processor": lambda run: (
            f"{1e6 * run.scoring_seconds / run.exchanges:,.0f}" if run.scoring_seconds else ""
        ),
        "sink, µs of processor": lambda run: f"{1e6 * run.sink_processor / run.exchanges:,.0f}",
        "sink, rows/s": lambda run: f"{run.rows / run.sink_seconds:,.0f}",
        "bytes in the lake": lambda run: f"{run.lake_bytes / run.exchanges:,.0f}",
        "sink of the lake, µs of processor": lambda run: f"{1e6 * run.lake_processor / run.exchanges:,.0f}",
    }
    print_table(["of each exchange", *runs], [[line, *map(cell, runs.values())] for line, cell in lines.items()])


if __name__ == "__main__":
    main(sys.argv[1:])
