"""Only one process opens the database, because two writers would lose data or the file."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.api_server import Call, Tokens
from support.clients import bearer, exchange_body
from support.database_files import OPENED, assert_ours, opened_elsewhere
from support.servers import LONG, ROOT, Home, Nursery, nursery, until

from analytics.deletion.compaction import compact_at_start
from analytics.store.store import Store
from service.cli.main import run
from service.export.parquet import export_partitions, export_tables, select_days
from streams.engine.engine import Engine
from streams.upkeep.deletion import purge

EVENTS = ROOT / "examples" / "session.json"
QUERY = "/api/audit/query"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
WORK: dict[str, Callable[[Call, Tokens, Engine, Path], object]] = {
    "a query": lambda call, tokens, _engine, _folder: call("POST", QUERY, tokens.root, json={"sql": "FROM turns"}),
    "pages": lambda call, tokens, _engine, _folder: [
        call("GET", path, tokens.root) for path in ("/", "/projects/ops", "/projects/ops/runs", "/sql", "/metrics", "/readyz")
    ],
    "retention": lambda call, tokens, _engine, _folder: call(
        "POST", "/api/audit/retention/run", tokens.root, json={"retentionDays": 1}
    ),
    "a purge": lambda _call, _tokens, engine, _folder: purge(engine.store, engine.policy, engine.now(), 1),
    "an export": lambda _call, _tokens, engine, folder: export_tables(engine.store, folder / "exported", KEY),
    "partitions": lambda _call, _tokens, engine, folder: export_partitions(
        engine.store, folder / "lake", select_days(None, None), KEY
    ),
    "a backup": lambda _call, _tokens, engine, folder: subprocess.run(
        ["cp", str(engine.store.path), str(folder / "backup.duckdb")],  # noqa: S607
        check=True,
    ),
    "a start that compacts": lambda _call, _tokens, engine, _folder: compact_at_start(engine.store.path or Path()),
    "doctor": lambda _call, _tokens, engine, _folder: run(["doctor", "--db", str(engine.store.path)]),
    "sql": lambda _call, _tokens, engine, _folder: run(["sql", "SELECT 1", "--db", str(engine.store.path)]),
    "compact": lambda _call, _tokens, engine, _folder: run(["compact", "--db", str(engine.store.path)]),
}
"""What is done in the process that has the database, or asked of it."""


@pytest.fixture(scope="module")
def nursed() -> Iterator[Nursery]:
    """The pool that starts servers."""
    with nursery() as opened:
        yield opened


@pytest.mark.parametrize("what", WORK)
def test_the_process_keeps_the_database_locked(what: str, call: Call, tokens: Tokens, engine: Engine, tmp_path: Path) -> None:
    """DuckDB's lock is lost as soon as any code of the process opens and closes the file."""
    assert call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body("s", 1, "It is done.")).status_code == 201
    WORK[what](call, tokens, engine, tmp_path)

    assert engine.store.path is not None
    assert_ours(engine.store.path)


def test_a_compacted_database_stays_locked(tmp_path: Path) -> None:
    """The compacted file replaces the old one and needs its own lock."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()
    assert run(["compact", "--db", str(path)]) == 0
    assert opened_elsewhere(path) == OPENED
    with Store(path):
        assert_ours(path)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_lost_of_an_import_beside_a_server(tmp_path: Path, nursed: Nursery, end: signal.Signals) -> None:
    """After the first query the import could open the file, and lost its events, or the file, when the server ended."""
    home = Home(tmp_path)
    deliver, operate = bearer(home.connection("north")), bearer(home.operator())
    server = nursed.serve(home, "--judge", "none")
    with httpx2.Client(base_url=server.serving(), timeout=LONG) as client:

        def send_exchange(turn: int) -> int:
            return client.post("/api/audit/ingest", json=exchange_body("s", turn, "It is done."), headers=deliver).status_code

        assert send_exchange(1) == 201
        query = lambda: client.post(QUERY, json={"sql": "SELECT 1"}, headers=operate).is_success  # noqa: E731
        until(query, "an answer to an analyst", LONG)
        assert nursed.run(home, "import", "events", str(EVENTS))[0] == 0
        assert opened_elsewhere(home.database) == f"{home.database}: in use by process {server.pid}"
        assert send_exchange(2) == 201
    server.send(end)
    server.wait()

    code, printed = nursed.run(home, "import", "events", str(EVENTS), "--json")
    assert code == 0
    assert json.loads(printed)["events"] == 0
    with Store(home.database) as store:
        assert store.count("exchanges") == 2
        assert store.count("agent_events") == len(json.loads(EVENTS.read_text())["events"])
