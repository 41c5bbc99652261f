# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Compaction: copies a closed DuckDB file, which never shrinks, into a new file that replaces it (see `README.md`).

The copy includes tables, views, comments and macros. Memory is bounded for a file of any size.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from analytics.store.connection import FileLock, attach_files, connect, store_error
from analytics.store.copying import sync
from analytics.store.positions import COMPACTION
from analytics.store.store import Store
from analytics.store.tables import literal, quote
from schemas.errors import StoreError
from schemas.lazy import duckdb

log = logging.getLogger(__name__)
MEMORY_LIMIT = "1GB"
"""Memory limit of the copy."""
MIN_FREE_SHARE = 0.4
"""Minimum free share of a file for compaction at a start."""
MIN_FREE_BYTES = 256 * 1024 * 1024
"""Minimum number of free bytes for compaction at a start."""
MAX_USED_AT_START = 2 * 1024 * 1024 * 1024
"""Maximum number of used bytes for compaction at a start, because the server is down meanwhile."""
_UNFINISHED_SUFFIX = "compacting"


@dataclass(frozen=True)
class Space:
    """The size and the used part of a file, in bytes. `holds_erased` is True if its free space may hold erased data."""

    size: int
    used: int
    holds_erased: bool = False

    @property
    def free(self) -> int:
        """The number of unused bytes."""
        return self.size - self.used

    @property
    def is_worth_it(self) -> bool:
        """Whether a start should compact the file."""
        is_mostly_free = self.free >= MIN_FREE_BYTES and self.free >= MIN_FREE_SHARE * self.size
        return self.holds_erased or (is_mostly_free and self.used <= MAX_USED_AT_START)


def measure_space(path: Path) -> Space:
    """Return the size and used part of a closed file. Raises StoreError if it is damaged or open in another process."""
    with attach_files({"source": path}) as connection:
        [(size, used)] = connection.execute(
            "SELECT block_size * total_blocks, block_size * used_blocks FROM pragma_database_size() WHERE database_name = 'source'"
        ).fetchall()
        holds_erased = _holds_erased(connection)
    return Space(int(size), int(used), holds_erased)


def _holds_erased(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether a deletion has marked the attached file `source` for compaction."""
    watermark_tables = connection.execute(
        "SELECT 1 FROM duckdb_tables() WHERE database_name = 'source' AND table_name = 'watermarks'"
    ).fetchall()
    if not watermark_tables:
        return False
    marks = connection.execute(
        "SELECT 1 FROM source.log.watermarks WHERE consumer = ? AND next_position > 0", [COMPACTION]
    ).fetchall()
    return bool(marks)


def bytes_written(path: Path) -> int:
    """Return the number of bytes that a running compaction of a file has written."""
    try:
        return _unfinished_path(path).stat().st_size
    except OSError:  # not started yet, or finished
        return 0


def _unfinished_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_UNFINISHED_SUFFIX}")


def compact(path: Path) -> tuple[int, int]:
    """Rewrite a closed file without its free space; return its size before and after.

    Raises StoreError if the file is damaged, of a newer version or open in another process, or if the disk is full.
    """
    unfinished = _unfinished_path(path)
    _remove_unfinished(unfinished)
    with Store(path) as store:  # migrates the file and folds in its write-ahead log
        store.checkpoint()
    used = measure_space(path).used
    size_before = path.stat().st_size
    free = shutil.disk_usage(path.parent).free
    if free < used:
        raise StoreError(f"{path}: a copy needs {used} bytes, but the disk has only {free} free", hint="Free disk space.")
    try:
        with FileLock(path), connect(None) as connection:
            try:
                _copy(connection, path, unfinished)
            except duckdb.Error as error:
                raise store_error(path, error) from error
            sync(unfinished)
            # The lock is still held, so no other process has changed the old file.
            unfinished.replace(path)
            sync(path.parent)
    except BaseException:
        _remove_unfinished(unfinished)
        raise
    return size_before, path.stat().st_size


def compact_at_start(path: Path) -> None:
    """Compact the file before a server starts, if that is worthwhile. Errors are logged and do not stop the start."""
    try:
        if path.exists() and measure_space(path).is_worth_it:
            before, after = compact(path)
            log.warning("%s was compacted from %d to %d bytes", path, before, after)
    except StoreError as error:
        log.warning("%s was not compacted: %s", path, error)


def _copy(connection: duckdb.DuckDBPyConnection, path: Path, unfinished: Path) -> None:
    """Copy the file into a new one, which is complete and closed on return. The old file stays attached."""
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute(f"SET temp_directory = {literal(f'{unfinished}.tmp')}")
    connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")
    if _write_ahead_log_path(path).exists():
        raise StoreError(f"{path}: another process wrote to it during compaction", hint="Stop that process and try again.")
    connection.execute(f"ATTACH {literal(str(unfinished))} AS compacted")
    connection.execute("COPY FROM DATABASE source TO compacted")
    if _count_rows(connection, "source") != _count_rows(connection, "compacted"):
        raise StoreError(f"{path}: some rows were not copied", hint="The file is unchanged. Check the disk.")
    # Clear the mark only in the new file: after a kill before the rename, the old file still needs compaction.
    connection.execute("UPDATE compacted.log.watermarks SET next_position = 0 WHERE consumer = ?", [COMPACTION])
    connection.execute("CHECKPOINT compacted")
    connection.execute("DETACH compacted")


def _count_rows(connection: duckdb.DuckDBPyConnection, database: str) -> dict[tuple[str, str], int]:
    """Return the number of rows of every table."""
    tables = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? ORDER BY ALL", [database]
    ).fetchall()
    counts = {}
    for schema, table in tables:
        name = f"{database}.{quote(schema)}.{quote(table)}"
        ((counts[schema, table],),) = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
    return counts


def _write_ahead_log_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _remove_unfinished(unfinished: Path) -> None:
    """Remove the files of an unfinished compaction."""
    for path in (unfinished, _write_ahead_log_path(unfinished)):
        path.unlink(missing_ok=True)
    shutil.rmtree(f"{unfinished}.tmp", ignore_errors=True)
