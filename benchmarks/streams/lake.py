"""A sink of agent-events, timed: python -m benchmarks.streams.lake lake|database BROKER PREFIX TARGET PARTITIONS.

It prints `ready` when it has so many partitions of agent-events, begins when it gets a line, and prints after each commit the records so far,
the time, and the seconds of processor time since it began.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from analytics.lake import Lake
from analytics.store.store import Partition, Store
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.streams.meter import cpu_seconds
from service.setup.workspace import utc_now
from streams.kafka import sink as database_sinks
from streams.kafka.connection import KafkaConnection
from streams.lake import sink as lake_sinks
from streams.process import collect_rarely

TOPIC = "agent-events"
SECONDS = 1.0
"""Seconds between commits to the lake: with five, the wait before the last commit would be a part of the result."""
REDACTOR = Redactor(Policy().redaction)


def reporter(count: Callable[[], int]) -> Callable[[], None]:
    """Return a function that prints the records so far."""
    began = cpu_seconds()

    def report() -> None:
        print(count(), time.time(), cpu_seconds() - began, flush=True)

    return report


async def start_signal() -> None:
    """Say that all is ready, and wait for the signal to begin."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def run_lake(connection: KafkaConnection, root: str, partitions: int) -> None:
    """Write to the lake for ever."""
    sink = lake_sinks.LakeSink(Lake(root), connection, REDACTOR, utc_now, limits=lake_sinks.LakeLimits(seconds=SECONDS))
    step, begun = sink._step, asyncio.Event()  # noqa: SLF001

    async def gated_step(*arguments: object) -> None:
        await begun.wait()
        await step(*arguments)  # type: ignore[arg-type]

    sink._step = gated_step  # type: ignore[method-assign]  # noqa: SLF001
    await sink.start()
    while sum(topic == TOPIC for topic, _ in sink._assigned) != partitions:  # noqa: ASYNC110, SLF001
        await asyncio.sleep(0.05)
    await start_signal()
    sink.on_commit = reporter(lambda: sink.committed)
    begun.set()
    await sink.broken.wait()


async def run_database(connection: KafkaConnection, file: Path) -> None:
    """Write to the database for ever."""
    all_of = database_sinks.partitions_on

    def some_of(connection: KafkaConnection, _: object) -> Sequence[Partition]:
        return all_of(connection, (TOPIC,))

    database_sinks.partitions_on = some_of  # type: ignore[assignment]
    with Store(file) as store:
        sink = database_sinks.Sink(store, connection, REDACTOR, utc_now)
        await start_signal()
        sink.on_progress = reporter(lambda: sum(sink.progress.positions.values()))
        await sink.start()
        await sink.broken.wait()


if __name__ == "__main__":
    kind, broker, prefix, target, count = sys.argv[1:]
    topics = KafkaConnection(broker, prefix=prefix)
    collect_rarely()
    asyncio.run(run_lake(topics, target, int(count)) if kind == "lake" else run_database(topics, Path(target)))
