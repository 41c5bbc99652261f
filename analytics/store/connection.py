"""Connections to DuckDB files: opened so that they read nothing but the file, queried into frames, and locked.

DuckDB locks its file with a POSIX lock, and a process loses that lock as soon as any of its code opens the file a second time and
closes it again. Two rules keep two processes from writing one file:

1. A process that has the database opens its file only once. Copies are made by another process (`analytics.store.copying`).
2. A process that opens the database first locks the lock file beside it (`driftline.duckdb.lock` for `driftline.duckdb`) with `flock`:
   alone to write, with others to read. The lock file is opened once and kept open until the database is closed. It is never
   removed, because a lock on a removed file keeps no process out.

Readers lock the file if it exists and create none: without it no writer of ours has ever opened the database. On a file system
without `flock`, or in a folder that cannot be written to, DuckDB's lock is the only one.
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
IN_USE = (
    "Another process holds the file and does not accept commands. A server accepts them once it has started; "
    "wait for an import to end, or stop it."
)
"""Advice on a file that another process has open."""
_OPEN_HINTS = {
    _LOCKED: IN_USE,
    "replaying wal file": "The write-ahead log is damaged: move the .wal file aside and import the records received since; the file itself is intact.",
}

# DuckDB opens a CSV, JSON or Parquet file as a view in a database in memory, where all writes would be lost.
_KEPT_IN = "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"

SUFFIX = ".lock"
_held: set[int] = set()
"""The lock files that this process has open."""


def fetch(connection: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """The result of a query as a frame."""
    return pl.DataFrame(connection.sql(statement, params=dict(values or {})))


def connect(path: Path | None) -> duckdb.DuckDBPyConnection:
    """A connection to the file, or to a database in memory; StoreError with a hint if the file cannot be opened."""
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=settings)
    except duckdb.Error as error:
        raise store_error(path, error) from error
    if path is not None and connection.execute(_KEPT_IN).fetchone() == (None,):
        connection.close()
        raise StoreError(f"{path}: is not a DuckDB database", hint="Name a database file, or a path that does not exist yet.")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # otherwise cursors use the machine's zone
    return connection


def store_error(path: Path | None, error: duckdb.Error) -> StoreError:
    """Return DuckDB's error about a file, with advice; if another process has the file, the error names that process."""
    message = str(error).splitlines()[0]
    if _LOCKED in message.lower():
        holder = _HOLDER.search(message)
        return in_use(path, int(holder[1]) if holder else None)
    hints = (hint for phrase, hint in _OPEN_HINTS.items() if phrase in message.lower())
    hint = next(hints, "Check that the path is a DuckDB file of this version and that the folder can be written to.")
    return StoreError(f"{path}: {message}", hint=hint)


def in_use(path: Path | None, process: int | None) -> StoreError:
    """Return the error that another process has the file, with advice; it names the process if known."""
    return StoreError(f"{path}: in use by {'another process' if process is None else f'process {process}'}", hint=IN_USE)


def lock_file(database: Path) -> Path:
    """The lock file of a database, the same for every path that leads to it."""
    resolved = database.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


class FileLock:
    """Keeps other processes from opening a database: all of them, or with `shared` only writers.

    StoreError naming the process that has the database, this one included.
    """

    def __init__(self, database: Path, *, shared: bool = False) -> None:
        descriptor = _opened(lock_file(database), make=not shared and not database.is_dir())
        if descriptor is not None and not _locked(descriptor, database, shared=shared):
            descriptor = None
        self._release = weakref.finalize(self, _unlock, descriptor, os.getpid())

    def release(self) -> None:
        """Let other processes open the database."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _opened(path: Path, *, make: bool) -> int | None:
    """The open lock file, which child processes do not inherit; None if there is none."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o666)
    with contextlib.suppress(OSError):  # another user's lock file may still be readable
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _locked(descriptor: int, database: Path, *, shared: bool) -> bool:
    """Lock the file; StoreError if another process holds the lock. False if the file system has no locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        inode = os.fstat(descriptor).st_ino
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise in_use(database, _holder(inode)) from None
        return False
    _held.add(descriptor)
    return True


def _holder(inode: int) -> int | None:
    """The process that has locked a file, if the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            _, kind, _, _, process, inode_of_lock, *_ = line.split()
            if (kind, inode_of_lock.rpartition(":")[2]) == ("FLOCK", str(inode)) and int(process) > 0:
                return int(process)
    return None


def _unlock(descriptor: int | None, process: int) -> None:
    if descriptor is None or process != os.getpid():  # already closed in a forked process
        return
    _held.discard(descriptor)
    # Closing is not enough: a child being started may hold the file open until it runs.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextlib.contextmanager
def attached(files: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has each file attached under its name, for reading only.

    StoreError with a hint if one cannot be opened: in use, damaged, or not a database.
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


def reading(name: str, table: str) -> str:
    """The statement that reads the log's rows of a table in the file attached under a name."""
    return f"FROM {quote(name)}.{LOG}.{quote(table)}"


def _leave_behind() -> None:
    """Close the lock files in a forked process: it shares the locks and would hold them after their owner ends."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_leave_behind)
