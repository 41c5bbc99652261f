"""Access over HTTP: by admins of every project, within what they have themselves, and never a secret twice."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from support.api_server import NOW, BodyBuilder, Call, Tokens
from support.pages import cookie, signed_in

from schemas.errors import StoreError
from service.setup.access import AccessStore, Holder

ROOT = "root"
CONNECTIONS, OPERATORS = "/api/audit/connections", "/api/audit/operators"


def with_scopes(access: AccessStore, *scopes: str, project: str | None = None) -> str:
    """Return the token of an operator with these scopes."""
    return access.add(Holder("operator", "-".join([project or "all", *scopes]), project, scopes=frozenset(scopes)))


def test_a_misspelt_field_revokes_no_token(call: Call, tokens: Tokens) -> None:
    """Ignoring a misspelt field would revoke all tokens of the connection."""
    answer = call("POST", f"{CONNECTIONS}/north/revoke", tokens.root, json={"prefix": tokens.ops[:15]})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("prefix: is not a field")
    assert call("POST", "/api/audit/heartbeat", tokens.ops, json={"session_id": "s1"}).status_code == 200


def test_a_new_connection_can_deliver(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """A new agent can be connected without access to the server's machine."""
    added = call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops", "agent": "cleo"})
    assert added.status_code == 201
    assert added.headers["cache-control"] == "no-store"
    assert call("POST", "/api/audit/ingest", added.json()["token"], json=exchange_body()).status_code == 201
    listed = call("GET", CONNECTIONS, tokens.root).json()["connections"]
    [west] = [one for one in listed if one["name"] == "west"]
    assert west["project"] == "ops"
    assert west["agent"] == "cleo"
    assert [token["state"] for token in west["tokens"]] == ["live"]


def test_an_operator_has_the_requested_scopes(call: Call, tokens: Tokens) -> None:
    """The default is the scope read; further scopes must be requested by name."""
    body = {"name": "wall", "project": "ops"}
    token = call("POST", OPERATORS, tokens.root, json=body).json()["token"]
    assert call("GET", "/api/audit/ops/scores", token).status_code == 200
    assert call("GET", "/api/audit/web/scores", token).status_code == 403
    refused = call("POST", "/api/audit/ops/rejudge", token, json={})
    assert refused.status_code == 403
    assert refused.json()["code"] == "scope_required"
    [wall] = [one for one in call("GET", OPERATORS, tokens.root).json()["operators"] if one["name"] == "wall"]
    assert wall["project"] == "ops"
    assert wall["scopes"] == ["read"]


@pytest.mark.parametrize("kind", ["connections", "operators"])
def test_rotation_leaves_no_gap_and_revocation_is_immediate(call: Call, tokens: Tokens, access: AccessStore, kind: str) -> None:
    """At most two tokens are live; the old one is revoked by its prefix, or all are."""
    name, old = ("north", tokens.ops) if kind == "connections" else ("reader", tokens.ops_reader)
    address = f"/api/audit/{kind}/{name}"
    new = call("POST", f"{address}/rotate", tokens.root, json={"graceHours": 1}).json()["token"]
    assert access.find(old.encode()) == access.find(new.encode()) is not None
    full = call("POST", f"{address}/rotate", tokens.root)
    assert full.status_code == 409
    assert full.json()["code"] == "conflict"
    revoked = call("POST", f"{address}/revoke", tokens.root, json={"token": old[:15]})
    assert revoked.json() == {"name": name, "revoked": 1}
    assert access.find(old.encode()) is None
    assert access.find(new.encode()) is not None
    assert call("POST", f"{address}/revoke", tokens.root).json()["revoked"] == 1
    assert access.find(new.encode()) is None


