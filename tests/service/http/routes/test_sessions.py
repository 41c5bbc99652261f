"""Signs of life and ends of sessions, by those whose sessions they are and by operators."""

from __future__ import annotations

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store

HEARTBEAT = "/api/audit/heartbeat"


def finalize_path(session: str) -> str:
    """Return the path that ends a session."""
    return f"/api/audit/sessions/{session}/finalize"


def test_a_heartbeat_is_a_record(call: Call, tokens: Tokens, store: Store) -> None:
    """A replay must see it again."""
    response = call("POST", HEARTBEAT, tokens.web, json={"session_id": "s1", "connection": "north"})
    assert response.status_code == 200
    assert response.json() == {"ok": True}
    rows = store.cursor().execute("SELECT connection, project, agent, session_id FROM heartbeats").fetchall()
    assert rows == [("south", "web", "south-agent", "s1")]


@pytest.mark.parametrize(
    ("token", "connection", "status"),
    [
        ("root", "south", 200),
        ("root", "nobody", 404),
        ("root", "off", 403),
        ("root", None, 400),
        ("root", "No Name", 400),
        ("ops_reader", "north", 200),
        ("ops_reader", "south", 404),
        ("dark", None, 403),
    ],
)
def test_an_operator_sends_heartbeats_only_for_visible_connections(
    call: Call, tokens: Tokens, store: Store, *, token: str | None, connection: str | None, status: int
) -> None:
    """The answer for an invisible connection is the same as for a missing one."""
    body = {"session_id": "s1", "connection": connection}
    assert call("POST", HEARTBEAT, getattr(tokens, token), json=body).status_code == status
    assert int(status == 200) == store.count("heartbeats")


def test_a_session_is_ended_by_its_connection(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Ending a session allows its last exchanges to be scored."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    response = call("POST", finalize_path("s1"), tokens.ops, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert response.json() == {"ok": True}
    assert store.cursor().execute("SELECT connection, reason FROM session_closings").fetchall() == [("north", "explicit")]


def test_ending_a_session_needs_no_body(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The path says everything, and a request without a body has no content type."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    assert (
        (response := call("POST", "/api/audit/sessions/s1/finalize", tokens.ops)).status_code,
        response.json(),
    ) == (200, {"ok": True})


def test_a_session_of_another_connection_is_not_found(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """A connection can neither end nor find another connection's sessions, even by naming it."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    response = call("POST", finalize_path("s1"), tokens.web, json={"connection": "north"})
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"
    assert store.count("session_closings") == 0


@pytest.mark.parametrize(
    ("token", "connection", "status"),
    [
        ("root", "north", 200),
        ("root", "south", 404),
        ("root", None, 400),
        ("ops_reader", "north", 200),
        ("ops_reader", "south", 404),
    ],
)
def test_an_operator_ends_sessions_of_visible_connections(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, *, token: str | None, connection: str | None, status: int
) -> None:
    """The rule is the same as for heartbeats."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    body = {"connection": connection}
    assert call("POST", finalize_path("s1"), getattr(tokens, token), json=body).status_code == status


def test_an_operator_of_a_project_cannot_end_sessions_elsewhere(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """This holds for existing sessions, too."""
    call("POST", "/api/audit/ingest", tokens.web, json=exchange_body())
    assert call("POST", finalize_path("s1"), tokens.ops_reader, json={"connection": "south"}).status_code == 404
    assert store.count("session_closings") == 0


def test_an_id_with_slashes_is_an_id(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Some gateways use paths as session ids."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(session="agent:main/tg/7"))
    for session in ("agent:main/tg/7", "agent%3Amain%2Ftg%2F7"):
        assert call("POST", finalize_path(session), tokens.ops, json={}).status_code == 200


@pytest.mark.parametrize("session", ["x" * 257, "%00", "%20"])
def test_an_invalid_id_is_refused(call: Call, tokens: Tokens, session: str) -> None:
    """Ids follow the same rule as in bodies."""
    response = call("POST", finalize_path(session), tokens.ops, json={})
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith("session_id")
