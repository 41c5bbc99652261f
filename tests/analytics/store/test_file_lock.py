"""The lock file: who has a database is known to everybody who opens it, whatever became of DuckDB's own lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders import exchange
from support.database_files import OPENED, assert_ours, locked_files, opened_elsewhere

from analytics import snapshots
from analytics.adhoc import open_read_only
from analytics.deletion.compaction import compact, measure_space
from analytics.snapshots import copy_database, read_file_state
from analytics.store import copying
from analytics.store.connection import FileLock, attach_files, lock_file
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import StoreError
from streams.replay.history import Tables, origin_of_tables
from streams.replay.part import open_store


def open_for_sql(path: Path) -> None:
    """Open a database as `driftline sql` does."""
    with open_read_only(path):
        pass


def open_for_comparison(path: Path) -> None:
    """Open a database as `driftline compare` does."""
    with attach_files({"one": path}):
        pass


def open_for_replay(path: Path) -> None:
    """Open a database as a replay does."""
    with Tables(origin_of_tables(path)):
        pass


OPENERS: tuple[Callable[[Path], object], ...] = (
    Store,
    open_for_sql,
    open_for_comparison,
    open_for_replay,
    compact,
    measure_space,
)
"""Everything that opens a database."""


@pytest.mark.parametrize("open_database", OPENERS)
def test_opening_a_database_of_this_process_is_refused(open_database: Callable[[Path], object], store: Store) -> None:
    """Closing a second descriptor would release DuckDB's lock, and any process could write the file."""
    assert store.path is not None
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        open_database(store.path)

    assert_ours(store.path)


def test_a_snapshot_keeps_the_lock(store: Store, tmp_path: Path) -> None:
    """Another process makes the copy, and a change is detected without opening the file."""
    assert store.path is not None
    copy_database(store, tmp_path / "copy.duckdb")
    read_file_state(store.path)

    assert_ours(store.path)


def test_the_lock_file_alone_excludes_other_processes(store: Store) -> None:
    """A library that opens and closes the file without our knowledge must not cost any data."""
    assert store.path is not None
    store.path.read_bytes()

    assert store.path.stat().st_ino not in locked_files()
    assert opened_elsewhere(store.path) == f"{store.path}: in use by process {os.getpid()}"


def test_a_closed_database_is_free_and_its_lock_file_stays(tmp_path: Path) -> None:
    """A lock on a removed file excludes nobody, so the file is never removed, and never written."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()

    assert opened_elsewhere(path) == OPENED
    assert lock_file(path).read_bytes() == b""


def test_a_database_has_one_lock_file_under_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link or a relative path leads to the same file."""
    (tmp_path / "linked.duckdb").symlink_to(tmp_path / "fleet.duckdb")
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "fleet.duckdb"):
        for name in ("linked.duckdb", "fleet.duckdb"):
            with pytest.raises(StoreError, match="in use"):
                Store(Path(name))


def test_readers_share_a_database_and_exclude_writers(tmp_path: Path) -> None:
    """Several reports may run together, and a writer is told who reads. A reader creates no file in a read-only folder."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()
    with open_read_only(path), attach_files({"one": path}):
        assert opened_elsewhere(path) == f"{path}: in use by process {os.getpid()}"
    copied_path = shutil.copy(path, tmp_path / "copied.duckdb")
    open_for_sql(copied_path)

    assert not lock_file(copied_path).exists()


def test_a_file_that_cannot_be_opened_is_released(tmp_path: Path) -> None:
    """An invalid file can be repaired and opened, even by the same process."""
    path = tmp_path / "fleet.duckdb"
    path.write_bytes(b"this is no database")
    with pytest.raises(StoreError):
        Store(path)
    path.unlink()

    Store(path).close()


def test_a_child_process_does_not_inherit_the_lock(store: Store) -> None:
    """A child that outlives a killed server would keep the next server from opening the database."""
    assert store.path is not None
    listing = (
        f"import os; print(sum(os.path.realpath(f'/proc/self/fd/{{n}}') == {str(lock_file(store.path))!r} for n in range(64)))"
    )
    started = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, close_fds=False)
    lock_path = os.path.realpath(lock_file(store.path))
    if (forked := os.fork()) == 0:
        os._exit(sum(os.path.realpath(f"/proc/self/fd/{number}") == lock_path for number in range(256)))

    assert started.stdout == "0\n"
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert_ours(store.path)


def test_a_lock_is_released_once_and_only_by_its_process(tmp_path: Path) -> None:
    """A forked process that exits must not release it."""
    path = tmp_path / "fleet.duckdb"
    lock = FileLock(path)
    if (forked := os.fork()) == 0:
        lock.release()
        os._exit(0)
    os.waitpid(forked, 0)
    with pytest.raises(StoreError, match="in use"):
        FileLock(path)
    lock.release()
    lock.release()

    FileLock(path).release()


def test_a_part_of_a_replay_waits_for_a_killed_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes a moment to end a process, and giving up at once would fail a resumed replay."""
    path = tmp_path / "part-1.duckdb"
    predecessor = Store(path)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: predecessor.close())

    open_store(path).close()


def test_a_copy_during_which_the_header_changed_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint, blocks of the earlier header are overwritten, so the copy could mix two times."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(copying.HEADER_BYTES + 1))
    assert copying.copy(source, target)
    assert source.read_bytes() == target.read_bytes()
    monkeypatch.setattr(copying, "_copy_blocks", lambda *_: source.write_bytes(b"\1" * copying.HEADER_BYTES))

    assert not copying.copy(source, target)


def test_a_copy_overtaken_by_a_checkpoint_is_repeated(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some attempts, the copy fails with a message."""
    answers = [False, True]
    monkeypatch.setattr(snapshots, "copy_in_subprocess", lambda *_: answers.pop(0))
    copy_database(store, tmp_path / "copy.duckdb")
    assert not answers
    monkeypatch.setattr(snapshots, "copy_in_subprocess", lambda *_: False)
    with pytest.raises(StoreError, match="overtaken by a checkpoint"):
        copy_database(store, tmp_path / "copy.duckdb")


def test_a_copy_that_cannot_be_written_gives_the_reason(store: Store, tmp_path: Path) -> None:
    """The disk may be full, or the folder gone."""
    assert store.path is not None
    with pytest.raises(StoreError, match="No such file or directory"):
        copy_database(store, tmp_path / "gone" / "copy.duckdb")


def test_new_commits_are_detected_without_opening_the_file(store: Store) -> None:
    """A new snapshot is made only if there is something new."""
    assert store.path is not None
    initial_state = read_file_state(store.path)
    with store.transaction() as transaction:
        transaction.watermark("nobody", "exchanges")
    assert read_file_state(store.path) == initial_state
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(exchange("s", 0))])
    committed_state = read_file_state(store.path)
    store.checkpoint()

    assert len({initial_state, committed_state, read_file_state(store.path)}) == 3


def test_a_commit_during_the_start_of_a_copy_counts_as_new(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only in the write-ahead log, and would be missing until the next commit otherwise."""
    assert store.path is not None
    checkpoint = store.checkpoint

    def overtaken() -> None:
        checkpoint()
        with store.transaction() as transaction:
            transaction.append("exchanges", [encode(exchange("s", 0))])

    monkeypatch.setattr(store, "checkpoint", overtaken)
    assert copy_database(store, tmp_path / "copy.duckdb") != read_file_state(store.path)
