"""Tokens: random, stored as digests, shown once, replaceable without a gap, revocable at once."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clocks import ManualClock
from typer.testing import CliRunner

from schemas.errors import InputError, SettingsError, StoreError
from service.cli.commands.access import connections_app, operators_app
from service.setup.access import _MIGRATIONS, SCOPES, AccessStore, Holder, access_file, new_token
from service.setup.settings import load_settings

NORTH = Holder("connection", "north", "ops", "cleo")


def test_a_token_identifies_its_holder(access: AccessStore) -> None:
    """The holder says where its records are filed."""
    token = access.add(NORTH)
    assert re.fullmatch(r"dl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token)
    assert access.find(token.encode()) == NORTH


def test_two_tokens_share_no_bits(access: AccessStore) -> None:
    """Each has 256 random bits."""
    first, second = access.add(NORTH), access.rotate("connection", "north")
    assert set(first.split("_", 2)[1:]) & set(second.split("_", 2)[1:]) == set()


def test_the_file_holds_no_token(access: AccessStore, tmp_path: Path) -> None:
    """A copied file must not allow anyone to sign in."""
    token = access.add(NORTH)
    secret = token.split("_", 2)[2].encode()
    with sqlite3.connect(access.path) as connection:
        assert connection.execute("SELECT digest FROM tokens").fetchall() == [(hashlib.sha256(token.encode()).digest(),)]
    connection.close()
    files = list(tmp_path.iterdir())
    assert len(files) >= 2
    assert not [file for file in files if secret in file.read_bytes()]


def test_only_the_owner_can_access_the_files(access: AccessStore, tmp_path: Path) -> None:
    """The file has no secrets, but only its owner may read who has access."""
    access.add(NORTH)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path, clock: ManualClock) -> None:
    """A careless restore may have changed its permissions."""
    path = tmp_path / "fleet.access"
    path.touch(mode=0o644)
    AccessStore(path, clock).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.binary(max_size=200) | st.text(max_size=80).map(lambda text: f"dl_{text}".encode("utf-8", "surrogatepass")))
def test_an_invalid_token_identifies_nobody(tmp_path_factory: pytest.TempPathFactory, token: bytes) -> None:
    """A header can contain any bytes, which must never cause an error."""
    path = tmp_path_factory.getbasetemp() / "any.access"
    with AccessStore(path, ManualClock()) as access:
        if not access.holders("connection"):
            access.add(NORTH)
        assert access.find(token) is None


def test_a_shortened_or_extended_token_identifies_nobody(access: AccessStore) -> None:
    """The complete token is compared."""
    token = access.add(NORTH).encode()
    for wrong in (token[:-1], token + b"A", token.upper(), b" " + token, token.replace(b"dl_", b""), token[:15] + b"_"):
        assert access.find(wrong) is None


def test_a_rotated_token_works_beside_the_old_one(access: AccessStore) -> None:
    """A fleet can be updated without a gap."""
    old = access.add(NORTH)
    new = access.rotate("connection", "north")
    assert [access.find(token.encode()) for token in (old, new)] == [NORTH, NORTH]


def test_a_third_live_token_is_refused_with_the_names_of_the_others(access: AccessStore) -> None:
    """The list must show every live token, so that forgotten ones can be revoked."""
    tokens = [access.add(NORTH), access.rotate("connection", "north")]
    with pytest.raises(InputError) as error:
        access.rotate("connection", "north")
    assert all(token.rsplit("_", 1)[0][:15] in str(error.value) for token in tokens)
    access.revoke("connection", tokens[0][:15])
    assert access.rotate("connection", "north")


def test_an_old_token_expires_after_its_grace_period(access: AccessStore, clock: ManualClock) -> None:
    """A temporary token must end by itself."""
    old = access.add(NORTH)
    new = access.rotate("connection", "north", timedelta(hours=1))
    clock.now += timedelta(minutes=59, seconds=59)
    assert access.find(old.encode()) == NORTH
    clock.now += timedelta(seconds=1)
    assert access.find(old.encode()) is None
    assert access.find(new.encode()) == NORTH
    assert [token.state for token in access.holders("connection")[0][1]] == ["expired", "live"]
    access.rotate("connection", "north", timedelta(hours=9999))
    assert access.find(old.encode()) is None


def test_one_token_or_all_of_them_are_revoked(access: AccessStore) -> None:
    """A token can be revoked by prefix, by its holder's name, or by pasting it."""
    old, new = access.add(NORTH), access.rotate("connection", "north")
    assert access.revoke("connection", old) == 1
    assert access.find(old.encode()) is None
    assert access.find(new.encode()) == NORTH
    assert access.revoke("connection", "north") == 1
    assert access.find(new.encode()) is None
    assert access.revoke("connection", "north") == 0
    for unknown in ("south", "dl_000000000000", "dl_"):
        with pytest.raises(InputError):
            access.revoke("connection", unknown)


