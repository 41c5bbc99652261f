"""Scores out of a lake into an empty database, beside the same scores out of Kafka.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. The lake is written with the same scores as a sink writes them,
and compacted as it compacts them; its topics are empty when the database is filled from it. DRIFTLINE_BENCH_SCORES sets how many scores are
compared, DRIFTLINE_BENCH_LARGE how many are in the large lake; 0 leaves that out.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
from aiokafka.partitioner import murmur2
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from analytics.lake import Lake, rows_of
from audit.policy import Policy
from benchmarks.measure import print_table
from benchmarks.streams.fleet import Message, produce
from benchmarks.streams.running import ROOT, environment, kafka, make_topics
from schemas.codec.arrow import INDEX, decode_own
from schemas.codec.single_object import encode
from schemas.records import Score
from streams.kafka.connection import KafkaConnection
from streams.lake.maintenance import LakeMaintenance

SCORES = int(os.environ.get("DRIFTLINE_BENCH_SCORES", "1000000"))
LARGE = int(os.environ.get("DRIFTLINE_BENCH_LARGE", "10000000"))
ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "3"))
PARTITIONS = 4
DAYS = 30
TURNS = 10
"""Scores of a session."""
COMMIT = 200_000
"""Scores in a commit of the lake."""
TOPICS, LAKE = "topics", "lake"
BAR = 1.0
"""Required ratio of the rates: a lake that is slower than the topics helps only where they have lost records."""
TEMPLATE = Score(
    score_id="",
    revision=0,
    exchange_id="",
    connection="fleet",
    project="billing",
    session_id="",
    turn_number=1,
    exchange_at=datetime(2026, 1, 1, tzinfo=UTC),
    scored_at=datetime(2026, 1, 1, tzinfo=UTC),
    disposition="scored",
    sampling_reason="routine_sample",
    sampling_probability=0.25,
    tier1_score=1.0,
    tier1_flags=(),
    tier2_state="scored",
    tier2_score=0.75,
    tier2_5_state="not_applicable",
    tier2_5_reason="no_thinking",
    tier3_state="scored",
    tier3_score=4.0,
    anomaly=False,
    cost_usd=0.0042,
    methodology="default",
    methodology_version="1",
    methodology_digest="0" * 16,
    rule_version="eval-1",
    policy_digest="0" * 16,
    evidence_digest="0" * 16,
)


class Measures(NamedTuple):
    """One run: rows per second, seconds, and microseconds of processor time per row."""

    rate: float
    seconds: float
    cpu: float


def build_scores(first: int, end: int, total: int) -> Iterator[tuple[int, bytes, Score]]:
    """Yield scores in the order in which they come, with their partition and key; `total` are spread over `DAYS`."""
    step = timedelta(days=DAYS) / total
    for number in range(first, end):
        session = f"session-{number // TURNS:08}"
        key = f"fleet/{session}".encode()
        moment = TEMPLATE.exchange_at + step * number
        yield (
            (murmur2(key) & 0x7FFFFFFF) % PARTITIONS,
            key,
            msgspec.structs.replace(
                TEMPLATE,
                score_id=f"{number:032x}",
                exchange_id=f"{session}-{number % TURNS}",
                session_id=session,
                agent=f"agent-{number // TURNS % 40}",
                turn_number=number % TURNS + 1,
                exchange_at=moment,
                scored_at=moment + timedelta(minutes=1),
            ),
        )


def write_topics(connection: KafkaConnection, total: int) -> None:
    """Make the topics and produce the scores."""
    make_topics(connection, PARTITIONS)
    for first in range(0, total, COMMIT):
        messages = [
            Message(partition, key, encode(score))
            for partition, key, score in build_scores(first, min(first + COMMIT, total), total)
        ]
        asyncio.run(produce(connection.bootstrap, connection.topic("scores"), messages))


def write_lake(root: str, total: int) -> None:
    """Write the scores as a sink does that commits so many at once, and compact them."""
    lake = Lake(root)
    lake.create()
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for first in range(0, total, COMMIT):
        offsets: list[tuple[int, int]] = []
        messages: list[bytes] = []
        for partition, _, score in build_scores(first, min(first + COMMIT, total), total):
            offsets.append((partition, ends[partition]))
            messages.append(encode(score))
            ends[partition] += 1
        origins = pl.DataFrame(offsets, schema={"_partition": pl.Int32, "_offset": pl.Int64}, orient="row")
        frame = decode_own(messages).frames["Score"].drop(INDEX).hstack(origins)
        received = frame.with_columns(received_at=pl.col("scored_at"))
        lake.commit("Score", rows_of("Score", "scores", received), {("scores", number): end for number, end in ends.items()})
    # At the end of the last day, retention deletes nothing.
    LakeMaintenance(root, Policy(), lambda: TEMPLATE.exchange_at + timedelta(days=DAYS)).run()


def empty_topics(connection: KafkaConnection) -> None:
    """Remove the scores from their topic, whose ends stay, as retention does."""
    with closing(KafkaAdminClient(bootstrap_servers=connection.bootstrap)) as admin:
        admin.delete_records({TopicPartition(connection.topic("scores"), number): -1 for number in range(PARTITIONS)})


def run(kind: str, connection: KafkaConnection, lake: str, database: Path, rows: int) -> Measures:
    """Measure a fill in a process of its own."""
    arguments = [kind, connection.bootstrap, connection.prefix, lake, str(database), str(rows)]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.streams.fill", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{kind}: {process.stderr[-2000:]}")
    seconds, cpu = map(float, process.stdout.split())
    return Measures(rows / seconds, seconds, 1e6 * cpu / rows)


def main() -> None:
    """Print rows per second from the topics and from the lake, their ratio, and how long a large lake takes."""
    runs: dict[str, list[Measures]] = {TOPICS: [], LAKE: []}
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_lake(str(folder / LAKE), SCORES)
        for number in range(ROUNDS):
            connection = KafkaConnection(bootstrap, prefix=f"fill-{os.getpid()}-{number}-")
            write_topics(connection, SCORES)
            for kind in (TOPICS, LAKE):
                if kind == LAKE:
                    empty_topics(connection)
                database = folder / f"{kind}-{number}.duckdb"
                runs[kind].append(run(kind, connection, str(folder / LAKE), database, SCORES))
                database.unlink()
        print(
            f"{SCORES:,} scores of {DAYS} days in {PARTITIONS} partitions on {os.cpu_count()} processors; {ROUNDS} rounds, the median.\n"
        )
        rows = [
            [
                f"from the {kind}",
                f"{statistics.median(each.rate for each in measures):,.0f}",
                f"{statistics.median(each.cpu for each in measures):.1f}",
            ]
            for kind, measures in runs.items()
        ]
        print_table(["an empty database", "rows/s", "CPU µs/row"], rows)
        ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in zip(runs[LAKE], runs[TOPICS], strict=True))
        print()
        print_table(
            ["ratio", "measured", "bar", "reached"],
            [["lake / topics", f"{ratio:.2f}", f"{BAR:g}", "yes" if ratio >= BAR else "no"]],
        )
        if LARGE:
            measure_large(bootstrap, folder)


def measure_large(bootstrap: str, folder: Path) -> None:
    """Print how long it takes to fill a database from a large lake."""
    connection = KafkaConnection(bootstrap, prefix=f"fill-{os.getpid()}-large-")
    write_topics(connection, LARGE)
    write_lake(str(folder / "large"), LARGE)
    empty_topics(connection)
    measures = run(LAKE, connection, str(folder / "large"), folder / "large.duckdb", LARGE)
    print(f"\n{LARGE:,} scores from the lake: {measures.seconds / 60:.1f} minutes, {measures.rate:,.0f} rows/s.")


if __name__ == "__main__":
    main()
