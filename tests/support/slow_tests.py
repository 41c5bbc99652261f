"""Slow tests: those that `make test` leaves out and `make check` runs, by what they were measured to take.

`tests/slow_tests.txt` names them, one test function per line. `make slow-tests` runs every test, measures the wall time of each and
the processor time, with that of the processes it waited for, and writes the list anew.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import pytest

LIST = Path(__file__).parents[1] / "slow_tests.txt"
PROCESSOR, WALL = 0.35, 2.0
"""Seconds that a test takes on average over its parameters, on a quiet machine; one that takes more of either is slow."""
MEASURES = "DRIFTLINE_TEST_MEASURES"
"""Environment variable with the folder that measurements go to; without it nothing is measured."""
# Read now: some tests empty the environment.
_FOLDER, _WORKER = os.environ.get(MEASURES, ""), os.environ.get("PYTEST_XDIST_WORKER", "main")
_PARAMETERS = re.compile(r"\[.*\Z", re.DOTALL)


def function_of(node: str) -> str:
    """Return the test function of a test id, without its parameters."""
    return _PARAMETERS.sub("", node)


def listed() -> frozenset[str]:
    """Return the slow test functions."""
    return frozenset(LIST.read_text("utf-8").split()) if LIST.exists() else frozenset()


def defined_tests(file: Path) -> set[str]:
    """Return the names of the test functions that a file defines; none if the file does not exist."""
    body = ast.parse(file.read_text("utf-8")).body if file.exists() else []
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in names if name.startswith("test_")}


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the slow tests, so that `-m "not slow"` deselects them."""
    slow = listed()
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test including its fixtures."""
    file = Path(_FOLDER) / f"{_WORKER}.tsv"
    before = os.times()
    result = yield
    *spent, wall = (after - earlier for earlier, after in zip(before, os.times(), strict=True))
    with file.open("a", encoding="utf-8") as stream:
        stream.write(f"{function_of(item.nodeid)}\t{sum(spent):.3f}\t{wall:.3f}\n")
    return result


def measured(folder: Path) -> Mapping[str, list[tuple[float, float]]]:
    """Return the runs of each test function: seconds of processor and of wall time."""
    durations: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for file in folder.glob("*.tsv"):
        for line in file.read_text("utf-8").splitlines():
            function, processor, wall = line.rsplit("\t", 2)
            durations[function].append((float(processor), float(wall)))
    return durations


def slow_among(durations: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Return the test functions with a long average time. The first test of a file also pays for the fixtures that the file shares."""
    return sorted(
        name
        for name, runs in durations.items()
        if fmean(run[0] for run in runs) > PROCESSOR or fmean(run[1] for run in runs) > WALL
    )


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow_among(measured(Path(sys.argv[1])))), "utf-8")