def test_a_revoked_connection_returns_under_its_project(access: AccessStore) -> None:
    """A name is never given to another project, because its records stay where they are."""
    access.add(NORTH)
    access.revoke("connection", "north")
    with pytest.raises(InputError):
        access.add(Holder("connection", "north", "web"))
    assert (access.find(access.rotate("connection", "north").encode()) or NORTH).project == "ops"


def test_connections_and_operators_have_separate_names(access: AccessStore) -> None:
    """Revoking one must not touch the other."""
    first, second = access.add(NORTH), access.add(Holder("operator", "north", None))
    access.revoke("operator", "north")
    assert access.find(first.encode()) == NORTH
    assert access.find(second.encode()) is None


@pytest.mark.parametrize("name", ["", "North", "a/b", "..", "a b", "x" * 64, "a\n", "ä"])
def test_an_invalid_name_is_refused(access: AccessStore, name: str) -> None:
    """A name is part of keys and paths, and must differ from a token's prefix."""
    for holder in (Holder("connection", name, "ops"), Holder("operator", "root", name)):
        with pytest.raises(InputError):
            access.add(holder)
    with pytest.raises(InputError):
        access.add(Holder("connection", "dl_0123", "ops"))
    assert access.holders("connection") + access.holders("operator") == []


@pytest.mark.parametrize("name", ["anchors", "anchors.ops"])
def test_names_of_anchors_are_reserved(access: AccessStore, name: str) -> None:
    """Exchanges under a reserved name would count as rejudged copies and be excluded from every sum."""
    for holder in (Holder("connection", name, "ops"), Holder("connection", "north", name), Holder("operator", "root", name)):
        with pytest.raises(InputError, match="is reserved for anchors"):
            access.add(holder)
    with pytest.raises(SettingsError, match=r"DRIFTLINE_PROJECT: .*reserved for anchors"):
        load_settings(project=name)
    assert access.add(Holder("connection", "anchorsaway", "ops"))


def test_commands_and_server_share_the_file(access: AccessStore, clock: ManualClock) -> None:
    """A token revoked by a command is invalid for the server's next request."""
    with AccessStore(access.path, clock) as command:
        token = command.add(NORTH)
        assert access.find(token.encode()) == NORTH
        command.revoke("connection", "north")
        assert access.find(token.encode()) is None


def test_threads_share_a_store(access: AccessStore) -> None:
    """Requests are answered concurrently."""
    token = access.add(NORTH).encode()
    with ThreadPoolExecutor(8) as pool:
        holders = list(pool.map(lambda number: access.find(token if number % 2 else b"dl_x"), range(200)))
    assert holders == [None, NORTH] * 100


def test_a_file_of_another_format_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    """Nothing may be written into it."""
    path = tmp_path / "notes.access"
    path.write_text("not a database, but long enough to be looked at as one " * 50)
    with pytest.raises(StoreError, match=r"notes\.access"):
        AccessStore(path, clock)
    assert path.read_text().startswith("not a database")
    with pytest.raises(StoreError):
        AccessStore(tmp_path / "missing" / "x.access", clock)


def test_a_newer_file_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    """An older program would misread it."""
    path = tmp_path / "fleet.access"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="newer"):
        AccessStore(path, clock)


