"""Taking exchanges in over HTTP until they are durable, beside an endpoint that only parses the same body.

`driftline serve` over a file, without a judge, and a bare FastAPI endpoint under the same uvicorn settings take turns. The clients
are in a process of their own and keep their connections. The same with 1 000 000 exchanges in the log already, and one client with
batches of 500 exchanges. That database is added up before the clock runs, as one that grew would have been. All of it takes a quarter
of an hour; `--stored 0 --clients 1 64` leaves out the million and some numbers of clients.

A server works on after a run: the log lands, and days are added up. That must not be measured in the run of the next one, so each is
followed by a pause, and every second round goes the other way. A run lasts several seconds, so that it has its share of that work.
"""

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import httpx2
from fastapi import FastAPI

from analytics.store.store import Store
from benchmarks.load import CREATED, Load, body, load
from benchmarks.measure import print_rows, print_table, started
from schemas.codec.single_object import encode
from schemas.records import Exchange, SessionClosed
from service.server.server_lifecycle import build_http_server, run
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
from service.text.links import EXCHANGES, INGEST
from service.web.bounds import ApiSettings
from service.web.models import IngestBody
from streams.engine.engine import INTAKE
from streams.judging.judged_stages import SCORING

REQUESTS = {1: 3_000, 4: 6_000, 16: 12_000, 64: 16_000}
"""Requests of a run, by the number of clients."""
STORED = 1_000_000
LONG_AGO = datetime(2026, 9, 1, tzinfo=UTC)
BATCH = 50_000
BATCHES, TOGETHER = 32, 500
SETTLED = 90
"""Seconds after which a server has added up what `fill` put into its database: its tasks first run after a minute."""
PAUSE = 6
"""Seconds after a run in which a server lands what it took in, and adds up its days: it looks for new scores every five."""
TURNS = 10
BARE, OURS, LARGE = "parse only", "`driftline serve`", "the same, many exchanges in the log"


T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A server under load."""

    url: str
    token: str


@contextlib.contextmanager
def ours(folder: Path, stored: int = 0) -> Iterator[Target]:
    """`driftline serve` without a judge over a new file with so many exchanges."""
    database = folder / f"{stored}.duckdb"
    if stored:
        fill(database, stored)
    token = connected(database)
    options = ["serve", "--db", str(database), "--port", "0", "--judge", "none"]
    with serving(options, {}, folder / "serve.log") as url:
        yield Target(url, token)


def connected(database: Path) -> str:
    """Return the token of a connection to the server over a file."""
    with AccessStore(access_file(database), utc_now) as access:
        return access.add(Holder("connection", "bench", "bench"))


@contextlib.contextmanager
def bare() -> Iterator[Target]:
    """The endpoint that only parses, in a process of its own."""
    with started([sys.executable, "-m", "benchmarks.bench_ingest"]) as url:
        yield Target(url, "none")


def serve_bare() -> None:
    """Serve the endpoint that only parses."""
    app = FastAPI()

    @app.post(INGEST, status_code=201)
    async def parse(body: IngestBody) -> dict[str, str]:
        return {"exchange_id": body.exchange.id}

    @app.post(EXCHANGES, status_code=201)
    async def parse_all(body: list[IngestBody]) -> dict[str, int]:
        return {"accepted": len(body)}

    run(serve_alone(app))


async def serve_alone(app: FastAPI) -> None:
    """Serve an application as `driftline serve` does; prints where."""
    # With the protocol given, asyncio switches off the waiting for full packets, as it does for `driftline serve`.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    host, port = listener.getsockname()
    print(f"http://{host}:{port}", flush=True)
    await build_http_server(app, ApiSettings(), host, port).serve(sockets=[listener])


def fill(database: Path, count: int) -> None:
    """Append exchanges of closed sessions of ten, with the states and watermarks that the stages would have left.

    One record is encoded; the others are its bytes with ids of the same length.
    """
    session, turn = "x" * 32, "0" * 9
    text = "Everything that was asked for is done. "
    template = encode(
        Exchange(
            exchange_id=f"{session}:{turn}",
            connection="bench",
            project="bench",
            session_id=session,
            occurred_at=LONG_AGO,
            ingested_at=LONG_AGO,
            user_message=text,
            agent_response=text * 10,
            content_digest=turn,
        )
    )
    with Store(database) as store:
        for start in range(0, count, BATCH):
            numbers = range(start, start + BATCH)
            names = {number: sha256(b"%d" % number).hexdigest()[:32] for number in range(start // TURNS, numbers.stop // TURNS)}
            messages = [
                template.replace(session.encode(), names[number // TURNS].encode()).replace(turn.encode(), b"%09d" % number)
                for number in numbers
            ]
            with store.transaction() as transaction:
                transaction.append("exchanges", [*messages, *map(closed, names.values())])
                for stage in (INTAKE, SCORING):
                    transaction.set_states(stage.name, {f"bench/{name}": STATE for name in names.values()}, numbers.stop)
        with store.transaction() as transaction:
            transaction.set_watermark(INTAKE.name, INTAKE.source, store.end_of(INTAKE.source))
        store.checkpoint()


def closed(session_id: str) -> bytes:
    """Return the end of a session, encoded."""
    return encode(
        SessionClosed(
            connection="bench",
            project="bench",
            session_id=session_id,
            closed_at=LONG_AGO,
            ingested_at=LONG_AGO,
            reason="explicit",
        )
    )


STATE = b"\x92\x00\x00"
"""Read by nobody: the clients open sessions of their own."""


def in_turns(targets: Mapping[str, Target], run: Callable[[Target, int], T], count: int) -> list[dict[str, T]]:
    """Return the results of each target in each round, with a pause after each run; every second round goes the other way."""
    rounds = []
    for number in range(count):
        results = {}
        for name in list(targets)[:: -1 if number % 2 else 1]:
            results[name] = run(targets[name], number)
            time.sleep(PAUSE)
        rounds.append(results)
    return rounds


def measured(targets: Mapping[str, Target], clients: int, count: int) -> list[dict[str, Load]]:
    """Return the runs of each target by round."""

    def run(target: Target, number: int) -> Load:
        return load(target.url, target.token, clients=clients, requests=REQUESTS[clients], salt=f"{clients}-{number}")

    return in_turns(targets, run, count)


def ratio(rates: Sequence[Mapping[str, float]], name: str, beside: str) -> str:
    """Return the median of the rounds' own ratios."""
    return f"{statistics.median(rate[name] / rate[beside] for rate in rates):.2f}"


