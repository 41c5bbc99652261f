"""Both ends of the socket: access, encoding, cancellation, and the errors when the other end is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.api_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
from typer.testing import CliRunner

from schemas.errors import DriftlineError, QueryError, SettingsError, StoreError
from service.cli.commands import importing
from service.cli.main import application
from service.server import commands
from service.server.commands import MAX_READERS, serve_commands
from service.setup import server_link
from service.setup.judge_setup import paid_note
from service.setup.server_link import Rows, ServerLink, ServerStore, command_socket, connect, folder_of, pack
from service.write.importing import ImportSummary
from streams.engine.engine import Engine
from streams.watch.watching import Watch

PATIENCE = 60.0
ENDLESS = "SELECT count(*) FROM range(100000000000) AS a(n) WHERE n % 7 = 8"
TYPED = """
    SELECT
        sum($number)::HUGEINT AS number, avg($number) AS mean, 0.5 AS decimal, $day AS day, $at AS at, $at::TIMESTAMP AS naive,
        [{'at': $at::TIMESTAMP, 'text': $text}] AS nested, MAP {$text: 1} AS mapped, $body AS body,
        '00000000-0000-0000-0000-00000000002a'::UUID AS uuid, INTERVAL 90 SECOND AS length, NULL AS nothing, $texts AS texts"""


@contextlib.contextmanager
def serving(engine: Engine, loop: asyncio.Runner) -> Iterator[Path]:
    """A database whose process accepts commands, on an event loop in a separate thread."""
    assert engine.store.path is not None
    opened, ended = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serve_commands(engine.store.path or Path(), engine, Watch(engine)):
            opened.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run, args=(serve(),))
    thread.start()
    assert opened.wait(PATIENCE)
    yield engine.store.path
    loop.get_loop().call_soon_threadsafe(ended.set)
    thread.join()


@pytest.fixture
def path(engine: Engine, loop: asyncio.Runner) -> Iterator[Path]:
    """A database whose process accepts commands."""
    with serving(engine, loop) as database:
        yield database


@pytest.fixture
def link(path: Path) -> ServerLink:
    """A command's connection."""
    opened = ServerLink.find(path)
    assert opened is not None
    return opened


@contextlib.contextmanager
def pretending(path: Path, act: Callable[[socket.socket], Any]) -> Iterator[None]:
    """Another program in the server's place, which does something with each connection until it is left."""
    with command_socket(path) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    act(peer)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def begin_call(path: Path, operation: str, *arguments: Any) -> socket.socket:
    """Call an operation and do not wait for the answer."""
    peer = connect(path)
    assert peer is not None
    body = pack(arguments)
    peer.sendall(f"POST /{operation} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return peer


def test_the_socket_belongs_to_its_owner_from_the_start(tmp_path: Path) -> None:
    """Anyone who can connect can read everything, so the socket must never be accessible to others, not even briefly."""
    database = tmp_path / "fleet.duckdb"
    before = os.umask(0)
    try:
        with command_socket(database):
            folder = folder_of(database)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / "socket").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not folder.exists()


def test_a_command_refuses_a_server_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user could place a socket there to impersonate the server."""
    database = tmp_path / "fleet.duckdb"
    with command_socket(database):
        monkeypatch.setattr(server_link.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(StoreError, match="belongs to the user"):
            connect(database)


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """It could lead to any socket of the machine."""
    database, elsewhere = tmp_path / "fleet.duckdb", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder_of(database).symlink_to(elsewhere)

    with pytest.raises(StoreError, match="is not a folder"):
        connect(database)
    with pytest.raises(StoreError, match="is not a folder"), command_socket(database):
        pass
    assert elsewhere.is_dir()


def test_a_server_of_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of another version may lack columns that this one reads."""
    monkeypatch.setattr(commands, "version", lambda: "0.0.1")
    with pytest.raises(StoreError, match=r"its server is of version 0\.0\.1"):
        ServerLink.find(path)


def test_a_server_with_another_protocol_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.2.0 a server greeted its callers; a new command must say what to do."""
    database = tmp_path / "fleet.duckdb"

    def greet(peer: socket.socket) -> None:
        with Connection(os.dup(peer.fileno())) as connection, contextlib.suppress(OSError, EOFError):
            connection.send_bytes(b"0.2.0")
            connection.recv()

    monkeypatch.setattr(server_link, "GREETING_TIMEOUT", 0.1)
    with pretending(database, greet), pytest.raises(StoreError, match="an older version") as raised:
        ServerLink.find(database)
    assert "Restart the server" in raised.value.hint


def test_a_server_that_ends_during_a_call_is_an_error(tmp_path: Path) -> None:
    """The caller must learn that no answer will come, and what happened to its records."""
    database = tmp_path / "fleet.duckdb"
    with pretending(database, lambda peer: peer.recv(1)), pytest.raises(StoreError, match="ended before it answered") as raised:
        ServerLink(database).call("settle", type(None))
    assert "Earlier records are kept" in raised.value.hint


def test_an_error_of_an_operation_is_raised_at_the_caller(link: ServerLink) -> None:
    """A command prints the same error and hint, whichever process it occurred in."""
    with pytest.raises(QueryError, match="no_such_table"):
        link.call("read", Rows, "FROM no_such_table", None)
    with pytest.raises(SettingsError, match="has no judge") as raised:
        link.call("judge_anchors", int, "ops")
    assert "ANTHROPIC_API_KEY" in raised.value.hint


def test_an_error_of_another_module_keeps_its_message(link: ServerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command knows only the errors of `schemas.errors`, but must still print the hint of others."""

    class ElsewhereError(DriftlineError):
        hint = "Do this."

    def fail(*_: object) -> None:
        raise ElsewhereError("it went wrong")

    monkeypatch.setattr(commands, "_read_rows", fail)
    with pytest.raises(DriftlineError, match="it went wrong") as raised:
        link.call("read", Rows, "SELECT 1", None)
    assert raised.value.hint == "Do this."


