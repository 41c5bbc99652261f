"""Measures a process that folds events out of Kafka, from its first record to its last. Needs nothing but Python."""

import json
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Meter:
    """Counts records and times them; ends the process once it has seen as many as it was told."""

    def __init__(self, events: int) -> None:
        self._wanted = events
        self._seen = 0
        self._began = self._cpu = 0.0

    def begin(self) -> None:
        """Records are there; the clock starts at the first call."""
        if not self._began:
            self._began, self._cpu = time.time(), cpu_seconds()

    def count(self, records: int, evidence: Iterable[Any] = ()) -> None:
        """So many more records are done. When they are all done, print the measures and end the process at once."""
        self._seen += records
        if self._seen >= self._wanted:
            self.report(evidence)

    def report(self, evidence: Iterable[Any] = ()) -> None:
        """Print what was measured, and how much evidence there is, which is how a run shows that it has folded; then end."""
        ended = time.time()
        folded = list(evidence)
        measured = {
            "events": self._seen,
            "began": self._began,
            "seconds": ended - self._began,
            "cpu": cpu_seconds() - self._cpu,
            "memory": peak_megabytes(),
            "sessions": len(folded),
            "folded": sum(one.event_count for one in folded),
        }
        # Past whatever a framework has made of the standard output, which is also slow to stop.
        os.write(1, f"\n{json.dumps(measured)}\n".encode())
        os._exit(0)


def cpu_seconds() -> float:
    """Seconds of processor time of this process so far, all of its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes() -> float:
    """Peak resident memory of this process in MB: of its own, not of what it was forked from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
