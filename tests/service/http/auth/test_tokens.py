"""The API of connections and operators: who may change access, what they may grant, and where tokens appear."""

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

TOKEN_PREFIX = 15
"""Characters of a token that identify it in lists and logs."""
CONNECTIONS, OPERATORS = "/api/audit/connections", "/api/audit/operators"


def add_operator(access: AccessStore, *scopes: str, project: str | None = None) -> str:
    """Add an operator with these scopes, and return its token."""
    return access.add(Holder("operator", "-".join([project or "all", *scopes]), project, scopes=frozenset(scopes)))


def test_a_misspelt_field_revokes_no_token(call: Call, tokens: Tokens) -> None:
    """Ignoring a misspelt field would revoke all tokens of the connection."""
    answer = call("POST", f"{CONNECTIONS}/north/revoke", tokens.root, json={"prefix": tokens.ops[:TOKEN_PREFIX]})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("prefix: is not a field")
    assert call("POST", "/api/audit/heartbeat", tokens.ops, json={"session_id": "s1"}).status_code == 200


def test_a_new_connection_can_deliver(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """A new agent can be connected without access to the server's machine."""
    added = call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops", "agent": "cleo"})
    assert added.status_code == 201
    assert added.headers["cache-control"] == "no-store"
    assert call("POST", "/api/audit/ingest", added.json()["token"], json=exchange_body()).status_code == 201
    connections = call("GET", CONNECTIONS, tokens.root).json()["connections"]
    [west] = [connection for connection in connections if connection["name"] == "west"]
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
    operators = call("GET", OPERATORS, tokens.root).json()["operators"]
    [wall] = [operator for operator in operators if operator["name"] == "wall"]
    assert wall["project"] == "ops"
    assert wall["scopes"] == ["read"]


@pytest.mark.parametrize("kind", ["connections", "operators"])
def test_rotation_leaves_no_gap_and_revocation_is_immediate(call: Call, tokens: Tokens, access: AccessStore, kind: str) -> None:
    """Clients switch to the new token during the grace period, and a leaked token stops working at once."""
    if kind == "connections":
        name, old_token = "north", tokens.ops
    else:
        name, old_token = "reader", tokens.ops_reader
    path = f"/api/audit/{kind}/{name}"
    new_token = call("POST", f"{path}/rotate", tokens.root, json={"graceHours": 1}).json()["token"]
    assert access.find(old_token.encode()) is not None
    assert access.find(new_token.encode()) == access.find(old_token.encode())

    second_rotation = call("POST", f"{path}/rotate", tokens.root)
    assert second_rotation.status_code == 409
    assert second_rotation.json()["code"] == "conflict"

    revoked = call("POST", f"{path}/revoke", tokens.root, json={"token": old_token[:TOKEN_PREFIX]})
    assert revoked.json() == {"name": name, "revoked": 1}
    assert access.find(old_token.encode()) is None
    assert access.find(new_token.encode()) is not None
    all_revoked = call("POST", f"{path}/revoke", tokens.root)
    assert all_revoked.json()["revoked"] == 1
    assert access.find(new_token.encode()) is None


def test_a_token_is_revoked_only_with_the_name_of_its_owner(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """A mistyped name must not revoke another connection's token."""
    answer = call("POST", f"{CONNECTIONS}/south/revoke", tokens.root, json={"token": tokens.ops[:TOKEN_PREFIX]})
    assert answer.status_code == 404
    assert access.find(tokens.ops.encode()) is not None


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CONNECTIONS), ("GET", OPERATORS), ("GET", "/api/audit/audit-log"), ("POST", CONNECTIONS)]
)
def test_managing_access_requires_admin_of_every_project(
    call: Call, tokens: Tokens, access: AccessStore, method: str, path: str
) -> None:
    """Neither an admin of one project nor a reader of all projects may manage access."""
    global_reader = add_operator(access, "read", "review", "query")
    body = {"name": "west", "project": "ops"}
    answers = [call(method, path, token, json=body) for token in (tokens.ops_reader, global_reader, tokens.ops)]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [
        (403, "other_project"),
        (403, "scope_required"),
        (403, "operator_token_required"),
    ]
    assert access.holder("connection", "west") is None


