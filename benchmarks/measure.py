"""How the benchmarks time and how they print."""

import time
from collections.abc import Callable, Mapping, Sequence


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
