"""The process that builds a snapshot: `python -m service.read.queries.building KIND SOURCE DATABASE TARGET SPILL NICE [PROJECT …]`.

KIND is `whole` for a snapshot of a copy of the database, `lake` for one of a lake and, unless it is empty, the copy DATABASE, and `part` for
one of the projects' rows in a whole snapshot.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from analytics.snapshots import build_lake_snapshot, build_part, build_snapshot
from analytics.subprocesses import end_with_parent
from schemas.errors import LakeError, StoreError


def main() -> None:
    """Build the snapshot, or report the error on standard error and exit with 1."""
    end_with_parent()
    kind, source, database, target, spill, nice = sys.argv[1:7]
    os.nice(int(nice))
    paths = Path(target), Path(spill)
    try:
        if kind == "part":
            build_part(Path(source), *paths, sys.argv[7:])
        elif kind == "lake":
            build_lake_snapshot(source, *paths, Path(database) if database else None)
        else:
            build_snapshot(Path(source), *paths)
    except (LakeError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
