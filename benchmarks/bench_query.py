"""The snapshot for SQL: the cost of making it, its effect on concurrent commits, and the time of statements.

DRIFTLINE_BENCH_SCORES sets the number of scores (1 000 000).
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from analytics.snapshots import build_snapshot, copy_database
from analytics.store.store import Store
from benchmarks.measure import print_table
from service.read.queries.pool import Snapshot, StatementProcesses
from service.read.queries.protocol import QueryLimits, Question

SCORES = int(os.environ.get("DRIFTLINE_BENCH_SCORES", "1000000"))
STEP = 1_000_000
DAYS = 300
SCORES_SQL = """
INSERT INTO log.scores BY NAME
SELECT
    'scores' AS _topic, 0::INTEGER AS _partition, i AS _offset, md5(i::VARCHAR) AS score_id, 0 AS revision,
    's' || (i // 20) || ':' || i % 20 AS exchange_id, 'c' || (i % 50) AS "connection", 'p' || (i // 20 % 20) AS project,
    'agent' || (i // 20 % 40) AS agent, 's' || (i // 20) AS session_id, (i % 20)::INTEGER AS turn_number,
    TIMESTAMP '2026-01-01' + to_seconds((i * $span)::BIGINT) AS exchange_at, exchange_at + INTERVAL 1 MINUTE AS scored_at,
    CASE WHEN i % 3 = 0 THEN 'scored' ELSE 'sampling_skip' END AS disposition, 'routine_sample' AS sampling_reason,
    CASE WHEN i % 3 = 0 THEN 1 / 3 END AS sampling_probability, 1.0 AS tier1_score, [] AS tier1_flags,
    CASE WHEN i % 3 = 0 THEN 'scored' ELSE 'skipped_sampling' END AS tier2_state,
    CASE WHEN i % 3 = 0 THEN 0.8 + hash(i) % 1000 / 10000 END AS tier2_score,
    CASE WHEN i % 3 = 0 THEN [{'dimension': 'scope_compliance', 'score': 0.8, 'reasoning': 'It kept to what was asked, number ' || i}]
        ELSE [] END AS tier2_dimensions,
    'not_applicable' AS tier2_5_state, 'skipped_gate' AS tier3_state, [] AS tier3_dimensions, false AS anomaly, [] AS anomaly_reasons,
    false AS simulated, [] AS judgement_ids, 0.001 AS cost_usd, 'default' AS methodology, '1' AS methodology_version,
    'd' AS methodology_digest, '1' AS rule_version, 'p' AS policy_digest, md5(i::VARCHAR) AS evidence_digest
FROM range($start, $end) AS t(i)
"""
REVISIONS_SQL = """
INSERT INTO log.scores BY NAME
SELECT * REPLACE (1 AS revision, _offset + 1_000_000_000 AS _offset) FROM log.scores WHERE _offset % 100 = 0
"""
"""One score in a hundred has a second revision."""
STATEMENTS = {
    "SELECT 1": "SELECT 1",
    "daily means of a project": "SELECT day, tier2 FROM days WHERE project = 'p1' ORDER BY day",
    "daily means of all": "FROM days",
    "one session": "FROM turns WHERE session_id = 's77'",
    "worst dimensions of a day": "SELECT dimension, avg(score) FROM dimensions WHERE day = DATE '2026-03-01' GROUP BY ALL",
    "agents by week": "SELECT agent, date_trunc('week', day) AS week, avg(tier2) FROM turns GROUP BY ALL",
}


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Store(folder / "fleet.duckdb") as store:
            _fill(store)
            rows, snapshot = _measure_snapshot(store, folder)
        print_table([f"{SCORES:,} scores", "seconds", "MB", "slowest commit meanwhile, ms", "median, ms"], rows)
        print()
        print_table(["statement", "seconds"], asyncio.run(_time_statements(snapshot)))


def _fill(store: Store) -> None:
    with contextlib.closing(store.cursor()) as cursor:
        for start in range(0, SCORES, STEP):
            values = {"start": start, "end": min(SCORES, start + STEP), "span": DAYS * 86400 / SCORES}
            cursor.execute(SCORES_SQL, values)
        cursor.execute(REVISIONS_SQL)
    store.checkpoint()


def _measure_snapshot(store: Store, folder: Path) -> tuple[list[list[str]], Path]:
    """Measure copying and building, each while a writer commits; return the rows and the path of the snapshot."""
    copy, snapshot = folder / "copy.duckdb", folder / "snapshot.duckdb"
    rows = []
    with _commit_continuously(store) as commit_seconds:
        time.sleep(1)
    rows.append(["nothing else", "1.0", f"{store.path.stat().st_size / 1e6:.0f}", *_format_latencies(commit_seconds)])
    for label, work, file in (
        ("checkpoint and copy", lambda: copy_database(store, copy), copy),
        ("building from the copy", lambda: build_snapshot(copy, snapshot, folder / "spill"), snapshot),
    ):
        with _commit_continuously(store) as commit_seconds:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        rows.append([label, f"{seconds:.2f}", f"{file.stat().st_size / 1e6:.0f}", *_format_latencies(commit_seconds)])
    return rows, snapshot


@contextlib.contextmanager
def _commit_continuously(store: Store) -> Iterator[list[float]]:
    """Commit a hundred times per second while the context is open; yield the seconds of each commit."""
    stop, commit_seconds = threading.Event(), []

    def write() -> None:
        number = 0
        while not stop.wait(0.01):
            began = time.perf_counter()
            with store.transaction() as transaction:
                transaction.set_watermark("bench", "scores", number)
            commit_seconds.append(time.perf_counter() - began)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield commit_seconds
    finally:
        stop.set()
        writer.join()


def _format_latencies(commit_seconds: list[float]) -> list[str]:
    return [f"{1000 * max(commit_seconds, default=0):.1f}", f"{1000 * statistics.median(commit_seconds or [0]):.1f}"]


async def _time_statements(snapshot: Path) -> list[list[str]]:
    """Return the best of three times of each statement, each run in its own process as on the server."""
    opened = Snapshot(os.open(snapshot, os.O_RDONLY), datetime.now(UTC), (0, 0, 0), 0, 0, replaced=True)
    processes = StatementProcesses(QueryLimits(seconds=60))
    rows = []
    for name, statement in STATEMENTS.items():
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            await processes.ask(opened, Question(statement))
            best = min(best, time.perf_counter() - began)
        rows.append([name, f"{best:.2f}"])
    await processes.close()
    opened.close_when_unused()
    return rows


if __name__ == "__main__":
    print(f"{datetime.now(UTC):%Y-%m-%d}")
    main()
