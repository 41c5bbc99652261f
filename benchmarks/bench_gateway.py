"""Ingestion over Kafka: `driftline serve --kafka` beside an endpoint that only parses, and one that parses and produces.

Starts Apache Kafka, or uses the broker that DRIFTLINE_TEST_KAFKA names. No worker runs: the benchmark measures the server, including the
sink in its process, until the broker acknowledges the exchange. Clients run in another process.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, Request

from benchmarks.bench_ingest import Target, connected, serve_alone
from benchmarks.load import CREATED, Load, load
from benchmarks.measure import print_table, started
from benchmarks.streams.running import kafka, make_topics
from service.server.server_lifecycle import run
from service.server.supervisor import serving
from service.text.links import INGEST
from service.web.models import IngestBody
from streams.kafka.connection import KafkaConnection

BARE, PRODUCES, OURS = "parse only", "parse and produce", "`driftline serve --kafka`"
PARTITIONS = 4
TICKS = 100
"""Clock ticks per second of /proc."""


class Served(NamedTuple):
    """A server and the id of its process."""

    target: Target
    process: int


class Run(NamedTuple):
    """A run of clients and the server's processor seconds."""

    load: Load
    seconds: float


def children() -> set[int]:
    """Return the ids of our running child processes."""
    return {int(number) for task in Path("/proc/self/task").iterdir() for number in (task / "children").read_text().split()}


@contextlib.contextmanager
def with_process(target: contextlib.AbstractContextManager[Target]) -> Iterator[Served]:
    """Start a server and yield it with its process."""
    children_before = children()
    with target as served:
        (process,) = children() - children_before
        yield Served(served, process)


@contextlib.contextmanager
def start_endpoint(*options: str) -> Iterator[Target]:
    """Start an endpoint of this module or of `bench_ingest` in another process."""
    with started([sys.executable, "-m", *options]) as url:
        yield Target(url, "none")


@contextlib.contextmanager
def serve_ours(folder: Path, topics: KafkaConnection) -> Iterator[Target]:
    """Start `driftline serve --kafka` over a new file."""
    database = folder / "bench.duckdb"
    token = connected(database)
    options = ["serve", "--db", str(database), "--port", "0", "--kafka", topics.bootstrap]
    with serving(options, {"DRIFTLINE_KAFKA_PREFIX": topics.prefix}, folder / "serve.log") as url:
        yield Target(url, token)


async def serve_producing(bootstrap: str, topic: str) -> None:
    """Serve an endpoint that parses and produces each exchange and waits for the broker; print its address."""
    app = FastAPI()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:

        @app.post(INGEST, status_code=CREATED)
        async def produce(body: IngestBody, request: Request) -> dict[str, str]:
            await (await producer.send(topic, await request.body(), body.session_id.encode()))
            return {"exchange_id": body.exchange.id}

        await serve_alone(app)


def processor_time(process: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure_load(served: Served, clients: int, requests: int, salt: str) -> Run:
    """Put a server under load once."""
    processor_before = processor_time(served.process)
    result = load(served.target.url, served.target.token, clients=clients, requests=requests, salt=salt)
    return Run(result, processor_time(served.process) - processor_before)


def print_runs(runs: Mapping[str, Sequence[Run]], requests: int) -> None:
    """Print the run with the median rate of each server; ratios are the medians of those of the rounds."""
    rows = []
    for name, rounds in runs.items():
        middle = sorted(rounds, key=lambda one: one.load.rate)[len(rounds) // 2]
        ratio = statistics.median(one.load.rate / bare.load.rate for one, bare in zip(rounds, runs[BARE], strict=True))
        micros = 1e6 * statistics.median(one.seconds for one in rounds) / requests
        latencies = [f"{middle.load.quantile(share):.1f}" for share in (0.5, 0.99)]
        rows.append([name, f"{middle.load.rate:,.0f}", *latencies, f"{micros:,.0f}", f"{ratio:.2f}"])
    print_table(["server", "exchanges/s", "p50 ms", "p99 ms", "server's processor, µs each", "of parsing's rate"], rows)


def main(arguments: Sequence[str] = ()) -> None:
    """Print rates, latencies and processor time of each server."""
    parser = argparse.ArgumentParser("benchmarks gateway")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=6_400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    runs: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as name, kafka() as bootstrap, contextlib.ExitStack() as stack:
        topics = KafkaConnection(bootstrap, prefix=f"bench-gateway-{time.time_ns()}-")
        make_topics(topics, PARTITIONS)
        producing = start_endpoint("benchmarks.bench_gateway", "--produce", bootstrap, topics.topic("heartbeats"))
        servers = {
            BARE: stack.enter_context(with_process(start_endpoint("benchmarks.bench_ingest"))),
            PRODUCES: stack.enter_context(with_process(producing)),
            OURS: stack.enter_context(with_process(serve_ours(Path(name), topics))),
        }
        for served in servers.values():
            measure_load(served, 4, 400, "warm")
        for number in range(options.rounds):
            for name_of_server, served in servers.items():
                runs.setdefault(name_of_server, []).append(measure_load(served, options.clients, options.requests, f"{number}"))
    print(f"Exchanges of 700 bytes from {options.clients} clients; the median of {options.rounds} rounds in turns.\n")
    print_runs(runs, options.requests)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        run(serve_producing(*sys.argv[2:]))
    else:
        main(sys.argv[1:])
