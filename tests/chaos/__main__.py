"""Fault runs against real processes: python -m chaos [--rounds 50] [--seed 1] [--outage 60] [--report docs/reliability.md]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from chaos.report import write
from chaos.run import run


def main() -> None:
    """Run, say what happens, and write what was counted."""
    parser = argparse.ArgumentParser(description="Break everything at random points, and check that nothing was lost.")
    parser.add_argument("--rounds", type=int, default=50, help="faults to do [50]")
    parser.add_argument("--seed", type=int, default=1, help="draws other faults at other points [1]")
    parser.add_argument("--outage", type=float, default=60, help="seconds that the judge is out in each way at the end [60]")
    parser.add_argument("--report", type=Path, help="a page whose table is to say what was counted")
    parser.add_argument("--keep", type=Path, help="a folder for data and logs, kept afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftline-chaos-", ignore_cleanup_errors=True) as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        outcome = run(place, options.rounds, options.seed, tell, outage=options.outage)
    if options.report:
        write(options.report, outcome)
    for name, count in {**outcome.happened, **outcome.counted}.items():
        sys.stdout.write(f"{count:8} {name}\n")


def tell(said: str) -> None:
    """Print a line at once: a run takes minutes."""
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
