"""Batches of runtime events: idempotent, each event by itself, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_server import Call, Tokens

from analytics.store.store import Store
from service.web.bounds import BODY_LIMITS
from service.web.models import NO_MOMENT

EVENTS = "/api/audit/events"


def tool_call(**fields: Any) -> dict[str, Any]:
    """Return an event."""
    return {"event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z", **fields}


def batch(*events: Any, session: str = "s1", **fields: Any) -> dict[str, Any]:
    """Return the body of a batch."""
    return {"session_id": session, "events": list(events), **fields}


def stored(store: Store) -> list[tuple[Any, ...]]:
    """Return position and id of every stored event."""
    return store.cursor().execute("SELECT seq, event_id FROM agent_events ORDER BY session_id, seq").fetchall()


def test_events_are_filed_by_the_token(call: Call, tokens: Tokens, store: Store) -> None:
    """The rule is the same as for exchanges."""
    response = call("POST", EVENTS, tokens.web, json=batch(tool_call(password="hunter2-hunter2"), first_seq=0, agent="mallory"))
    assert response.status_code == 201
    assert response.json() == {"accepted": 1, "known": 0, "refused": []}
    [row] = store.cursor().execute("SELECT connection, project, agent, session_id, payload FROM agent_events").fetchall()
    assert row[:4] == ("south", "web", "south-agent", "s1")
    assert "hunter2" not in row[4]


def test_a_batch_with_positions_can_be_repeated(call: Call, tokens: Tokens, store: Store) -> None:
    """A sender that received no answer repeats the batch."""
    body = batch(tool_call(n=1), tool_call(n=2), first_seq=5)
    assert [call("POST", EVENTS, tokens.ops, json=body).json() for _ in range(2)] == [
        {"accepted": 2, "known": 0, "refused": []},
        {"accepted": 0, "known": 2, "refused": []},
    ]
    assert stored(store) == [(5, "event_5"), (6, "event_6")]


def test_events_with_ids_continue_the_stored_positions(call: Call, tokens: Tokens, store: Store) -> None:
    """Repeated in other batches, they keep their positions and leave no gap."""
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id="b")))
    second = call(
        "POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="b"), tool_call(event_id="c"), tool_call(event_id=4))
    )
    assert second.json() == {"accepted": 2, "known": 1, "refused": []}
    assert stored(store) == [(0, "a"), (1, "b"), (2, "c"), (3, "4")]


def test_sessions_of_other_connections_are_separate(call: Call, tokens: Tokens, store: Store) -> None:
    """Ids are unique within a connection."""
    for token in (tokens.ops, tokens.web):
        assert call("POST", EVENTS, token, json=batch(tool_call(event_id="a"))).json()["accepted"] == 1
    assert stored(store) == [(0, "a"), (0, "a")]


@pytest.mark.parametrize("event_id", [None, "", "  ", True, [], {}])
def test_events_without_ids_need_a_position(call: Call, tokens: Tokens, store: Store, event_id: Any) -> None:
    """Without either, a repeated request would duplicate every event."""
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id=event_id)))
    assert response.status_code == 400
    assert response.json()["error"].startswith("events[1].event_id: is missing")
    assert stored(store) == []


def test_an_id_shared_by_two_events_of_a_batch_is_ignored(call: Call, tokens: Tokens, store: Store) -> None:
    """Its meaning would depend on how the sender splits its batches."""
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a"), tool_call(event_id="a")))
    assert response.status_code == 400
    assert response.json()["error"].startswith("events[1].event_id")
    assert stored(store) == []


def test_a_malformed_event_is_stored_apart_and_stops_no_other(call: Call, tokens: Tokens, store: Store) -> None:
    """It is reported by its position, and its redacted bytes become a dead letter."""
    events = [
        tool_call(),
        "password=hunter2-hunter2",
        tool_call(timestamp="never"),
        tool_call(timestamp="2031-01-01"),
        tool_call(),
    ]
    response = call("POST", EVENTS, tokens.ops, json=batch(*events, first_seq=10))
    assert response.status_code == 201
    assert response.json()["accepted"] == 2
    assert response.json()["known"] == 0
    assert [one["index"] for one in response.json()["refused"]] == [1, 2, 3]
    assert [one["error"] for one in response.json()["refused"][:2]] == [
        "events[1]: is a string, not an object",
        f"events[2].timestamp: {NO_MOMENT}",
    ]
    assert response.json()["refused"][2]["error"].startswith("events[3].occurred_at: ")
    assert [seq for seq, _ in stored(store)] == [10, 14]
    letters = (
        store.cursor().execute("SELECT source, position, stage, body::VARCHAR FROM dead_letters ORDER BY position").fetchall()
    )
    assert [row[:3] for row in letters] == [
        ("http:north/s1", 11, "http"),
        ("http:north/s1", 12, "http"),
        ("http:north/s1", 13, "http"),
    ]
    assert "hunter2" not in letters[0][3]


def test_a_dead_letter_is_stored_once(call: Call, tokens: Tokens, store: Store) -> None:
    """Repeated deliveries must not add dead letters."""
    for _ in range(3):
        assert len(call("POST", EVENTS, tokens.ops, json=batch(7, first_seq=0)).json()["refused"]) == 1
    assert store.count("dead_letters") == 1


def test_other_content_under_a_known_id_is_refused_and_kept(call: Call, tokens: Tokens, store: Store) -> None:
    """Stored records are never replaced, and the conflicting one becomes a dead letter."""
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="a", n=1)))
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(event_id="b"), tool_call(event_id="a", n=2)))
    assert response.json()["accepted"] == 1
    assert response.json()["known"] == 0
    assert [one["index"] for one in response.json()["refused"]] == [1]
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
    own = {} if event_id is None else {"event_id": event_id}
    call("POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(n=1, **own), first_seq=5))
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(n=2, **own), first_seq=5))
    assert response.json()["accepted"] == 0
    assert response.json()["known"] == 1
    (refused,) = response.json()["refused"]
    assert refused["index"] == 1
    assert refused["error"].startswith(field)
    assert refused["error"].endswith(difference)


def test_an_event_nested_too_deep_is_refused_alone(call: Call, tokens: Tokens, store: Store) -> None:
    """Depth is checked for each event separately."""
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    response = call("POST", EVENTS, tokens.ops, json=batch(tool_call(), tool_call(args={"x": deep}), tool_call(), first_seq=0))
    assert response.status_code == 201
    assert response.json()["accepted"] == 2
    assert [one["index"] for one in response.json()["refused"]] == [1]
    assert [seq for seq, _ in stored(store)] == [0, 2]


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
    """A batch with an invalid envelope is refused as a whole."""
    response = call("POST", EVENTS, tokens.ops, json=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith(field)
    assert stored(store) == []


def test_ten_thousand_events_are_accepted(call: Call, tokens: Tokens, store: Store) -> None:
    """The documented limit is exact."""
    response = call("POST", EVENTS, tokens.ops, json=batch(*[{"event": "x", "n": n} for n in range(10_000)], first_seq=0))
    assert response.status_code == 201
    assert response.json()["accepted"] == 10_000
    assert store.count("agent_events") == 10_000


def test_a_batch_over_four_mebibytes_is_too_large(call: Call, tokens: Tokens) -> None:
    """Batches have a limit of their own."""
    content = b" " * (BODY_LIMITS[EVENTS] + 1)
    assert call("POST", EVENTS, tokens.ops, content=content, headers={"content-type": "application/json"}).status_code == 413


def test_a_disabled_project_accepts_no_events(call: Call, tokens: Tokens) -> None:
    """The policy's master switch applies to every way in which records arrive."""
    assert call("POST", EVENTS, tokens.dark, json=batch(tool_call(), first_seq=0)).json()["code"] == "audit_disabled"


def test_event_labels_are_stored_and_invalid_ones_reject_the_event(call: Call, tokens: Tokens, store: Store) -> None:
    """An event with an invalid label stops no other."""
    events = batch(tool_call(labels={"tool_version": "2"}), tool_call(labels={"tool_version": 2}), first_seq=0)
    response = call("POST", EVENTS, tokens.ops, json=events).json()
    (refused,) = response["refused"]
    assert refused["index"] == 1
    assert refused["error"].startswith("events[1].labels.tool_version: ")
    assert store.cursor().execute("SELECT labels FROM agent_events").fetchall() == [([{"name": "tool_version", "value": "2"}],)]
    assert store.cursor().execute("SELECT reason FROM dead_letters").fetchall() == [("bad_labels",)]
