"""Taking exchanges in over Kafka: `driftline serve --kafka` beside an endpoint that only parses, and one that parses and produces.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. No worker runs: what is measured is the server, with the sink
that lands the topics in its own process, until the broker has the exchange. Clients are in a process of their own.
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
"""Of the processor's time in a second, as the system counts it."""


class Served(NamedTuple):
    """A server: its address, and the process that takes the processor's time."""

    target: Target
    process: int


class Run(NamedTuple):
    """A run of clients, and what it took of the processor."""

    load: Load
    seconds: float


def children() -> set[int]:
    """Return the processes that this one has started and that still run."""
    return {int(number) for task in Path("/proc/self/task").iterdir() for number in (task / "children").read_text().split()}


@contextlib.contextmanager
def noted(target: contextlib.AbstractContextManager[Target]) -> Iterator[Served]:
    """A server with its process."""
    before = children()
    with target as served:
        (process,) = children() - before
        yield Served(served, process)


@contextlib.contextmanager
def alone(*options: str) -> Iterator[Target]:
    """An endpoint of this module or of `bench_ingest`, in a process of its own."""
    with started([sys.executable, "-m", *options]) as url:
        yield Target(url, "none")


@contextlib.contextmanager
def ours(folder: Path, topics: KafkaConnection) -> Iterator[Target]:
    """`driftline serve --kafka` over a new file."""
    database = folder / "bench.duckdb"
    token = connected(database)
    options = ["serve", "--db", str(database), "--port", "0", "--kafka", topics.bootstrap]
    with serving(options, {"DRIFTLINE_KAFKA_PREFIX": topics.prefix}, folder / "serve.log") as url:
        yield Target(url, token)


async def serve_producing(bootstrap: str, topic: str) -> None:
    """Serve an endpoint that parses and produces what came, answered once the broker has it; prints where."""
    app = FastAPI()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:

        @app.post(INGEST, status_code=CREATED)
        async def produce(body: IngestBody, request: Request) -> dict[str, str]:
            await (await producer.send(topic, await request.body(), body.session_id.encode()))
            return {"exchange_id": body.exchange.id}

        await serve_alone(app)


def processor_time(process: int) -> float:
    """Seconds of the processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def under_load(served: Served, clients: int, requests: int, salt: str) -> Run:
    """Put a server under load once."""
    before = processor_time(served.process)
    found = load(served.target.url, served.target.token, clients=clients, requests=requests, salt=salt)
    return Run(found, processor_time(served.process) - before)


def print_runs(runs: Mapping[str, Sequence[Run]], requests: int) -> None:
    """The run of each server with the median rate; ratios are the medians of the rounds' own."""
    rows = []
    for name, rounds in runs.items():
        middle = sorted(rounds, key=lambda one: one.load.rate)[len(rounds) // 2]
        ratio = statistics.median(one.load.rate / bare.load.rate for one, bare in zip(rounds, runs[BARE], strict=True))
        micros = 1e6 * statistics.median(one.seconds for one in rounds) / requests
        latencies = [f"{middle.load.quantile(share):.1f}" for share in (0.5, 0.99)]
        rows.append([name, f"{middle.load.rate:,.0f}", *latencies, f"{micros:,.0f}", f"{ratio:.2f}"])
    print_table(["server", "exchanges/s", "p50 ms", "p99 ms", "server's processor, µs each", "of parsing's rate"], rows)


def main(options: Sequence[str] = ()) -> None:
    """Print rates, latencies and processor time of each server."""
    parser = argparse.ArgumentParser("benchmarks gateway")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=6_400)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(options)
    runs: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as name, kafka() as bootstrap, contextlib.ExitStack() as stack:
        topics = KafkaConnection(bootstrap, prefix=f"bench-gateway-{time.time_ns()}-")
        make_topics(topics, PARTITIONS)
        producing = alone("benchmarks.bench_gateway", "--produce", bootstrap, topics.topic("heartbeats"))
        servers = {
            BARE: stack.enter_context(noted(alone("benchmarks.bench_ingest"))),
            PRODUCES: stack.enter_context(noted(producing)),
            OURS: stack.enter_context(noted(ours(Path(name), topics))),
        }
        for served in servers.values():
            under_load(served, 4, 400, "warm")
        for number in range(given.rounds):
            for what, served in servers.items():
                runs.setdefault(what, []).append(under_load(served, given.clients, given.requests, f"{number}"))
    print(f"Exchanges of 700 bytes from {given.clients} clients; the median of {given.rounds} rounds in turns.\n")
    print_runs(runs, given.requests)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        run(serve_producing(*sys.argv[2:]))
    else:
        main(sys.argv[1:])
