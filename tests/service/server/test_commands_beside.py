"""Commands beside a running server behave as without one, and its records are neither lost nor exposed."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.clients import bearer, exchange_body
from support.exchange_tables import ROWS, write_lines, write_table
from support.servers import LONG, ROOT, Child, Home, Nursery, nursery, until

from driftline_trial.simulator import running
from service.setup.server_link import folder_of

EVENTS = ROOT / "examples" / "session.json"
MADE_BEFORE = ROOT / "tests" / "corpus" / "database"
POLICY = "version: 1\ndefaults: {retentionDays: null, bidirectionalScoring: true}\n"
NOW = ("--as-of", "2026-11-20T10:00:00Z")
READING = [
    ["runs"],
    ["runs", "--json"],
    ["run", "order-4711"],
    ["run", "nosuch"],
    ["scores", "--json"],
    ["sessions", "list"],
    ["scores", "--project", "nosuch"],
    ["costs", "--by", "day"],
    ["incidents", "list"],
    ["check", "--json"],
    ["check-drift", "--json", *NOW],
    ["banner", "ops"],
    ["tune", "--project", "ops", *NOW],
    ["wrap-quality"],
    ["evaluations"],
    ["agreement", "--project", "ops"],
    ["anchors", "list", "--project", "ops"],
    ["deployments", "list", "--project", "ops"],
    ["review", "next", "--project", "ops", "--rater", "ann"],
    ["alerts", "list"],
    ["dead-letters", "list"],
    ["retention", "run", "--days", "3650", *NOW],
    ["sql", "FROM turns ORDER BY exchange_id", "--json"],
    ["sql", "DELETE FROM scores"],
    ["sql", "FROM read_text('/etc/hostname')"],
    ["sql", "runs", "--csv"],
    ["export", "exported", "--json"],
]
ALONE = {
    "rebuild": [],
    "compact": [],
    "erase": ["--connection", "north", "--yes"],
    "replay": [],
    "serve": ["--port", "0"],
}
"""Commands that need the database for themselves, and their arguments."""


@pytest.fixture(scope="module")
def nursed() -> Iterator[Nursery]:
    """The pool that starts servers and commands."""
    with nursery() as opened:
        yield opened


def deliver(home: Home, server: Child, session: str, turns: int) -> None:
    """Have the server take exchanges of a session."""
    with httpx2.Client(base_url=server.serving(), timeout=LONG, headers=bearer(home.connection("north"))) as client:
        for turn in range(1, turns + 1):
            assert client.post("/api/audit/ingest", json=exchange_body(session, turn, "It is done.")).status_code in {200, 201}


def run_command(nursed: Nursery, home: Home, *arguments: str, folder: Path = ROOT) -> tuple[int, str, str]:
    """Run a command; return its exit code, output and error output."""
    before = len(home.log.read_text()) if home.log.exists() else 0
    code, printed = nursed.run(home, *arguments, folder=folder)
    logged = [line for line in home.log.read_text()[before:].splitlines() if not line.startswith("{")]  # not the server's
    return code, printed, "\n".join(logged)


@pytest.fixture(scope="module")
def filled(nursed: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A database with a run and with exchanges over HTTP, which no process has."""
    home = Home(tmp_path_factory.mktemp("filled"), POLICY)
    assert nursed.run(home, "import", "events", str(EVENTS), *NOW)[0] == 0
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "s", 3)
    assert nursed.run(home, "finalize", "s", *NOW)[0] == 0  # which returns when all is scored
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    assert nursed.run(home, "signing-key")[0] == 0  # both sign with one key
    return home


