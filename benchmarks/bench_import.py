"""Importing a tree of OpenClaw transcripts, beside a process that only reads and parses the same lines.

The tree is synthetic: sessions of 120 exchanges, 1 000 MB of them unless DRIFTLINE_BENCH_MB says otherwise.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import print_table, process_cost
from driftline_trial.demo.fleet import write_large_tree

MEGABYTES = int(os.environ.get("DRIFTLINE_BENCH_MB", "1000"))
PARSE_ONLY = """
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.jsonl")):
    with path.open("rb") as lines:
        for line in lines:
            json.loads(line)
"""


class Cost(NamedTuple):
    """Seconds of a command, those of the processor in all of its processes, and the peak memory of its first one in MB."""

    seconds: float
    processor: float
    memory: float


def cost(command: Sequence[str]) -> Cost:
    """Return the cost of a command."""
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, memory = process_cost(command)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds, usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime, memory)


def main() -> None:
    """Print megabytes per second, the ratio to parsing alone, and peak memory: first import, and again with nothing new."""
    with tempfile.TemporaryDirectory() as folder:
        tree, database = Path(folder) / "openclaw", Path(folder) / "fleet.duckdb"
        files = write_large_tree(tree, MEGABYTES)
        size = sum(path.stat().st_size for path in tree.rglob("*.jsonl")) / 1e6
        command = [sys.executable, "-m", "service.cli.main", "import", "openclaw", str(tree), "--db", str(database)]
        costs = {
            "read and parse JSON only": cost([sys.executable, "-c", PARSE_ONLY, str(tree)]),
            "driftline import openclaw": cost(command),
            "the same again, nothing new": cost(command),
        }
        stored = database.stat().st_size / 1e6
    print(f"{files:,} transcripts, {size:,.0f} MB; the database has {stored:,.0f} MB.\n")
    parsing = costs["read and parse JSON only"]
    print_table(
        ["command", "seconds", "MB/s", "times parsing", "processor, s", "times parsing", "peak MB"],
        [
            [
                name,
                f"{command_cost.seconds:.1f}",
                f"{size / command_cost.seconds:,.1f}",
                f"{command_cost.seconds / parsing.seconds:.2f}",
                f"{command_cost.processor:.1f}",
                f"{command_cost.processor / parsing.processor:.2f}",
                f"{command_cost.memory:,.0f}",
            ]
            for name, command_cost in costs.items()
        ],
    )


if __name__ == "__main__":
    main()
