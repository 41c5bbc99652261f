"""A SQLite file shared by several processes: readable by its owner only, migrated when opened, changed in transactions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.errors import StoreError

Migrations = Sequence[Sequence[str]]
"""The statements that migrate each version of the file to the next. Released ones never change."""


class SharedFile:
    """The open file; created if missing. It can be shared between threads. StoreError if it cannot be used.

    Readers have their own connection, so that they never wait for a writer, neither for its disk nor in another process.
    """

    def __init__(self, path: Path, migrations: Migrations) -> None:
        self.path = path
        self._lock, self._reading_lock = threading.Lock(), threading.Lock()
        with self._told():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self._connection = _opened(path)
        try:
            with self._told():
                self._migrate(migrations)
                self._reading = _opened(path)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._reading_lock, self._lock:
            self._reading.close()
            self._connection.close()

    def rows(self, statement: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a reading statement over committed data."""
        with self._reading_lock, self._told():
            return self._reading.execute(statement, values).fetchall()

    def version(self) -> int:
        """Return a number that changes with every commit of any process. Reading it is far cheaper than reading a row."""
        with self._reading_lock, self._told():
            (version,) = self._reading.execute("PRAGMA data_version").fetchone()
            return int(version)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        """Open a cursor whose changes are committed together."""
        with self._lock, self._told(), contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def _migrate(self, migrations: Migrations) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        with self.transaction() as cursor:
            (version,) = cursor.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise StoreError(f"{self.path}: written by a newer Driftline", hint="Upgrade, or use that version.")
            for statements in migrations[version:]:
                for statement in statements:
                    cursor.execute(statement)
            cursor.execute(f"PRAGMA user_version = {len(migrations)}")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Convert an error of SQLite or the system into one of our errors."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path}: {error}", hint="Check the path, its permissions and that it holds tokens."
            ) from error


def copy_shared(source: Path, target: Path) -> None:
    """Copy such a file as of one moment, even while others have it open. StoreError if it cannot be read."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_opened(source)) as reading, contextlib.closing(_opened(target)) as writing:
            reading.backup(writing)
    except sqlite3.Error as error:
        raise StoreError(f"{source}: {error}", hint="Check its permissions and that it holds tokens.") from error


def stamped(moment: datetime) -> str:
    """Format a time so that texts sort like times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
