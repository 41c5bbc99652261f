"""Simulated histories by seed: python -m simulation --seeds 1000 [--first 0] [--world embedded] [--trace]."""

from __future__ import annotations

import argparse
import sys

from simulation.history import WORLDS, History, draw
from simulation.running import live
from simulation.shrinking import as_test, shrink

TOLD_EVERY = 100


def main() -> int:
    """Run histories, and print the first that breaks a law as a test."""
    parser = argparse.ArgumentParser(description="Live through simulated histories, and check what must hold in each.")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories of each world [200]")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first [0]")
    parser.add_argument("--world", choices=WORLDS, action="append", help="the world, if not all of them")
    parser.add_argument("--trace", action="store_true", help="print what happens in each history")
    options = parser.parse_args()
    for world in options.world or WORLDS:
        for seed in range(options.first, options.first + options.seeds):
            outcome = live(draw(world, seed))
            if options.trace:
                _tell(*outcome.trace)
            if outcome.broken is not None:
                _tell(f"\n{world} {seed} breaks a law: {outcome.broken}\n")
                _print_shrunk(draw(world, seed), outcome.broken.law)
                return 1
            if (seed + 1 - options.first) % TOLD_EVERY == 0:
                _tell(f"{world}: {seed + 1 - options.first} histories")
    _tell("every law holds")
    return 0


def _print_shrunk(history: History, law: str) -> None:
    def fails(candidate: History) -> bool:
        broken = live(candidate).broken
        return broken is not None and broken.law == law

    shrunk = shrink(history, fails)
    _tell(*live(shrunk).trace)
    _tell(f"\nShrunk, to be pasted into tests/simulation/test_regressions.py:\n\n{as_test(shrunk, law)}")


def _tell(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
