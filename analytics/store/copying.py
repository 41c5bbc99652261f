"""Copies of a database that this process has open. A child process copies, because this process would lose its lock on the file.

`python -m analytics.store.copying SOURCE TARGET` exits with 0 if the copy is complete, and with OVERTAKEN if a checkpoint changed
the file meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from analytics.subprocesses import end_with_parent, module_command, module_environment
from schemas.errors import StoreError

OVERTAKEN = 3
HEADER_BYTES = 3 * 4096
"""Size of a DuckDB file's headers in bytes. Every checkpoint changes them."""
CHUNK_BYTES = 64 * 1024 * 1024
FICLONE = 0x40049409
"""Linux's request for a copy that shares its blocks, on file systems that support it (btrfs, XFS, bcachefs)."""


def copy_in_subprocess(source: Path, target: Path) -> bool:
    """Copy the file in a child process; tell whether the copy finished before the next checkpoint.

    Raises StoreError if the file cannot be copied, for example because the disk is full.
    """
    completed = subprocess.run(
        module_command("analytics.store.copying", str(source.resolve()), str(target.resolve())),
        env=module_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, cwd="/",
    )  # fmt: skip
    if completed.returncode not in (0, OVERTAKEN):
        errors = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StoreError(f"{source}: not copied: {errors[-1] if errors else f'exit code {completed.returncode}'}")
    return completed.returncode == 0


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Copy the file and exit with its result."""
    end_with_parent()
    source, target = map(Path, sys.argv[1:])
    try:
        is_complete = copy(source, target)
    except OSError as error:
        sys.exit(str(error))
    sys.exit(0 if is_complete else OVERTAKEN)


def copy(source: Path, target: Path) -> bool:
    """Copy the file; tell whether its headers stayed the same."""
    before = _read_headers(source)
    _copy_blocks(source, target)
    return before == _read_headers(source)


def _read_headers(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER_BYTES)


def _copy_blocks(source: Path, target: Path) -> None:
    """Copy a file, sharing its blocks if the file system can, otherwise within the kernel."""
    with source.open("rb") as reading, target.open("wb") as writing:
        with contextlib.suppress(OSError):
            fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())
            return
        while os.copy_file_range(reading.fileno(), writing.fileno(), CHUNK_BYTES):
            pass


if __name__ == "__main__":
    main()
