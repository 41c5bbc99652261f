"""Exports with their manifest, beside the same exports without one: the first, and later ones to the same folder.

DRIFTLINE_BENCH_RECORDS sets the number of scores, of which there are nine tenths as many exchanges. The times are those of all threads of the processor, the
fastest of several rounds, because other load on the machine does not count there.
"""

import os
import shutil
import tempfile
import time
from collections import defaultdict
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
ROUNDS = 7
DAYS = 90
"""Days of the records. A nightly export brings those of one day."""
BARE = ", without a manifest"
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
        taken: dict[str, list[float]] = defaultdict(list)
        with Store(database) as store:
            for _ in range(ROUNDS):
                shutil.rmtree(folder, ignore_errors=True)
                taken["first export"].append(processor_seconds(lambda: export_tables(store, folder, KEY)))
                _measure_pair(taken, "no new record", store, folder)
            new = _hold_back_a_day(store)
            shutil.rmtree(folder)
            export_tables(store, folder, KEY)
            manifest = (folder / MANIFEST).read_bytes()
            _give_back(store)
            for _ in range(ROUNDS):
                (folder / MANIFEST).write_bytes(manifest)
                _measure_pair(taken, f"{new:,} new records", store, folder)
            rows = sum(export_tables(store, folder, KEY).rows.values())
        taken["verification"].append(processor_seconds(lambda: verify_folder(folder)))
        size = (folder / MANIFEST).stat().st_size
        files = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    base = min(taken["no new record, without a manifest"])
    print(f"{rows:,} records; the manifest has {size / 1e6:.1f} MB, the Parquet files {files / 1e6:.1f} MB.\n")
    table = []
    for name, seconds in taken.items():
        own = min(taken.get(f"{name}{BARE}", [base]))
        table.append([name, f"{min(seconds):.2f}", f"{min(seconds) / own:.3f}"])
    print_table(["export", "seconds of the processor", "beside the same without a manifest"], table)


def _measure_pair(taken: dict[str, list[float]], name: str, store: Store, folder: Path) -> None:
    """Measure an export without and with a manifest, of the same state of the database."""
    with tempfile.TemporaryDirectory() as bare:
        taken[f"{name}{BARE}"].append(processor_seconds(lambda: write_tables(store, Path(bare))))
    taken[name].append(processor_seconds(lambda: export_tables(store, folder, KEY)))


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
