"""The two ends of the socket: who is let in, what is cancelled, and what a caller hears when the other end is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pytest
from api_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
from typer.testing import CliRunner

from schemas.errors import SettingsError, StoreError
from service.cli.commands.records import import_results, imports
from service.cli.main import application
from service.server.remote import command_server
from service.server.remote.command_server import AT_ONCE, taking_commands
from service.setup.judge_setup import paid_note
from service.setup.remote import command_socket
from service.setup.remote.command_socket import connected, folder_of, listening
from service.setup.remote.remote_store import RemoteStore
from service.setup.remote.server_link import ServerLink
from service.setup.version import version
from service.write.imports.importing import ImportSummary
from streams.engine.engine import Engine
from streams.watch.watching import Watch

PATIENCE = 60.0
ENDLESS = "SELECT count(*) FROM range(100000000000) AS a(n) WHERE n % 7 = 8"


@pytest.fixture
def path(engine: Engine, loop: asyncio.Runner) -> Iterator[Path]:
    """A database whose process takes commands, on an event loop in a thread of its own."""
    assert engine.store.path is not None
    opened, ended = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with taking_commands(engine.store.path or Path(), engine, Watch(engine)):
            opened.set()
            await ended.wait()

    serving = threading.Thread(target=loop.run, args=(serve(),))
    serving.start()
    assert opened.wait(PATIENCE)
    yield engine.store.path
    loop.get_loop().call_soon_threadsafe(ended.set)
    serving.join()


@pytest.fixture
def link(path: Path) -> Iterator[ServerLink]:
    """A command's connection."""
    opened = ServerLink.to(path)
    assert opened is not None
    with contextlib.closing(opened):
        yield opened


