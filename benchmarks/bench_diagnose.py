"""`driftline diagnose --json` over 100 000 sessions, beside a process that only parses the same JSON."""

import json
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import print_costs, process_cost

SESSIONS = 100_000
EVENTS = 20
PARSE_ONLY = "import json, sys\nfor line in sys.stdin.buffer:\n    json.dumps(json.loads(line))"
DRIFTLINE = [sys.executable, "-m", "service.cli.main", "diagnose", "-", "--json"]


def write_sessions(path: Path) -> None:
    """Sessions of 20 events, some with loops, lost memories and large token counts; the same ones every time."""
    rng = random.Random(7)
    with path.open("w") as file:
        for number in range(SESSIONS):
            events = [event(rng, index) for index in range(EVENTS)]
            file.write(json.dumps({"session_id": f"s{number}", "events": events}) + "\n")


def event(rng: random.Random, index: int) -> dict[str, object]:
    """Return one event of a random type."""
    kind = rng.choice(["tool_call", "tool_call", "tool_output", "token_usage", "memory_event", "decision"])
    body: dict[str, object] = {"event": kind, "event_id": f"e{index}", "timestamp": f"2026-10-01T09:00:{index:02}Z"}
    if kind == "tool_call":
        body |= {"tool": rng.choice(["exec", "read", "search"]), "args": {"path": f"src/{rng.randrange(8)}.py"}}
    elif kind == "token_usage":
        body["usage"] = {"total": rng.randrange(4000)}
    elif kind == "memory_event":
        body["action"] = rng.choice(["recalled", "recalled", "miss"])
    return body


def main() -> None:
    """Print sessions per second, the ratio to parsing alone, and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.jsonl"
        write_sessions(path)
        size = path.stat().st_size
        costs = {
            "parse and print JSON only": process_cost([sys.executable, "-c", PARSE_ONLY], stdin=path),
            "driftline diagnose - --json": process_cost(DRIFTLINE, stdin=path),
        }
    print(f"{SESSIONS:,} sessions of {EVENTS} events, {size / 1e6:.0f} MB.\n")
    print_costs(costs, SESSIONS, "sessions")


if __name__ == "__main__":
    main()
