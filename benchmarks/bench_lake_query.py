# ruff: noqa: S608 - statements are made of our own text
"""Statements over a lake by one, two and four readers, beside a writer and beside a process per statement.

Ninety days of scores, with their exchanges and judgements, of a thousand projects: analysts, each with one project, send the worked examples of the
guide one after another, two at each reader. Meanwhile a writer commits a thousand scores a second, every five seconds, as a sink does.
--scores says how many scores there are, --projects of how many projects, --readers how many readers, --seconds how long each measurement takes.
"""

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb
import httpx2
import polars as pl

from analytics.lake import Lake, rows_of, time_column
from benchmarks.bench_sql import DAYS, FIRST, MEMORY, fill
from benchmarks.measure import first_line, print_table
from schemas.codec.arrow import empty_frame
from schemas.registry import schema_of
from service.pages.sql import WorkedExample, worked_examples
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

CLIENTS = 2
"""Analysts at each reader, as many as statements may run there at the same time."""
TYPES = {"Score": 3, "Exchange": 3, "Judgement": 30, "Review": DAYS, "Baseline": DAYS}
"""Record types in the lake, and days in a commit."""
WRITER_SECONDS, WRITER_ROWS = 5.0, 5_000
PROCESSES = 5
"""Statements that a process each answers, for comparison."""
BAR = 80
TICKS = os.sysconf("SC_CLK_TCK")


class Rate(NamedTuple):
    """Statements of a measurement, and seconds of wall and processor time that they took."""

    statements: int
    seconds: float
    processor: float

    @property
    def per_second(self) -> float:
        """Return statements per second."""
        return self.statements / self.seconds

    @property
    def milliseconds(self) -> float:
        """Return milliseconds of processor time per statement."""
        return 1000 * self.processor / self.statements


def fill_lake(root: Path, projects: int, scores: int) -> None:
    """Make a lake as sinks and compaction leave it: a file per project and day."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "fleet.duckdb"
        fill(database, projects, scores)
        lake = Lake(str(root))
        lake.create()
        with duckdb.connect(str(database), read_only=True, config={"memory_limit": MEMORY}) as connection:
            for name, days in TYPES.items():
                for number, day in enumerate(range(0, DAYS, days), 1):
                    _commit(lake, name, _read_days(connection, name, day, days), number)


def _read_days(connection: duckdb.DuckDBPyConnection, name: str, day: int, days: int) -> pl.DataFrame:
    since, until = FIRST + timedelta(days=day), FIRST + timedelta(days=day + days)
    statement = f'FROM log."{schema_of(name).table}" WHERE {time_column(name)} >= $since AND {time_column(name)} < $until'
    frame = pl.DataFrame(connection.sql(statement, params={"since": since, "until": until}))
    return frame.with_columns(pl.selectors.datetime(time_zone=None).dt.replace_time_zone("UTC"))


def _commit(lake: Lake, name: str, frame: pl.DataFrame, position: int) -> None:
    topic = schema_of(name).topics[0]
    columns = [pl.col(column).cast(kind) for column, kind in empty_frame(name).schema.items()]
    received = pl.lit(FIRST).cast(pl.Datetime("us", "UTC")).alias("received_at")
    lake.commit(name, rows_of(name, topic, frame.with_columns(*columns, received)), {(topic, 0): position})


@contextlib.contextmanager
def writing(root: Path, projects: int) -> Iterator[None]:
    """Commit scores of the last day while the context is open."""
    lake = Lake(str(root))
    files = [file for file in lake.table("Score").file_uris() if f"_day={(FIRST + timedelta(days=DAYS - 1)).date()}" in file]
    rows = pl.concat([pl.read_parquet(file, hive_partitioning=False) for file in files[:projects]]).head(WRITER_ROWS)
    stop = threading.Event()

    def write() -> None:
        for position in itertools.count(10**9):
            if stop.wait(WRITER_SECONDS):
                return
            ids = pl.format("{}-{}", "score_id", pl.lit(position))
            lake.reload()
            lake.commit(
                "Score", rows.with_columns(score_id=ids, _offset=pl.col("_offset") + position), {("scores", 1): position}
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def measure_readers(root: Path, database: Path, tokens: Sequence[str], readers: int, seconds: float) -> Rate:
    """Return the rate of so many readers together, each with its snapshot already made."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        processes = [stack.enter_context(_reader(root, database, scratch)) for _ in range(readers)]
        analysts = list(zip(itertools.cycle(address for _, address in processes), tokens[: CLIENTS * readers], strict=False))
        for address, token in analysts:
            for example in worked_examples():
                _ask(httpx2.Client(), address, token, example)
        before = sum(_processor_seconds(pid) for pid, _ in processes)
        began, counts = time.monotonic(), [0] * len(analysts)

        def work(number: int) -> None:
            address, token = analysts[number]
            with httpx2.Client() as client:
                for example in itertools.cycle(worked_examples()):
                    if time.monotonic() - began > seconds:
                        return
                    _ask(client, address, token, example)
                    counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(analysts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        return Rate(sum(counts), took, sum(_processor_seconds(pid) for pid, _ in processes) - before)


@contextlib.contextmanager
def _reader(root: Path, database: Path, scratch: str) -> Iterator[tuple[int, str]]:
    """Yield the process id and the address of a reader."""
    options = ["--db", str(database), "--port", "0", "--scratch", scratch, "--at-once", str(CLIENTS)]
    command = [sys.executable, "-m", "service.cli.main", "lake", "serve", str(root), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process.pid, first_line(process).split(" at ")[1].split("/api")[0]
        finally:
            process.terminate()


def _ask(client: httpx2.Client, address: str, token: str, example: WorkedExample) -> None:
    """Send a statement, again while the snapshot is made. Raises HTTPStatusError if it is refused, or there can be no snapshot."""
    body = {"sql": example.sql, "parameters": example.parameters}
    while True:
        answer = client.post(f"{address}/api/audit/query", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=600)
        if answer.status_code != 503 or answer.json()["code"] == "no_snapshot":
            answer.raise_for_status()
            return


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process, of its children, and of the children that they have waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:15])) / TICKS + sum(_processor_seconds(int(child)) for child in children)


