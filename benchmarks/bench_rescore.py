"""Scoring history again in one process by processor time, beside decoding the same records one by one with fastavro.

The history is that of `replay`, DRIFTLINE_BENCH_RECORDS records (10 000), and one of a quarter of them: the difference is without
what every replay takes once. Both ways take turns in a process of their own; the least of several rounds counts.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from analytics.store.store import Store
from benchmarks import bench_replay
from benchmarks.measure import print_table
from schemas.codec.arrow import rows_as_records
from schemas.codec.single_object import decode_fields, encode
from service.setup.settings import Settings
from service.write.replays import PartJob, ReplayRequest, Task, prepare_replay
from streams.process import collect_rarely
from streams.replay.plan import JudgeMode, Scope, read_digests

ROUNDS = int(os.environ.get("DRIFTLINE_BENCH_ROUNDS", "5"))
READ = ("exchanges", "judgements", "scores")
"""The topics that a replay reads: exchanges, recorded answers, and the scores to compare with."""


def messages_in(database: Path) -> list[bytes]:
    """Return the records that a replay reads, encoded."""
    with Store(database) as store:
        frames = [frame_by_name for topic in READ for frame_by_name in store.read(topic, 0, store.end_of(topic)).items()]
        return [message for name, frame in frames for message in map(encode, rows_as_records(name, frame))]


def rescore(database: Path, label: str) -> None:
    """Replay the history as a process of a replay does; RuntimeError if the scores differ from the stored ones."""
    settings = Settings(database=database)
    replay = prepare_replay(settings, ReplayRequest("tables", Scope(), JudgeMode.RECORDED, label, 1))
    replay.files.write_plan(replay.plan)
    PartJob(settings, replay.plan, Task.REPLAY, 1)(0, lambda _heard: None)
    replayed, stored = read_digests([replay.files.digests(0)], only_replayed=False)
    if replayed != stored:
        raise RuntimeError("the scores of the replay differ from the stored ones")


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the processor seconds of a call, of all threads."""
    began = time.process_time()
    run()
    return time.process_time() - began


def in_turns(database: Path) -> dict[str, float]:
    """Return the least processor seconds of both ways, and the peak memory of this process after one replay, in MB."""
    collect_rarely()
    rescore(database, "first")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    messages = messages_in(database)
    decoding = scoring = float("inf")
    for number in range(ROUNDS):
        decoding = min(decoding, processor_seconds(lambda: [decode_fields(message) for message in messages]))
        scoring = min(scoring, processor_seconds(lambda label=f"round-{number}": rescore(database, label)))  # type: ignore[misc]
    return {"decoding": decoding, "scoring": scoring, "memory": memory}


def measured(folder: Path, records: int) -> tuple[int, dict[str, float]]:
    """Return how many exchanges a history of so many records has, and what a process of its own measured on it."""
    database = folder / f"{records}.duckdb"
    bench_replay.RECORDS = records
    exchange_count = bench_replay.fill(database)
    command = [sys.executable, "-m", "benchmarks.bench_rescore", str(database)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return exchange_count, json.loads(process.stdout)


def row(label: str, exchange_count: int, seconds: float, decoding: float) -> list[str]:
    """Return a row of the table."""
    seconds_per_exchange = seconds / exchange_count
    return [
        label,
        f"{seconds:.2f}",
        f"{seconds_per_exchange * 1e6:,.0f}",
        f"{1 / seconds_per_exchange:,.0f}",
        f"{seconds / decoding:.2f}",
    ]


def main() -> None:
    """Print exchanges per processor second, beside decoding, with and without what a replay takes once."""
    with tempfile.TemporaryDirectory() as folder:
        records = bench_replay.RECORDS
        small_count, small = measured(Path(folder), records // 4)
        exchange_count, large = measured(Path(folder), records)
    difference = {name: large[name] - small[name] for name in large}
    rows = [
        row("decode the records one by one", exchange_count, large["decoding"], large["decoding"]),
        row("replay: score, keep, compare", exchange_count, large["scoring"], large["decoding"]),
        row("the same without what is done once", exchange_count - small_count, difference["scoring"], difference["decoding"]),
    ]
    print(
        f"{exchange_count:,} exchanges; peak memory {large['memory']:,.0f} MB, {small['memory']:,.0f} MB with {small_count:,}.\n"
    )
    print_table(["way", "processor, s", "µs per exchange", "exchanges per processor second", "times decoding"], rows)


if __name__ == "__main__":
    print(json.dumps(in_turns(Path(sys.argv[1]))))
    sys.stdout.flush()
    os._exit(0)
