"""Telemetry and alerts over HTTP: who is alive, what people were told, and who may know."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange

from analytics.store.store import Outbox, Store
from audit.times import iso_time
from schemas.codec.single_object import encode
from schemas.records import Alert, Heartbeat
from service.alerts.delivery import Alerts
from service.server.periodic_tasks import SilenceWatchdog
from streams.engine.engine import Engine

TELEMETRY, ALERTS = "/api/audit/telemetry", "/api/audit/alerts"


def beat(store: Store, session: str, minutes: float, connection: str = "north", project: str = "ops") -> None:
    """Return a heartbeat of some minutes ago."""
    at = NOW - timedelta(minutes=minutes)
    sign = Heartbeat(connection=connection, project=project, session_id=session, occurred_at=at, ingested_at=at)
    with store.transaction() as transaction:
        transaction.append("heartbeats", [encode(sign)])


def sessions(call: Call, token: str, query: str = "") -> list[dict[str, Any]]:
    """Return the listed sessions."""
    response = call("GET", TELEMETRY + query, token)
    assert response.status_code == 200, response.text
    return response.json()["sessions"]  # type: ignore[no-any-return]


def test_every_session_with_a_record_is_watched(call: Call, tokens: Tokens, store: Store) -> None:
    """Sessions are watched without registration."""
    with store.transaction() as transaction:
        record = exchange("s1", 1, connection="north", occurred_at=NOW, ingested_at=NOW - timedelta(milliseconds=1500))
        transaction.append("exchanges", [encode(record)])
    assert sessions(call, tokens.root) == [
        {
            "sessionId": "s1",
            "project": "ops",
            "status": "green",
            "lastReceived": "2026-10-01T11:59:58.500000Z",
            "missedIntervals": 0,
            "elapsedMs": 1500,
            "intervalMs": 300_000,
            "connection": "north",
        }
    ]


def test_the_colour_shows_the_length_of_the_silence(call: Call, tokens: Tokens, store: Store) -> None:
    """The limits are one and three intervals of five minutes, and the longest silence comes first."""
    for session, minutes in (("fresh", 5), ("late", 5.1), ("later", 15), ("gone", 15.1)):
        beat(store, session, minutes)
    assert [(one["sessionId"], one["status"], one["missedIntervals"]) for one in sessions(call, tokens.root)] == [
        ("gone", "red", 3),
        ("later", "yellow", 2),
        ("late", "yellow", 1),
        ("fresh", "green", 0),
    ]


def test_sessions_of_another_project_are_hidden(call: Call, tokens: Tokens, store: Store) -> None:
    """They are neither listed nor found by name."""
    beat(store, "s1", 1)
    beat(store, "s2", 1, "south", "web")
    assert [one["sessionId"] for one in sessions(call, tokens.ops_reader)] == ["s1"]
    assert [one["sessionId"] for one in sessions(call, tokens.ops_reader, "?project=ops")] == ["s1"]
    assert [one["sessionId"] for one in sessions(call, tokens.root, "?project=web")] == ["s2"]
    assert call("GET", f"{TELEMETRY}?project=web", tokens.ops_reader).status_code == 403


def test_pages_continue_where_the_previous_one_ended(call: Call, tokens: Tokens, store: Store) -> None:
    """Every session is on one page, even if several have the same time."""
    for number in range(7):
        beat(store, f"s{number}", 1 + number // 3)
    listed_sessions, query = [], "?limit=2"
    for _ in range(4):
        answer = call("GET", TELEMETRY + query, tokens.root).json()
        listed_sessions += [one["sessionId"] for one in answer["sessions"]]
        assert len(answer["sessions"]) == answer["count"]
        query = f"?limit=2&cursor={answer['nextCursor']}"
    assert answer["nextCursor"] is None
    assert sorted(listed_sessions) == [f"s{number}" for number in range(7)]


def test_sessions_ignored_by_the_watchdog_are_not_listed(
    call: Call, tokens: Tokens, store: Store, engine: Engine, loop: asyncio.Runner
) -> None:
    """After a restart, list and alerts must agree."""
    beat(store, "s1", 20)
    loop.run(SilenceWatchdog(engine, Alerts(store, (), engine.redactor, engine.now)).run())
    (shown,) = sessions(call, tokens.root)
    assert shown["status"] == "green"
    assert shown["missedIntervals"] == 0
    assert shown["elapsedMs"] == 0
    assert iso_time(NOW - timedelta(minutes=20)) == shown["lastReceived"]


@pytest.mark.parametrize("path", [TELEMETRY, ALERTS])
@pytest.mark.parametrize(
    ("token", "query", "status"),
    [
        (None, "", 401),
        ("ops", "", 403),
        ("root", "?limit=0", 400),
        ("root", "?limit=1001", 400),
        ("root", "?cursor=nowhere", 400),
        ("root", "", 200),
    ],
)
def test_an_empty_database_lists_no_sessions(
    call: Call, tokens: Tokens, *, path: str, token: str | None, query: str, status: int
) -> None:
    """An empty database answers an empty list."""
    response = call("GET", path + query, token and getattr(tokens, token))
    assert response.status_code == status
    if status == 200:
        assert {name: response.json()[name] for name in ("count", "nextCursor")} == {"count": 0, "nextCursor": None}


def alert(number: int, **fields: Any) -> Alert:
    """Return a pending alert, later than those with smaller numbers."""
    at = NOW + timedelta(seconds=number)
    neutral = {"channel": "slack", "kind": "incident", "subject_id": "i1", "project": "ops", "severity": "critical"}
    common = {"body": '{"text":"hush"}', "created_at": at, "not_before": at, "attempts": 0, "status": "waiting"}
    return Alert(alert_id=f"a{number}", **(neutral | common | fields))


def test_sent_alerts_are_listed(call: Call, tokens: Tokens, store: Store) -> None:
    """The list omits the text, and is for operators of every project."""
    Outbox(store).put([alert(1), alert(2, status="given_up", last_error="the answer was 404", settled_at=NOW, attempts=1)])
    response = call("GET", ALERTS, tokens.root)
    assert response.json()["alerts"][0] == {
        "id": "a2",
        "channel": "slack",
        "kind": "incident",
        "subject": "i1",
        "project": "ops",
        "severity": "critical",
        "status": "given_up",
        "createdAt": "2026-10-01T12:00:02Z",
        "notBefore": "2026-10-01T12:00:02Z",
        "attempts": 1,
        "settledAt": "2026-10-01T12:00:00Z",
        "lastError": "the answer was 404",
    }
    assert "hush" not in response.text
    assert call("GET", ALERTS, tokens.ops_reader).status_code == 403


def test_alerts_are_listed_by_status_and_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Undeliverable alerts must be easy to find."""
    Outbox(store).put([alert(number, status="given_up" if number % 2 else "waiting") for number in range(6)])
    first = call("GET", f"{ALERTS}?status=given_up&limit=2", tokens.root).json()
    second = call("GET", f"{ALERTS}?status=given_up&limit=2&cursor={first['nextCursor']}", tokens.root).json()
    assert [[one["id"] for one in page["alerts"]] for page in (first, second)] == [["a5", "a3"], ["a1"]]
    assert second["nextCursor"] is None
    assert call("GET", f"{ALERTS}?status=sent", tokens.root).status_code == 400
