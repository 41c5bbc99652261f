"""Spans of OpenTelemetry: from a Collector's topic to exchanges, events and diagnoses in DuckDB, and over HTTP in requests of 500.

Each way runs beside parsing the same protobuf alone. Over Kafka a worker (`--stages collector,intake,diagnosis`) and `driftline serve
--kafka` are a process each, and the spans stand on the topic before the worker starts. Over HTTP one client, or as many as a Collector's
exporter has consumers, posts to `driftline serve`, which answers when the spans are durable. DRIFTLINE_BENCH_SPANS sets how many spans
there are; DRIFTLINE_TEST_KAFKA names a broker.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx2
from aiokafka import AIOKafkaConsumer
from fastapi import FastAPI, Request, Response
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from analytics.store.store import Store
from benchmarks.bench_ingest import serve_alone
from benchmarks.measure import print_table, started
from benchmarks.streams.fleet import Message, produce
from benchmarks.streams.running import kafka, make_topics
from benchmarks.traces import SPANS, TURNS, requests
from service.server.server_lifecycle import run
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
from service.text.links import TRACES
from streams.kafka.connection import KafkaConnection

COUNT = int(os.environ.get("DRIFTLINE_BENCH_SPANS", "50000"))
TOGETHER = 500
PARTITIONS = 4
ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "3"))
SENDERS = 10
"""Requests that a Collector's exporter sends at a time unless it is told otherwise (`sending_queue.num_consumers`)."""
ENDED_AT_ONCE = 32
"""Sessions that are ended at a time."""
PATIENCE = 900.0
POLICY = """
version: 1
defaults: {retentionDays: null, traces: {settleSeconds: 1}}
collector: {connection: bench, project: bench}
"""
BARS = {"Kafka": 20_000, "HTTP": 10_000}
PARSING, WHOLE, SPANS_ALONE = "Kafka, parsing alone", "Kafka, to diagnoses", "Kafka, the stage alone"
BARE, TAKING, TAKING_MANY = "HTTP, parsing alone", "HTTP, durable, one client", f"HTTP, durable, {SENDERS} clients"


class Cost(NamedTuple):
    """Seconds of the clock, and of the processor by process."""

    seconds: float
    cpu: Mapping[str, float]


