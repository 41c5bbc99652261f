"""Running the ways: a broker, topics full of events, and processes whose measures are read."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic

ROOT = Path(__file__).parents[2]
PATIENCE = 600
"""Seconds that no way takes."""
HEAP = "1g"
TOPICS = ("agent-events", "diagnoses", "diagnosis-state", "dead-letters")


@contextmanager
def kafka() -> Iterator[str]:
    """The address of an Apache Kafka: where DRIFTLINE_TEST_KAFKA says, else one of our own, which is gone afterwards."""
    address = os.environ.get("DRIFTLINE_TEST_KAFKA")
    if address:
        yield address
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from kafka_server import running  # noqa: PLC0415 - the tests' own; they are no package

    with running(heap=HEAP) as broker:
        yield broker.bootstrap


def make_topics(bootstrap: str, prefix: str, partitions: int) -> None:
    """Make the topics that the diagnosis stage reads and writes, with this prefix."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(prefix + topic, partitions, 1) for topic in TOPICS])
    finally:
        admin.close()


def environment() -> dict[str, str]:
    """What a child needs to find our modules; progress bars and colours would only be in the way."""
    return os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"}


def measured(python: str, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a way in a process of its own; what its meter says. RuntimeError with its last words when it says nothing."""
    command = [python, "-m", f"benchmarks.streams.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    return said(module, done.stdout, done.stderr)


def said(module: str, printed: str, logged: str) -> dict[str, Any]:
    """The measures in what a process has printed, frameworks having printed what they like around it."""
    found = [line for line in printed.splitlines() if line.startswith('{"events"')]
    if not found:
        raise RuntimeError(f"{module} measured nothing: {logged[-2000:]}")
    measures: dict[str, Any] = json.loads(found[-1])
    return measures
