"""Retention and erasure over HTTP."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from support.api_server import NOW, BodyBuilder, Call, Tokens

from analytics.store.store import Store
from audit.policy import Policy
from streams.engine.engine import Engine
from streams.upkeep.deletion import RetentionTask

RUN, ERASURES, INGEST = "/api/audit/retention/run", "/api/audit/erasures", "/api/audit/ingest"


def send(call: Call, tokens: Tokens, exchange_body: BodyBuilder, number: int, **exchange: object) -> None:
    """Deliver an exchange."""
    answer = call("POST", INGEST, tokens.ops, json=exchange_body(number, **exchange))
    assert answer.status_code == 201, answer.text


def exchanges(store: Store) -> list[str]:
    """Return the ids of the stored exchanges."""
    return [one for (one,) in store.cursor().execute("SELECT exchange_id FROM log.exchanges ORDER BY ALL").fetchall()]


def drain(loop: asyncio.Runner, engine: Engine) -> None:
    """Wait until everything is scored."""
    loop.run(engine.wait_until_drained())


def test_retention_can_be_run_on_demand(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """It uses the policy's days or the requested ones, and returns the deleted numbers."""
    for number, days in ((1, 100), (2, 50), (3, 0)):
        send(call, tokens, exchange_body, number, timestamp=(NOW - timedelta(days=days)).isoformat())
    drain(loop, engine)

    first = call("POST", RUN, tokens.root)
    second = call("POST", RUN, tokens.root, json={"retentionDays": 30})

    assert first.json() == {"exchangesPurged": 1, "scoresPurged": 1, "cutoffDate": "2026-07-03T00:00:00Z"}
    assert second.json() == {"exchangesPurged": 1, "scoresPurged": 1, "cutoffDate": "2026-09-01T00:00:00Z"}
    assert exchanges(engine.store) == ["s1:3"]


def test_an_empty_log_has_nothing_to_delete(call: Call, tokens: Tokens) -> None:
    """A new installation runs retention at its first start, too."""
    assert call("POST", RUN, tokens.root, json={}).json() == {
        "exchangesPurged": 0,
        "scoresPurged": 0,
        "cutoffDate": "2026-07-03T00:00:00Z",
    }


@pytest.mark.parametrize("days", [0, -1, 4000, "90", 1.5, True])
def test_an_invalid_number_of_days_is_refused(call: Call, tokens: Tokens, days: object) -> None:
    """Zero days would delete everything, which must not happen by mistake."""
    answer = call("POST", RUN, tokens.root, json={"retentionDays": days})

    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"
    assert "retentionDays" in answer.json()["error"]


@pytest.mark.parametrize(("method", "path"), [("POST", RUN), ("POST", ERASURES), ("GET", ERASURES)])
def test_deleting_requires_the_right_to_change_every_project(call: Call, tokens: Tokens, method: str, path: str) -> None:
    """Retention affects the records of every project."""
    body = {"json": {"connection": "north"}} if method == "POST" else {}
    assert call(method, path, **body).status_code == 401
    for token in (tokens.ops, tokens.ops_reader):
        assert call(method, path, token, **body).status_code == 403


