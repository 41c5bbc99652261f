"""Exports with their manifest, beside the same exports without one: the first, and later ones to the same folder.

DRIFTLINE_BENCH_RECORDS sets the number of scores, of which there are nine tenths as many exchanges. The times are those of all threads of the processor, the
fastest of several rounds, because other load on the machine does not count there.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from analytics.store.store import Store
from benchmarks.bench_sql import fill
from benchmarks.measure import print_table
from service.export.manifest import MANIFEST
from service.export.parquet import export_tables, write_tables
from service.export.verification import verify_folder

SCORES = int(os.environ.get("DRIFTLINE_BENCH_RECORDS", "1000000"))
ROUNDS = 5
DAYS = 90
"""Days of the records. A nightly export brings those of one day."""
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the time of the processor that a run took, in all threads."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print the time of each export, and its ratio to the export without a manifest."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "lake"
        database = Path(temporary) / "fleet.duckdb"
        fill(database, 20, SCORES)
        seconds: dict[str, list[float]] = {}
        with Store(database) as store:

            def measure(name: str, run: Callable[[], object]) -> None:
                seconds.setdefault(name, []).append(processor_seconds(run))

            for _ in range(ROUNDS):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                measure("without a manifest", lambda: write_tables(store, folder))
                shutil.rmtree(folder)
                measure("first export", lambda: export_tables(store, folder, KEY))
                measure("again, no new record", lambda: export_tables(store, folder, KEY))
            last = _hold_back_a_day(store)
            shutil.rmtree(folder)
            export_tables(store, folder, KEY)
            manifest = (folder / MANIFEST).read_bytes()
            _give_back(store)
            for _ in range(ROUNDS):
                (folder / MANIFEST).write_bytes(manifest)
                measure(f"again, with {last:,} new records", lambda: export_tables(store, folder, KEY))
            measure("verify", lambda: verify_folder(folder))
            rows = sum(export_tables(store, folder, KEY).rows.values())
        size = (folder / MANIFEST).stat().st_size
        files = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    base = min(seconds["without a manifest"])
    print(f"{rows:,} records; the manifest has {size / 1e6:.1f} MB, the Parquet files {files / 1e6:.1f} MB.\n")
    print_table(
        ["export", "seconds of the processor", "ratio"],
        [[name, f"{min(taken):.2f}", f"{min(taken) / base:.3f}"] for name, taken in seconds.items()],
    )


TABLES = ("exchanges", "judgements", "scores")


def _hold_back_a_day(store: Store) -> int:
    """Move the last ninetieth of the records of each table aside; return their number."""
    with store.transaction() as transaction:
        moved = 0
        for table in TABLES:
            ((end,),) = transaction.connection.execute(f"SELECT max(_offset) + 1 FROM log.{table}").fetchall()  # noqa: S608 - our own names
            start = end - end // DAYS
            transaction.connection.execute(
                f"CREATE TEMP TABLE held_{table} AS SELECT * FROM log.{table} WHERE _offset >= {start}"  # noqa: S608 - our own names
            )
            ((deleted,),) = transaction.connection.execute(
                f"DELETE FROM log.{table} WHERE _offset >= {start}"  # noqa: S608 - our own names
            ).fetchall()
            moved += deleted
    return moved


def _give_back(store: Store) -> None:
    with store.transaction() as transaction:
        for table in TABLES:
            transaction.connection.execute(f"INSERT INTO log.{table} SELECT * FROM held_{table}")  # noqa: S608 - our own names
