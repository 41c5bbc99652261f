"""Events out of Kafka: consume, decode and fold beside Faust, Quix Streams and Bytewax, and the whole way to diagnoses in DuckDB.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. Every way runs in a process of its own, in turns, and the
median of its rounds is told. The frameworks are in an environment of their own, which `make bench-stream` makes;
DRIFTLINE_BENCH_STREAMS names another Python that has them. DRIFTLINE_BENCH_EVENTS sets how many events there are.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import print_table
from benchmarks.streams.fleet import LENGTH, Message, fleet, produce
from benchmarks.streams.running import kafka, make_topics, measured, whole_path
from schemas.records import AgentEvent
from streams.kafka.connection import KafkaConnection

ROOT = Path(__file__).parents[1]
EVENTS = int(os.environ.get("DRIFTLINE_BENCH_EVENTS", "1000000"))
FRAMEWORKS = os.environ.get("DRIFTLINE_BENCH_STREAMS", str(ROOT / ".venv-streams" / "bin" / "python"))
PARTITIONS = 4
ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "3"))


class Pipeline(NamedTuple):
    """A way from Kafka to evidence."""

    module: str
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    share: int = 1
    """One in so many of the events is read: a slow way would take minutes, and its rate is compared."""


BARE = "aiokafka and decode_batch, no fold"
PIPELINES = {
    BARE: Pipeline("bare", ("proven",)),
    "aiokafka and polars, nothing proven, no fold": Pipeline("bare", ("unproven",)),
    "Faust, an agent": Pipeline("with_faust", share=20),
    "Quix Streams": Pipeline("with_quix", python=FRAMEWORKS, share=4),
    "Bytewax": Pipeline("with_bytewax", python=FRAMEWORKS, share=4),
    "Driftline, fold": Pipeline("with_driftline"),
}
PATH = "Driftline, diagnoses in DuckDB"
WHOLE = {PATH: "diagnoses", "Driftline, diagnoses and every event in DuckDB": "diagnoses,agent-events"}
"""The whole path, by the topics that the sink takes in while the worker works."""
BARS = {
    "Driftline, fold": {"Faust, an agent": 20.0, "Quix Streams": 4.0, "Bytewax": 3.0},
    PATH: {"Faust, an agent": 15.0, "Quix Streams": 3.0, "Bytewax": 2.0, BARE: 0.4},
}
"""Required ratios of rates."""


def main() -> None:
    """Print events per second, processor time and memory of each way, then each ratio that has a bar."""
    messages = fleet(EVENTS, PARTITIONS)
    size = sum(len(message.value) for message in messages) // len(messages)
    print(
        f"{EVENTS:,} AgentEvents of {len(AgentEvent.__struct_fields__)} fields and {size} bytes, {EVENTS // LENGTH:,} sessions"
    )
    print(f"side by side in {PARTITIONS} partitions; the median of {ROUNDS} rounds.\n")
    pipelines = {name: pipeline for name, pipeline in PIPELINES.items() if Path(pipeline.python).exists()}
    if len(pipelines) < len(PIPELINES):
        print(
            f"Left out, because {FRAMEWORKS} is not there (make bench-stream makes it): {', '.join(PIPELINES.keys() - pipelines)}.\n"
        )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*pipelines, *WHOLE)}
    with kafka() as bootstrap:
        for number in range(ROUNDS):
            topics = fill_topics(bootstrap, messages, f"fold-{number}")
            for name, pipeline in pipelines.items():
                runs[name].append(run(pipeline, topics))
            for name, landing in WHOLE.items():
                topics = fill_topics(bootstrap, messages, f"whole-{number}-{len(landing)}")
                runs[name].append(whole_path(topics, EVENTS, EVENTS // LENGTH, landing))
    print_measures(runs)
    print_ratios(runs)


def fill_topics(bootstrap: str, messages: Sequence[Message], label: str) -> KafkaConnection:
    """Return new topics with the messages on agent-events."""
    connection = KafkaConnection(bootstrap, prefix=f"bench-{os.getpid()}-{label}-")
    make_topics(connection, PARTITIONS)
    asyncio.run(produce(bootstrap, connection.topic("agent-events"), messages))
    return connection


def run(pipeline: Pipeline, topics: KafkaConnection) -> dict[str, Any]:
    """Measure a pipeline once; RuntimeError unless it folded all events."""
    events = EVENTS // pipeline.share
    source = topics.prefix if pipeline.module == "with_driftline" else topics.topic("agent-events")
    measures = measured(pipeline.python, pipeline.module, [topics.bootstrap, source, str(events), *pipeline.arguments])
    if pipeline.module != "bare" and measures["folded"] != measures["events"]:
        raise RuntimeError(f"{pipeline.module} has folded {measures['folded']} of {measures['events']} events")
    return measures


def rate(measures: dict[str, Any]) -> float:
    """Return events per second."""
    return float(measures["events"] / measures["seconds"])


def print_measures(runs: dict[str, list[dict[str, Any]]]) -> None:
    """The median of each way's rounds; processor time in microseconds an event, memory at its highest."""
    rows = []
    for name, rounds in runs.items():
        cpu = statistics.median(1e6 * measures["cpu"] / measures["events"] for measures in rounds)
        memory = max(measures["memory"] for measures in rounds)
        rows.append([name, f"{statistics.median(map(rate, rounds)):,.0f}", f"{cpu:.1f}", f"{memory:.0f}"])
    print_table(["out of Kafka", "events/s", "CPU µs/event", "peak MB"], rows)


def print_ratios(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Each ratio that has a bar: the median of the rounds' own ratios, because the machine is another one in each."""
    print()
    rows = []
    for name, bars in BARS.items():
        for other, bar in bars.items():
            if other not in runs:
                continue
            ratios = [rate(ours) / rate(theirs) for ours, theirs in zip(runs[name], runs[other], strict=True)]
            median = statistics.median(ratios)
            rows.append([f"{name} / {other}", f"{median:.2f}", f"{bar:g}", "yes" if median >= bar else "no"])
    print_table(["ratio", "measured", "bar", "reached"], rows)


if __name__ == "__main__":
    main()
