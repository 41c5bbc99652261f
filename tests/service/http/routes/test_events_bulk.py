"""Events in bulk: each has its own result, and what is wrong with one stops no other."""

from __future__ import annotations

import json
from typing import Any

from support.api_server import Call, Tokens

from analytics.store.store import Store
from service.text.links import EVENTS, EVENTS_BULK
from service.web.bounds import BODY_LIMITS, MAX_BULK

LINES = {"content-type": "application/x-ndjson"}


def event(event_id: Any = "a", session: str = "s1", **fields: Any) -> dict[str, Any]:
    """Return a flat event."""
    moment = {"timestamp": "2026-10-01T09:00:00Z"}
    return {"session_id": session, "event_id": event_id, "event": "tool_call", "tool": "exec", **moment, **fields}


def stored(store: Store) -> list[tuple[Any, ...]]:
    """Return session, position and id of every stored event."""
    return store.cursor().execute("SELECT session_id, seq, event_id FROM agent_events ORDER BY session_id, seq").fetchall()


def letters(store: Store) -> list[tuple[Any, ...]]:
    """Return source, position and reason of the dead letters."""
    return store.cursor().execute("SELECT source, position, reason FROM dead_letters ORDER BY position").fetchall()


def test_events_of_several_sessions_continue_their_sessions(call: Call, tokens: Tokens, store: Store) -> None:
    """A sender collects the events of all its sessions, and each continues its own."""
    call("POST", EVENTS, tokens.ops, json={"session_id": "s1", "events": [event("first")]})
    events = [event("a"), event("x", "s2"), event("b"), event("y", "s2")]
    response = call("POST", EVENTS_BULK, tokens.ops, json=events)

    results = [{"eventId": event_id} for event_id in ("a", "x", "b", "y")]
    assert response.status_code == 201
    assert response.json() == {"accepted": 4, "known": 0, "refused": 0, "results": results}
    assert stored(store) == [("s1", 0, "first"), ("s1", 1, "a"), ("s1", 2, "b"), ("s2", 0, "x"), ("s2", 1, "y")]


def test_flat_and_wrapped_events_are_equal_in_arrays_and_lines(call: Call, tokens: Tokens, store: Store) -> None:
    """Event files can be sent unchanged, and both forms of a line name one event."""
    flat = event("a")
    wrapped = {"session_id": "s1", "event": {key: value for key, value in flat.items() if key != "session_id"}}
    first = call("POST", EVENTS_BULK, tokens.ops, json=[flat]).json()
    lines = "\n".join(json.dumps(one) for one in (wrapped, event("b"))) + "\n\n"
    second = call("POST", EVENTS_BULK, tokens.ops, content=lines.encode(), headers=LINES).json()

    assert first["results"] == [{"eventId": "a"}]
    assert second["results"] == [{"eventId": "a", "duplicate": True}, {"eventId": "b"}]
    assert stored(store) == [("s1", 0, "a"), ("s1", 1, "b")]


def test_a_repetition_in_other_batches_changes_nothing(call: Call, tokens: Tokens, store: Store) -> None:
    """Senders repeat events without an answer, together with other events or alone."""
    call("POST", EVENTS_BULK, tokens.ops, json=[event("a"), event("b")])
    answer = call("POST", EVENTS_BULK, tokens.ops, json=[event("b"), event("c"), event("c")]).json()

    assert answer["accepted"] == 1
    assert answer["known"] == 2
    assert answer["refused"] == 0
    assert stored(store) == [("s1", 0, "a"), ("s1", 1, "b"), ("s1", 2, "c")]