@pytest.fixture(scope="module")
def served(nursed: Nursery, filled: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The same, which a server has."""
    home = Home(tmp_path_factory.mktemp("served"), POLICY)
    for path in filled.database.parent.glob("fleet.*"):
        shutil.copy(path, home.database.parent)
    server = nursed.serve(home, "--judge", "none")
    server.serving()
    yield home
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    assert not folder_of(home.database).exists()


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_command_prints_the_same_beside_a_server(
    arguments: list[str], nursed: Nursery, filled: Home, served: Home, tmp_path: Path
) -> None:
    """Output must not depend on whether a server runs, so that scripts need no second branch."""
    folders = [tmp_path / name for name in ("without", "beside")]
    for folder in folders:
        folder.mkdir()
    without = run_command(nursed, filled, *arguments, folder=folders[0])
    beside = run_command(nursed, served, *arguments, folder=folders[1])

    assert without == beside
    until(lambda: [path.name for path in folder_of(served.database).iterdir()] == ["socket"], "the copy to go with its reader")


@pytest.mark.parametrize("command", ALONE)
def test_a_command_that_needs_exclusive_access_says_what_to_do(command: str, nursed: Nursery, served: Home) -> None:
    """The error must name the process to stop, and an alternative if there is one."""
    code, printed, logged = run_command(nursed, served, command, *ALONE[command])

    assert code == 2
    assert printed == ""
    assert "in use by" in " ".join(logged.split())
    assert "stop" in logged.lower()


def test_an_import_beside_a_server_reports_the_same_outcomes(nursed: Nursery, tmp_path: Path) -> None:
    """An import reports the outcomes of its records, whichever process wrote them: new, known, in conflict, diagnosed."""
    table = write_table(tmp_path / "table.csv", ROWS)
    changed = tmp_path / "changed.json"
    document = json.loads(EVENTS.read_text())
    document["events"][0]["payload"] = {"text": "something else"}
    changed.write_text(json.dumps(document))
    reports = []
    for name in ("without", "beside"):
        (tmp_path / name).mkdir()
        home = Home(tmp_path / name)
        server = nursed.serve(home, "--judge", "none") if name == "beside" else None
        if server:
            server.serving()
        commands = [
            *[["import", "exchanges", str(table), "--json", *NOW] for _ in range(2)],
            *[["import", "events", str(path), "--json", *NOW] for path in (EVENTS, EVENTS, changed, changed)],
            ["finalize", "order-4711", *NOW],
            ["runs", "--json"],
            ["dead-letters", "list", "--json"],
        ]
        reports.append([run_command(nursed, home, *one, folder=tmp_path)[:2] for one in commands])
        if server:
            server.send(signal.SIGTERM)
            assert server.wait() == 0
            reports.append([run_command(nursed, home, *one, folder=tmp_path)[:2] for one in commands[-2:]])

    without, beside, after = ([(code, _timeless(printed)) for code, printed in one] for one in reports)
    assert without == beside
    assert beside[-2:] == after
    assert "conflicting_id" in beside[-1][1]


def _timeless(printed: str) -> str:
    """JSON lines without the times at which records were set aside."""
    return "\n".join(part for part in printed.split(",") if "rejected_at" not in part)


def test_scores_and_deployments_can_be_recorded_beside_a_server(nursed: Nursery, served: Home) -> None:
    """The server publishes what people enter, so that its checks include it."""
    score = json.loads(run_command(nursed, served, "review", "next", "--project", "ops", "--rater", "ann", "--json")[1])[
        "scoreId"
    ]
    score_output = run_command(nursed, served, "review", "score", score, "4", "--project", "ops", "--rater", "ann")
    release = run_command(
        nursed, served, "deployments", "add", "v2", "--project", "ops", "--at", "2026-10-01T00:00:00Z", "--by", "ann"
    )

    assert score_output[0] == 0
    assert release[0] == 0
    assert "v2" in run_command(nursed, served, "deployments", "list", "--project", "ops")[1]
    assert run_command(nursed, served, "sql", "SELECT count(*) AS n FROM human_scores", "--csv")[1] == "n\n1\n"


def test_a_killed_server_locks_no_command_out(nursed: Nursery, tmp_path: Path) -> None:
    """The socket of a killed server still exists: a command opens the file itself, and the next server replaces the socket."""
    home = Home(tmp_path)
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "s", 2)
    server.kill()
    assert folder_of(home.database).exists()

    assert "2" in run_command(nursed, home, "sql", "SELECT count(*) AS n FROM exchanges", "--csv")[1]
    restarted = nursed.serve(home, "--judge", "none")
    restarted.serving()
    assert "2" in run_command(nursed, home, "sql", "SELECT count(*) AS n FROM exchanges", "--csv")[1]
    restarted.kill()


def test_every_path_of_a_database_leads_to_its_server(nursed: Nursery, tmp_path: Path) -> None:
    """A socket address has at most 107 bytes, but a path may be longer, relative, or contain links."""
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    home = Home(deep)
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "s", 1)
    linked = tmp_path / "linked.duckdb"
    linked.symlink_to(home.database)

    assert len(os.fsencode(folder_of(home.database))) > 107
    for name, folder in ((str(home.database), ROOT), ("fleet.duckdb", deep), (str(linked), ROOT)):
        code, printed, _ = run_command(nursed, home, "scores", "--json", "--db", name, folder=folder)
        assert code == 0
        assert len(printed.splitlines()) == 1
    server.kill()


def test_ctrl_c_ends_a_following_import_and_not_the_server(nursed: Nursery, tmp_path: Path) -> None:
    """Stopping an import must not stop the server."""
    home, transcripts = Home(tmp_path), tmp_path / "transcripts"
    transcripts.mkdir()
    server = nursed.serve(home, "--judge", "none")
    server.serving()
    follower = nursed.start(home, "import", "openclaw", str(transcripts), "--follow", "--interval", "0.1")
    until(lambda: "following" in follower.logged, "a follower", LONG)
    follower.send(signal.SIGINT)

    assert follower.wait() == 0
    deliver(home, server, "s", 1)
    server.kill()


def test_a_backup_of_a_running_server_has_every_accepted_record(nursed: Nursery, tmp_path: Path) -> None:
    """Copied file by file, the tables would lack what only the write-ahead log has, or have it twice."""
    home, backup = Home(tmp_path), tmp_path / "backup"
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "before", 5)
    assert run_command(nursed, home, "backup", str(backup))[0] == 0
    deliver(home, server, "after", 5)
    server.kill()

    assert {path.name for path in backup.iterdir()} == {"fleet.duckdb", "fleet.access"}
    assert (backup / "fleet.access").stat().st_mode & 0o777 == 0o600
    counted = ["sql", "SELECT count(*) AS n FROM exchanges", "--csv"]
    assert run_command(nursed, home, *counted, "--db", str(backup / "fleet.duckdb"))[1] == "n\n5\n"
    assert run_command(nursed, home, "backup", str(backup))[0] == 2


def test_a_backup_restored_under_a_newer_log_is_refused(nursed: Nursery, tmp_path: Path) -> None:
    """The log's entries follow rows that the older tables lack: flushed there, they would leave an unnoticed gap."""
    home, backup = Home(tmp_path), tmp_path / "backup"
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "before", 1)
    assert run_command(nursed, home, "backup", str(backup))[0] == 0
    deliver(home, server, "lost", 3)
    assert run_command(nursed, home, "runs")[0] == 0  # what was accepted lands, and leaves the log
    server.send(signal.SIGSTOP)
    server.kill()
    restarted = nursed.serve(home, "--judge", "none", before=_NEVER_FLUSHES)
    deliver(home, restarted, "waiting", 2)
    restarted.kill()
    shutil.copy(backup / "fleet.duckdb", home.database)
    home.database.with_name("fleet.duckdb.wal").unlink(missing_ok=True)

    for command in ("runs", "doctor", "serve"):
        code, printed, logged = run_command(nursed, home, command)
        assert 0 < code < 3
        output = " ".join((printed + logged).split())
        assert "but the database needs entry" in output
        assert "Restore the matching database" in output


