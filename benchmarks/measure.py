"""How the benchmarks time and how they print."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def best_seconds(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each run at its fastest, over several rounds.

    What else the machine does can only make a run slower, and it does so to all of them, because they take turns.
    """
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table; every column but the first is aligned to the right."""
    for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows):
        print(f"| {' | '.join(cells)} |")


def process_cost(command: Sequence[str], *, stdin: Path | None = None) -> tuple[float, float]:
    """Wall seconds and peak resident memory in MB of a command; CalledProcessError when it fails."""
    with Path(stdin or os.devnull).open("rb") as source:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command))
    return seconds, usage.ru_maxrss / 1024
