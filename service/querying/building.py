"""The process that makes a snapshot from a copy: `python -m service.querying.building COPY TARGET SPILL`, at the lowest priority."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from analytics.snapshots import build_snapshot
from schemas.errors import StoreError
from service.querying.child import PR_SET_PDEATHSIG

LOWEST = 19


def main() -> None:
    """Make it, or say on standard error why not and end with 1."""
    with suppress(OSError, AttributeError):  # Linux alone has this
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(LOWEST)
    copy, target, spill = map(Path, sys.argv[1:])
    try:
        build_snapshot(copy, target, spill)
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