def main() -> None:
    """Print the rates with the ratio to parsing alone, or serve the endpoint that only parses."""
    if sys.argv[1:] == ["--bare"]:
        serve_bare()
        return
    bodies = list(requests(COUNT // SPANS, TOGETHER))
    print(f"{COUNT:,} spans of {sum(map(len, bodies)) // COUNT} bytes in requests of {TOGETHER}; best of {ROUNDS} rounds.\n")
    runs: dict[str, list[Cost]] = {name: [] for name in (PARSING, SPANS_ALONE, WHOLE, BARE, TAKING, TAKING_MANY)}
    with kafka() as bootstrap:
        for number in range(ROUNDS):
            for name, cost in over_kafka(bootstrap, bodies, number).items():
                runs[name].append(cost)
            with bare() as url:
                runs[BARE].append(post_all(url, "none", bodies, {}))
            runs[TAKING].append(over_http(bodies, 1))
            runs[TAKING_MANY].append(over_http(bodies, SENDERS))
    print_rates(runs)


def print_rates(runs: Mapping[str, Sequence[Cost]]) -> None:
    """Print the best round of each way: spans a second, processor time a span, and what that is beside parsing alone."""
    rows = []
    for name, rounds in runs.items():
        best = min(rounds, key=lambda cost: cost.seconds)
        base = min(runs[PARSING if name.startswith("Kafka") else BARE], key=lambda cost: cost.seconds)
        cpu = ", ".join(f"{what} {1e6 * seconds / COUNT:.0f}" for what, seconds in best.cpu.items())
        bar = BARS[name.partition(",")[0]] if name in (WHOLE, TAKING, TAKING_MANY) else 0
        rows.append(
            [name, f"{COUNT / best.seconds:,.0f}", f"{base.seconds / best.seconds:.3f}", cpu, f"{bar:,}" if bar else ""]
        )
    print_table(["way", "spans/s", "of parsing", "CPU µs/span", "bar"], rows)


def over_kafka(bootstrap: str, bodies: Sequence[bytes], number: int) -> dict[str, Cost]:
    """Measure one round over Kafka."""
    topics = KafkaConnection(bootstrap, prefix=f"bench-{os.getpid()}-{number}-")
    make_topics(topics, PARTITIONS)
    source = topics.topic("otlp_spans")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({source: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()
    messages = [Message(index % PARTITIONS, b"", body) for index, body in enumerate(bodies)]
    asyncio.run(produce(bootstrap, source, messages))
    with tempfile.TemporaryDirectory() as name:
        return {PARSING: asyncio.run(measure_parsing(bootstrap, source, len(messages)))} | measure_worker(
            topics, source, Path(name)
        )


async def measure_parsing(bootstrap: str, topic: str, messages: int) -> Cost:
    """Read a topic and parse its messages, and nothing else."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    remaining, stopwatch = messages, Stopwatch({"parsing": os.getpid()})
    while remaining:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            for record in records:
                ExportTraceServiceRequest().ParseFromString(record.value)
            remaining -= len(records)
    cost = stopwatch.cost()
    await consumer.stop()
    return cost


def measure_worker(topics: KafkaConnection, source: str, folder: Path) -> dict[str, Cost]:
    """Run server and worker until the last session's diagnosis has landed."""
    traces = COUNT // SPANS
    database, ends = folder / "bench.duckdb", Ends(topics)
    environment = {
        "DRIFTLINE_KAFKA": topics.bootstrap,
        "DRIFTLINE_KAFKA_PREFIX": topics.prefix,
        "DRIFTLINE_KAFKA_OTLP_SPANS": source,
    }
    token, settings = prepare_folder(database, folder, environment)
    with serving(
        ["serve", "--kafka", topics.bootstrap, "--db", str(database), "--port", "0", "--judge", "none"],
        settings,
        folder / "serve.log",
    ) as url:
        until(lambda: httpx2.get(f"{url}/readyz").status_code == httpx2.codes.OK)
        with command(["worker", "--stages", "collector,intake,diagnosis"], settings, folder / "worker.log") as worker:
            until(lambda: "assigned: " in (folder / "worker.log").read_text("utf-8"), worker)
            stopwatch = Stopwatch({"worker": worker.pid, "server": server_process()})
            until(lambda: ends.of("spans") >= COUNT, worker)
            stage = stopwatch.cost()
            # A span that lands after its trace was assembled makes another assembly of it, and no other exchange.
            until(lambda: min(ends.of("trace-assemblies"), ends.of("exchanges")) >= traces, worker)
            finalise(url, token, -(-traces // TURNS))
            until(lambda: ends.of("diagnoses") >= -(-traces // TURNS), worker)
            total = stopwatch.cost()
    ends.close()
    with Store(database) as store:
        stored_counts = store.count("exchanges"), store.count("spans")
    if stored_counts != (traces, COUNT):
        raise RuntimeError(f"{stored_counts} exchanges and spans came of {traces} and {COUNT}")
    return {SPANS_ALONE: stage, WHOLE: total}


def over_http(bodies: Sequence[bytes], senders: int) -> Cost:
    """Measure one round over HTTP, with so many clients."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        token, settings = prepare_folder(folder / "bench.duckdb", folder, {})
        options = ["serve", "--db", str(folder / "bench.duckdb"), "--port", "0", "--judge", "none"]
        with serving(options, settings, folder / "serve.log") as url:
            return post_all(url, token, bodies, {"server": server_process()}, senders)


def post_all(url: str, token: str, bodies: Sequence[bytes], processes: Mapping[str, int], senders: int = 1) -> Cost:
    """Post the requests, each client one after the other."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
    with (
        httpx2.Client(base_url=url, headers=headers, timeout=120, limits=httpx2.Limits(max_connections=senders)) as client,
        ThreadPoolExecutor(senders) as clients,
    ):

        def post(body: bytes) -> None:
            if client.post(TRACES, content=body).status_code != httpx2.codes.OK:
                raise RuntimeError("a request was not taken")

        stopwatch = Stopwatch(processes)
        deque(clients.map(post, bodies), 0)
        return stopwatch.cost()


def prepare_folder(database: Path, folder: Path, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Make a connection and a policy; its token, and what commands are told."""
    with AccessStore(access_file(database), utc_now) as access:
        token = access.add(Holder("connection", "bench", "bench"))
    (folder / "policy.yaml").write_text(POLICY)
    return token, {"DRIFTLINE_POLICY": str(folder / "policy.yaml"), "DRIFTLINE_DATABASE": str(database), **environment}


def finalise(url: str, token: str, sessions: int) -> None:
    """End the sessions, some at once: a fleet ends them side by side, and each waits until what came of it has landed."""
    with (
        httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120) as client,
        ThreadPoolExecutor(ENDED_AT_ONCE) as callers,
    ):

        def end(number: int) -> None:
            client.post(f"/api/audit/sessions/session-{number:06}/finalize", json={}).raise_for_status()

        deque(callers.map(end, range(sessions)), 0)


class Ends:
    """Ends of topics: how many records each has."""

    def __init__(self, topics: KafkaConnection) -> None:
        self._topics = topics
        self._consumer = KafkaConsumer(bootstrap_servers=topics.bootstrap)

    def of(self, topic: str) -> int:
        """Return the records of a topic."""
        name = self._topics.topic(topic)
        numbers = self._consumer.partitions_for_topic(name) or ()
        return sum(self._consumer.end_offsets([TopicPartition(name, number) for number in numbers]).values())

    def close(self) -> None:
        """Let go of the broker."""
        self._consumer.close()


class Stopwatch:
    """A moment from which some processes, by name, are measured."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes
        self._at, self._cpu = time.perf_counter(), {name: cpu_of(pid) for name, pid in processes.items()}

    def cost(self) -> Cost:
        """What it took until now."""
        return Cost(
            time.perf_counter() - self._at, {name: cpu_of(pid) - self._cpu[name] for name, pid in self._processes.items()}
        )


def cpu_of(pid: int) -> float:
    """Seconds of processor time of a process and those it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + sum(cpu_of(int(child)) for child in children)


def server_process() -> int:
    """Return the process of the server: the one of our children whose command is `serve`."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))


@contextlib.contextmanager
def command(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours while the context is open."""
    command_line = [sys.executable, "-P", "-m", "service.cli.main", *arguments]
    child_environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | dict(environment)
    with log.open("wb") as output, subprocess.Popen(command_line, env=child_environment, stdout=output, stderr=output) as child:
        try:
            yield child
        finally:
            child.terminate()


def until(condition: Callable[[], bool], worker: subprocess.Popen[bytes] | None = None) -> None:
    """Return as soon as the condition holds; RuntimeError when that takes too long, or the worker has ended."""
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends_at or (worker is not None and worker.poll() is not None):
            raise RuntimeError("nothing moves any more")
        time.sleep(0.05)


@contextlib.contextmanager
def bare() -> Iterator[str]:
    """The endpoint that only parses, in a process of its own."""
    with started([sys.executable, "-m", "benchmarks.bench_spans", "--bare"]) as url:
        yield url


def serve_bare() -> None:
    """Serve the endpoint that only parses; prints where."""
    app = FastAPI()

    @app.post(TRACES)
    async def parse(request: Request) -> Response:
        ExportTraceServiceRequest().ParseFromString(await request.body())
        return Response(b"", media_type="application/x-protobuf")

    run(serve_alone(app))


if __name__ == "__main__":
    main()
