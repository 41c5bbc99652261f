"""Scoring on Kafka: how the lag falls while a slow judge is asked, and how fast a worker is without one.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. One worker process scores tasks that wait already, first with a simulated judge
that takes its time, then with none; another takes the exchanges in before.
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
"""Exchanges of a session; sessions come side by side, a hundred at a time."""
SIDE_BY_SIDE = 100
POLICY = "version: 1\ndefaults: {sampling: {enabled: false}, costCapPerSession: null}\n"
TICK = 0.5
"""Seconds between two looks."""
PATIENCE = 600.0


@dataclass(frozen=True)
class Look:
    """The state of the topics at one moment, by partition."""

    seconds: float
    committed: list[int]
    scored: list[int]


def exchanges(count: int) -> Iterator[Exchange]:
    """So many exchanges, as sessions send them that are under way at the same time."""
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
    at = START + timedelta(minutes=turn)
    return Exchange(
        exchange_id=f"{session}:{turn}",
        connection="fleet",
        project="ops",
        session_id=session,
        turn_number=turn + 1,
        occurred_at=at,
        ingested_at=at,
        user_message=f"Is backup number {turn} of {session} healthy?" + " Please look." * 10,
        agent_response=f"I looked at backup number {turn}: it is complete and was restored in a trial." + " All is well." * 20,
        content_digest=f"{turn:016x}",
    )


async def fill(topics: KafkaConnection, count: int, partitions: int) -> None:
    """Put exchanges on their topic."""
    messages = [Message(partition_of(key := key_of(one), partitions), key, encode(one)) for one in exchanges(count)]
    await produce(topics.bootstrap, topics.topic("exchanges"), messages)


class Watcher:
    """Reads how far a stage has come."""

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
        """Let go."""
        await self._consumer.stop()

    async def ends(self) -> list[int]:
        """Return the end of each partition of the source."""
        found = await self._consumer.end_offsets(self._source)
        return [found[place] for place in self._source]

    async def look(self) -> Look:
        """Return the present state."""
        committed = [await self._consumer.committed(place) or 0 for place in self._source]
        ends = await self._consumer.end_offsets(self._sink)
        return Look(time.perf_counter() - self._began, committed, [ends[place] for place in self._sink])

    async def begun(self, topic: str) -> None:
        """Return when the first record is on a topic: time is counted from then on. TimeoutError if none comes."""
        places = [TopicPartition(self._topics.topic(topic), place.partition) for place in self._source]
        async with asyncio.timeout(START_SECONDS):
            while not any((await self._consumer.end_offsets(places)).values()):  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(TICK / 5)
        self._began = time.perf_counter()

    async def follow(self, seconds: float) -> list[Look]:
        """Look again and again for so long, or until all is committed."""
        ends, looks = await self.ends(), [await self.look()]
        while looks[-1].seconds < seconds and looks[-1].committed != ends:
            await asyncio.sleep(TICK)
            looks.append(await self.look())
        return looks


@contextlib.contextmanager
def worker(topics: KafkaConnection, stage: str, folder: Path, **environment: str) -> Iterator[None]:
    """A worker with one stage, in a process of its own, while the context is open. It gets none of our own settings and keys."""
    policy, log = folder / "policy.yaml", folder / f"worker-{stage}.log"
    policy.write_text(POLICY)
    command = [sys.executable, "-P", "-m", "service.cli.main", "worker", "--stages", stage]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRIFTLINE_", "ANTHROPIC_"))}
    named = {
        "DRIFTLINE_KAFKA": topics.bootstrap,
        "DRIFTLINE_KAFKA_PREFIX": topics.prefix,
        "DRIFTLINE_POLICY": str(policy),
        "DRIFTLINE_STOP_GRACE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with (
        log.open("wb") as stream,
        subprocess.Popen(command, env=inherited | named | environment, stdout=stream, stderr=stream, process_group=0) as child,
    ):
        try:
            yield
        finally:
            child.terminate()


async def begun(topics: KafkaConnection, partitions: int) -> int:
    """Count the exchanges that the judge was asked about."""
    consumer = AIOKafkaConsumer(**topics.for_aiokafka(), enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(topics.topic(JUDGEMENTS), number) for number in range(partitions)]
        consumer.assign(places)
        ends, subjects = await consumer.end_offsets(places), set[str]()
        while [place for place in places if await consumer.position(place) < ends[place]]:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found = (decode(one.value) for one in records)
                subjects |= {one.subject_id for one in found if isinstance(one, Reservation)}
        return len(subjects)
    finally:
        await consumer.stop()


async def rate(topics: KafkaConnection, stage: Stage, partitions: int) -> float:
    """Records a second, from the first one that the stage has made to the commit of the last."""
    async with Watcher(topics, stage, partitions) as watcher:
        await watcher.begun(stage.sinks[0])
        looks = await watcher.follow(PATIENCE)
    return sum(looks[-1].committed) / looks[-1].seconds


def waiting(bootstrap: str, given: argparse.Namespace, folder: Path) -> tuple[KafkaConnection, str]:
    """New topics on which tasks wait, and how fast intake made them."""
    topics = KafkaConnection(bootstrap, prefix=f"bench-lag-{time.time_ns()}-")
    make_topics(topics, given.partitions)
    asyncio.run(fill(topics, given.tasks, given.partitions))
    return topics, speed(topics, stage_named("intake"), given, folder)


def speed(topics: KafkaConnection, stage: Stage, given: argparse.Namespace, folder: Path) -> str:
    """Say how fast a worker without a judge gets through a stage, and at what cost.

    The processor's time includes the worker's start.
    """
    before = _processor_time()
    with worker(topics, stage.name, folder, DRIFTLINE_JUDGE="none"):
        found = asyncio.run(rate(topics, stage, given.partitions))
    return f"{found:,.0f} a second, {1e6 * (_processor_time() - before) / given.tasks:.0f} µs of the processor each"


def _processor_time() -> float:
    """Seconds of the processor that children took which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slow(bootstrap: str, given: argparse.Namespace, folder: Path) -> None:
    """Score with a slow judge and print what came of it."""
    topics, _ = waiting(bootstrap, given, folder)

    async def follow() -> list[Look]:
        async with Watcher(topics, SCORING, given.partitions) as watcher:
            await watcher.begun(JUDGEMENTS)
            return await watcher.follow(given.seconds)

    judge = ["simulate-judge", "--port", "0", "--latency", str(given.latency)]
    with (
        serving(judge, {}, folder / "judge.log") as url,
        worker(topics, "scoring", folder, ANTHROPIC_BASE_URL=url, DRIFTLINE_JUDGE_CONCURRENCY=str(given.concurrency)),
    ):
        looks = asyncio.run(follow())
    print_looks(looks, given)
    scored = sum(looks[-1].scored)
    print(f"\nThe judge was asked about {asyncio.run(begun(topics, given.partitions))} exchanges; {scored} are scored.")