def measure_processes(root: Path) -> Rate:
    """Return the rate of `driftline sql --lake`, one statement after another, of a project."""
    before, began = os.times(), time.monotonic()
    for number in range(PROCESSES):
        statement = f"SELECT day, avg(tier2) FROM turns WHERE project = 'project-{number}' GROUP BY ALL"
        command = [sys.executable, "-m", "service.cli.main", "sql", statement, "--lake", str(root), "--seconds", "600"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Rate(PROCESSES, time.monotonic() - began, used)


def main(arguments: Sequence[str] = ()) -> None:
    """Print statements per second of each number of readers, and of a process per statement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scores", type=int, default=10_000_000)
    parser.add_argument("--projects", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--lake", type=Path, help="a lake that is there already; scores are added to it")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root = options.lake or folder / "lake"
        if options.lake is None:
            fill_lake(root, options.projects, options.scores)
        database = folder / "readers.duckdb"
        with AccessStore(access_file(database), utc_now) as access:
            holders = [
                Holder("operator", f"analyst-{number}", f"project-{number}", None, frozenset({"query"}))
                for number in range(CLIENTS * max(options.readers))
            ]
            tokens = [access.add(holder) for holder in holders]
        single = measure_processes(root)
        rates = {"a process per statement (`driftline sql --lake`)": single}
        with writing(root, options.projects):
            for readers in options.readers:
                label = f"{readers} reader{'s' * (readers > 1)}, {CLIENTS * readers} analysts"
                rates[label] = measure_readers(root, database, tokens, readers, options.seconds)
    print(
        f"{options.scores:,} scores of {options.projects:,} projects on {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n"
    )
    rows = [
        [label, f"{rate.per_second:.1f}", f"{rate.milliseconds:.0f}", f"{rate.per_second / single.per_second:.0f}"]
        for label, rate in rates.items()
    ]
    print_table(["", "statements/s", "ms of the processor per statement", "times a process per statement"], rows)
    best = max(rate.per_second for rate in rates.values())
    print(f"\nThe bar is {BAR} a second: {'reached' if best >= BAR else 'missed'}.")


if __name__ == "__main__":
    main(sys.argv[1:])