def test_a_file_without_scopes_grants_its_operators_everything(tmp_path: Path, clock: ManualClock) -> None:
    """An upgrade must keep all rights."""
    path = tmp_path / "fleet.access"
    old = sqlite3.connect(path)
    for statement in _MIGRATIONS[0]:
        old.execute(statement)
    token = new_token()
    old.execute("INSERT INTO holders VALUES ('operator', 'root', NULL, NULL, '2026-01-01')")
    digest = hashlib.sha256(token.encode()).digest()
    old.execute("INSERT INTO tokens VALUES (?, ?, 'operator', 'root', '2026-01-01', NULL, NULL)", [token[3:15], digest])
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with AccessStore(path, clock) as access:
        assert Holder("operator", "root", None, scopes=frozenset(SCOPES)) == access.find(token.encode())


def test_an_operator_has_the_given_scopes(access: AccessStore) -> None:
    """A dashboard that shows figures needs no token that can delete them."""
    token = access.add(Holder("operator", "wall", None, scopes=frozenset({"read"})))
    holder = access.find(token.encode())
    assert holder is not None
    assert holder.scopes == frozenset({"read"})
    assert holder == access.holder("operator", "wall")


@pytest.mark.parametrize("scopes", [[], ["write"], ["read", "root"], [""]])
def test_an_unknown_scope_is_refused(access: AccessStore, scopes: list[str]) -> None:
    """A typo would otherwise grant less than intended, or nothing."""
    with pytest.raises(InputError, match="scopes"):
        access.add(Holder("operator", "wall", None, scopes=frozenset(scopes)))
    assert access.holders("operator") == []


def test_an_operator_without_a_token_is_told_the_command(access: AccessStore) -> None:
    """The command in a hint must work unchanged."""
    old, _ = access.add(NORTH), access.rotate("connection", "north")
    with pytest.raises(InputError) as twice:
        access.add(NORTH)
    assert str(twice.value.hint).startswith("driftline connections rotate north ")
    with pytest.raises(InputError) as full:
        access.rotate("connection", "north")
    assert str(full.value.hint).endswith(f": driftline connections revoke {old[:15]}")
    assert access.revoke("connection", old[:15]) == 1
    assert access.rotate("connection", "north")


def test_commands_show_a_token_once(tmp_path: Path) -> None:
    """It is alone on the output, so that a script can read it, and in no list afterwards."""
    runner, database = CliRunner(), ["--db", str(tmp_path / "fleet.duckdb")]
    added = runner.invoke(connections_app, ["add", "north", "--project", "ops", "--agent", "cleo", *database])
    rotated = runner.invoke(connections_app, ["rotate", "north", "--grace", "2", *database])
    operator = runner.invoke(operators_app, ["add", "root", *database])
    tokens = [result.stdout.strip() for result in (added, rotated, operator)]
    assert [result.exit_code for result in (added, rotated, operator)] == [0, 0, 0]
    with AccessStore(access_file(tmp_path / "fleet.duckdb"), lambda: datetime.now(UTC)) as access:
        assert [access.find(token.encode()) for token in tokens] == [NORTH, NORTH, Holder("operator", "root", None)]
    listed = runner.invoke(connections_app, ["list", *database])
    as_json = json.loads(runner.invoke(connections_app, ["list", "--json", *database]).stdout)
    assert as_json["name"] == "north"
    assert as_json["project"] == "ops"
    assert as_json["agent"] == "cleo"
    assert [token["state"] for token in as_json["tokens"]] == ["live", "live"]
    assert tokens[0][:15] in listed.stdout
    assert "until" in listed.stdout
    assert not [token for token in tokens if token.split("_", 2)[2] in listed.stdout + json.dumps(as_json)]
    revoked = runner.invoke(connections_app, ["revoke", "north", *database])
    assert revoked.stdout.strip() == "2 tokens revoked"
    assert "(every)" in runner.invoke(operators_app, ["list", *database]).stdout


