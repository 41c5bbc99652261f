"""Scoring on Kafka: the lag with a slow judge, and the rate of a worker without one.

Starts Apache Kafka, or uses the broker that DRIFTLINE_TEST_KAFKA names. A worker ingests the exchanges first. Then one worker process scores
the pending tasks, once with a slow simulated judge and once without a judge.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.measure import START_SECONDS, print_table
from benchmarks.streams.fleet import Message, produce
from benchmarks.streams.running import kafka, make_topics
from schemas.codec.single_object import decode, encode
from schemas.records import Exchange, Reservation
from service.server.supervisor import serving
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import key_of, partition_of
from streams.kafka.topics import GROUP
from streams.topology import Stage, stage_named

SCORING, JUDGEMENTS = stage_named("scoring"), "judgements"
START = datetime(2026, 11, 1, tzinfo=UTC)
TURNS = 10
"""Exchanges per session."""
SIDE_BY_SIDE = 100
POLICY = "version: 1\ndefaults: {sampling: {enabled: false}, costCapPerSession: null}\n"
TICK = 0.5
"""Seconds between two reads of the topics."""
PATIENCE = 600.0


@dataclass(frozen=True)
class Look:
    """The state of the topics at one moment, by partition."""

    seconds: float
    committed: list[int]
    scored: list[int]


def exchanges(count: int) -> Iterator[Exchange]:
    """Yield this many exchanges of concurrent sessions, in the order in which they would arrive."""
    numbers = itertools.count()
    while True:
        sessions = [f"session-{next(numbers):06}" for _ in range(SIDE_BY_SIDE)]
        for turn, session in itertools.product(range(TURNS), sessions):
            if count == 0:
                return
            count -= 1
            yield exchange(session, turn)


def exchange(session: str, turn: int) -> Exchange:
    """Return one exchange of a session."""
    occurred_at = START + timedelta(minutes=turn)
    return Exchange(
        exchange_id=f"{session}:{turn}",
        connection="fleet",
        project="ops",
        session_id=session,
        turn_number=turn + 1,
        occurred_at=occurred_at,
        ingested_at=occurred_at,
        user_message=f"Is backup number {turn} of {session} healthy?" + " Please look." * 10,
        agent_response=f"I looked at backup number {turn}: it is complete and was restored in a trial." + " All is well." * 20,
        content_digest=f"{turn:016x}",
    )


async def fill(topics: KafkaConnection, count: int, partitions: int) -> None:
    """Produce exchanges to their topic."""
    messages = [Message(partition_of(key := key_of(record), partitions), key, encode(record)) for record in exchanges(count)]
    await produce(topics.bootstrap, topics.topic("exchanges"), messages)


class Watcher:
    """Reads the progress of a stage."""

    def __init__(self, topics: KafkaConnection, stage: Stage, partitions: int) -> None:
        self._topics = topics
        self._source = [TopicPartition(topics.topic(stage.source), number) for number in range(partitions)]
        self._sink = [TopicPartition(topics.topic(stage.sinks[0]), number) for number in range(partitions)]
        self._began = time.perf_counter()

    async def __aenter__(self) -> Self:
        """Connect."""
        options = self._topics.for_aiokafka() | {"group_id": self._topics.topic(GROUP), "enable_auto_commit": False}
        self._consumer = AIOKafkaConsumer(**options)
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._consumer.stop()

    async def ends(self) -> list[int]:
        """Return the end of each partition of the source."""
        offsets = await self._consumer.end_offsets(self._source)
        return [offsets[partition] for partition in self._source]

    async def look(self) -> Look:
        """Return the present state."""
        committed = [await self._consumer.committed(partition) or 0 for partition in self._source]
        ends = await self._consumer.end_offsets(self._sink)
        return Look(time.perf_counter() - self._began, committed, [ends[partition] for partition in self._sink])

    async def wait_for_first_record(self, topic: str) -> None:
        """Wait for the first record of a topic and start the clock. TimeoutError if none arrives."""
        partitions = [TopicPartition(self._topics.topic(topic), partition.partition) for partition in self._source]
        async with asyncio.timeout(START_SECONDS):
            while not any((await self._consumer.end_offsets(partitions)).values()):  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(TICK / 5)
        self._began = time.perf_counter()

    async def follow(self, seconds: float) -> list[Look]:
        """Read the state repeatedly for some seconds, or until everything is committed."""
        ends, looks = await self.ends(), [await self.look()]
        while looks[-1].seconds < seconds and looks[-1].committed != ends:
            await asyncio.sleep(TICK)
            looks.append(await self.look())
        return looks


@contextlib.contextmanager
def worker(topics: KafkaConnection, stage: str, folder: Path, **environment: str) -> Iterator[None]:
    """Run a worker with one stage in another process while the context is open. It does not inherit our settings and keys."""
    policy, log = folder / "policy.yaml", folder / f"worker-{stage}.log"
    policy.write_text(POLICY)
    command = [sys.executable, "-P", "-m", "service.cli.main", "worker", "--stages", stage]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRIFTLINE_", "ANTHROPIC_"))}
    own_settings = {
        "DRIFTLINE_KAFKA": topics.bootstrap,
        "DRIFTLINE_KAFKA_PREFIX": topics.prefix,
        "DRIFTLINE_POLICY": str(policy),
        "DRIFTLINE_STOP_GRACE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            command, env=inherited | own_settings | environment, stdout=stream, stderr=stream, process_group=0
        ) as child,
    ):
        try:
            yield
        finally:
            child.terminate()


async def count_judged(topics: KafkaConnection, partitions: int) -> int:
    """Count the exchanges that the judge was asked about."""
    consumer = AIOKafkaConsumer(**topics.for_aiokafka(), enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(topics.topic(JUDGEMENTS), number) for number in range(partitions)]
        consumer.assign(places)
        ends, subjects = await consumer.end_offsets(places), set[str]()
        while [place for place in places if await consumer.position(place) < ends[place]]:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found = (decode(record.value) for record in records)
                subjects |= {one.subject_id for one in found if isinstance(one, Reservation)}
        return len(subjects)
    finally:
        await consumer.stop()


async def measure_rate(topics: KafkaConnection, stage: Stage, partitions: int) -> float:
    """Return records per second, from the first output of the stage to the commit of the last."""
    async with Watcher(topics, stage, partitions) as watcher:
        await watcher.wait_for_first_record(stage.sinks[0])
        looks = await watcher.follow(PATIENCE)
    return sum(looks[-1].committed) / looks[-1].seconds


def prepare_topics(bootstrap: str, options: argparse.Namespace, folder: Path) -> tuple[KafkaConnection, str]:
    """Return new topics with pending tasks, and the speed of intake in words."""
    topics = KafkaConnection(bootstrap, prefix=f"bench-lag-{time.time_ns()}-")
    make_topics(topics, options.partitions)
    asyncio.run(fill(topics, options.tasks, options.partitions))
    return topics, describe_speed(topics, stage_named("intake"), options, folder)


def describe_speed(topics: KafkaConnection, stage: Stage, options: argparse.Namespace, folder: Path) -> str:
    """Describe the rate and processor time of a worker without a judge; the time includes the worker's start."""
    processor_before = _processor_time()
    with worker(topics, stage.name, folder, DRIFTLINE_JUDGE="none"):
        records_per_second = asyncio.run(measure_rate(topics, stage, options.partitions))
    return f"{records_per_second:,.0f} a second, {1e6 * (_processor_time() - processor_before) / options.tasks:.0f} µs of the processor each"


