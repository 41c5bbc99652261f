"""The timing and the printing of the benchmarks."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

START_SECONDS = 60.0
"""Seconds that a server or a worker has to start."""


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
    print_rows([header, ["---", *["---:"] * (len(header) - 1)], *rows])


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows of a table."""
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)


# A child's peak memory begins with that of the process that started it, so a small one stands between.
LAUNCHER = """
import os, sys, time
start = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def process_cost(command: Sequence[str], *, stdin: Path | None = None) -> tuple[float, float]:
    """Wall seconds and peak resident memory in MB of a command, given by its path; RuntimeError when it fails."""
    launcher = [sys.executable, "-S", "-E", "-c", LAUNCHER, *command]
    with Path(stdin or os.devnull).open("rb") as source:
        process = subprocess.run(
            launcher, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {process.stderr[-2000:]}")
    seconds, megabytes = map(float, process.stderr.splitlines()[-1].split())
    return seconds, megabytes


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[str]:
    """Run a command while the context is open; gives the first line it prints, as `first_line` does. It is ended without ado."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield first_line(child)
        finally:
            child.terminate()


def first_line(child: subprocess.Popen[str]) -> str:
    """Return the first line that a child prints; RuntimeError if there is none within `START_SECONDS`. The child is killed then."""
    overdue = threading.Timer(START_SECONDS, child.kill)
    overdue.start()
    try:
        line = (child.stdout or sys.stdin).readline().strip()
    finally:
        overdue.cancel()
    if not line:
        raise RuntimeError(f"{child.args} printed nothing within {START_SECONDS:g} s")
    return line


def print_costs(costs: Mapping[str, tuple[float, float]], work: float, unit: str, *, beside: str = "parsing") -> None:
    """Print seconds, rate, ratio to the first command, and peak memory of commands that did the same amount of work."""
    base = next(iter(costs.values()))[0]
    rows = [
        [name, f"{seconds:.1f}", f"{work / seconds:,.1f}", f"{seconds / base:.2f}", f"{memory:,.0f}"]
        for name, (seconds, memory) in costs.items()
    ]
    print_table(["command", "seconds", f"{unit}/s", f"times {beside}", "peak MB"], rows)
