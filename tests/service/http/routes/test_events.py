"""Batches of runtime events: a repeated batch adds nothing, and an invalid event does not affect the others."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_server import Call, Tokens

from analytics.store.store import Store
from service.web.bounds import BODY_LIMITS
from service.web.models import NO_MOMENT

EVENTS = "/api/audit/events"


def tool_call(**fields: Any) -> dict[str, Any]:
    """Return the body of a tool call."""
    return {"event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z", **fields}


def batch(*events: Any, session: str = "s1", **fields: Any) -> dict[str, Any]:
    """Return the body of a batch."""
    return {"session_id": session, "events": list(events), **fields}


def read_events(store: Store) -> list[tuple[Any, ...]]:
    """Return the position and id of every stored event."""
    return store.cursor().execute("SELECT seq, event_id FROM agent_events ORDER BY session_id, seq").fetchall()


def test_the_token_determines_connection_project_and_agent(call: Call, tokens: Tokens, store: Store) -> None:
    """A sender must not write events in the name of another agent."""
    response = call("POST", EVENTS, tokens.web, json=batch(tool_call(password="hunter2-hunter2"), first_seq=0, agent="mallory"))
    assert response.status_code == 201
    assert response.json() == {"accepted": 1, "known": 0, "refused": []}
    [row] = store.cursor().execute("SELECT connection, project, agent, session_id, payload FROM agent_events").fetchall()
    *owner, payload = row
    assert owner == ["south", "web", "south-agent", "s1"]
    assert "hunter2" not in payload


def test_a_batch_with_positions_can_be_repeated(call: Call, tokens: Tokens, store: Store) -> None:
    """A sender that received no answer repeats the batch."""
    body = batch(tool_call(n=1), tool_call(n=2), first_seq=5)
    first = call("POST", EVENTS, tokens.ops, json=body).json()
    second = call("POST", EVENTS, tokens.ops, json=body).json()
    assert first == {"accepted": 2, "known": 0, "refused": []}
    assert second == {"accepted": 0, "known": 2, "refused": []}
    assert read_events(store) == [(5, "event_5"), (6, "event_6")]


def test_events_with_ids_continue_the_stored_positions(call: Call, tokens: Tokens, store: Store) -> None:
    """Repeated in other batches, they keep their positions and leave no gap."""
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id="b")))
    second = call(
        "POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="b"), tool_call(event_id="c"), tool_call(event_id=4))
    )
    assert second.json() == {"accepted": 2, "known": 1, "refused": []}
    assert read_events(store) == [(0, "a"), (1, "b"), (2, "c"), (3, "4")]


def test_sessions_of_other_connections_are_separate(call: Call, tokens: Tokens, store: Store) -> None:
    """Ids are unique within a connection."""
    body = batch(tool_call(event_id="a"))
    first = call("POST", EVENTS, tokens.ops, json=body).json()
    second = call("POST", EVENTS, tokens.web, json=body).json()
    assert first["accepted"] == 1
    assert second["accepted"] == 1
    assert read_events(store) == [(0, "a"), (0, "a")]


@pytest.mark.parametrize("event_id", [None, "", "  ", True, [], {}])
def test_events_without_ids_need_a_position(call: Call, tokens: Tokens, store: Store, event_id: Any) -> None:
    """Without either, a repeated request would duplicate every event."""
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id=event_id)))
    assert response.status_code == 400
    assert response.json()["error"].startswith("events[1].event_id: is missing")
    assert read_events(store) == []


def test_a_batch_with_a_repeated_id_is_refused(call: Call, tokens: Tokens, store: Store) -> None:
    """Otherwise the result would depend on how the sender splits its events into batches."""
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id="a")))
    assert response.status_code == 400
    assert response.json()["error"].startswith("events[1].event_id")
    assert read_events(store) == []


def test_a_malformed_event_becomes_a_dead_letter_and_stops_no_other(call: Call, tokens: Tokens, store: Store) -> None:
    """The response names its index, and the dead letter keeps its redacted bytes."""
    events = [
        tool_call(),
        "password=hunter2-hunter2",
        tool_call(timestamp="never"),
        tool_call(timestamp="2031-01-01"),
        tool_call(),
    ]
    response = call("POST", EVENTS, tokens.ops, json=batch(*events, first_seq=10))
    assert response.status_code == 201
    result = response.json()
    assert result["accepted"] == 2
    assert result["known"] == 0
    assert [refused["index"] for refused in result["refused"]] == [1, 2, 3]
    assert result["refused"][0]["error"].startswith("events[1]: ")
    assert result["refused"][1]["error"] == f"events[2].timestamp: {NO_MOMENT}"
    assert result["refused"][2]["error"].startswith("events[3].occurred_at: ")
    assert [position for position, _ in read_events(store)] == [10, 14]
    dead_letters = store.cursor().execute("SELECT source, position, stage FROM dead_letters ORDER BY position").fetchall()
    assert dead_letters == [("http:north/s1", position, "http") for position in (11, 12, 13)]
    [(body,)] = store.cursor().execute("SELECT body::VARCHAR FROM dead_letters WHERE position = 11").fetchall()
    assert "hunter2" not in body


def test_a_dead_letter_is_stored_once(call: Call, tokens: Tokens, store: Store) -> None:
    """Repeated deliveries must not add dead letters."""
    for _ in range(3):
        result = call("POST", EVENTS, tokens.ops, json=batch(7, first_seq=0)).json()
        assert len(result["refused"]) == 1
    assert store.count("dead_letters") == 1


def test_other_content_under_a_known_id_becomes_a_dead_letter(call: Call, tokens: Tokens, store: Store) -> None:
    """Stored records are never replaced, and the conflicting content is not lost either."""
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a", n=1)))
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="b"), tool_call(event_id="a", n=2)))
    assert response.json()["accepted"] == 1
    assert response.json()["known"] == 0
    assert [refused["index"] for refused in response.json()["refused"]] == [1]
    assert store.cursor().execute("SELECT reason FROM dead_letters").fetchone() == ("conflicting_id",)


@pytest.mark.parametrize(
    ("event_id", "field", "difference"),
    [
        (None, "events[1]: ", "position 6 of the session (first_seq 5)"),
        ("own", "events[1].event_id: ", "(it differs in n)"),
    ],
)
def test_a_conflict_names_the_id_or_the_position(
    call: Call, tokens: Tokens, event_id: str | None, field: str, difference: str
) -> None:
    """Without an event_id, the conflict must name the position that is already taken."""
    id_fields = {} if event_id is None else {"event_id": event_id}
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(n=1, **id_fields), first_seq=5))
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(n=2, **id_fields), first_seq=5))
    assert response.json()["accepted"] == 0
    assert response.json()["known"] == 1
    [refused] = response.json()["refused"]
    assert refused["index"] == 1
    assert refused["error"].startswith(field)
    assert refused["error"].endswith(difference)


def test_an_event_nested_too_deeply_stops_no_other(call: Call, tokens: Tokens, store: Store) -> None:
    """Depth is checked for each event separately."""
    nested_list: Any = 0
    for _ in range(200):
        nested_list = [nested_list]
    response = call(
        "POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(args={"x": nested_list}), tool_call(), first_seq=0)
    )
    assert response.status_code == 201
    assert response.json()["accepted"] == 2
    assert [refused["index"] for refused in response.json()["refused"]] == [1]
    assert [position for position, _ in read_events(store)] == [0, 2]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"events": [tool_call()]}, "session_id"),
        ({"session_id": "s", "first_seq": 0}, "events"),
        ({"session_id": "s", "first_seq": 0, "events": []}, "events"),
        ({"session_id": "s", "first_seq": 0, "events": {}}, "events"),
        ({"session_id": "s", "first_seq": -1, "events": [{}]}, "first_seq"),
        ({"session_id": "s", "first_seq": 2**63, "events": [{}]}, "first_seq"),
        ({"session_id": "s", "first_seq": "0", "events": [{}]}, "first_seq"),
        ({"session_id": "s", "first_seq": 0, "events": [{}] * 10_001}, "events"),
    ],
)
def test_an_invalid_envelope_is_refused_with_its_field(call: Call, tokens: Tokens, store: Store, body: Any, field: str) -> None:
    """Nothing of the batch is stored, so the sender can correct and repeat it."""
    response = call("POST", EVENTS, tokens.ops, json=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith(field)
    assert read_events(store) == []


def test_ten_thousand_events_are_accepted(call: Call, tokens: Tokens, store: Store) -> None:
    """The documented limit is inclusive."""
    response = call("POST", EVENTS, tokens.ops, json=batch(*[{"event": "x", "n": n} for n in range(10_000)], first_seq=0))
    assert response.status_code == 201
    assert response.json()["accepted"] == 10_000
    assert store.count("agent_events") == 10_000


def test_a_batch_over_four_mebibytes_is_too_large(call: Call, tokens: Tokens) -> None:
    """The limit of a batch is larger than that of an exchange."""
    content = b" " * (BODY_LIMITS[EVENTS] + 1)
    response = call("POST", EVENTS, tokens.ops, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_a_disabled_project_accepts_no_events(call: Call, tokens: Tokens) -> None:
    """The policy disables a project for events as well as for exchanges."""
    response = call("POST", EVENTS, tokens.dark, json=batch(tool_call(), first_seq=0))
    assert response.json()["code"] == "audit_disabled"


def test_labels_are_stored_and_an_invalid_label_makes_a_dead_letter(call: Call, tokens: Tokens, store: Store) -> None:
    """An event with an invalid label stops no other."""
    body = batch(tool_call(labels={"tool_version": "2"}), tool_call(labels={"tool_version": 2}), first_seq=0)
    [refused] = call("POST", EVENTS, tokens.ops, json=body).json()["refused"]
    assert refused["index"] == 1
    assert refused["error"].startswith("events[1].labels.tool_version: ")
    assert store.cursor().execute("SELECT labels FROM agent_events").fetchall() == [([{"name": "tool_version", "value": "2"}],)]
    assert store.cursor().execute("SELECT reason FROM dead_letters").fetchall() == [("bad_labels",)]