_NEVER_FLUSHES = "import asyncio, streams.log.local_log as log; log.LocalLog._flush_when_due = lambda _: asyncio.Event().wait()"


def test_a_database_of_an_older_version_is_upgraded(nursed: Nursery, tmp_path: Path) -> None:
    """A killed server of 0.1.0 left it: the upgrade loses nothing and judges nothing twice."""
    home = Home(tmp_path)
    for packed in MADE_BEFORE.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "s0", 5)  # of which it has four
    assert run_command(nursed, home, "finalize", "s0", *NOW)[0] == 0  # which returns when all is scored

    rows = run_command(nursed, home, "sql", "SELECT session_id, count(*) AS n FROM scores GROUP BY ALL ORDER BY ALL", "--csv")
    assert rows[1] == "session_id,n\ns0,5\ns1,4\ns2,4\n"
    assert "order-4711" in run_command(nursed, home, "runs")[1]
    assert run_command(nursed, home, "doctor")[0] == 0
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def test_unscored_exchanges_are_judged_by_the_servers_judge(nursed: Nursery, tmp_path: Path) -> None:
    """The command has no judge itself: it asks the server, waits, and reports the cost."""
    home = Home(tmp_path)
    server = nursed.serve(home, "--judge", "none")
    deliver(home, server, "s", 3)
    assert run_command(nursed, home, "finalize", "s")[0] == 0
    assert run_command(nursed, home, "rejudge", "--yes")[0] == 2
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    with running() as judge:
        restarted = nursed.serve(home, environment={"ANTHROPIC_BASE_URL": judge.base_url})
        restarted.serving()
        code, printed, _ = run_command(nursed, home, "rejudge", "--yes", "--json")
        report = json.loads(printed)
        restarted.send(signal.SIGTERM)
        assert restarted.wait() == 0

    assert code == 0
    assert report["requested"] == 3
    assert report["judge"] == "simulated judge"
    assert report["still_unscored"] == {}
    assert sum(report["calls"].values()) >= 3
    assert report["cost_usd"] > 0


def test_an_import_beside_a_judge_waits_until_everything_is_judged(nursed: Nursery, tmp_path: Path) -> None:
    """The server judges imported exchanges, so the command must wait and report that instead of unscored exchanges."""
    home, table = Home(tmp_path), write_lines(tmp_path / "table.jsonl", ROWS)
    with running() as judge:
        server = nursed.serve(home, environment={"ANTHROPIC_BASE_URL": judge.base_url})
        server.serving()
        code, printed, _ = run_command(nursed, home, "import", "exchanges", str(table), "--judge", "--yes", "--json", *NOW)
        _, scores, _ = run_command(nursed, home, "scores", "--full")
        server.send(signal.SIGTERM)
        assert server.wait() == 0

    assert code == 0
    assert json.loads(printed)["exchanges"] == len(ROWS)
    assert {json.loads(line)["tier2State"] for line in scores.splitlines()} == {"scored"}