@pytest.mark.usefixtures("tokens")
def test_nobody_can_grant_more_than_they_have(call: Call, access: AccessStore) -> None:
    """An operator must not gain rights by adding an operator or by rotating another operator's token."""
    admin = add_operator(access, "admin")
    other = "root"
    answers = [
        call("POST", OPERATORS, admin, json={"name": "more", "scopes": ["admin", "query"]}),
        call("POST", f"{OPERATORS}/{other}/rotate", admin),
    ]
    for answer in answers:
        assert answer.status_code == 403
        assert answer.json()["code"] == "scope_required"
    assert access.holder("operator", "more") is None
    assert call("POST", OPERATORS, admin, json={"name": "same", "scopes": ["admin"]}).status_code == 201


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (CONNECTIONS, {"name": "north", "project": "ops"}, 409, "name: is taken"),
        (CONNECTIONS, {"name": "North", "project": "ops"}, 400, "name: must be"),
        (CONNECTIONS, {"name": "dl_x", "project": "ops"}, 400, "looks like a token"),
        (CONNECTIONS, {"name": "west"}, 400, "project: is missing"),
        (OPERATORS, {"name": "west", "scopes": []}, 400, "scopes: must hold 1 or more"),
        (OPERATORS, {"name": "west", "scopes": ["root"]}, 400, "scopes[0]: "),
        (f"{CONNECTIONS}/nobody/rotate", {}, 404, "no connection with this name"),
        (f"{CONNECTIONS}/north/rotate", {"graceHours": -1}, 400, "graceHours: must be 0 or more"),
        (f"{CONNECTIONS}/north/revoke", {"token": "north"}, 400, "token: must be of the form"),
        (f"{OPERATORS}/nobody/revoke", {}, 404, "no operator with this name"),
    ],
)
def test_an_invalid_change_of_access_names_the_field(
    call: Call, tokens: Tokens, *, path: str, body: dict[str, Any], status: int, error: str
) -> None:
    """The error must name the field, so that the request can be corrected."""
    answer = call("POST", path, tokens.root, json=body)
    assert answer.status_code == status
    assert error in answer.json()["error"]