def test_a_token_is_revoked_only_with_the_name_of_its_owner(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """A mistyped name must not revoke another connection's token."""
    answer = call("POST", f"{CONNECTIONS}/south/revoke", tokens.root, json={"token": tokens.ops[:15]})
    assert answer.status_code == 404
    assert access.find(tokens.ops.encode()) is not None


@pytest.mark.parametrize(
    "method_path", [("GET", CONNECTIONS), ("GET", OPERATORS), ("GET", "/api/audit/audit-log"), ("POST", CONNECTIONS)]
)
def test_managing_access_requires_admin_of_every_project(
    call: Call, tokens: Tokens, access: AccessStore, method_path: tuple[str, str]
) -> None:
    """Neither an admin of one project nor a reader of all projects may manage access."""
    readers = with_scopes(access, "read", "review", "query")
    body = {"name": "west", "project": "ops"}
    answers = [call(*method_path, token, json=body) for token in (tokens.ops_reader, readers, tokens.ops)]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [
        (403, "other_project"),
        (403, "scope_required"),
        (403, "operator_token_required"),
    ]
    assert access.holder("connection", "west") is None


def test_a_scope_without_effect_is_refused(call: Call, tokens: Tokens) -> None:
    """SQL reads every project, so the token of one project could not use it."""
    answer = call("POST", OPERATORS, tokens.root, json={"name": "one", "project": "ops", "scopes": ["query"]})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("scopes: query is only for operators of every project")


@pytest.mark.usefixtures("tokens")
def test_nobody_can_grant_more_than_they_have(call: Call, access: AccessStore) -> None:
    """An operator must not gain rights by adding an operator or by rotating another operator's token."""
    admin = with_scopes(access, "admin")
    answers = [
        call("POST", OPERATORS, admin, json={"name": "more", "scopes": ["admin", "query"]}),
        call("POST", f"{OPERATORS}/{ROOT}/rotate", admin),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "scope_required")] * 2
    assert access.holder("operator", "more") is None
    assert call("POST", OPERATORS, admin, json={"name": "same", "scopes": ["admin"]}).status_code == 201