def _processor_time() -> float:
    """Return the processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_with_slow_judge(bootstrap: str, options: argparse.Namespace, folder: Path) -> None:
    """Score with a slow judge and print the lag over time."""
    topics, _ = prepare_topics(bootstrap, options, folder)

    async def follow() -> list[Look]:
        async with Watcher(topics, SCORING, options.partitions) as watcher:
            await watcher.wait_for_first_record(JUDGEMENTS)
            return await watcher.follow(options.seconds)

    judge = ["simulate-judge", "--port", "0", "--latency", str(options.latency)]
    with (
        serving(judge, {}, folder / "judge.log") as url,
        worker(topics, "scoring", folder, ANTHROPIC_BASE_URL=url, DRIFTLINE_JUDGE_CONCURRENCY=str(options.concurrency)),
    ):
        looks = asyncio.run(follow())
    print_looks(looks, options)
    scored = sum(looks[-1].scored)
    print(
        f"\nThe judge was asked about {asyncio.run(count_judged(topics, options.partitions))} exchanges; {scored} are scored."
    )


def print_looks(looks: Sequence[Look], options: argparse.Namespace) -> None:
    """Print lag and scores by partition over time, and the intervals and sizes of commits."""
    every = max(1, round(options.seconds / 9 / TICK))
    rows = [
        [
            f"{look.seconds:.0f} s",
            f"{sum(look.committed)}",
            join_numbers(look.committed),
            f"{sum(look.scored)}",
            join_numbers(look.scored),
        ]
        for look in [*looks[::every], looks[-1]]
    ]
    print_table(["after", "committed", "by partition", "scored", "by partition"], rows)
    last = looks[-1]
    print(f"\nSpread between partitions at the end: {max(last.scored) - min(last.scored)} scores")
    for subject, gaps, steps in (
        ("a partition", *commits([[look.committed[number] for look in looks] for number in range(options.partitions)], looks)),
        ("the worker", *commits([[sum(look.committed) for look in looks]], looks)),
    ):
        if steps:
            print(
                f"Commits of {subject}: {len(steps)}, of {statistics.median(steps):.0f} tasks in the median and {max(steps)} at most; "
                f"{statistics.median(gaps):.1f} s apart in the median and {max(gaps):.1f} s at most"
            )
        else:
            print(f"Commits of {subject}: none")


def commits(series: Sequence[Sequence[int]], looks: Sequence[Look]) -> tuple[list[float], list[int]]:
    """Return the seconds between commits and the number of tasks of each commit."""
    gaps, steps = [], []
    for values in series:
        since = 0.0
        for (previous, current), look in zip(itertools.pairwise(values), looks[1:], strict=True):
            if current > previous:
                gaps.append(look.seconds - since)
                steps.append(current - previous)
                since = look.seconds
        gaps.append(looks[-1].seconds - since)
    return gaps, steps


def join_numbers(numbers: Sequence[int]) -> str:
    """Join numbers with spaces."""
    return " ".join(map(str, numbers))


def run_without_judge(bootstrap: str, options: argparse.Namespace, folder: Path) -> None:
    """Score without a judge and print the rate."""
    topics, intake_speed = prepare_topics(bootstrap, options, folder)
    scored = describe_speed(topics, SCORING, options, folder)
    print(f"\nWithout a judge, intake of exchanges: {intake_speed}; scoring of tasks: {scored}.")


def main(arguments: Sequence[str] = ()) -> None:
    """Print the lag with a slow judge and the rate without one."""
    parser = argparse.ArgumentParser("benchmarks lag")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--only", choices=("slow", "unjudged"))
    options = parser.parse_args(arguments)
    print(
        f"{options.tasks:,} exchanges in {options.partitions} partitions, one worker; "
        f"the judge takes {options.latency:g} s a call, {options.concurrency} calls at once.\n"
    )
    with tempfile.TemporaryDirectory() as name, kafka() as bootstrap:
        if options.only != "unjudged":
            run_with_slow_judge(bootstrap, options, Path(name))
        if options.only != "slow":
            run_without_judge(bootstrap, options, Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