def test_an_erased_session_is_gone_when_the_call_returns(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """The answer says what was deleted and what is out of reach; the list keeps author, time and reason."""
    send(call, tokens, exchange_body, 1)
    send(call, tokens, exchange_body, 2)
    drain(loop, engine)
    call("POST", INGEST, tokens.ops, json=exchange_body(1, session="other"))
    drain(loop, engine)

    answer = call("POST", ERASURES, tokens.root, json={"connection": "north", "session_id": "s1", "comment": "they asked"})

    assert answer.status_code == 202
    erasure = answer.json()["erasure"]
    assert erasure["connection"] == "north"
    assert erasure["sessionId"] == "s1"
    assert erasure["requestedBy"] == "root"
    assert erasure["comment"] == "they asked"
    assert erasure["deleted"]["exchanges"] == 2
    assert erasure["deleted"]["scores"] == 2
    assert erasure["erasedAt"]
    assert any("Backups" in words for words in answer.json()["remains"])
    assert exchanges(engine.store) == ["other:1"]
    listed = call("GET", ERASURES, tokens.root).json()
    assert listed["erasures"] == [erasure]
    assert listed["count"] == 1
    assert listed["nextCursor"] is None
    repeated = call("POST", INGEST, tokens.ops, json=exchange_body(3))
    assert repeated.status_code == 200
    assert exchanges(engine.store) == ["other:1"]


def test_erasures_come_in_pages(call: Call, tokens: Tokens) -> None:
    """Pages list every erasure once, newest first."""
    for number in range(5):
        call("POST", ERASURES, tokens.root, json={"connection": "north", "session_id": f"s{number}"})

    ids, cursor = [], ""
    while cursor is not None:
        page = call("GET", f"{ERASURES}?limit=2{cursor and f'&cursor={cursor}'}", tokens.root).json()
        ids += [one["id"] for one in page["erasures"]]
        cursor = page["nextCursor"]

    assert len(set(ids)) == len(ids) == 5


def test_a_repeated_erasure_keeps_the_first_result(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """The list proves an erasure, so repeating it, which finds nothing, must not overwrite the first result."""
    send(call, tokens, exchange_body, 1)
    drain(loop, engine)

    call("POST", ERASURES, tokens.root, json={"connection": "north", "sessionId": "s1"})
    call("POST", ERASURES, tokens.root, json={"connection": "north", "sessionId": "s1"})

    [erasure] = call("GET", ERASURES, tokens.root).json()["erasures"]
    assert erasure["deleted"]["exchanges"] == 1
    assert erasure["deleted"]["scores"] == 1


def test_a_misspelt_session_field_erases_no_connection(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """Ignoring the misspelt field would erase the whole connection."""
    send(call, tokens, exchange_body, 1)
    drain(loop, engine)

    for name in ("session", "SessionId", "sesionId"):
        answer = call("POST", ERASURES, tokens.root, json={"connection": "north", name: "s1"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"{name}: is not a field")

    assert exchanges(engine.store) == ["s1:1"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"connection": "No Name"},
        {"connection": "north", "sessionId": ""},
        {"connection": "north", "session_id": ""},
        {"connection": 1},
    ],
)
def test_an_erasure_must_name_a_session_or_the_connection(call: Call, tokens: Tokens, body: dict[str, object]) -> None:
    """An empty session id is not the whole connection."""
    assert call("POST", ERASURES, tokens.root, json=body).status_code == 400


def test_the_connection_of_anchors_cannot_be_erased(call: Call, tokens: Tokens) -> None:
    """An erased connection is refused forever, so erasing that of anchors would disable the detection of judge changes."""
    answer = call("POST", ERASURES, tokens.root, json={"connection": "anchors"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("connection: anchors ")
    assert call("GET", ERASURES, tokens.root).json()["count"] == 0
    assert call("POST", ERASURES, tokens.root, json={"connection": "anchors", "sessionId": "ops@2026"}).status_code == 202


def test_a_server_runs_retention_at_its_start_and_once_a_day(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """The periodic task runs at the start, and again once another day has begun."""
    send(call, tokens, exchange_body, 1, timestamp=(NOW - timedelta(days=90, hours=11)).isoformat())
    drain(loop, engine)
    periodic_task = RetentionTask(engine)

    loop.run(periodic_task.run())
    assert exchanges(engine.store) == ["s1:1"]
    engine.now = lambda: NOW + timedelta(days=1)
    loop.run(periodic_task.run())

    assert exchanges(engine.store) == []
    assert isinstance(engine.policy, Policy)


def test_a_dry_run_counts_what_a_run_deletes(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """Users check the numbers first; a dry run deletes nothing and leaves no line in the audit log."""
    for number, days in ((1, 100), (2, 95), (3, 50), (4, 0)):
        send(call, tokens, exchange_body, number, timestamp=(NOW - timedelta(days=days)).isoformat())
    drain(loop, engine)
    plan = call("POST", "/api/audit/retention/plan", tokens.root).json()
    [ops] = plan["projects"]
    assert ops["project"] == "ops"
    assert ops["exchanges"] == 2
    assert ops["firstDay"] == "2026-06-23"
    assert ops["lastDay"] == "2026-06-28"
    assert plan["rows"]["exchanges"] == 2
    assert plan["rows"]["scores"] == 2
    assert len(exchanges(engine.store)) == 4
    nearer = call("POST", "/api/audit/retention/plan", tokens.root, json={"retentionDays": 30}).json()
    assert nearer["rows"]["exchanges"] == 3
    purged = call("POST", RUN, tokens.root).json()
    assert purged["exchangesPurged"] == 2
    assert purged["scoresPurged"] == 2
    assert call("POST", "/api/audit/retention/plan", tokens.root).json()["rows"] == {}
    assert [line["route"] for line in call("GET", "/api/audit/audit-log", tokens.root).json()["lines"]] == [RUN]


def test_a_dry_run_of_an_erasure_counts_what_it_deletes(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """It covers a session or the whole connection, and refuses a reserved name like the erasure."""
    for number in (1, 2):
        send(call, tokens, exchange_body, number)
    assert call("POST", INGEST, tokens.ops, json=exchange_body(1, session="s2")).status_code == 201
    drain(loop, engine)
    address = f"{ERASURES}/plan"
    preview = call("POST", address, tokens.root, json={"connection": "north", "sessionId": "s1"}).json()
    everything = call("POST", address, tokens.root, json={"connection": "north"}).json()
    assert preview["rows"]["exchanges"] == 2
    assert preview["sessions"] == 1
    assert preview["projects"] == ["ops"]
    assert everything["rows"]["exchanges"] == 3
    assert everything["sessions"] == 2
    assert call("POST", address, tokens.root, json={"connection": "south"}).json()["rows"] == {}
    assert call("POST", address, tokens.root, json={"connection": "anchors"}).status_code == 400
    assert len(exchanges(engine.store)) == 3
    erased = call("POST", ERASURES, tokens.root, json={"connection": "north", "sessionId": "s1"}).json()
    deleted = erased["erasure"]["deleted"]
    assert preview["rows"] == {table: deleted[table] for table in preview["rows"]}
