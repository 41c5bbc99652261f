"""Importing a tree of OpenClaw transcripts, beside a process that only reads and parses the same lines.

The tree is synthetic: sessions of 120 exchanges, 1 000 MB of them unless DRIFTLINE_BENCH_MB says otherwise.
"""

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import print_costs, process_cost
from service.demo.fleet import write_large_tree

MEGABYTES = int(os.environ.get("DRIFTLINE_BENCH_MB", "1000"))
PARSE_ONLY = """
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.jsonl")):
    with path.open("rb") as lines:
        for line in lines:
            json.loads(line)
"""


def main() -> None:
    """Print megabytes per second, the ratio to parsing alone, and peak memory: first import, and again with nothing new."""
    with tempfile.TemporaryDirectory() as folder:
        tree, database = Path(folder) / "openclaw", Path(folder) / "fleet.duckdb"
        files = write_large_tree(tree, MEGABYTES)
        size = sum(path.stat().st_size for path in tree.rglob("*.jsonl")) / 1e6
        command = [sys.executable, "-m", "service.cli.main", "import", "openclaw", str(tree), "--db", str(database)]
        costs = {
            "read and parse JSON only": process_cost([sys.executable, "-c", PARSE_ONLY, str(tree)]),
            "driftline import openclaw": process_cost(command),
            "the same again, nothing new": process_cost(command),
        }
        stored = database.stat().st_size / 1e6
    print(f"{files:,} transcripts, {size:,.0f} MB; the database has {stored:,.0f} MB.\n")
    print_costs(costs, size, "MB")


if __name__ == "__main__":
    main()
