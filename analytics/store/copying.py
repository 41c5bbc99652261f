"""Copying a database that this process has open. Another process copies, because this one would lose its lock on the file.

`python -m analytics.store.copying SOURCE TARGET` ends with 0 when the copy is whole and with OVERTAKEN when a checkpoint came meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from analytics.subprocesses import command, end_with_parent, environment
from schemas.errors import StoreError

OVERTAKEN = 3
HEADER = 3 * 4096
"""Bytes of a DuckDB file's headers; each checkpoint changes them."""
CHUNK = 64 * 1024 * 1024
FICLONE = 0x40049409
"""Linux's request for a copy that shares its blocks, on file systems that can (btrfs, XFS, bcachefs)."""


def copied_whole(source: Path, target: Path) -> bool:
    """Copy the file; tell whether the copy finished before the next checkpoint. Returns when the other process has ended.

    StoreError if the file cannot be copied, for instance because the disk is full.
    """
    ended = subprocess.run(
        command("analytics.store.copying", str(source.resolve()), str(target.resolve())),
        env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, cwd="/",
    )  # fmt: skip
    if ended.returncode not in (0, OVERTAKEN):
        errors = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StoreError(f"{source}: not copied: {errors[-1] if errors else f'ended with {ended.returncode}'}")
    return ended.returncode == 0


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Copy the file and exit with the outcome."""
    end_with_parent()
    source, target = map(Path, sys.argv[1:])
    try:
        is_whole = copy(source, target)
    except OSError as error:
        sys.exit(str(error))
    sys.exit(0 if is_whole else OVERTAKEN)


def copy(source: Path, target: Path) -> bool:
    """Copy the file; tell whether its headers are unchanged."""
    before = _headers(source)
    _copy(source, target)
    return before == _headers(source)


def _headers(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, sharing its blocks if the file system can, otherwise within the kernel."""
    with source.open("rb") as reading, target.open("wb") as writing:
        with contextlib.suppress(OSError):
            fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())
            return
        while os.copy_file_range(reading.fileno(), writing.fileno(), CHUNK):
            pass


if __name__ == "__main__":
    main()
