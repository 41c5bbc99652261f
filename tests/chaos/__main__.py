"""Fault runs against real processes: python -m chaos [--rounds 50] [--seed 1] [--outage 60] [--report docs/reliability.md]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from chaos.report import write
from chaos.run import run


def main() -> None:
    """Run the rounds, print the progress and write the report."""
    parser = argparse.ArgumentParser(description="Break everything at random points, and check that nothing was lost.")
    parser.add_argument("--rounds", type=int, default=50, help="number of faults [50]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their times [1]")
    parser.add_argument("--outage", type=float, default=60, help="seconds of each judge outage at the end [60]")
    parser.add_argument("--report", type=Path, help="page whose table gets the counts")
    parser.add_argument("--keep", type=Path, help="folder for data and logs, which is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftline-chaos-", ignore_cleanup_errors=True) as folder:
        run_folder = options.keep or Path(folder)
        run_folder.mkdir(parents=True, exist_ok=True)
        outcome = run(run_folder, options.rounds, options.seed, tell, outage=options.outage)
    if options.report:
        write(options.report, outcome)
    for name, count in {**outcome.happened, **outcome.counted}.items():
        sys.stdout.write(f"{count:8} {name}\n")


def tell(message: str) -> None:
    """Print a line immediately, because a run takes minutes."""
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
