"""Events out of Kafka into a lake of Delta tables, by one process and by two, beside the sink of the database.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says; it shares the processors with the sinks.
DRIFTLINE_BENCH_EVENTS sets how many events there are.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench_stream import fill_topics
from benchmarks.measure import first_line, print_table
from benchmarks.streams.fleet import fleet
from benchmarks.streams.running import ROOT, environment, kafka
from streams.kafka.connection import KafkaConnection

EVENTS = int(os.environ.get("DRIFTLINE_BENCH_EVENTS", "1000000"))
ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "3"))
PARTITIONS = 4
DATABASE, ONE, TWO = "database", "lake, one process", "lake, two processes"
PROCESSES = {DATABASE: 1, ONE: 1, TWO: 2}
BARS = ((ONE, DATABASE, 0.5), (TWO, ONE, 1.6))
"""Required ratios of rates."""


class Measures(NamedTuple):
    """One run: rows per second, and microseconds of processor time of the sinks per row."""

    rate: float
    cpu: float


class Child:
    """A sink in a process of its own, which tells how far it is."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.streams.lake", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.records, self.last_at, self.cpu = 0, 0.0, 0.0

    def begin(self, changed: threading.Event) -> None:
        """Let it begin, and note what it tells."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the sink has no pipes")
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()
        lines = self.process.stdout

        def listen() -> None:
            for line in lines:
                records, last_at, cpu = line.split()
                self.records, self.last_at, self.cpu = int(records), float(last_at), float(cpu)
                changed.set()

        threading.Thread(target=listen, daemon=True).start()


def run(name: str, topics: KafkaConnection, folder: Path) -> Measures:
    """Measure a sink from its beginning to its last commit."""
    kind = "database" if name == DATABASE else "lake"
    processes = PROCESSES[name]
    target = str(folder / (f"{topics.prefix}.duckdb" if kind == "database" else topics.prefix))
    children = [Child([kind, topics.bootstrap, topics.prefix, target, str(PARTITIONS // processes)]) for _ in range(processes)]
    try:
        for child in children:
            first_line(child.process)
        changed, began = threading.Event(), time.time()
        for child in children:
            child.begin(changed)
        while sum(child.records for child in children) < EVENTS:
            changed.wait(600)
            changed.clear()
        seconds = max(child.last_at for child in children) - began
        return Measures(EVENTS / seconds, 1e6 * sum(child.cpu for child in children) / EVENTS)
    finally:
        for child in children:
            child.process.kill()
            child.process.communicate()


def main() -> None:
    """Print rows per second and processor time of each sink, then each ratio that has a bar."""
    messages = fleet(EVENTS, PARTITIONS)
    runs: dict[str, list[Measures]] = {name: [] for name in PROCESSES}
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for name, measures in runs.items():
                topics = fill_topics(bootstrap, messages, f"lake-{number}-{len(name)}")
                measures.append(run(name, topics, Path(folder)))
    print(f"{EVENTS:,} AgentEvents in {PARTITIONS} partitions on {os.cpu_count()} processors; the median of {ROUNDS} rounds.\n")
    rows = [
        [
            name,
            f"{statistics.median(run.rate for run in measures):,.0f}",
            f"{statistics.median(run.cpu for run in measures):.1f}",
        ]
        for name, measures in runs.items()
    ]
    print_table(["sink", "rows/s", "CPU µs/row"], rows)
    print()
    ratios = []
    for name, other, bar in BARS:
        ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in zip(runs[name], runs[other], strict=True))
        ratios.append([f"{name} / {other}", f"{ratio:.2f}", f"{bar:g}", "yes" if ratio >= bar else "no"])
    print_table(["ratio", "measured", "bar", "reached"], ratios)


if __name__ == "__main__":
    main()
