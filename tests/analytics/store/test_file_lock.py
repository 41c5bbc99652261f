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


def read(path: Path) -> None:
    """Open a database as `driftline sql` does."""
    with open_read_only(path):
        pass


def attach(path: Path) -> None:
    """Open a database as `driftline compare` does."""
    with attach_files({"one": path}):
        pass


def replay(path: Path) -> None:
    """Open a database as a replay does."""
    with Tables(origin_of_tables(path)):
        pass


OPENERS: tuple[Callable[[Path], object], ...] = (Store, read, attach, replay, compact, measure_space)
"""Everything that opens a database."""


@pytest.mark.parametrize("open_it", OPENERS)
def test_whoever_opens_a_database_that_this_process_has_is_refused(open_it: Callable[[Path], object], store: Store) -> None:
    """Closing a second descriptor would take DuckDB's lock from the first, and any process could write the file from then on."""
    assert store.path is not None
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        open_it(store.path)

    assert_ours(store.path)


def test_a_snapshot_leaves_the_lock_where_it_is(store: Store, tmp_path: Path) -> None:
    """The copy is made by another process, and whether anything has changed is told without opening the file."""
    assert store.path is not None
    copy_database(store, tmp_path / "copy.duckdb")
    read_file_state(store.path)

    assert_ours(store.path)


def test_the_lock_file_keeps_others_out_by_itself(store: Store) -> None:
    """A library that opens the file and closes it again, unknown to us, must not cost any data."""
    assert store.path is not None
    store.path.read_bytes()

    assert store.path.stat().st_ino not in locked_files()
    assert opened_elsewhere(store.path) == f"{store.path}: in use by process {os.getpid()}"


def test_a_closed_database_is_free_and_its_lock_file_stays(tmp_path: Path) -> None:
    """A lock on a file that was removed keeps nobody out, so it never is; nothing is written into it."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()

    assert opened_elsewhere(path) == OPENED
    assert lock_file(path).read_bytes() == b""


def test_a_database_has_one_lock_file_whatever_it_is_called_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to it, or a relative name, leads to the same file."""
    (tmp_path / "linked.duckdb").symlink_to(tmp_path / "fleet.duckdb")
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "fleet.duckdb"):
        for name in ("linked.duckdb", "fleet.duckdb"):
            with pytest.raises(StoreError, match="in use"):
                Store(Path(name))


def test_readers_share_a_database_and_keep_writers_out(tmp_path: Path) -> None:
    """Several reports at once are fine; a writer is told who reads. A reader makes no file where it may only look."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()
    with open_read_only(path), attach_files({"one": path}):
        assert opened_elsewhere(path) == f"{path}: in use by process {os.getpid()}"
    copied = shutil.copy(path, tmp_path / "copied.duckdb")
    read(copied)

    assert not lock_file(copied).exists()


def test_a_file_that_cannot_be_opened_is_let_go_of(tmp_path: Path) -> None:
    """What was no database can be put right and opened, by the same process too."""
    path = tmp_path / "fleet.duckdb"
    path.write_bytes(b"this is no database")
    with pytest.raises(StoreError):
        Store(path)
    path.unlink()

    Store(path).close()


def test_a_process_that_was_forked_or_started_has_no_part_in_the_lock(store: Store) -> None:
    """One that outlives a killed server would keep the database from the next one."""
    assert store.path is not None
    listing = (
        f"import os; print(sum(os.path.realpath(f'/proc/self/fd/{{n}}') == {str(lock_file(store.path))!r} for n in range(64)))"
    )
    started = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, close_fds=False)
    held = os.path.realpath(lock_file(store.path))
    if (forked := os.fork()) == 0:
        os._exit(sum(os.path.realpath(f"/proc/self/fd/{number}") == held for number in range(256)))

    assert started.stdout == "0\n"
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert_ours(store.path)


def test_a_lock_is_released_once_and_by_its_process_alone(tmp_path: Path) -> None:
    """A forked process that ends in order must not give the database away."""
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


def test_a_part_of_a_replay_waits_for_who_was_killed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes a moment to end a process; giving up at once would fail a replay that goes on."""
    path = tmp_path / "part-1.duckdb"
    before = Store(path)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: before.close())

    open_store(path).close()


def test_a_copy_during_which_the_header_changed_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint blocks are written over that an earlier header still refers to: such a copy could be of two times at once."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(copying.HEADER_BYTES + 1))
    assert copying.copy(source, target)
    assert source.read_bytes() == target.read_bytes()
    monkeypatch.setattr(copying, "_copy_blocks", lambda *_: source.write_bytes(b"\1" * copying.HEADER_BYTES))

    assert not copying.copy(source, target)


def test_a_copy_that_a_checkpoint_overtook_is_made_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And after some attempts it is said that there is none."""
    answers = [False, True]
    monkeypatch.setattr(snapshots, "copy_in_subprocess", lambda *_: answers.pop(0))
    copy_database(store, tmp_path / "copy.duckdb")
    assert not answers
    monkeypatch.setattr(snapshots, "copy_in_subprocess", lambda *_: False)
    with pytest.raises(StoreError, match="overtaken by a checkpoint"):
        copy_database(store, tmp_path / "copy.duckdb")


def test_a_copy_that_cannot_be_written_says_why(store: Store, tmp_path: Path) -> None:
    """A full disk, or a folder that is gone."""
    assert store.path is not None
    with pytest.raises(StoreError, match="No such file or directory"):
        copy_database(store, tmp_path / "gone" / "copy.duckdb")


def test_what_was_committed_since_tells_itself_without_opening_the_file(store: Store) -> None:
    """A snapshot is made anew only when there is something new."""
    assert store.path is not None
    before = read_file_state(store.path)
    with store.transaction() as transaction:
        transaction.watermark("nobody", "exchanges")
    assert read_file_state(store.path) == before
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(exchange("s", 0))])
    committed = read_file_state(store.path)
    store.checkpoint()

    assert len({before, committed, read_file_state(store.path)}) == 3


def test_what_is_committed_while_a_copy_begins_asks_for_the_next_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the write-ahead log and not in the copy: taken for copied, it would be missing until something else came."""
    assert store.path is not None
    checkpoint = store.checkpoint

    def overtaken() -> None:
        checkpoint()
        with store.transaction() as transaction:
            transaction.append("exchanges", [encode(exchange("s", 0))])

    monkeypatch.setattr(store, "checkpoint", overtaken)
    assert copy_database(store, tmp_path / "copy.duckdb") != read_file_state(store.path)
