"""Running the ways: a broker, topics full of events, and processes whose measures are read."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import first_line
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection

ROOT = Path(__file__).parents[2]
PATIENCE = 600
"""Seconds that no way takes."""
HEAP = "1g"


@contextmanager
def kafka() -> Iterator[str]:
    """The address of an Apache Kafka: where DRIFTLINE_TEST_KAFKA says, else one of our own, which is gone afterwards."""
    address = os.environ.get("DRIFTLINE_TEST_KAFKA")
    if address:
        yield address
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support.kafka_brokers import running_broker  # noqa: PLC0415 - the tests' own; they are no package

    with running_broker(heap=HEAP) as broker:
        yield broker.bootstrap


def make_topics(connection: KafkaConnection, partitions: int) -> None:
    """Make every topic of an installation."""
    with TopicAdministration(connection) as administration:
        administration.create(partitions)


def environment() -> dict[str, str]:
    """Return the variables that a child needs to find our modules; progress bars and colours would only be in the way."""
    return os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"}


def measured(python: str, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a way in a process of its own; what its meter says. RuntimeError with its last words when it says nothing."""
    command = [python, "-m", f"benchmarks.streams.{module}", *arguments]
    process = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return parse_measures(module, process.stdout, process.stderr)


def parse_measures(module: str, printed: str, logged: str) -> dict[str, Any]:
    """Return the measures in what a process has printed, frameworks having printed what they like around it."""
    measure_lines = [line for line in printed.splitlines() if line.startswith('{"events"')]
    if not measure_lines:
        raise RuntimeError(f"{module} measured nothing: {logged[-2000:]}")
    measures: dict[str, Any] = json.loads(measure_lines[-1])
    return measures


def whole_path(connection: KafkaConnection, events: int, diagnoses: int, topics: str) -> dict[str, Any]:
    """Measure the way from the topic of events to rows in DuckDB: a worker, and the sink of these topics, a process each.

    It lasts from the worker's first chunk until the last diagnosis is committed. Processor time and memory are of both together.
    """
    broker_arguments = [connection.bootstrap, connection.prefix]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sink = stack.enter_context(
            started("sink", [*broker_arguments, str(Path(folder) / "bench.duckdb"), str(diagnoses), topics])
        )
        first_line(sink)
        worker = stack.enter_context(started("worker", broker_arguments))
        landed = parse_measures("sink", sink.communicate(timeout=PATIENCE)[0], "")
        worker.send_signal(signal.SIGTERM)
        worked = parse_measures("worker", worker.communicate(timeout=PATIENCE)[0], "")
    return {
        "events": events,
        "seconds": landed["began"] + landed["seconds"] - worked["began"],
        "cpu": landed["cpu"] + worked["cpu"],
        "memory": landed["memory"] + worked["memory"],
    }


@contextmanager
def started(module: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process whose output is read; it has ended when the context has."""
    command = [sys.executable, "-m", f"benchmarks.streams.{module}", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()
