"""The garbage collector of processes that work on large batches: tens of thousands of records that live for a moment."""

from __future__ import annotations

import gc

_THRESHOLDS = (400_000, 50, 100)


def collect_rarely() -> None:
    """Let the collector leave alone what is there already, and look at new objects seldom: few of a batch's are in cycles.

    For a process of its own, before it begins its work.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