@contextlib.contextmanager
def pretending(path: Path, act: Callable[[Connection], Any]) -> Iterator[None]:
    """Another program in the server's place, which does something with the first connection."""
    with listening(path) as listener:

        def accept() -> None:
            peer, _ = listener.accept()
            with Connection(peer.detach()) as connection:
                act(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        thread.join()


def test_the_socket_is_its_owners_from_the_first_moment(tmp_path: Path) -> None:
    """Who may connect may read everything: no moment may pass between making the socket and closing it to others."""
    database = tmp_path / "fleet.duckdb"
    before = os.umask(0)
    try:
        with listening(database):
            folder = folder_of(database)
            assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
            assert 0o600 == stat.S_IMODE((folder / "socket").stat().st_mode)
    finally:
        os.umask(before)
    assert not folder.exists()


def test_a_command_of_another_user_is_not_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the user that runs the server has a right to what it has; root, too, runs commands as that user."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as peer:
        monkeypatch.setattr(command_socket.os, "geteuid", lambda: os.getuid() + 1)
        peer.connect(str(folder_of(path) / "socket"))
        assert b"" == peer.recv(1)


def test_a_command_gives_nothing_to_a_server_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user could have put a socket there, to be asked in the server's place."""
    database = tmp_path / "fleet.duckdb"
    with listening(database):
        monkeypatch.setattr(command_socket.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(StoreError, match="belongs to the user"):
            connected(database)


def test_a_link_in_the_folders_place_is_not_followed(tmp_path: Path) -> None:
    """It could lead to any socket of the machine."""
    database, elsewhere = tmp_path / "fleet.duckdb", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder_of(database).symlink_to(elsewhere)

    with pytest.raises(StoreError, match="is not a folder"):
        connected(database)
    with pytest.raises(StoreError, match="is not a folder"), listening(database):
        pass
    assert elsewhere.is_dir()


def test_no_object_is_taken_from_a_server_of_another_version(tmp_path: Path) -> None:
    """Objects of another version may lack what this one looks for: the words of two processes have to be the same first."""
    database = tmp_path / "fleet.duckdb"
    with (
        pretending(database, lambda connection: connection.send_bytes(b"0.0.1")),
        pytest.raises(StoreError, match=r"version 0\.0\.1"),
    ):
        ServerLink.to(database)


def test_a_server_that_ends_meanwhile_is_an_error_that_says_so(tmp_path: Path) -> None:
    """Whoever waits for an answer has to learn that none will come, and what became of what was brought."""
    database = tmp_path / "fleet.duckdb"

    def leave(connection: Connection) -> None:
        connection.send_bytes(version().encode())
        connection.recv()

    with pretending(database, leave):
        link = ServerLink.to(database)
        assert link is not None
        with contextlib.closing(link), pytest.raises(StoreError, match="ended before it answered") as told:
            link.call("settled")
    assert "Earlier records are kept" in told.value.hint


def test_what_an_operation_raises_is_raised_at_the_caller(link: ServerLink) -> None:
    """A command prints the same error with the same hint, whichever process it happened in."""
    with pytest.raises(duckdb.CatalogException):
        link.call("execute", "FROM no_such_table", None)
    with pytest.raises(SettingsError, match="has no judge") as told:
        link.call("judge_anchors", "ops")
    assert "ANTHROPIC_API_KEY" in told.value.hint
    assert ([("1", "INTEGER")], [(1,)]) == link.call("execute", "SELECT 1", None)


@pytest.mark.parametrize("statement", ["DELETE FROM log.scores", "CREATE TABLE mine (n INT)", "DROP VIEW scores"])
def test_no_statement_of_a_command_writes(statement: str, link: ServerLink) -> None:
    """What writes goes through the intake, which keeps states and positions in step with the rows."""
    with pytest.raises(duckdb.TransactionException, match="read-only"):
        link.call("execute", statement, None)


def test_a_cursor_reads_everything_of_one_moment(path: Path, engine: Engine) -> None:
    """A check that reads twice must not see what came between."""
    link = ServerLink.to(path)
    assert link is not None
    store = RemoteStore(path, link)
    with contextlib.closing(store), contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        counted = "SELECT count(*) FROM log.watermarks"
        before = cursor.execute(counted).fetchone()
        with engine.store.transaction() as transaction:
            transaction.set_watermark("test", "", 1)
        assert before == cursor.execute(counted).fetchone()
        cursor.commit()
        assert before != cursor.execute(counted).fetchone()


def test_a_caller_that_leaves_takes_its_statement_along(path: Path) -> None:
    """More statements than run at once are left behind: if one went on, the next command would wait for it for ever."""
    for _ in range(AT_ONCE + 1):
        link = ServerLink.to(path)
        assert link is not None
        link._connection.send(("execute", (ENDLESS, None)))
        link.close()
    link = ServerLink.to(path)
    assert link is not None
    with contextlib.closing(link):
        begun = time.monotonic()
        assert [(1,)] == link.call("execute", "SELECT 1", None)[1]
        assert time.monotonic() - begun < PATIENCE


def test_nothing_that_a_command_says_is_logged(link: ServerLink, caplog: pytest.LogCaptureFixture) -> None:
    """Arguments may hold secrets: a fault of ours is logged, and what was asked is not."""
    with pytest.raises(StoreError, match="ended before"):
        link.call("no such operation", "sk-ant-secret")
    assert "a command was not answered" in caplog.text
    assert "sk-ant-secret" not in caplog.text


def test_a_caller_that_falls_silent_in_the_middle_is_cut_off(
    path: Path, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could still read is kept for it: a command that was stopped and forgotten would have the file grow."""
    monkeypatch.setattr(command_server, "SILENT", 0.05)
    link.call("begin")
    assert link._connection.poll(PATIENCE)
    with pytest.raises(StoreError, match="ended before"):
        link.call("execute", "SELECT 1", None)
    again = ServerLink.to(path)
    assert again is not None
    with contextlib.closing(again):
        assert [(1,)] == again.call("execute", "SELECT 1", None)[1]


def test_what_goes_wrong_beside_an_open_socket_is_told_as_it_is(tmp_path: Path) -> None:
    """A full disk of a server must not read as a fault of its socket."""
    with pytest.raises(OSError, match="a full disk"), listening(tmp_path / "fleet.duckdb"):
        raise OSError(28, "a full disk")
    assert not folder_of(tmp_path / "fleet.duckdb").exists()


def test_another_users_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that root has started must not remove what another user has put there."""
    database = tmp_path / "fleet.duckdb"
    folder_of(database).mkdir()
    (folder_of(database) / "theirs").touch()
    monkeypatch.setattr(command_socket.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="belongs to the user"), listening(database):
        pass
    assert (folder_of(database) / "theirs").exists()


@pytest.mark.parametrize(("judge", "is_paid"), [("live", True), ("none", False), ("simulated judge", False)])
def test_whoever_imports_beside_a_paid_judge_is_told(judge: str, is_paid: bool) -> None:
    """Without a server an import asks no judge; beside one it is judged, and paid for: not without a word."""

    class Answering(ServerLink):
        def __init__(self) -> None: ...

        def call(self, operation: str, *_: Any) -> Any:
            return {"describe": judge}[operation]

    assert is_paid == bool(paid_note(Answering()))
    assert "" == paid_note(None)


def test_an_import_that_a_judge_is_paid_for_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a year's transcripts costs money: a script that did not expect a server must not spend it."""
    transcript = tmp_path / "s.jsonl"
    transcript.write_text('{"type": "session", "id": "s"}\n')
    arguments = ["import", "openclaw", str(transcript), "--db", str(tmp_path / "fleet.duckdb")]
    monkeypatch.setattr(import_results, "paid_note", lambda _: "the server has a live judge")
    read: list[object] = []
    monkeypatch.setattr(imports.Importer, "transcripts", lambda *_: read.append(1) or ImportSummary())
    command_line = application(["import"])
    asked = CliRunner().invoke(command_line, arguments)
    assert (1, []) == (asked.exit_code, read)
    assert "Import, and let the server's judge score it?" in asked.output
    assert 0 == CliRunner().invoke(command_line, [*arguments, "--yes"]).exit_code
    assert [1] == read
