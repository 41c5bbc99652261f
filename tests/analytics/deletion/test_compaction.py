"""Compaction: a smaller file with the same in it, whatever happens on the way."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.builders import exchange

from analytics.deletion import compaction
from analytics.deletion.compaction import compact, measure_space
from analytics.store.connection import lock_file
from analytics.store.positions import COMPACTION
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import StoreError

ROWS = 20_000
TEXT = "".join(f"{number:05}" for number in range(400))


def fill(path: Path, rows: int = ROWS) -> None:
    """Write a file of which three quarters are free."""
    with Store(path) as store:
        for start in range(0, rows, 5_000):
            with store.transaction() as transaction:
                texts = [encode(exchange("s", n, f"{n}{TEXT[n % 1000 :]}{n * 7}")) for n in range(start, start + 5_000)]
                transaction.append("exchanges", texts)
        store.checkpoint()
        with store.transaction() as transaction:
            transaction.connection.execute("DELETE FROM log.exchanges WHERE _offset < ?", [rows * 3 // 4])
        store.checkpoint()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of which three quarters are free."""
    path = tmp_path_factory.mktemp("filled") / "fleet.duckdb"
    fill(path)
    return path


def contents(path: Path) -> dict[str, Any]:
    """Return everything in a file: rows in order, definitions of tables, views and macros, comments."""
    with duckdb.connect(str(path), read_only=True) as connection:
        contents_by_catalog = {
            catalog: connection.execute(f"SELECT {columns} FROM {catalog}() WHERE NOT internal ORDER BY ALL").fetchall()
            for catalog, columns in {
                "duckdb_tables": "schema_name, table_name, comment, sql",
                "duckdb_views": "schema_name, view_name, comment, sql",
                "duckdb_columns": "schema_name, table_name, column_name, data_type, comment",
            }.items()
        }
        macros = "SELECT function_name, parameters FROM duckdb_functions() WHERE schema_name = 'log' ORDER BY ALL"
        contents_by_catalog["macros"] = connection.execute(macros).fetchall()
        contents_by_catalog["rows"] = connection.execute("SELECT * FROM log.exchanges").fetchall()
    return contents_by_catalog


def assert_alone(path: Path) -> None:
    """Assert that the folder contains only the file and its lock."""
    assert set(path.parent.iterdir()) == {path, lock_file(path)}


def test_compaction_shrinks_a_file_and_keeps_its_contents(filled: Path, tmp_path: Path) -> None:
    """Deleting frees no disk space; compaction does, and keeps rows, their order, views, macros and comments."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    original_contents = contents(path)

    original_size, compacted_size = compact(path)

    assert filled.stat().st_size == original_size
    assert path.stat().st_size == compacted_size
    assert compacted_size < original_size / 2
    assert contents(path) == original_contents
    assert_alone(path)
    with Store(path) as store:
        assert store.end_of("exchanges") == ROWS


def test_compaction_runs_only_for_a_large_free_share(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start must not copy a file for a few blocks."""
    space = measure_space(filled)
    assert space.free > space.size / 2
    assert not space.is_worth_it

    monkeypatch.setattr(compaction, "MIN_FREE_BYTES", 1_000)

    assert measure_space(filled).is_worth_it


def test_an_erasure_makes_compaction_due_at_any_size(filled: Path, tmp_path: Path) -> None:
    """Free blocks may hold an erased person's words; after the compaction it is no longer due."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    with Store(path) as store, store.transaction() as transaction:
        transaction.set_watermark(COMPACTION, "", 1)

    assert measure_space(path).is_worth_it
    compact(path)
    assert not measure_space(path).is_worth_it


def test_an_interrupted_compaction_stays_due(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill before the new file takes the old one's name, the free blocks still hold erased text."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    with Store(path) as store, store.transaction() as transaction:
        transaction.set_watermark(COMPACTION, "", 1)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "sync", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(path)

    assert measure_space(path).is_worth_it
    compact(path)
    assert not measure_space(path).is_worth_it


def test_a_file_in_use_is_not_compacted(filled: Path, tmp_path: Path) -> None:
    """A running server's file must not be replaced."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    context = multiprocessing.get_context("spawn")
    ready, finished = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(path, ready, finished))
    holder.start()
    assert ready.wait(60)

    with pytest.raises(StoreError, match="in use by process"):
        compact(path)

    finished.set()
    holder.join()
    assert path.stat().st_size == filled.stat().st_size


def test_without_disk_space_no_compaction_starts(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not get fuller."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))

    with pytest.raises(StoreError, match="the disk has only"):
        compact(path)

    assert_alone(path)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_kill_at_any_moment_loses_nothing(filled: Path, tmp_path: Path, delay: float) -> None:
    """One complete file has the name at any moment, and the next run removes the other."""
    path = Path(shutil.copy(filled, tmp_path / "fleet.duckdb"))
    original_contents = contents(path)
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_compact, args=(path, begun))
    process.start()
    assert begun.wait(60)
    time.sleep(delay)
    process.kill()
    process.join()

    assert process.exitcode in {-signal.SIGKILL, 0}
    assert contents(path) == original_contents
    compact(path)
    assert contents(path) == original_contents
    assert_alone(path)


def _hold(path: Path, ready: Any, finished: Any) -> None:
    with Store(path):
        ready.set()
        finished.wait(60)


def _compact(path: Path, begun: Any) -> None:
    begun.set()
    compact(path)