def test_the_command_grants_and_lists_scopes(tmp_path: Path) -> None:
    """The default is every scope, as in earlier versions; a wrong name is refused before a token is made."""
    runner, database = CliRunner(), ["--db", str(tmp_path / "fleet.duckdb")]
    assert runner.invoke(operators_app, ["add", "root", *database]).exit_code == 0
    assert runner.invoke(operators_app, ["add", "wall", "--scopes", "review, read", *database]).exit_code == 0
    assert isinstance(runner.invoke(operators_app, ["add", "no", "--scopes", "write", *database]).exception, InputError)
    listed = runner.invoke(operators_app, ["list", "--json", *database]).stdout.splitlines()
    assert [json.loads(line)["scopes"] for line in listed] == [list(SCOPES), ["read", "review"]]
    assert "read, review" in runner.invoke(operators_app, ["list", *database]).stdout


def test_a_role_is_a_name_for_scopes(tmp_path: Path) -> None:
    """The roles are those of people who sign in at an identity provider."""
    runner, only_ops = CliRunner(), ["--project", "ops", "--db", str(tmp_path / "fleet.duckdb")]
    assert runner.invoke(operators_app, ["add", "one", "--role", "analyst", *only_ops]).exit_code == 0
    for refused in (["--role", "king"], ["--role", "viewer", "--scopes", "read"]):
        assert isinstance(runner.invoke(operators_app, ["add", "two", *refused, *only_ops]).exception, InputError)

    with AccessStore(access_file(tmp_path / "fleet.duckdb"), lambda: datetime.now(UTC)) as access:
        [(holder, _)] = access.holders("operator")
    assert (holder.name, holder.project, holder.scopes) == ("one", "ops", frozenset({"read", "query"}))


def test_access_commands_are_in_the_audit_log(tmp_path: Path) -> None:
    """The audit log names who gave access to whom, without tokens."""
    runner, database = CliRunner(), ["--db", str(tmp_path / "fleet.duckdb")]
    token = runner.invoke(connections_app, ["add", "north", "--project", "ops", *database]).stdout.strip()
    runner.invoke(connections_app, ["add", "north", "--project", "ops", *database])
    runner.invoke(connections_app, ["rotate", "north", *database])
    runner.invoke(connections_app, ["revoke", token, *database])
    with AccessStore(access_file(tmp_path / "fleet.duckdb"), lambda: datetime.now(UTC)) as access:
        lines = access.audit_log.lines(10)
    assert [(line.route, line.subject, line.project, line.outcome) for line in lines] == [
        ("connections revoke", token[:15], None, "done"),
        ("connections rotate", "north", None, "done"),
        ("connections add", "north", "ops", "refused"),
        ("connections add", "north", "ops", "done"),
    ]
    assert {(line.kind, line.token) for line in lines} == {("command", None)}
    assert [line for line in lines if token.split("_", 2)[2] in repr(line)] == []


def test_a_token_is_found_during_a_write(access: AccessStore) -> None:
    """Every request looks up a token on the event loop, which must not wait for the audit log's disk write."""
    token = access.add(NORTH).encode()
    with ThreadPoolExecutor(1) as pool, access._file.transaction() as cursor:
        cursor.execute("UPDATE holders SET project = 'other'")
        assert pool.submit(access.find, token).result(60) == NORTH
    holder = access.find(token)
    assert holder is not None
    assert holder.project == "other"


def test_a_valid_token_is_cached_and_a_wrong_one_is_not(access: AccessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid tokens are cached because senders call constantly; invalid ones are not, so that guessing cannot fill the memory."""
    token, asked = access.add(NORTH).encode(), []
    rows = access._file.rows

    def counted(*question: Any) -> list[Any]:
        asked.append(question)
        return rows(*question)

    monkeypatch.setattr(access._file, "rows", counted)
    assert [access.find(token) for _ in range(3)] == [NORTH] * 3
    assert len(asked) == 1
    assert [access.find(new_token().encode()) for _ in range(3)] == [None] * 3
    assert len(asked) == 4
    assert len(access._cached_tokens) == 1
