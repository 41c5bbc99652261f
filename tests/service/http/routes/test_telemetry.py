"""Telemetry and alerts over HTTP: which sessions are active, which alerts were sent, and who may read the lists."""

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


def append_heartbeat(store: Store, session: str, minutes: float, connection: str = "north", project: str = "ops") -> None:
    """Append a heartbeat that was received some minutes ago."""
    at = NOW - timedelta(minutes=minutes)
    heartbeat = Heartbeat(connection=connection, project=project, session_id=session, occurred_at=at, ingested_at=at)
    with store.transaction() as transaction:
        transaction.append("heartbeats", [encode(heartbeat)])


def alert(number: int, **fields: Any) -> Alert:
    """Return a pending alert; higher numbers are later."""
    at = NOW + timedelta(seconds=number)
    subject = {"channel": "slack", "kind": "incident", "subject_id": "i1", "project": "ops", "severity": "critical"}
    delivery = {"body": '{"text":"hush"}', "created_at": at, "not_before": at, "attempts": 0, "status": "waiting"}
    return Alert(alert_id=f"a{number}", **(subject | delivery | fields))


def sessions(call: Call, token: str, query: str = "") -> list[dict[str, Any]]:
    """Return the listed sessions, as JSON objects."""
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


def test_the_status_shows_the_length_of_the_silence(call: Call, tokens: Tokens, store: Store) -> None:
    """The limits are one and three intervals of five minutes, and the longest silence comes first."""
    for session, minutes in (("fresh", 5), ("late", 5.1), ("later", 15), ("gone", 15.1)):
        append_heartbeat(store, session, minutes)
    assert [
        (session["sessionId"], session["status"], session["missedIntervals"]) for session in sessions(call, tokens.root)
    ] == [
        ("gone", "red", 3),
        ("later", "yellow", 2),
        ("late", "yellow", 1),
        ("fresh", "green", 0),
    ]


def test_sessions_of_another_project_are_hidden(call: Call, tokens: Tokens, store: Store) -> None:
    """An operator of one project sees no other project, with or without the filter."""
    append_heartbeat(store, "s1", 1)
    append_heartbeat(store, "s2", 1, "south", "web")
    assert [session["sessionId"] for session in sessions(call, tokens.ops_reader)] == ["s1"]
    assert [session["sessionId"] for session in sessions(call, tokens.ops_reader, "?project=ops")] == ["s1"]
    assert [session["sessionId"] for session in sessions(call, tokens.root, "?project=web")] == ["s2"]
    assert call("GET", f"{TELEMETRY}?project=web", tokens.ops_reader).status_code == 403


def test_pages_continue_where_the_previous_one_ended(call: Call, tokens: Tokens, store: Store) -> None:
    """Every session is on one page, even if several have the same time."""
    for number in range(7):
        append_heartbeat(store, f"s{number}", 1 + number // 3)
    listed_sessions, query = [], "?limit=2"
    for _ in range(4):
        answer = call("GET", TELEMETRY + query, tokens.root).json()
        listed_sessions += [session["sessionId"] for session in answer["sessions"]]
        assert len(answer["sessions"]) == answer["count"]
        query = f"?limit=2&cursor={answer['nextCursor']}"
    assert answer["nextCursor"] is None
    assert sorted(listed_sessions) == [f"s{number}" for number in range(7)]


def test_a_session_that_the_watchdog_forgives_is_listed_as_active(
    call: Call, tokens: Tokens, store: Store, engine: Engine, loop: asyncio.Runner
) -> None:
    """After a restart, the watchdog counts silence from its own start, and the list must agree with the alerts."""
    append_heartbeat(store, "s1", 20)
    loop.run(SilenceWatchdog(engine, Alerts(store, (), engine.redactor, engine.now)).run())
    (session,) = sessions(call, tokens.root)
    assert session["status"] == "green"
    assert session["missedIntervals"] == 0
    assert session["elapsedMs"] == 0
    assert session["lastReceived"] == iso_time(NOW - timedelta(minutes=20))


@pytest.mark.parametrize("path", [TELEMETRY, ALERTS])
def test_an_empty_database_has_empty_lists(call: Call, tokens: Tokens, path: str) -> None:
    """A new deployment has neither sessions nor alerts."""
    response = call("GET", path, tokens.root)
    assert response.status_code == 200
    assert response.json()["count"] == 0
    assert response.json()["nextCursor"] is None


@pytest.mark.parametrize("path", [TELEMETRY, ALERTS])
@pytest.mark.parametrize(("token_name", "status"), [(None, 401), ("ops", 403)])
def test_both_lists_need_an_operator_token(call: Call, tokens: Tokens, path: str, token_name: str | None, status: int) -> None:
    """The token of a connection may deliver records, not read about others."""
    token = None if token_name is None else getattr(tokens, token_name)
    assert call("GET", path, token).status_code == status


@pytest.mark.parametrize("path", [TELEMETRY, ALERTS])
@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?cursor=nowhere"])
def test_an_invalid_limit_or_cursor_is_refused(call: Call, tokens: Tokens, path: str, query: str) -> None:
    """A client must learn of its mistake instead of reading another page."""
    assert call("GET", path + query, tokens.root).status_code == 400


def test_alerts_are_listed_without_their_texts(call: Call, tokens: Tokens, store: Store) -> None:
    """Texts may quote any project, so even this list is only for operators of every project."""
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
    """An operator who looks for undeliverable alerts reads only those."""
    Outbox(store).put([alert(number, status="given_up" if number % 2 else "waiting") for number in range(6)])
    first = call("GET", f"{ALERTS}?status=given_up&limit=2", tokens.root).json()
    second = call("GET", f"{ALERTS}?status=given_up&limit=2&cursor={first['nextCursor']}", tokens.root).json()
    assert [alert["id"] for alert in first["alerts"]] == ["a5", "a3"]
    assert [alert["id"] for alert in second["alerts"]] == ["a1"]
    assert second["nextCursor"] is None
    assert call("GET", f"{ALERTS}?status=sent", tokens.root).status_code == 400
