"""The import of OpenClaw's files while a gateway writes them, and after the import was killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

import duckdb
import pytest
from support.effort import times
from support.model_apis.messages import Play, Step, stand_in

from openclaw.install import NEWEST, Installed, Version
from openclaw.instance import Instance
from openclaw.played import DATABASE, Played
from schemas.registry import current_schemas
from service.write.importing import stamp_of

ROOT = Path(__file__).parents[2]
KILLS = times(2, soak=10)
WATCHDOG_SECONDS = 900
EXIT_SECONDS = 300
TABLES = [schema.table for schema in current_schemas().values() if schema.topics]
COUNT_EVENTS = "SELECT count(*) FROM transcript_events"


def import_command(state: Path, *options: str) -> list[str]:
    """Return the command that imports a state folder."""
    return [sys.executable, "-m", "service.cli.main", "import", "openclaw", str(state), "--json", *options]


def import_environment(database: Path, **variables: str) -> dict[str, str]:
    """Return the environment of an import into this database."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "DRIFTLINE_DATABASE": str(database), **variables}


@contextmanager
def following_import(state: Path, database: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an import that follows the state folder, which it checks five times a second."""
    process = subprocess.Popen(
        import_command(state, "--follow", "--interval", "0.2"),
        env=import_environment(database),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Reading the output of an import that hangs would block the test forever.
    watchdog = threading.Timer(WATCHDOG_SECONDS, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def wait_for_imports(process: subprocess.Popen[str], exchanges: int) -> None:
    """Wait until the import reports this many further exchanges."""
    assert process.stdout is not None
    imported = 0
    while imported < exchanges:
        line = process.stdout.readline()
        assert line, "the import ended"
        imported += json.loads(line)["exchanges"]
    assert imported == exchanges


def read_tables(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every topic's table, without its offset in the log."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return {
            table: connection.execute(f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL").fetchall()
            for table in TABLES
        }


def read_user_messages(database: Path) -> list[str]:
    """Return the user messages of the exchanges in order."""
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.execute("SELECT user_message FROM log.exchanges ORDER BY occurred_at").fetchall()
        return [user_message for (user_message,) in rows]


@pytest.mark.slow
def test_a_gateway_writes_while_its_database_is_read_and_the_import_follows(newest_openclaw: Installed, tmp_path: Path) -> None:
    """The database belongs to the gateway: an import that locked it would stop the agents that it audits."""
    questions = [f"Live question number {number}." for number in range(1, 6)]
    plays = {question: Play([Step(f"Live answer to: {question}")]) for question in questions}
    with stand_in(plays) as provider:
        instance = Instance(newest_openclaw, tmp_path / "openclaw", provider)
        database = tmp_path / "live.duckdb"
        with instance.gateway() as gateway:
            gateway.turn("live", questions[0])
            gateway_database = (instance.state / DATABASE).as_uri() + "?mode=ro"
            with (
                following_import(instance.state, database) as process,
                closing(sqlite3.connect(gateway_database, uri=True, isolation_level=None)) as reader,
            ):
                wait_for_imports(process, 1)
                reader.execute("BEGIN")
                count_before = reader.execute(COUNT_EVENTS).fetchone()
                for question in questions[1:4]:
                    answer = gateway.turn("live", question)
                    assert answer == f"Live answer to: {question}"
                # The open transaction still reads the old snapshot, and did not block the gateway's writes.
                assert reader.execute(COUNT_EVENTS).fetchone() == count_before
                wait_for_imports(process, 3)
                reader.execute("ROLLBACK")
                gateway.turn("live", questions[4])
                wait_for_imports(process, 1)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=EXIT_SECONDS)
                assert process.returncode == 0, errors
        assert read_user_messages(database) == questions


def test_a_stamp_changes_with_the_write_ahead_log(tmp_path: Path) -> None:
    """SQLite may write only to the write-ahead log for hours, so the import must not watch the database file alone."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT)")
        stat_before = path.stat()
        stamp_before = stamp_of(path)
        writer.execute("INSERT INTO transcript_events VALUES ('s', 1, '{}')")
        assert path.stat().st_size == stat_before.st_size
        assert path.stat().st_mtime_ns == stat_before.st_mtime_ns
        assert stamp_of(path) != stamp_before


def test_a_stamp_changes_with_the_trajectory(tmp_path: Path) -> None:
    """OpenClaw writes the trajectory after the transcript, so a transcript imported without it must be imported again."""
    path = tmp_path / "s-1.jsonl"
    path.write_text("{}\n", "utf-8")
    stamp_before = stamp_of(path)
    (tmp_path / "s-1.trajectory.jsonl").write_text("{}\n", "utf-8")
    assert stamp_of(path) != stamp_before


def hash_state_files(state: Path) -> dict[str, str]:
    """Return the digests of a state folder's databases and transcripts."""
    files = (file for file in state.rglob("*") if file.suffix in {".sqlite", ".jsonl"})
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_a_killed_import_resumes_to_the_same_result_and_leaves_the_files_unchanged(
    played: Callable[[Version], Played], tmp_path: Path
) -> None:
    """An import may be killed anywhere and run any number of times. Two kills; ten in a soak run."""
    state = played(NEWEST).state
    hashes_before = hash_state_files(state)
    as_of = (datetime.now(UTC) + timedelta(hours=2)).isoformat()

    def start(name: str) -> subprocess.Popen[str]:
        variables = import_environment(tmp_path / name, DRIFTLINE_BATCH_RECORDS="40")
        command = import_command(state, "--as-of", as_of)
        return subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    start_time = perf_counter()
    output, errors = start("uninterrupted.duckdb").communicate(timeout=EXIT_SECONDS)
    duration = perf_counter() - start_time
    assert json.loads(output)["exchanges"] > 0, errors
    rng = random.Random(8)
    for _ in range(KILLS):
        process = start("killed.duckdb")
        try:
            process.communicate(timeout=rng.uniform(0.4, 0.95) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    for _ in range(2):  # The second import must add nothing.
        process = start("killed.duckdb")
        _, errors = process.communicate(timeout=EXIT_SECONDS)
        assert process.returncode == 0, errors
    expected = read_tables(tmp_path / "uninterrupted.duckdb")
    assert all(expected[table] for table in ("exchanges", "agent_events", "session_closings", "diagnoses"))
    assert read_tables(tmp_path / "killed.duckdb") == expected
    assert hash_state_files(state) == hashes_before
