"""Who has a database: the locks that this process holds on it, and whether another process would be let in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers import PATIENCE, ROOT

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
    assert f"{path}: in use by process {os.getpid()}" == opened_elsewhere(path)
