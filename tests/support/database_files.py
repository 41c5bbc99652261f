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
    """The inodes of the files on which this process holds a POSIX lock to write."""
    held = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, mode, process, place, *_ = line.split()
        if (kind, mode, process) == ("POSIX", "WRITE", str(os.getpid())):
            held.add(int(place.rpartition(":")[2]))
    return held


def opened_elsewhere(path: Path) -> str:
    """What another process is told that opens the database to write: OPENED, or why it may not."""
    command = [sys.executable, "-c", OPEN, str(path)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.strip()


def assert_ours(path: Path) -> None:
    """That this process has the database and no other can: DuckDB's lock is there, and whoever asks is refused."""
    assert path.stat().st_ino in locked_files()
    assert opened_elsewhere(path) == f"{path}: in use by process {os.getpid()}"


@contextmanager
def copied() -> Iterator[None]:
    """As long as this lasts, a store whose file is not there begins with a copy of what another store made."""
    with tempfile.TemporaryDirectory(prefix="driftline-") as folder:
        made: dict[int, Path] = {}

        def template() -> Path:
            # Some tests have schemas of their own.
            version = hash(tuple(migration_statements({})))
            if version not in made:
                path = Path(folder) / f"{len(made)}.duckdb"
                with patch.object(store, "connect", connect):
                    store.Store(path).close()
                made[version] = path
            return made[version]

        def connect_to_copy(path: Path | None) -> duckdb.DuckDBPyConnection:
            if path is not None and _is_new(path):
                with suppress(OSError):  # what is wrong with the place is said when it is opened
                    shutil.copyfile(template(), path)
            return connect(path)

        with patch.object(store, "connect", connect_to_copy):
            yield


def _is_new(path: Path) -> bool:
    return path.parent.is_dir() and not path.exists() and not path.with_name(f"{path.name}.wal").exists()
