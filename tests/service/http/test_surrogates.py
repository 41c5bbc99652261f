"""Half a surrogate pair over HTTP: refused in every id, by its field, and repaired in every text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store
from schemas.bounds import NOT_UNICODE

Json = dict[str, Any]
BROKEN = "x\ud800"
REPAIRED = "x\ufffd"
API = "/api/audit"
JSON = {"content-type": "application/json"}
A_CALL = {"event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z"}
EVENT = {**A_CALL, "event_id": BROKEN}
SCORE = f"{API}/ops/scores/nosuch/human"
INCIDENT = f"{API}/ops/incidents/nosuch"
IDS: list[tuple[str, str, str, Json, str]] = [
    ("POST", "events", "ops", {"session_id": BROKEN, "first_seq": 0, "events": [A_CALL]}, "session_id"),
    ("POST", "events", "ops", {"session_id": "s", "agent": BROKEN, "first_seq": 0, "events": [A_CALL]}, "agent"),
    ("POST", "events", "ops", {"session_id": "s", "events": [A_CALL, EVENT]}, "events[1]: its event_id"),
    ("POST", "events", "ops", {"session_id": "s", "first_seq": 0, "events": [EVENT]}, "events[0]: its event_id"),
    ("POST", "heartbeat", "ops", {"session_id": BROKEN}, "session_id"),
    ("POST", "heartbeat", "root", {"session_id": "s", "connection": BROKEN}, "connection"),
    ("POST", "sessions/s/finalize", "root", {"connection": BROKEN}, "connection"),
    ("POST", "connections", "root", {"name": BROKEN, "project": "ops"}, "name"),
    ("POST", "connections", "root", {"name": "n", "project": BROKEN}, "project"),
    ("POST", "connections", "root", {"name": "n", "project": "ops", "agent": BROKEN}, "agent"),
    ("POST", "operators", "root", {"name": BROKEN}, "name"),
    ("POST", "ops/scores/nosuch/human", "root", {"score": 3, "rater": BROKEN}, "rater"),
    ("PUT", "ops/incidents/nosuch", "root", {"status": "accepted", "resolvedBy": BROKEN}, "resolvedBy"),
    ("POST", "ops/anchors", "root", {"exchangeIds": [BROKEN]}, "exchangeIds[0]"),
    ("POST", "erasures", "root", {"connection": "north", "sessionId": BROKEN}, "sessionId"),
    ("POST", "evaluations", "root", {"cases": [{}], "profile": {}, "sessions": [BROKEN]}, "sessions[0]"),
    ("POST", "evaluations", "root", {"cases": [{}], "profile": {}, "tags": [BROKEN]}, "tags[0]"),
]


def escaped(body: Json) -> Json:
    """Encode a body in ASCII, so that a lone surrogate is an escape."""
    return {"content": json.dumps(body).encode(), "headers": JSON}


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("session_id", lambda name: {"session": name}),
        ("exchange.id", lambda name: {"id": name}),
        ("exchange.agent_response.model", lambda name: {"agent_response": {"content": "", "model": name}}),
    ],
)
def test_an_exchange_id_with_a_lone_surrogate_is_refused(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, field: str, named: Callable[[str], Json]
) -> None:
    """Repaired, two different ids would be equal, and the second exchange would be lost as a conflict."""
    response = call("POST", f"{API}/ingest", tokens.ops, **escaped(exchange_body(**named(BROKEN))))
    message = f"{field}: {NOT_UNICODE}"
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert call("POST", f"{API}/ingest", tokens.ops, **escaped(exchange_body(**named(REPAIRED)))).status_code == 201


@pytest.mark.parametrize("sent", IDS, ids=lambda sent: f"{sent[1]} {sent[4]}")
def test_every_id_with_a_lone_surrogate_is_refused_with_its_field(
    call: Call, tokens: Tokens, store: Store, sent: tuple[str, str, str, Json, str]
) -> None:
    """An accepted id must be unambiguous, on every endpoint."""
    method, path, token, body, field = sent
    response = call(method, f"{API}/{path}", getattr(tokens, token), **escaped(body))
    assert response.status_code == 400
    assert f"{field} {NOT_UNICODE}" in response.json()["error"].replace(": is", " is")
    assert store.count("agent_events") == 0
    assert store.count("dead_letters") == 0


def test_texts_with_lone_surrogates_are_repaired(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Programs cut texts within a surrogate pair; the text must be accepted anyway."""
    exchange = exchange_body(agent_response={"content": BROKEN, "thinking": BROKEN})
    assert call("POST", f"{API}/ingest", tokens.ops, **escaped(exchange)).status_code == 201
    event = {**A_CALL, "event_id": "e", "args": {"id": BROKEN, BROKEN: 1}}
    response = call(
        "POST", f"{API}/events", tokens.ops, **escaped({"session_id": "s1", "events": [event, BROKEN]} | {"first_seq": 0})
    )
    assert response.status_code == 201
    assert response.json()["accepted"] == 1
    assert len(response.json()["refused"]) == 1
    rows = store.cursor().execute("SELECT agent_response, agent_thinking FROM exchanges").fetchall()
    rows += store.cursor().execute("SELECT payload->>'$.args.id', json_keys(payload, '$.args')[2] FROM agent_events").fetchall()
    assert rows == [(REPAIRED, REPAIRED)] * 2
    erasure = {"connection": "north", "sessionId": "s1", "comment": BROKEN}
    assert call("POST", f"{API}/erasures", tokens.root, **escaped(erasure)).json()["erasure"]["comment"] == REPAIRED


def test_an_unknown_name_with_a_lone_surrogate_is_reported(call: Call, tokens: Tokens) -> None:
    """Answers must be encodable for any input."""
    response = call("POST", f"{API}/operators", tokens.root, **escaped({"name": "n", BROKEN: 1}))
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{REPAIRED}: is not a field of this request")


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("POST", "sessions/x%ED%A0%80/finalize", "path"),
        ("GET", "ops/exchanges/x%FF", "path"),
        ("GET", "ops/scores?session=x%ED%A0%80", "query"),
    ],
)
def test_a_path_that_is_not_utf_8_is_refused(call: Call, tokens: Tokens, method: str, path: str, part: str) -> None:
    """Replacement characters could name another session."""
    response = call(method, f"{API}/{path}", tokens.ops if method == "POST" else tokens.root)
    assert response.status_code == 400
    assert f"the {part} of the address is not UTF-8" in response.json()["error"]
