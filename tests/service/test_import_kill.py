"""kill -9 in the middle of imports: nothing that was committed is lost, nothing is doubled, and the end is the same."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import duckdb
import pytest

from schemas.registry import current_schemas
from service.demo.fleet import write_fleet

KILLS = 30
AS_OF = "2026-11-02T00:00:00Z"
IMPORT = [sys.executable, "-m", "service.cli.main", "import", "openclaw", "openclaw/agents", "--as-of", AS_OF]
TABLES = [schema.table for schema in current_schemas().values() if schema.topics]


def start_import(folder: Path, database: str, batch_records: int, hash_seed: int = 0) -> subprocess.Popen[bytes]:
    """An import in a process of its own."""
    environment = {"PATH": "/usr/bin:/bin", "DRIFTLINE_DATABASE": database, "DRIFTLINE_BATCH_RECORDS": str(batch_records)}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(IMPORT, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(process: subprocess.Popen[bytes]) -> None:
    """Wait for an import that nobody kills."""
    _, errors = process.communicate(timeout=120)
    assert 0 == process.returncode, errors.decode()


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every topic's table, without its place in the log."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return {
            table: connection.execute(f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL").fetchall()
            for table in TABLES
        }


@pytest.mark.slow
def test_an_import_that_is_killed_thirty_times_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Kills fall anywhere: while reading, while committing, between two stages, while the file is opened."""
    write_fleet(tmp_path / "openclaw", agents=2, weeks=1)
    finished(start_import(tmp_path, "undisturbed.duckdb", batch_records=200))
    start = perf_counter()
    finished(start_import(tmp_path, "timing.duckdb", batch_records=200))
    duration = perf_counter() - start

    chance, killed, files = random.Random(11), 0, 1
    while killed < KILLS:
        process = start_import(tmp_path, f"killed_{files}.duckdb", batch_records=200)
        try:
            process.communicate(timeout=chance.uniform(0.3, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        else:
            assert 0 == process.returncode
            check_equal(tmp_path, f"killed_{files}.duckdb")
            # What is complete leaves nothing to kill, so the next round begins with a new file.
            files += 1
    finished(start_import(tmp_path, f"killed_{files}.duckdb", batch_records=200))
    check_equal(tmp_path, f"killed_{files}.duckdb")


def test_the_same_input_gives_the_same_records_under_any_hash_seed_and_batch_size(tmp_path: Path) -> None:
    """Sets and dicts must not leak their order, nor batches their edges, into what is derived."""
    write_fleet(tmp_path / "openclaw", agents=2, weeks=1)
    for seed, batch_records in ((1, 20_000), (2, 20_000), (3, 97)):
        finished(start_import(tmp_path, f"seed_{seed}.duckdb", batch_records, seed))
    first, *others = (contents(tmp_path / f"seed_{seed}.duckdb") for seed in (1, 2, 3))
    assert first["scores"]
    assert [first, first] == others


def check_equal(folder: Path, database: str) -> None:
    """The file holds what the undisturbed import made."""
    expected, found = contents(folder / "undisturbed.duckdb"), contents(folder / database)
    assert all(expected[table] for table in ("exchanges", "agent_events", "session_closings", "scores", "diagnoses"))
    for table in TABLES:
        assert expected[table] == found[table], table
