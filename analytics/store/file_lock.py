"""The lock file beside a database: `driftline.duckdb.lock` for `driftline.duckdb`. It tells who has the database.

DuckDB locks its file with a POSIX lock, and a process loses that lock as soon as any of its code opens the file a second time and
closes it again. Two rules keep two processes from writing one file:

1. A process that has the database opens its file nowhere else. Copies are made in a process of their own (`analytics.store.copying`).
2. A process that opens the database locks the lock file first (`flock`): alone to write, with others to read. The lock file is opened once
   and kept open until the database is closed. It is never removed, because a lock on a removed file keeps no process out.

Readers lock the file where there is one and make none: without it no writer of ours has ever opened the database. On a file system
without `flock`, or in a folder that cannot be written to, DuckDB's lock is the only one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path
from typing import Self

from analytics.store.connection import in_use

SUFFIX = ".lock"
_held: set[int] = set()
"""The lock files that this process has open."""


def lock_file(database: Path) -> Path:
    """The lock file of a database, whichever of its names it is called by."""
    resolved = database.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


class FileLock:
    """Keeps others from opening a database: all of them, or with `shared` only those that write.

    StoreError naming the process that has the database, this one included.
    """

    def __init__(self, database: Path, *, shared: bool = False) -> None:
        descriptor = _opened(lock_file(database), make=not shared and not database.is_dir())
        if descriptor is not None and not _locked(descriptor, database, shared=shared):
            descriptor = None
        self._release = weakref.finalize(self, _unlock, descriptor, os.getpid())

    def release(self) -> None:
        """Let others open the database."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _opened(path: Path, *, make: bool) -> int | None:
    """The open lock file, which no program that this process starts inherits; None where there is none."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o666)
    with contextlib.suppress(OSError):  # somebody else's, which can be read
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _locked(descriptor: int, database: Path, *, shared: bool) -> bool:
    """Lock the file; StoreError when another process has it. False where nothing can be locked."""
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
    """The process that has locked a file, where the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            _, kind, _, _, process, place, *_ = line.split()
            if (kind, place.rpartition(":")[2]) == ("FLOCK", str(inode)) and int(process) > 0:
                return int(process)
    return None


def _unlock(descriptor: int | None, process: int) -> None:
    if descriptor is None or process != os.getpid():  # a forked process has closed it already
        return
    _held.discard(descriptor)
    # Not by closing alone: a program that is being started may have the file open until it runs.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _leave_behind() -> None:
    """Close the lock files in a forked process: it shares the locks, and would keep them beyond the end of who took them."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_leave_behind)