@pytest.mark.parametrize(
    ("path", "body", "refusal"),
    [
        (CONNECTIONS, {"name": "north", "project": "ops"}, (409, "name: is taken")),
        (CONNECTIONS, {"name": "North", "project": "ops"}, (400, "name: must be")),
        (CONNECTIONS, {"name": "dl_x", "project": "ops"}, (400, "looks like a token")),
        (CONNECTIONS, {"name": "west"}, (400, "project: is missing")),
        (OPERATORS, {"name": "west", "scopes": []}, (400, "scopes: must hold 1 or more")),
        (OPERATORS, {"name": "west", "scopes": ["root"]}, (400, "scopes[0]: ")),
        (f"{CONNECTIONS}/nobody/rotate", {}, (404, "no connection with this name")),
        (f"{CONNECTIONS}/north/rotate", {"graceHours": -1}, (400, "graceHours: must be 0 or more")),
        (f"{CONNECTIONS}/north/revoke", {"token": "north"}, (400, "token: must be of the form")),
        (f"{OPERATORS}/nobody/revoke", {}, (404, "no operator with this name")),
    ],
)
def test_an_invalid_change_of_access_names_the_field(
    call: Call, tokens: Tokens, path: str, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    """The error must name the field, so that the request can be corrected."""
    answer = call("POST", path, tokens.root, json=body)
    assert answer.status_code == refusal[0]
    assert refusal[1] in answer.json()["error"]


def test_no_list_or_log_shows_a_secret(call: Call, tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    """A token is shown in one answer and never again."""
    caplog.set_level("DEBUG")
    created_secrets = [
        call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops"}),
        call("POST", f"{OPERATORS}/reader/rotate", tokens.root),
    ]
    secrets = [answer.json()["token"].split("_", 2)[2] for answer in created_secrets] + [tokens.root.split("_", 2)[2]]
    pages = [call("GET", path, tokens.root).text for path in (CONNECTIONS, OPERATORS, "/api/audit/audit-log")]
    outputs = [*pages, caplog.text, json.dumps([vars(record) for record in caplog.records], default=str)]
    assert [secret for secret in secrets for text in outputs if secret in text] == []


def lines_of(call: Call, token: str, **asked: Any) -> list[dict[str, Any]]:
    """Return the lines of the audit log."""
    answer: httpx2.Response = call("GET", "/api/audit/audit-log", token, params=asked)
    assert answer.status_code == 200
    lines: list[dict[str, Any]] = answer.json()["lines"]
    return lines


class TestAuditLog:
    """The audit log of changes."""

    def test_every_change_of_an_operator_is_a_line(self, call: Call, tokens: Tokens) -> None:
        """Refused changes are logged as well, because attempts matter in an investigation."""
        call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops"})
        refused = call("POST", "/api/audit/web/rejudge", tokens.ops_reader, json={})
        call("POST", f"{CONNECTIONS}/north/revoke", tokens.root)
        assert [
            tuple(line[name] for name in ("name", "route", "project", "subject", "status", "outcome"))
            for line in lines_of(call, tokens.root)
        ] == [
            ("root", "/api/audit/connections/{name}/revoke", None, "north", 200, "done"),
            ("reader", "/api/audit/{project}/rejudge", "web", None, 403, "refused"),
            ("root", "/api/audit/connections", None, "west", 201, "done"),
        ]
        line = lines_of(call, tokens.root, name="reader")[0]
        assert tokens.ops_reader[:15] == line["token"]
        assert refused.headers["x-request-id"] == line["requestId"]
        assert line["kind"] == "operator"
        assert line["method"] == "POST"
        assert line["at"] == "2026-10-01T12:00:00Z"

    def test_reading_and_delivering_leave_none(self, call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
        """Records name their connection themselves, so deliveries and reads need no line."""
        call("GET", "/api/audit/ops/scores", tokens.root)
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
        call("POST", "/api/audit/heartbeat", tokens.ops, json={"session_id": "s1"})
        call("POST", "/api/audit/whatever", tokens.root, json={})
        assert lines_of(call, tokens.root) == []

    def test_pages_are_the_log(self, call: Call, tokens: Tokens) -> None:
        """Newest first, nothing twice; by project too."""
        for number in range(5):
            call("POST", f"/api/audit/{'ops' if number % 2 else 'web'}/rejudge", tokens.root, json={})
        first = call("GET", "/api/audit/audit-log", tokens.root, params={"limit": 3}).json()
        second = lines_of(call, tokens.root, limit=3, cursor=first["nextCursor"])
        assert [line["id"] for line in first["lines"] + second] == [5, 4, 3, 2, 1]
        assert [line["project"] for line in lines_of(call, tokens.root, project="ops")] == ["ops", "ops"]

    def test_a_change_that_cannot_be_noted_is_not_made(
        self, call: Call, tokens: Tokens, access: AccessStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change without an audit line must not be made."""

        def broken(*_: object) -> int:
            raise StoreError("no space left on device")

        monkeypatch.setattr(access.audit_log, "begin", broken)
        answer = call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops"})
        assert answer.status_code == 503
        assert answer.json()["code"] == "log_unavailable"
        assert access.holder("connection", "west") is None


def test_an_expired_token_is_refused(call: Call, tokens: Tokens, access: AccessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary access ends by itself, also for a rotated token."""
    guest_token = call("POST", OPERATORS, tokens.root, json={"name": "guest", "expiresInDays": 7}).json()["token"]
    rotated_token = call("POST", f"{OPERATORS}/guest/rotate", tokens.root, json={"expiresInDays": 30}).json()["token"]
    monkeypatch.setattr(access, "_now", lambda: NOW + timedelta(days=6, hours=23))
    assert [access.find(one.encode()) is not None for one in (guest_token, rotated_token)] == [True, True]
    monkeypatch.setattr(access, "_now", lambda: NOW + timedelta(days=7))
    assert [access.find(one.encode()) is not None for one in (guest_token, rotated_token)] == [False, True]
    assert call("POST", OPERATORS, tokens.root, json={"name": "x", "expiresInDays": 0}).status_code == 400


def test_the_last_use_of_a_token_is_known_to_the_minute(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """The last use shows which tokens are no longer needed."""
    call("GET", "/api/audit/ops/scores", tokens.ops_reader)
    access.record_use()
    states = {one.name: states[0].last_used_at for one, states in access.holders("operator")}
    assert states["root"] is None
    assert states["reader"] is not None


def test_the_sign_ins_of_an_operator_can_be_listed_and_ended(call: Call, tokens: Tokens) -> None:
    """A lost laptop is signed out while the token still works for the API."""
    lost_laptop, other = signed_in(call, tokens.ops_reader), signed_in(call, tokens.root)
    listed = call("GET", "/api/audit/sign-ins", tokens.root).json()["signIns"]
    assert sorted(one["name"] for one in listed) == ["reader", "root"]
    assert call("POST", f"{OPERATORS}/reader/sign-out", tokens.root).json() == {"name": "reader", "ended": 1}
    assert [call("GET", "/", headers=cookie(one)).status_code for one in (lost_laptop, other)] == [303, 200]
    assert call("GET", "/api/audit/ops/scores", tokens.ops_reader).status_code == 200
    assert call("POST", f"{OPERATORS}/nobody/sign-out", tokens.root).status_code == 404