def print_looks(looks: Sequence[Look], given: argparse.Namespace) -> None:
    """Lag and scores by partition over time, and how the commits came."""
    every = max(1, round(given.seconds / 9 / TICK))
    rows = [
        [f"{one.seconds:.0f} s", f"{sum(one.committed)}", words(one.committed), f"{sum(one.scored)}", words(one.scored)]
        for one in [*looks[::every], looks[-1]]
    ]
    print_table(["after", "committed", "by partition", "scored", "by partition"], rows)
    last = looks[-1]
    print(f"\nSpread between partitions at the end: {max(last.scored) - min(last.scored)} scores")
    for what, gaps, steps in (
        ("a partition", *commits([[one.committed[number] for one in looks] for number in range(given.partitions)], looks)),
        ("the worker", *commits([[sum(one.committed) for one in looks]], looks)),
    ):
        if steps:
            print(
                f"Commits of {what}: {len(steps)}, of {statistics.median(steps):.0f} tasks in the median and {max(steps)} at most; "
                f"{statistics.median(gaps):.1f} s apart in the median and {max(gaps):.1f} s at most"
            )
        else:
            print(f"Commits of {what}: none")


def commits(series: Sequence[Sequence[int]], looks: Sequence[Look]) -> tuple[list[float], list[int]]:
    """Seconds between commits, and how many tasks each has."""
    gaps, steps = [], []
    for one in series:
        since = 0.0
        for (before, after), look in zip(itertools.pairwise(one), looks[1:], strict=True):
            if after > before:
                gaps.append(look.seconds - since)
                steps.append(after - before)
                since = look.seconds
        gaps.append(looks[-1].seconds - since)
    return gaps, steps


def words(numbers: Sequence[int]) -> str:
    """Numbers side by side."""
    return " ".join(map(str, numbers))


def unjudged(bootstrap: str, given: argparse.Namespace, folder: Path) -> None:
    """Score without a judge and print how fast that is."""
    topics, taken = waiting(bootstrap, given, folder)
    scored = speed(topics, SCORING, given, folder)
    print(f"\nWithout a judge, intake of exchanges: {taken}; scoring of tasks: {scored}.")


def main(options: Sequence[str] = ()) -> None:
    """Print how the lag falls with a slow judge, and what a worker does without one."""
    parser = argparse.ArgumentParser("benchmarks lag")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--only", choices=("slow", "unjudged"))
    given = parser.parse_args(options)
    print(
        f"{given.tasks:,} exchanges in {given.partitions} partitions, one worker; "
        f"the judge takes {given.latency:g} s a call, {given.concurrency} calls at once.\n"
    )
    with tempfile.TemporaryDirectory() as name, kafka() as bootstrap:
        if given.only != "unjudged":
            slow(bootstrap, given, Path(name))
        if given.only != "slow":
            unjudged(bootstrap, given, Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