def test_no_list_or_log_shows_a_secret(call: Call, tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    """A token is shown in one answer and never again."""
    caplog.set_level("DEBUG")
    responses_with_tokens = [
        call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops"}),
        call("POST", f"{OPERATORS}/reader/rotate", tokens.root),
    ]
    secrets = [answer.json()["token"].split("_", 2)[2] for answer in responses_with_tokens]
    secrets.append(tokens.root.split("_", 2)[2])
    pages = [call("GET", path, tokens.root).text for path in (CONNECTIONS, OPERATORS, "/api/audit/audit-log")]
    outputs = [*pages, caplog.text, json.dumps([vars(record) for record in caplog.records], default=str)]
    leaked = [secret for secret in secrets for output in outputs if secret in output]
    assert leaked == []


def list_audit_lines(call: Call, token: str, **filters: Any) -> list[dict[str, Any]]:
    """Return the lines of the audit log that match these filters, newest first."""
    answer: httpx2.Response = call("GET", "/api/audit/audit-log", token, params=filters)
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
            for line in list_audit_lines(call, tokens.root)
        ] == [
            ("root", "/api/audit/connections/{name}/revoke", None, "north", 200, "done"),
            ("reader", "/api/audit/{project}/rejudge", "web", None, 403, "refused"),
            ("root", "/api/audit/connections", None, "west", 201, "done"),
        ]
        line = list_audit_lines(call, tokens.root, name="reader")[0]
        assert line["token"] == tokens.ops_reader[:TOKEN_PREFIX]
        assert line["requestId"] == refused.headers["x-request-id"]
        assert line["kind"] == "operator"
        assert line["method"] == "POST"
        assert line["at"] == "2026-10-01T12:00:00Z"

    def test_reads_and_deliveries_are_not_logged(self, call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
        """Records name their connection themselves, so deliveries and reads need no line."""
        call("GET", "/api/audit/ops/scores", tokens.root)
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
        call("POST", "/api/audit/heartbeat", tokens.ops, json={"session_id": "s1"})
        call("POST", "/api/audit/whatever", tokens.root, json={})
        assert list_audit_lines(call, tokens.root) == []

    def test_the_log_is_paginated_and_filtered_by_project(self, call: Call, tokens: Tokens) -> None:
        """Each line is on exactly one page, newest first."""
        for number in range(5):
            call("POST", f"/api/audit/{'ops' if number % 2 else 'web'}/rejudge", tokens.root, json={})
        first = call("GET", "/api/audit/audit-log", tokens.root, params={"limit": 3}).json()
        second = list_audit_lines(call, tokens.root, limit=3, cursor=first["nextCursor"])
        assert [line["id"] for line in first["lines"] + second] == [5, 4, 3, 2, 1]
        assert [line["project"] for line in list_audit_lines(call, tokens.root, project="ops")] == ["ops", "ops"]

    def test_a_change_that_cannot_be_logged_is_refused(
        self, call: Call, tokens: Tokens, access: AccessStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise an attacker could hide changes by filling the disk."""

        def fail_to_log(*_: object) -> int:
            raise StoreError("no space left on device")

        monkeypatch.setattr(access.audit_log, "begin", fail_to_log)
        answer = call("POST", CONNECTIONS, tokens.root, json={"name": "west", "project": "ops"})
        assert answer.status_code == 503
        assert answer.json()["code"] == "log_unavailable"
        assert access.holder("connection", "west") is None


def test_an_expired_token_is_refused(call: Call, tokens: Tokens, access: AccessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary access ends by itself, also for a rotated token."""
    guest_token = call("POST", OPERATORS, tokens.root, json={"name": "guest", "expiresInDays": 7}).json()["token"]
    rotated_token = call("POST", f"{OPERATORS}/guest/rotate", tokens.root, json={"expiresInDays": 30}).json()["token"]
    monkeypatch.setattr(access, "_now", lambda: NOW + timedelta(days=6, hours=23))
    assert access.find(guest_token.encode()) is not None
    assert access.find(rotated_token.encode()) is not None
    monkeypatch.setattr(access, "_now", lambda: NOW + timedelta(days=7))
    assert access.find(guest_token.encode()) is None
    assert access.find(rotated_token.encode()) is not None
    assert call("POST", OPERATORS, tokens.root, json={"name": "x", "expiresInDays": 0}).status_code == 400


def test_the_last_use_of_a_token_is_recorded(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """The last use shows which tokens are no longer needed."""
    call("GET", "/api/audit/ops/scores", tokens.ops_reader)
    access.record_use()
    last_uses = {holder.name: token_states[0].last_used_at for holder, token_states in access.holders("operator")}
    assert last_uses["root"] is None
    assert last_uses["reader"] is not None


def test_the_sign_ins_of_an_operator_can_be_listed_and_ended(call: Call, tokens: Tokens) -> None:
    """A lost laptop is signed out while the token still works for the API."""
    lost_laptop = signed_in(call, tokens.ops_reader)
    root_browser = signed_in(call, tokens.root)
    sign_ins = call("GET", "/api/audit/sign-ins", tokens.root).json()["signIns"]
    assert sorted(sign_in["name"] for sign_in in sign_ins) == ["reader", "root"]
    assert call("POST", f"{OPERATORS}/reader/sign-out", tokens.root).json() == {"name": "reader", "ended": 1}
    assert call("GET", "/", headers=cookie(lost_laptop)).status_code == 303
    assert call("GET", "/", headers=cookie(root_browser)).status_code == 200
    assert call("GET", "/api/audit/ops/scores", tokens.ops_reader).status_code == 200
    assert call("POST", f"{OPERATORS}/nobody/sign-out", tokens.root).status_code == 404
