"""Importing a state folder of OpenClaw's current form, beside a process that reads the same rows with SQLite alone.

The folder is synthetic: one agent's database with sessions of 120 exchanges, long rows compressed as OpenClaw compresses them, and
a trajectory of each run. It has 1 000 MB unless `--megabytes` says otherwise.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from backports import zstd

from audit.fingerprints import stable_id
from benchmarks.measure import print_costs, process_cost

AGENT = "load"
TURNS = 120
PROMPT = "You are a personal assistant. " * 1000
"""The system prompt of 2026.9.6 has 31 000 characters, and each run's trajectory has it twice."""
LONG = 4096
"""Bytes from which a row is compressed."""
TABLES = """
CREATE TABLE session_windows (session_id TEXT PRIMARY KEY, session_key TEXT, created_at INTEGER, chat_type TEXT, spawned_by TEXT);
CREATE TABLE session_nodes (session_key TEXT PRIMARY KEY, current_session_id TEXT, entry_json TEXT);
CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER, event_zstd BLOB,
  event_utf8_bytes INTEGER, navigation_json TEXT, PRIMARY KEY (session_id, seq));
CREATE TABLE transcript_event_identities (session_id TEXT, event_id TEXT, seq INTEGER, PRIMARY KEY (session_id, event_id));
CREATE TABLE trajectory_runtime_events (session_id TEXT, seq INTEGER, run_id TEXT, event_json TEXT, created_at INTEGER,
  PRIMARY KEY (session_id, seq));
"""
READ_ONLY = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
connection.text_factory = bytes
for table, columns in (("transcript_events", "event_json, event_zstd"), ("trajectory_runtime_events", "event_json")):
    for row in connection.execute(f"SELECT session_id, {columns} FROM {table} ORDER BY session_id, seq"):
        pass
"""
Json = dict[str, Any]


def main(options: Sequence[str] = ()) -> None:
    """Print megabytes per second, the ratio to reading alone, and peak memory: first import, and again with nothing new."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks openclaw_import")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the state folder [1000]")
    megabytes = parser.parse_args(options).megabytes
    with tempfile.TemporaryDirectory() as folder:
        state, database = Path(folder) / "openclaw", Path(folder) / "fleet.duckdb"
        file = state / "agents" / AGENT / "agent" / "openclaw-agent.sqlite"
        sessions = write_database(file, megabytes)
        size = file.stat().st_size / 1e6
        command = [sys.executable, "-m", "service.cli.main", "import", "openclaw", str(state), "--db", str(database)]
        costs = {
            "read the rows with SQLite only": process_cost([sys.executable, "-c", READ_ONLY, str(file)]),
            "driftline import openclaw": process_cost(command),
            "the same again, nothing new": process_cost(command),
        }
        stored = database.stat().st_size / 1e6
    print(f"{sessions:,} sessions, {size:,.0f} MB; the database has {stored:,.0f} MB.\n")
    print_costs(costs, size, "MB", beside="reading")


def write_database(file: Path, megabytes: int) -> int:
    """Write a database of at least this many megabytes in constant memory; return its number of sessions."""
    file.parent.mkdir(parents=True)
    sessions = 0
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; {TABLES}")
        while sessions % 10 or file.stat().st_size < megabytes * 1_000_000:
            with connection:
                write_session(connection, sessions)
            sessions += 1
            if not sessions % 10:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sessions


def write_session(connection: sqlite3.Connection, number: int) -> None:
    """Write a session with its rows, identities, trajectory and entry."""
    session, begun = stable_id("synthetic", AGENT, number), datetime(2026, 1, 1, 9, tzinfo=UTC) + timedelta(hours=number)
    key = f"agent:{AGENT}:{number}"
    connection.execute("INSERT INTO session_windows VALUES (?, ?, ?, 'direct', NULL)", (session, key, number))
    entry = {"sessionId": session, "contextTokens": 200_000, "modelProvider": "anthropic", "model": "claude-sonnet-5-5"}
    connection.execute("INSERT INTO session_nodes VALUES (?, ?, ?)", (key, session, json.dumps(entry)))
    lines = list(transcript(session, begun, Random(number)))
    rows = []
    for seq, line in enumerate(lines):
        text = json.dumps(line, separators=(",", ":"))
        long = zstd.compress(text.encode()) if len(text) > LONG else None
        rows.append((session, seq, None if long else text, number, long, len(text) if long else None, "{}"))
    connection.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    identities = [(session, line["id"], seq) for seq, line in enumerate(lines)]
    connection.executemany("INSERT INTO transcript_event_identities VALUES (?, ?, ?)", identities)
    runs = [
        (session, seq, line["runId"], json.dumps(line, separators=(",", ":")), number)
        for seq, line in enumerate(trajectory(lines))
    ]
    connection.executemany("INSERT INTO trajectory_runtime_events VALUES (?, ?, ?, ?, ?)", runs)


