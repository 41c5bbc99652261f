"""What commands and a server at rest take, beside the libraries that no reader can do without.

Processor seconds and resident memory, medians of several runs that take turns; bytecode is written before. The database has one run.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import print_table

EVENTS = Path(__file__).parents[1] / "examples" / "session.json"
DRIFTLINE = [sys.executable, "-m", "service.cli.main"]
PAGE = os.sysconf("SC_PAGE_SIZE")
SETTLED = 3.0
"""Seconds after which a server that has just started is at rest."""


def main(options: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start")
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args(options).rounds
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"DRIFTLINE_DATABASE": str(Path(folder) / "fleet.duckdb")}
        subprocess.run([*DRIFTLINE, "import", "events", str(EVENTS)], env=environment, check=True, capture_output=True)
        commands = {
            "`python -c 'import duckdb, polars'`": [sys.executable, "-c", "import duckdb, polars"],
            "`driftline --help`": [*DRIFTLINE, "--help"],
            "`driftline runs`": [*DRIFTLINE, "runs"],
            "`driftline scores`": [*DRIFTLINE, "scores"],
            "`driftline costs`": [*DRIFTLINE, "costs"],
            "`driftline sql 'SELECT 1'`": [*DRIFTLINE, "sql", "SELECT 1"],
        }
        found = _in_turns(commands, environment, rounds)
        with _serving(environment) as server:
            try:
                resident = _resident(server.pid)
                beside = _in_turns({"`driftline runs`, beside a server": [*DRIFTLINE, "runs"]}, environment, rounds)
            finally:
                server.terminate()
    base, base_memory = found["`python -c 'import duckdb, polars'`"]
    rows = [
        [name, f"{seconds:.2f}", f"{seconds / base:.1f}", f"{memory:.0f}"]
        for name, (seconds, memory) in (found | beside).items()
    ]
    rows.append(["`driftline serve --judge none`, at rest", "", "", f"{resident:.0f}"])
    print_table(["", "processor, s", "times the libraries", "resident, MB"], rows)
    print(f"\nA server at rest takes {resident / base_memory:.1f} times the memory of the libraries alone.")


def _in_turns(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], rounds: int
) -> dict[str, tuple[float, float]]:
    """Processor seconds and peak memory in MB of each command, the medians."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            found[name].append(_cost(command, environment))
    medians = {}
    for name, costs in found.items():
        seconds, memory = zip(*costs[1:], strict=True)  # the first run writes bytecode
        medians[name] = statistics.median(seconds), statistics.median(memory)
    return medians


def _cost(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    child = os.posix_spawn(command[0], command, dict(environment), file_actions=quiet)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _serving(environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A server at rest, which ends with the context."""
    server = subprocess.Popen(
        [*DRIFTLINE, "serve", "--judge", "none", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if "listens" not in (server.stdout or sys.stdin).readline():
        raise SystemExit("the server did not start")
    time.sleep(SETTLED)
    return server


def _resident(process: int) -> float:
    """MB that a process has in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / 1024 / 1024
