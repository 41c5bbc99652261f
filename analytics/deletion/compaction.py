# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Compaction: DuckDB files never shrink, so the rows are written into a new file, which takes the old one's place (see `README.md`).

The file has to be closed. Tables, views, comments and macros are copied. Memory stays bounded for a file of any size.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from analytics.store.connection import FileLock, attached, connect, store_error
from analytics.store.copying import sync
from analytics.store.positions import COMPACTION
from analytics.store.store import Store
from analytics.store.tables import literal, quote
from schemas.errors import StoreError
from schemas.lazy import duckdb

log = logging.getLogger(__name__)
MEMORY = "1GB"
"""The memory limit of the copy."""
WORTH_SHARE = 0.4
"""The free share of the file above which a start compacts it."""
WORTH_BYTES = 256 * 1024 * 1024
"""The free bytes below which compaction is not worth it."""
AT_START = 2 * 1024 * 1024 * 1024
"""The used bytes above which a start does not compact, because the server would be down for too long."""
_STATE = "compacting"


@dataclass(frozen=True)
class Space:
    """The size of a file, in bytes, and the part of it that is used. `must` says that its free space holds erased data."""

    size: int
    used: int
    must: bool = False

    @property
    def free(self) -> int:
        """Unused bytes."""
        return self.size - self.used

    @property
    def is_worth_it(self) -> bool:
        """True if a start should compact the file."""
        worth = self.free >= WORTH_BYTES and self.free >= WORTH_SHARE * self.size
        return self.must or (worth and self.used <= AT_START)


def space_of(path: Path) -> Space:
    """Measure how much of a closed file is used. StoreError if another process has it open, or it is damaged."""
    with attached({"whole": path}) as connection:
        rows = connection.execute(
            "SELECT block_size * total_blocks, block_size * used_blocks FROM pragma_database_size() WHERE database_name = 'whole'"
        ).fetchall()
        there = connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = 'whole' AND table_name = 'watermarks'"
        ).fetchall()
        marked = "SELECT 1 FROM whole.log.watermarks WHERE consumer = ? AND next_position > 0"
        must = bool(there and connection.execute(marked, [COMPACTION]).fetchall())
    ((size, used),) = rows
    return Space(int(size), int(used), must)


def bytes_written(path: Path) -> int:
    """Return the bytes that a running compaction of a file has written so far."""
    try:
        return _unfinished(path).stat().st_size
    except OSError:  # not started yet, or finished
        return 0


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_STATE}")


def compact(path: Path) -> tuple[int, int]:
    """Rewrite a closed file without its free space; return its bytes before and after.

    StoreError if another process has it open, it is damaged or of another version, or the disk has no room.
    """
    unfinished = _unfinished(path)
    _clear(unfinished)
    with Store(path) as store:  # migrates the file and folds in its write-ahead log
        store.checkpoint()
    used = space_of(path).used
    before, room = path.stat().st_size, shutil.disk_usage(path.parent).free
    if room < used:
        raise StoreError(f"{path}: {used} bytes are in use, and {room} are left on the disk", hint="Make room for a copy.")
    try:
        with FileLock(path), connect(None) as connection:
            try:
                _copy(connection, path, unfinished)
            except duckdb.Error as error:
                raise store_error(path, error) from error
            sync(unfinished)
            # The lock is still held, so no process has opened the old file since it was read.
            unfinished.replace(path)
            sync(path.parent)
    except BaseException:
        _clear(unfinished)
        raise
    return before, path.stat().st_size


def compact_at_start(path: Path) -> None:
    """Compact the file before a server starts, if that is worth it. Errors are logged and do not stop the start."""
    try:
        if path.exists() and space_of(path).is_worth_it:
            before, after = compact(path)
            log.warning("%s was compacted from %d to %d bytes", path, before, after)
    except StoreError as error:
        log.warning("%s was not compacted: %s", path, error)


def _copy(connection: duckdb.DuckDBPyConnection, path: Path, unfinished: Path) -> None:
    """Copy the contents of the file into a new one, which is closed and complete on return. The old file stays attached."""
    connection.execute(f"SET memory_limit = '{MEMORY}'")
    connection.execute(f"SET temp_directory = {literal(f'{unfinished}.tmp')}")
    connection.execute(f"ATTACH {literal(str(path))} AS whole (READ_ONLY)")
    if _write_ahead_log(path).exists():
        raise StoreError(f"{path}: another process wrote to it meanwhile", hint="Stop that process, and try again.")
    connection.execute(f"ATTACH {literal(str(unfinished))} AS compacted")
    connection.execute("COPY FROM DATABASE whole TO compacted")
    if _counts(connection, "whole") != _counts(connection, "compacted"):
        raise StoreError(f"{path}: some rows were not copied", hint="The file is unchanged; check the disk.")
    # Remove the mark only from the new file: a kill before the rename leaves the old one due for compaction.
    connection.execute("UPDATE compacted.log.watermarks SET next_position = 0 WHERE consumer = ?", [COMPACTION])
    connection.execute("CHECKPOINT compacted")
    connection.execute("DETACH compacted")


def _counts(connection: duckdb.DuckDBPyConnection, database: str) -> dict[tuple[str, str], int]:
    """The number of rows in every table."""
    tables = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? ORDER BY ALL", [database]
    ).fetchall()
    counts = {}
    for schema, table in tables:
        name = f"{database}.{quote(schema)}.{quote(table)}"
        ((counts[schema, table],),) = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
    return counts


def _write_ahead_log(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _clear(unfinished: Path) -> None:
    """Remove the files left by an interrupted run."""
    for path in (unfinished, _write_ahead_log(unfinished)):
        path.unlink(missing_ok=True)
    shutil.rmtree(f"{unfinished}.tmp", ignore_errors=True)