def transcript(session: str, begun: datetime, random: Random) -> Iterator[Json]:
    """Yield the lines of a session: per turn a question, a call, its result and an answer."""
    yield {"type": "session", "version": 4, "id": session, "timestamp": begun.isoformat()}
    for turn in range(TURNS):
        asked_at = begun + timedelta(seconds=10 * turn)
        messages = (
            {"role": "user", "content": f"How is machine {random.randrange(900)} today? {random_text(random, 30)}"},
            {
                "role": "assistant",
                "content": [
                    {"type": "toolCall", "id": f"call-{turn}", "name": "exec", "arguments": {"command": random_text(random, 6)}}
                ],
                "stopReason": "toolUse",
            },
            {
                "role": "toolResult",
                "toolCallId": f"call-{turn}",
                "toolName": "exec",
                "content": random_text(random, random.choice((60, 60, 900))),
            },
            {"role": "assistant", "content": [{"type": "text", "text": random_text(random, 80)}], "stopReason": "stop"},
        )
        for index, body in enumerate(messages):
            message: Json = body | ({} if body["role"] == "user" else {"__openclaw": {"runId": f"run-{turn}"}})
            if body["role"] == "assistant":
                message |= {"provider": "anthropic", "model": "claude-sonnet-5-5", "usage": usage(turn)}
            yield {
                "type": "message",
                "id": stable_id(session, turn, index),
                "timestamp": (asked_at + timedelta(seconds=index)).isoformat(),
                "message": message,
            }


def trajectory(lines: Sequence[Json]) -> Iterator[Json]:
    """Yield the trajectory of the runs, which consists mostly of prompts."""
    for turn in range(TURNS):
        _, call, result, answer = lines[1 + 4 * turn : 5 + 4 * turn]
        events: tuple[tuple[str, Json, Json], ...] = (
            ("session.started", call, {"trigger": "user"}),
            ("context.compiled", call, {"systemPrompt": PROMPT}),
            ("prompt.submitted", call, {"systemPrompt": PROMPT}),
            ("tool.call", call, {"toolCallId": f"call-{turn}", "name": "exec", "args": {}}),
            ("tool.result", result, {"toolCallId": f"call-{turn}", "name": "exec", "success": True, "result": {}}),
            (
                "model.completed",
                answer,
                {"usage": {name: 2 * count for name, count in usage(turn).items()}, "stopReason": "stop"},
            ),
            ("session.ended", answer, {"status": "success"}),
        )
        for kind, line, data in events:
            ids = {"runId": f"run-{turn}", "provider": "anthropic", "modelId": "claude-sonnet-5-5"}
            yield {"traceSchema": "openclaw-trajectory", "type": kind, "ts": line["timestamp"], **ids, "data": data}


def usage(turn: int) -> dict[str, int]:
    """Return the tokens of one request."""
    return {"input": 60, "output": 40 + turn, "cacheRead": 9000 + 300 * turn, "cacheWrite": 0}


WORDS = (
    "the", "backup", "of", "db2", "is", "healthy", "again", "since", "disk", "full", "was",
    "mended", "on", "host", "rack", "seven", "by", "night", "and", "42", "files", "are", "left",
)  # fmt: skip


def random_text(random: Random, count: int) -> str:
    """Return a random text of this many words."""
    return " ".join(random.choices(WORDS, k=count))


if __name__ == "__main__":
    main(sys.argv[1:])