def load_rows(clients: int, rounds: Sequence[Mapping[str, Load]]) -> Iterator[list[str]]:
    """Return the row of each target: the run with the median rate."""
    rates = [{name: load_of_target.rate for name, load_of_target in loads.items()} for loads in rounds]
    middles = {
        name: sorted((loads[name] for loads in rounds), key=lambda load_of_target: load_of_target.rate)[len(rounds) // 2]
        for name in rates[0]
    }
    for name, middle in middles.items():
        latencies = [f"{middle.quantile(share):.1f}" for share in (0.5, 0.99)]
        times = middle.quantile(0.5) / middles[BARE].quantile(0.5)
        ratios = [ratio(rates, name, BARE), ratio(rates, name, OURS) if name == LARGE else ""]
        yield [f"{clients}, {name}", f"{middle.rate:,.0f}", *latencies, f"{times:.1f}", *ratios]


def batched(target: Target, salt: str) -> float:
    """Exchanges per second of one client that posts `BATCHES` batches of `TOGETHER`."""
    sessions = TOGETHER // TURNS
    bodies = [
        b"[%s]"
        % b",".join(body(f"{salt}-{number}-{session}", turn) for session in range(sessions) for turn in range(1, TURNS + 1))
        for number in range(BATCHES)
    ]
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=target.url, headers=headers, timeout=120) as client:
        start = time.perf_counter()
        for batch in bodies:
            if client.post(EXCHANGES, content=batch).status_code != CREATED:
                raise RuntimeError("a batch was not taken")
        return BATCHES * TOGETHER / (time.perf_counter() - start)


def print_batches(targets: Mapping[str, Target], count: int) -> None:
    """Print the rates of batches, with the ratio to parsing alone."""
    rounds = in_turns(targets, lambda target, number: batched(target, f"batch-{number}"), count)
    print(f"\nOne client, batches of {TOGETHER} exchanges; medians of {count} runs in turns.\n")
    rows = [
        [
            name,
            f"{statistics.median(one[name] for one in rounds):,.0f}",
            ratio(rounds, name, BARE),
            ratio(rounds, name, OURS) if name == LARGE else "",
        ]
        for name in targets
    ]
    print_table(["server", "exchanges/s", "of parsing", "of a new database"], rows)


def main(arguments: Sequence[str] = ()) -> None:
    """Print rates and latencies by the number of clients, with the ratio to parsing alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ingest")
    parser.add_argument("--clients", type=int, nargs="+", choices=REQUESTS, default=[*REQUESTS], help="numbers of clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stored", type=int, default=STORED, help="exchanges of the second database; 0 leaves it out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        targets = {BARE: stack.enter_context(bare()), OURS: stack.enter_context(ours(Path(name)))}
        if options.stored:
            targets[LARGE] = stack.enter_context(ours(Path(name), options.stored))
            time.sleep(SETTLED)
        for warm in targets.values():
            load(warm.url, warm.token, clients=4, requests=400, salt="warm")
        time.sleep(PAUSE)
        stored = f"; {options.stored:,} exchanges in the second log" if options.stored else ""
        print(
            f"Exchanges of 700 bytes{stored}. Of {options.rounds} runs in turns that with the median rate, and the median of the"
        )
        print("rounds' own ratios.\n")
        print_table(
            ["clients", "exchanges/s", "p50 ms", "p99 ms", "times parsing, p50", "of parsing's rate", "of a new database"], []
        )
        for clients in options.clients:
            print_rows(load_rows(clients, measured(targets, clients, options.rounds)))
        print_batches(targets, options.rounds)


if __name__ == "__main__":
    # The endpoint that only parses is started like this, here and in `bench_gateway`.
    serve_bare()
