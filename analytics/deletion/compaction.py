# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Compaction: DuckDB files never shrink, so the rows are written into a new file, which takes the old one's place (see `README.md`).

The file has to be closed. Tables, views, comments and macros come along. Memory is bounded, whatever the size of the file.
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
from schemas.lazy.duckdb import duckdb

log = logging.getLogger(__name__)
MEMORY = "1GB"
"""The memory that copying may take."""
WORTH_SHARE = 0.4
"""Share of the file that is free from which on a start compacts it."""
WORTH_BYTES = 256 * 1024 * 1024
"""Free bytes below which that is not worth it."""
AT_START = 2 * 1024 * 1024 * 1024
"""Bytes in use beyond which a start does not compact, because the server would be away for too long."""
_STATE = "compacting"


@dataclass(frozen=True)
class Space:
    """The size of a file, in bytes, and the part of it that is used. `must` says that its free space holds erased data."""

    size: int
    used: int
    must: bool = False

    @property
    def free(self) -> int:
        """Bytes that hold nothing."""
        return self.size - self.used

    @property
    def is_worth_it(self) -> bool:
        """True if a start should compact the file."""
        worth = self.free >= WORTH_BYTES and self.free >= WORTH_SHARE * self.size
        return self.must or (worth and self.used <= AT_START)


def space_of(path: Path) -> Space:
    """Measure how much of a closed file is used. StoreError when another process has it, or when it is damaged."""
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
    """Return the bytes that a compaction of a file, which is under way, has written so far."""
    try:
        return _unfinished(path).stat().st_size
    except OSError:  # not begun yet, or done
        return 0


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_STATE}")


def compact(path: Path) -> tuple[int, int]:
    """Write a closed file again without its free space; answers its bytes before and after.

    StoreError when another process has it, when it is damaged or of another version, or when there is no room.
    """
    unfinished = _unfinished(path)
    _clear(unfinished)
    with Store(path) as store:  # brings the file to the present version, and its write-ahead log into it
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
            # The lock is still held, so nobody has opened the old file since it was read.
            unfinished.replace(path)
            sync(path.parent)
    except BaseException:
        _clear(unfinished)
        raise
    return before, path.stat().st_size


def compact_at_start(path: Path) -> None:
    """Compact the file of a server that is about to start, where that is worth it. What keeps it from being done is logged."""
    try:
        if path.exists() and space_of(path).is_worth_it:
            before, after = compact(path)
            log.warning("%s was compacted from %d to %d bytes", path, before, after)
    except StoreError as error:
        log.warning("%s was not compacted: %s", path, error)


def _copy(connection: duckdb.DuckDBPyConnection, path: Path, unfinished: Path) -> None:
    """Write what is in the file into a new one, which is closed and complete on return. The file stays attached."""
    connection.execute(f"SET memory_limit = '{MEMORY}'")
    connection.execute(f"SET temp_directory = {literal(f'{unfinished}.tmp')}")
    connection.execute(f"ATTACH {literal(str(path))} AS whole (READ_ONLY)")
    if _write_ahead_log(path).exists():
        raise StoreError(f"{path}: another process has written to it meanwhile", hint="Stop that process, and try again.")
    connection.execute(f"ATTACH {literal(str(unfinished))} AS compacted")
    connection.execute("COPY FROM DATABASE whole TO compacted")
    if _counts(connection, "whole") != _counts(connection, "compacted"):
        raise StoreError(f"{path}: not every row was copied", hint="The file is as it was; check the disk.")
    # In the new file alone: the old one stays marked until it is gone, whenever that is.
    connection.execute("UPDATE compacted.log.watermarks SET next_position = 0 WHERE consumer = ?", [COMPACTION])
    connection.execute("CHECKPOINT compacted")
    connection.execute("DETACH compacted")


def _counts(connection: duckdb.DuckDBPyConnection, database: str) -> dict[tuple[str, str], int]:
    """The rows of every table."""
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
    """Remove what a run that was cut short has left."""
    for path in (unfinished, _write_ahead_log(unfinished)):
        path.unlink(missing_ok=True)
    shutil.rmtree(f"{unfinished}.tmp", ignore_errors=True)
