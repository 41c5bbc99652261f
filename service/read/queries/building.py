"""The process that builds a snapshot from a copy: `python -m service.read.queries.building COPY TARGET SPILL NICE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from analytics.snapshots import build_snapshot
from analytics.subprocesses import end_with_parent
from schemas.errors import StoreError


def main() -> None:
    """Build the snapshot, or report the error on standard error and exit with 1."""
    end_with_parent()
    *files, nice = sys.argv[1:]
    os.nice(int(nice))
    copy, target, spill = map(Path, files)
    try:
        build_snapshot(copy, target, spill)
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
