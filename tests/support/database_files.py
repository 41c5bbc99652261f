"""Files of databases: new ones as copies, which is quicker, and the locks that this process holds on one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import duckdb
from support.servers import PATIENCE, ROOT

from analytics.store import store
from analytics.store.connection import connect
from analytics.store.tables import migration_statements

OPEN = """
import sys
from pathlib import Path
from analytics.store.store import Store
from schemas.errors import StoreError

try:
    Store(Path(sys.argv[1])).close()
except StoreError as error:
    print(error)
else:
    print("opened")
"""
OPENED = "opened"


def locked_files() -> set[int]:
    """Return the inodes of the files on which this process holds a POSIX write lock."""
    inodes = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, mode, process, inode, *_ = line.split()
        if (kind, mode, process) == ("POSIX", "WRITE", str(os.getpid())):
            inodes.add(int(inode.rpartition(":")[2]))
    return inodes


def opened_elsewhere(path: Path) -> str:
    """Return the outcome of opening the database for writing in another process: OPENED, or the error message."""
    command = [sys.executable, "-c", OPEN, str(path)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.strip()


def assert_ours(path: Path) -> None:
    """Assert that this process holds DuckDB's lock on the database and that other processes are refused."""
    assert path.stat().st_ino in locked_files()
    assert opened_elsewhere(path) == f"{path}: in use by process {os.getpid()}"


@contextmanager
def copied() -> Iterator[None]:
    """Create new stores by copying the file of a prepared store while the context is open."""
    with tempfile.TemporaryDirectory(prefix="driftline-") as folder:
        copies: dict[int, Path] = {}

        def template() -> Path:
            # Some tests have schemas of their own.
            version = hash(tuple(migration_statements({})))
            if version not in copies:
                path = Path(folder) / f"{len(copies)}.duckdb"
                with patch.object(store, "connect", connect):
                    store.Store(path).close()
                copies[version] = path
            return copies[version]

        def connect_to_copy(path: Path | None) -> duckdb.DuckDBPyConnection:
            if path is not None and _is_new(path):
                with suppress(OSError):  # what is wrong with the place is said when it is opened
                    shutil.copyfile(template(), path)
            return connect(path)

        with patch.object(store, "connect", connect_to_copy):
            yield


def _is_new(path: Path) -> bool:
    return path.parent.is_dir() and not path.exists() and not path.with_name(f"{path.name}.wal").exists()
