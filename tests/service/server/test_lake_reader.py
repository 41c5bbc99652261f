"""`driftline lake serve`: SQL over a lake by several processes, with the tokens and the rights of a server."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.builders import exchange
from support.lakes import put
from support.servers import LONG, PATIENCE, ROOT

from analytics.lake import Lake
from analytics.store.store import Store
from schemas.errors import LakeError
from service.read.queries.pool import DatabaseSource, LakeSource, SnapshotSource, SpanningSource
from service.server.lake_reader import ReaderOptions, serve_lake
from service.server.server_lifecycle import source_of_statements
from service.setup.access import AccessStore, Holder, access_file
from service.setup.settings import Settings
from service.setup.workspace import utc_now


@contextlib.contextmanager
def reader(lake: Path, database: Path, scratch: Path) -> Iterator[str]:
    """Yield the address of a reader in a process of its own, and stop it as Ctrl-C does."""
    command = [sys.executable, "-m", "service.cli.main", "lake", "serve", str(lake), "--port", "0"]
    options = ["--db", str(database), "--scratch", str(scratch)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split(" at ")[1].split("/api")[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert list(scratch.iterdir()) == []


def ask(address: str, token: str, statement: str) -> httpx2.Response:
    """Send a statement; again while the first snapshot is made."""
    while True:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx2.post(f"{address}/api/audit/query", json={"sql": statement}, headers=headers, timeout=LONG)
        if answer.status_code != 503:
            return answer


def rows(answer: httpx2.Response) -> Any:
    """Return the rows of an answer."""
    return answer.json()["rows"]


def test_readers_answer_with_the_rights_of_a_token(tmp_path: Path) -> None:
    """Analysts get SQL from as many processes as they need, and see no more than from a server."""
    put(
        tmp_path / "lake",
        [("exchanges", exchange("s", number, project=project)) for number, project in enumerate(["ops", "rival"])],
    )
    database, scratch = tmp_path / "d.duckdb", tmp_path / "scratch"
    scratch.mkdir()
    with AccessStore(access_file(database), utc_now) as access:
        every = access.add(Holder("operator", "every", None, None, frozenset({"query"})))
        of_ops = access.add(Holder("operator", "ops", "ops", None, frozenset({"query"})))
        none = access.add(Holder("operator", "none", None, None, frozenset({"read"})))
    with reader(tmp_path / "lake", database, scratch) as first, reader(tmp_path / "lake", database, scratch) as second:
        statement = "SELECT project FROM exchanges ORDER BY ALL"
        assert (
            rows(ask(first, every, statement))
            == rows(ask(second, every, statement))
            == [{"project": "ops"}, {"project": "rival"}]
        )
        assert rows(ask(second, of_ops, statement)) == [{"project": "ops"}]
        assert ask(first, none, statement).status_code == 403
        assert ask(first, "dl_000000000000_x", statement).status_code == 401
        refused = ask(first, every, f"SELECT * FROM read_parquet('{tmp_path}/lake/exchanges/*/*/*.parquet')")
        assert refused.json()["code"] == "query_refused"
        assert httpx2.get(f"{first}/healthz").json() == {"status": "ok"}
    assert not database.exists()
    with AccessStore(access_file(database), utc_now) as access:
        assert {line.name for line in access.audit_log.lines(limit=100)} == {"every", "ops", "none"}


@pytest.mark.parametrize("root", ["missing", "a*", "s3://bucket/lake"])
def test_a_reader_needs_a_lake_in_a_folder(root: str, tmp_path: Path) -> None:
    """A typing error in a path must not look like an empty lake."""
    lake = Lake(root if "://" in root else str(tmp_path / root))
    with pytest.raises(LakeError, match=re.escape(root)):
        serve_lake(
            Settings(database=tmp_path / "d.duckdb", port=0),
            ReaderOptions(lake, tmp_path, 2),
            names=[],
            expose=False,
            announce=lambda *_: None,
        )


def test_a_server_with_a_lake_answers_over_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With hot days, the database lacks what the lake has. A bucket cannot be read, which must not be silent."""
    with Store(tmp_path / "d.duckdb") as store:
        database = DatabaseSource(store)

        def source(**options: str) -> SnapshotSource:
            return source_of_statements(Settings(database=tmp_path / "d.duckdb", **options), database)  # type: ignore[arg-type]

        assert source() is database
        spanning = source(kafka="broker:9092", lake=str(tmp_path / "lake"))
        assert spanning == SpanningSource(LakeSource(tmp_path / "lake", database.folder), database)
        assert not caplog.records
        assert source(kafka="broker:9092", lake="s3://bucket/lake") is database
        assert "s3://bucket/lake" in caplog.text
