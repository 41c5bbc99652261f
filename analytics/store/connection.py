"""Connections to DuckDB files, queries that return frames, and the lock that keeps other processes out.

DuckDB locks its file with a POSIX lock. A process loses that lock as soon as any of its code opens the file again and closes it.
Two rules keep two processes from writing one file:

1. A process that has the database open never opens its file again. Another process makes copies (`analytics.store.copying`).
2. Before it opens the database, a process locks the lock file beside it (`driftline.duckdb.lock` for `driftline.duckdb`) with
   `flock`: exclusively to write, shared to read. The lock file stays open until the database is closed. It is never removed,
   because a lock on a removed file keeps no process out.

Readers lock the lock file if it exists and create none: without it, no writer has ever opened the database. On a file system
without `flock`, or in a read-only folder, DuckDB's lock is the only one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from analytics.store.tables import LOG, literal, quote
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl

_HOLDER = re.compile(r"\(PID (\d+)\)")
_LOCKED = "could not set lock on file"
IN_USE_HINT = (
    "Another process holds the file and does not accept commands. A server accepts them once it has started; "
    "wait for an import to end, or stop it."
)
"""Hint for a file that another process has open."""
_OPEN_HINTS = {
    _LOCKED: IN_USE_HINT,
    "replaying wal file": "The write-ahead log is damaged, but the database file is intact. Move the .wal file away and import its records again.",
}

# DuckDB opens a CSV, JSON or Parquet file as a view in an in-memory database, which would lose all writes.
_DATABASE_PATH = "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"

LOCK_SUFFIX = ".lock"
_held_descriptors: set[int] = set()
"""Descriptors of the lock files that this process has open."""


def fetch(connection: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Return the result of a query as a frame."""
    return pl.DataFrame(connection.sql(statement, params=dict(values or {})))


def connect(path: Path | None) -> duckdb.DuckDBPyConnection:
    """Open a connection to the file, or to an in-memory database. Raises StoreError if the file cannot be opened."""
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=settings)
    except duckdb.Error as error:
        raise store_error(path, error) from error
    if path is not None and connection.execute(_DATABASE_PATH).fetchone() == (None,):
        connection.close()
        raise StoreError(f"{path}: not a DuckDB database", hint="Use a database file, or a path that does not exist yet.")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # cursors would use the local time zone
    return connection


def store_error(path: Path | None, error: duckdb.Error) -> StoreError:
    """Return the StoreError for DuckDB's error about a file. If another process has the file open, it names that process."""
    message = str(error).splitlines()[0]
    if _LOCKED in message.lower():
        holder = _HOLDER.search(message)
        return in_use_error(path, int(holder[1]) if holder else None)
    hints = (hint for phrase, hint in _OPEN_HINTS.items() if phrase in message.lower())
    hint = next(hints, "Check that the path is a DuckDB file of this version and that the folder can be written to.")
    return StoreError(f"{path}: {message}", hint=hint)


def in_use_error(path: Path | None, process: int | None) -> StoreError:
    """Return the error for a file that another process has open. It names the process if known."""
    return StoreError(f"{path}: in use by {'another process' if process is None else f'process {process}'}", hint=IN_USE_HINT)


def lock_file(database: Path) -> Path:
    """Return the lock file of a database, which is the same for every path to the database."""
    resolved = database.resolve()
    return resolved.with_name(resolved.name + LOCK_SUFFIX)


class FileLock:
    """A lock that keeps other processes from opening a database: all of them, or with `shared` only writers.

    Raises StoreError if a process, including this one, has the database open.
    """

    def __init__(self, database: Path, *, shared: bool = False) -> None:
        descriptor = _open_lock_file(lock_file(database), create=not shared and not database.is_dir())
        if descriptor is not None and not _acquire_lock(descriptor, database, shared=shared):
            descriptor = None
        self._release = weakref.finalize(self, _unlock, descriptor, os.getpid())

    def release(self) -> None:
        """Let other processes open the database."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open_lock_file(path: Path, *, create: bool) -> int | None:
    """Open a lock file, which child processes do not inherit; return None if there is none."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
    with contextlib.suppress(OSError):  # another user's lock file may still be readable
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _acquire_lock(descriptor: int, database: Path, *, shared: bool) -> bool:
    """Lock the file; return False if the file system has no locks. Raises StoreError if another process holds the lock."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        inode = os.fstat(descriptor).st_ino
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise in_use_error(database, _find_holder(inode)) from None
        return False
    _held_descriptors.add(descriptor)
    return True


def _find_holder(inode: int) -> int | None:
    """Return the id of the process that has locked a file, if the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            _, kind, _, _, process, inode_of_lock, *_ = line.split()
            if (kind, inode_of_lock.rpartition(":")[2]) == ("FLOCK", str(inode)) and int(process) > 0:
                return int(process)
    return None


def _unlock(descriptor: int | None, process: int) -> None:
    if descriptor is None or process != os.getpid():  # a forked process has closed it
        return
    _held_descriptors.discard(descriptor)
    # Closing is not enough: a starting child process may still hold the file open.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextlib.contextmanager
def attach_files(files: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection with each file attached read-only under its name.

    Raises StoreError if a file cannot be opened: in use, damaged, or not a database.
    """
    with contextlib.ExitStack() as opened:
        for path in files.values():
            opened.enter_context(FileLock(path, shared=True))
        connection = opened.enter_context(connect(None))
        for name, path in files.items():
            try:
                connection.execute(f"ATTACH {literal(str(path))} AS {quote(name)} (READ_ONLY)")
            except duckdb.Error as error:
                raise store_error(path, error) from error
        yield connection


def select_log_rows(name: str, table: str) -> str:
    """Return the statement that reads a table of the log in the file attached as `name`."""
    return f"FROM {quote(name)}.{LOG}.{quote(table)}"


def _close_inherited_locks() -> None:
    """Close the lock files in a forked process, which would otherwise hold the locks after their owner ends."""
    while _held_descriptors:
        os.close(_held_descriptors.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)