def test_an_invalid_event_stops_no_other(call: Call, tokens: Tokens, store: Store) -> None:
    """The answer names position and field, and an invalid event that names its session becomes a dead letter."""
    call("POST", EVENTS_BULK, tokens.ops, json=[event("a", n=1)])
    deep = event("deep", args=json.loads("[" * 200 + "]" * 200))
    wrapped = {"session_id": "s1", "event": {"event": "x", "event_id": True}}
    events = [event("ok"), event("a", n=2), event(None), {"event_id": "x"}, 7, event("late", timestamp="never"), deep, wrapped]
    events += [
        event("no", event=None),
        event("b", session="s 2\n"),
        event("labelled", labels={"tool_version": 2}),
        event("good"),
    ]
    body = call("POST", EVENTS_BULK, tokens.ops, json=events).json()
    refused = {place: (one["code"], one["error"]) for place, one in enumerate(body["results"]) if "error" in one}

    assert body["accepted"] == 2
    assert body["known"] == 0
    assert body["refused"] == 10
    conflict = "[1].event_id: the log has an event with this id and other content (it differs in n)"
    assert refused.pop(1) == ("conflict", conflict)
    assert {code for code, _ in refused.values()} == {"invalid"}
    starts = {
        2: "[2].event_id: is missing; ",
        3: "[3].session_id: is missing",
        4: "[4]: must be an object",
        5: "[5].timestamp: must be a time ",
        6: "[6]: a value is nested deeper ",
        7: "[7].event.event_id: is missing; ",
        8: "[8].event: is missing",
        9: "[9].session_id: ",
        10: "[10].labels.tool_version: must be a string",
    }
    assert {place: refused[place] for place, start in starts.items() if not refused[place][1].startswith(start)} == {}
    assert stored(store) == [("s1", 0, "a"), ("s1", 1, "ok"), ("s1", 2, "good")]
    assert [row[:2] for row in letters(store)] == [("http:north/s1", place) for place in (1, 2, 5, 6, 7, 8, 10)]


def test_an_invalid_json_line_affects_only_itself(call: Call, tokens: Tokens, store: Store) -> None:
    """Senders may deliver a truncated log file."""
    body = b"\n".join([json.dumps(event("a")).encode(), b"{bad", json.dumps(event("b")).encode()])
    answer = call("POST", EVENTS_BULK, tokens.ops, content=body, headers=LINES).json()

    assert answer["accepted"] == 2
    assert answer["known"] == 0
    assert answer["refused"] == 1
    bad = {"error": "[1]: line 2 is not JSON: expected a name in double quotes (byte 1)", "code": "not_json"}
    assert bad == answer["results"][1]
    assert stored(store) == [("s1", 0, "a"), ("s1", 1, "b")]


def test_a_conflicting_duplicate_is_refused_once(call: Call, tokens: Tokens, store: Store) -> None:
    """The first one counts, because it is unknown which was meant."""
    body = call("POST", EVENTS_BULK, tokens.ops, json=[event("a", n=1), event("a", n=2), event("a", "s2", n=2)]).json()

    assert body["accepted"] == 2
    assert body["known"] == 0
    assert body["refused"] == 1
    assert body["results"][1]["code"] == "conflict"
    assert letters(store) == [("http:north/s1", 1, "conflicting_id")]


def test_bulk_events_are_filed_by_the_token(call: Call, tokens: Tokens, store: Store) -> None:
    """Agent and project are the connection's, secrets are redacted, and a note says so."""
    events = [event("a", agent="mallory", project="ops", password="hunter2-hunter2"), event("b", project="web")]
    results = call("POST", EVENTS_BULK, tokens.web, json=events).json()["results"]

    assert [one.get("project") for one in results] == ["web", None]
    rows = store.cursor().execute("SELECT connection, project, agent, payload FROM agent_events ORDER BY seq").fetchall()
    assert [row[:3] for row in rows] == [("south", "web", "south-agent")] * 2
    assert "hunter2" not in rows[0][3]


def test_a_thousand_events_are_accepted_and_one_more_is_not(call: Call, tokens: Tokens, store: Store) -> None:
    """The error names the limit, so that a sender can split its request."""
    bodies = [event(f"e{number}", f"s{number % 300}") for number in range(MAX_BULK + 1)]
    most = call("POST", EVENTS_BULK, tokens.ops, json=bodies[:-1])
    more = call("POST", EVENTS_BULK, tokens.ops, json=bodies)

    assert most.status_code == 201
    assert most.json()["accepted"] == MAX_BULK
    assert more.status_code == 400
    assert f"{MAX_BULK}" in more.json()["error"]
    assert store.count("agent_events") == MAX_BULK


def test_an_oversized_body_is_refused(call: Call, tokens: Tokens) -> None:
    """Events in bulk have a limit of their own."""
    answer = call("POST", EVENTS_BULK, tokens.ops, content=b" " * (BODY_LIMITS[EVENTS_BULK] + 1), headers=LINES)
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


def test_an_unaudited_project_accepts_none(call: Call, tokens: Tokens) -> None:
    """The policy's master switch applies to every way in which records arrive."""
    answer = call("POST", EVENTS_BULK, tokens.dark, json=[event()])
    assert answer.status_code == 403
    assert answer.json()["code"] == "audit_disabled"
