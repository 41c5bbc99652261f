"""The import beside a gateway that is running, and one that is killed: nothing is blocked, missed or doubled."""

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
from typing import Any

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
TABLES = [schema.table for schema in current_schemas().values() if schema.topics]
Json = dict[str, Any]


def command(state: Path, *options: str) -> list[str]:
    """The import of a state folder."""
    return [sys.executable, "-m", "service.cli.main", "import", "openclaw", str(state), "--json", *options]


def environment(database: Path, **more: str) -> dict[str, str]:
    """What the process of an import is told."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "DRIFTLINE_DATABASE": str(database), **more}


@contextmanager
def follower(state: Path, database: Path) -> Iterator[subprocess.Popen[str]]:
    """An import that stays, and looks five times a second."""
    process = subprocess.Popen(
        command(state, "--follow", "--interval", "0.2"),
        env=environment(database),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # A follower that says nothing would keep the test waiting for ever.
    watchdog = threading.Timer(900, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def taken(process: subprocess.Popen[str], exchanges: int) -> None:
    """Wait until the follower has taken so many exchanges more."""
    assert process.stdout is not None
    while exchanges > 0:
        line = process.stdout.readline()
        assert line, "the follower ended"
        exchanges -= json.loads(line)["exchanges"]
    assert exchanges == 0


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every topic's table, without its place in the log."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return {
            table: connection.execute(f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL").fetchall()
            for table in TABLES
        }


def asked(database: Path) -> list[str]:
    """What was asked, in order."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return [row[0] for row in connection.execute("SELECT user_message FROM log.exchanges ORDER BY occurred_at").fetchall()]


@pytest.mark.slow
def test_a_gateway_goes_on_while_its_file_is_read_and_what_it_writes_is_followed(
    newest_openclaw: Installed, tmp_path: Path
) -> None:
    """The file is the gateway's: an import that held it up would stop the agents that it is to watch."""
    says = [f"Live question number {number}." for number in range(1, 6)]
    with stand_in({text: Play([Step(f"Live answer to: {text}")]) for text in says}) as provider:
        instance = Instance(newest_openclaw, tmp_path / "openclaw", provider)
        database = tmp_path / "live.duckdb"
        with instance.gateway() as gateway:
            gateway.turn("live", says[0])
            place = instance.state / DATABASE
            with (
                follower(instance.state, database) as process,
                closing(sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True, isolation_level=None)) as reader,
            ):
                taken(process, 1)
                reader.execute("BEGIN")
                before = reader.execute("SELECT count(*) FROM transcript_events").fetchone()
                for text in says[1:4]:
                    assert gateway.turn("live", text) == f"Live answer to: {text}"
                # What the reader sees stays what it was when it began; the gateway has long gone on.
                assert reader.execute("SELECT count(*) FROM transcript_events").fetchone() == before
                taken(process, 3)
                reader.execute("ROLLBACK")
                gateway.turn("live", says[4])
                taken(process, 1)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=300)
                assert process.returncode == 0, errors
        assert says == asked(database)


def test_a_stamp_changes_with_the_write_ahead_log(tmp_path: Path) -> None:
    """A gateway writes for hours before the file itself changes: whoever looks at that alone follows nothing."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT)")
        stat, first = path.stat(), stamp_of(path)
        writer.execute("INSERT INTO transcript_events VALUES ('s', 1, '{}')")
        assert stat.st_size == path.stat().st_size
        assert stat.st_mtime_ns == path.stat().st_mtime_ns
        assert first != stamp_of(path)


def test_a_stamp_changes_with_the_trajectory(tmp_path: Path) -> None:
    """The trajectory is written after the transcript: a file that was taken before it was there is taken again."""
    path = tmp_path / "s-1.jsonl"
    path.write_text("{}\n", "utf-8")
    first = stamp_of(path)
    (tmp_path / "s-1.trajectory.jsonl").write_text("{}\n", "utf-8")
    assert first != stamp_of(path)


def fingerprints(state: Path) -> dict[str, str]:
    """The digests of a state folder's databases and transcripts."""
    files = (file for file in state.rglob("*") if file.suffix in {".sqlite", ".jsonl"})
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_an_import_that_is_killed_ends_as_one_that_was_not_and_leaves_the_files_alone(
    played: Callable[[Version], Played], tmp_path: Path
) -> None:
    """Nothing depends on where an import stopped, and taking everything again changes nothing. Two kills; ten in a soak run."""
    state = played(NEWEST).state
    before = fingerprints(state)
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()

    def start(name: str) -> subprocess.Popen[str]:
        batches = environment(tmp_path / name, DRIFTLINE_BATCH_RECORDS="40")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command(state, "--as-of", later), env=batches, text=True, **pipes)

    begun = perf_counter()
    output, errors = start("whole.duckdb").communicate(timeout=300)
    duration = perf_counter() - begun
    assert json.loads(output)["exchanges"] > 0, errors
    chance = random.Random(8)
    for _ in range(KILLS):
        process = start("killed.duckdb")
        try:
            process.communicate(timeout=chance.uniform(0.4, 0.95) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    for _ in range(2):
        process = start("killed.duckdb")
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    whole, killed = contents(tmp_path / "whole.duckdb"), contents(tmp_path / "killed.duckdb")
    assert all(whole[table] for table in ("exchanges", "agent_events", "session_closings", "diagnoses"))
    assert killed == whole
    assert fingerprints(state) == before
