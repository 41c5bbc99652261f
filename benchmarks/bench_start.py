"""What commands and a server at rest take, beside the libraries that no reader can do without.

Processor seconds and resident memory, medians of several runs that take turns; bytecode is written before. The database has one run.
A bare server answers one path with FastAPI and uvicorn, and has a DuckDB file open. What a server takes anew and has to itself is
anonymous; the rest are pages of files, mostly of libraries, that the system can drop and share.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.measure import first_line, print_table

EVENTS = Path(__file__).parents[1] / "examples" / "session.json"
DRIFTLINE = [sys.executable, "-m", "service.cli.main"]
SETTLED = 3.0
"""Seconds after which a server that has just started, or was called, is at rest."""
TICK = os.sysconf("SC_CLK_TCK")
BARE = """
import sys
import duckdb, fastapi, uvicorn
database = duckdb.connect(sys.argv[1])
app = fastapi.FastAPI()
app.get("/")(lambda: database.execute("SELECT 42").fetchall())
print("listens", flush=True)
uvicorn.run(app, port=0, log_level="error")
"""
GRANTING = """
import sys
from pathlib import Path
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
with AccessStore(access_file(Path(sys.argv[1])), utc_now) as access:
    print(access.add(Holder("connection", "north", "ops")), access.add(Holder("operator", "root", None)))
"""


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
        command_costs = _in_turns(commands, environment, rounds)
        tokens = subprocess.run(
            [sys.executable, "-c", GRANTING, environment["DRIFTLINE_DATABASE"]], check=True, capture_output=True, text=True
        ).stdout.split()
        with _serving([sys.executable, "-c", BARE, str(Path(folder) / "bare.duckdb")], environment) as (bare, _):
            memory = {"a bare server, at rest": _memory(bare)}
        with _serving([*DRIFTLINE, "serve", "--judge", "none", "--port", "0"], environment) as (server, line):
            memory["`driftline serve --judge none`, at rest"] = _memory(server)
            beside = _in_turns({"`driftline runs`, beside a server": [*DRIFTLINE, "runs"]}, environment, rounds)
            calls = _first_calls(server, line, *tokens)
            time.sleep(SETTLED)
            memory["the same, at rest after these calls"] = _memory(server)
    base, _ = command_costs["`python -c 'import duckdb, polars'`"]
    rows = [
        [name, f"{seconds:.2f}", f"{seconds / base:.1f}", f"{memory:.0f}"]
        for name, (seconds, memory) in (command_costs | beside).items()
    ]
    print_table(["", "processor, s", "times the libraries", "resident, MB"], rows)
    print()
    print_table(["a server's calls", "processor, ms", "answered after, ms"], calls)
    print()
    print_table(
        ["", "resident, MB", "of it anonymous, MB"],
        [[name, *map("{:.0f}".format, megabytes)] for name, megabytes in memory.items()],
    )


def _in_turns(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], rounds: int
) -> dict[str, tuple[float, float]]:
    """Processor seconds and peak memory in MB of each command, the medians."""
    costs_by_command: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            costs_by_command[name].append(_cost(command, environment))
    medians = {}
    for name, costs in costs_by_command.items():
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


@contextlib.contextmanager
def _serving(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """A server at rest, which ends with the context: its process, and the line that it printed."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            line = first_line(server)
            if "listens" not in line:
                raise SystemExit("the server did not start")
            time.sleep(SETTLED)
            yield server.pid, line
        finally:
            server.terminate()


def _first_calls(process: int, line: str, sender: str, reader: str) -> list[list[str]]:
    """What the first calls of each kind take, and the second ones."""
    address = HTTPConnection(line.split("http://")[1].split(maxsplit=1)[0].rstrip("/"))
    message = {
        "timestamp": "2026-11-01T09:00:00Z",
        "user_message": {"content": "Hello"},
        "agent_response": {"content": "Done."},
    }
    calls = []
    for number in ("first", "second"):
        exchange = {"session_id": "s1", "exchange": {"id": number, **message}}
        calls += [
            (f"{number} page, signed out", "GET", "/sign-in", reader, None),
            (f"{number} list of projects", "GET", "/api/audit/projects", reader, None),
            (f"{number} exchange", "POST", "/api/audit/ingest", sender, json.dumps(exchange)),
        ]
    rows = []
    for name, method, path, token, body in sorted(calls, key=lambda call: call[0].split(" ", 1)[1]):
        heads = {"authorization": f"Bearer {token}", "content-type": "application/json", "accept": "text/html"}
        spent, began = _processor(process), time.perf_counter()
        address.request(method, path, body, heads if body else {key: heads[key] for key in ("authorization", "accept")})
        answer = address.getresponse()
        answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path} was answered {answer.status}")
        rows.append([name, f"{_processor(process) - spent:.0f}", f"{(time.perf_counter() - began) * 1000:.0f}"])
    return rows


def _processor(process: int) -> float:
    """Milliseconds of processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / TICK


def _memory(process: int) -> tuple[float, float]:
    """MB that a process has in memory, and those of them that are in no file."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Rss"].split()[0]) / 1024, int(fields["Anonymous"].split()[0]) / 1024