@pytest.mark.parametrize(("operation", "arguments"), [("read", (1, None)), ("read", ()), ("no_such", ()), ("NAMES", ())])
def test_an_unknown_operation_is_refused(operation: str, arguments: tuple[object, ...], link: ServerLink) -> None:
    """Names and types are checked before anything runs."""
    with pytest.raises(StoreError, match="answered 40"):
        link.call(operation, type(None), *arguments)


def test_rows_and_parameters_keep_their_types(path: Path, link: ServerLink, engine: Engine) -> None:
    """A command computes and prints the same whichever process ran the statement."""
    values = {
        "number": 2**40,
        "day": date(2026, 11, 29),
        "at": datetime(2026, 11, 29, 8, 30, 0, 123456, tzinfo=UTC),
        "text": "ä",
        "body": b"\x00\xff",
        "texts": ["a", None],
    }
    expected = engine.store.cursor().execute(TYPED, values)
    actual = ServerStore(path, link).cursor().execute(TYPED, values)
    assert actual.description == [(name, str(kind)) for name, kind, *_ in expected.description or ()]
    expected_row, actual_row = expected.fetchone(), actual.fetchone()
    assert actual_row == expected_row
    assert [type(value) for value in expected_row or ()] == [type(value) for value in actual_row or ()]


@pytest.mark.parametrize("statement", ["DELETE FROM log.scores", "CREATE TABLE mine (n INT)", "DROP VIEW scores"])
def test_statements_of_commands_cannot_write(statement: str, link: ServerLink) -> None:
    """Writes go through the intake, which keeps states and positions consistent with the rows."""
    with pytest.raises(QueryError, match="read-only"):
        link.call("read", Rows, statement, None)


def test_a_disconnected_caller_cancels_its_statement(path: Path, link: ServerLink) -> None:
    """If abandoned statements continued, the next command would never run."""
    for _ in range(MAX_READERS + 1):
        begin_call(path, "read", ENDLESS, None).close()
    begun = time.monotonic()
    assert Rows([("1", "INTEGER")], [(1,)]) == link.call("read", Rows, "SELECT 1", None)
    assert time.monotonic() - begun < PATIENCE


def test_a_stopping_server_cancels_running_statements(engine: Engine, loop: asyncio.Runner) -> None:
    """An endless statement must not keep a server from stopping."""
    with serving(engine, loop) as path:
        peer = begin_call(path, "read", ENDLESS, None)
    with peer:
        peer.settimeout(PATIENCE)
        assert peer.recv(100).startswith(b"HTTP/1.1 499")


def test_arguments_of_commands_are_not_logged(
    link: ServerLink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments may contain secrets, so an internal error is logged without them."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(commands, "_read_rows", fail)
    with pytest.raises(StoreError, match="answered 500"):
        link.call("read", Rows, "sk-ant-secret", None)
    assert "ZeroDivisionError" in caplog.text
    assert "sk-ant-secret" not in caplog.text


def test_an_error_beside_an_open_socket_is_reported_as_it_is(tmp_path: Path) -> None:
    """A full disk of the server must not be reported as an error of its socket."""
    with pytest.raises(OSError, match="a full disk"), command_socket(tmp_path / "fleet.duckdb"):
        raise OSError(28, "a full disk")
    assert not folder_of(tmp_path / "fleet.duckdb").exists()


def test_another_users_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server started by root must not remove another user's files."""
    database = tmp_path / "fleet.duckdb"
    folder_of(database).mkdir()
    (folder_of(database) / "theirs").touch()
    monkeypatch.setattr(server_link.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="belongs to the user"), command_socket(database):
        pass
    assert (folder_of(database) / "theirs").exists()


@pytest.mark.parametrize(("judge", "is_paid"), [("live", True), ("none", False), ("simulated judge", False)])
def test_an_import_beside_a_paid_judge_prints_a_warning(judge: str, is_paid: bool) -> None:
    """Beside a server, imported exchanges are judged for money, so the command must warn about it."""

    class Answering(ServerLink):
        def __init__(self) -> None: ...

        def call(self, operation: str, *_: Any) -> Any:
            return {"judge": judge}[operation]

    assert bool(paid_note(Answering())) == is_paid
    assert paid_note(None) == ""


def test_an_import_that_will_be_judged_for_money_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of transcripts costs money, which a script that expects no server must not spend."""
    transcript = tmp_path / "s.jsonl"
    transcript.write_text('{"type": "session", "id": "s"}\n')
    arguments = ["import", "openclaw", str(transcript), "--db", str(tmp_path / "fleet.duckdb")]
    monkeypatch.setattr(importing, "paid_note", lambda _: "the server has a live judge")
    records_read: list[object] = []
    monkeypatch.setattr(importing.Importer, "import_transcripts", lambda *_: records_read.append(1) or ImportSummary())
    command_line = application(["import"])
    result = CliRunner().invoke(command_line, arguments)
    assert result.exit_code == 1
    assert records_read == []
    assert "let the server's judge score the exchanges?" in result.output
    assert CliRunner().invoke(command_line, [*arguments, "--yes"]).exit_code == 0
    assert records_read == [1]
