"""kill -9 in the middle of imports: nothing that was committed is lost, nothing is doubled, and the end is the same."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import duckdb
import pytest
from support.effort import times
from support.servers import LONG, ROOT, Child, Home, Nursery, nursery

from driftline_trial.demo.fleet import write_fleet
from driftline_trial.demo.script import SCRIPT_END
from schemas.registry import current_schemas

KILLS = times(6, soak=100)
IMPORT = ("import", "openclaw", "openclaw/agents", "--as-of", "2026-11-02T00:00:00Z")
TABLES = [schema.table for schema in current_schemas().values() if schema.topics]


@pytest.fixture
def children() -> Iterator[Nursery]:
    """Starts imports as processes of their own."""
    with nursery() as opened:
        yield opened


def start_import(children: Nursery, folder: Path, database: str) -> Child:
    """An import in a process of its own."""
    environment = {"DRIFTLINE_DATABASE": database, "DRIFTLINE_BATCH_RECORDS": "200"}
    return children.start(Home(folder), *IMPORT, environment=environment, folder=folder)


def finished(process: Child) -> None:
    """Wait for an import that nobody kills."""
    assert process.wait(LONG) == 0, process.logged


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every topic's table, without its place in the log."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return {
            table: connection.execute(f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL").fetchall()
            for table in TABLES
        }


@pytest.mark.slow
def test_a_repeatedly_killed_import_ends_like_an_undisturbed_one(children: Nursery, tmp_path: Path) -> None:
    """Kills occur while reading, committing, between stages, and while opening the file.

    Six kills; a hundred in a soak run.
    """
    write_fleet(tmp_path / "openclaw", SCRIPT_END, agents=2, weeks=1)
    start = perf_counter()
    finished(start_import(children, tmp_path, "undisturbed.duckdb"))
    duration = perf_counter() - start

    chance, killed, files = random.Random(11), 0, 1
    while killed < KILLS:
        process = start_import(children, tmp_path, f"killed_{files}.duckdb")
        if process.ends_within(chance.uniform(0.1, 1.0) * duration):
            finished(process)
            check_equal(tmp_path, f"killed_{files}.duckdb")
            # What is complete leaves nothing to kill, so the next round begins with a new file.
            files += 1
        else:
            process.kill()
            killed += 1
    finished(start_import(children, tmp_path, f"killed_{files}.duckdb"))
    check_equal(tmp_path, f"killed_{files}.duckdb")


def test_records_do_not_depend_on_hash_seed_and_batch_size(tmp_path: Path) -> None:
    """Neither the order of sets nor batch boundaries may affect derived records."""
    write_fleet(tmp_path / "openclaw", SCRIPT_END, agents=2, weeks=1)
    contents_found = []
    for seed, batch_records in (("1", "20000"), ("2", "97")):
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        environment |= {"DRIFTLINE_DATABASE": f"seed_{seed}.duckdb", "DRIFTLINE_BATCH_RECORDS": batch_records}
        # The seed is read when an interpreter starts, so that none that was forked will do.
        command = [sys.executable, "-m", "service.cli.main", *IMPORT]
        process = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, timeout=LONG)
        assert process.returncode == 0, process.stderr.decode()
        contents_found.append(contents(tmp_path / f"seed_{seed}.duckdb"))
    assert contents_found[0]["scores"]
    assert contents_found[0] == contents_found[1]


def check_equal(folder: Path, database: str) -> None:
    """The file holds what the undisturbed import made."""
    expected, found = contents(folder / "undisturbed.duckdb"), contents(folder / database)
    assert all(expected[table] for table in ("exchanges", "agent_events", "session_closings", "scores", "diagnoses"))
    for table in TABLES:
        assert found[table] == expected[table], table
