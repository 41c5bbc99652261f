"""Snapshots for analysts: a whole copy at any time, and of it the latest revisions, however large they are."""

from __future__ import annotations

import json
import random
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from support import builders as build

from analytics import snapshots
from analytics.snapshots import build_snapshot, copy_database
from analytics.store.store import Store
from schemas.codec.single_object import encode


class RefusalRecordingStore(Store):
    """A store that tells when a checkpoint was refused."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refused = threading.Event()

    def try_checkpoint(self) -> None:
        """Fold the write-ahead log into the file."""
        try:
            super().try_checkpoint()
        except duckdb.TransactionException:
            self.refused.set()
            raise


def test_a_copy_waits_for_a_running_write(tmp_path: Path) -> None:
    """DuckDB refuses a checkpoint meanwhile, and its error used to appear on the SQL page."""
    with RefusalRecordingStore(tmp_path / "fleet.duckdb") as store, ThreadPoolExecutor(1) as threads:
        writing = store.cursor()
        writing.begin()
        writing.execute("CREATE TABLE log.under_way (number INTEGER)")
        copying = threads.submit(copy_database, store, tmp_path / "copy.duckdb")
        assert store.refused.wait(30)
        writing.commit()
        copying.result(30)
    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as copy:
        assert copy.execute("FROM log.under_way").fetchall() == []


def test_reading_the_latest_revisions_needs_no_memory_for_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has the last revision of each incident, from a log larger than the memory limit."""
    monkeypatch.setattr(snapshots, "BUILD_MEMORY", "160MB")
    evidence = json.dumps("".join(random.Random(7).choices(string.ascii_letters, k=20_000)))
    with Store(tmp_path / "fleet.duckdb") as store:
        for revision in range(3):
            incidents = [
                build.incident(incident_id=f"i{number}", revision=revision, metadata=evidence) for number in range(3000)
            ]
            with store.transaction() as transaction:
                transaction.append("incidents", [encode(incident) for incident in incidents])
        copy_database(store, tmp_path / "copy.duckdb")
    build_snapshot(tmp_path / "copy.duckdb", tmp_path / "snapshot.duckdb", tmp_path / "spill")
    with duckdb.connect(str(tmp_path / "snapshot.duckdb"), read_only=True) as snapshot:
        rows = snapshot.execute(
            "SELECT revision, count(*), count(DISTINCT incident_id) FROM incidents GROUP BY revision"
        ).fetchall()
    assert rows == [(2, 3000, 3000)]


def test_an_exchange_is_in_a_snapshot_once_unless_it_was_withdrawn(tmp_path: Path) -> None:
    """Analysts count rows."""
    with Store(tmp_path / "fleet.duckdb") as store, store.transaction() as transaction:
        originals = [build.exchange("s", number, input_tokens=1) for number in range(3)]
        revisions = [build.exchange("s", 1, input_tokens=2, revision=1), build.exchange("s", 2, revision=1, withdrawn=True)]
        transaction.append("exchanges", [encode(one) for one in (*originals, *revisions)])
    with Store(tmp_path / "fleet.duckdb") as store:
        copy_database(store, tmp_path / "copy.duckdb")
    build_snapshot(tmp_path / "copy.duckdb", tmp_path / "snapshot.duckdb", tmp_path / "spill")
    with duckdb.connect(str(tmp_path / "snapshot.duckdb"), read_only=True) as snapshot:
        rows = snapshot.execute("SELECT exchange_id, input_tokens, revision FROM exchanges ORDER BY ALL").fetchall()
    assert rows == [("s:0", 1, 0), ("s:1", 2, 1)]
