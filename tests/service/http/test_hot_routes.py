"""Hot routes: a call answered quickly gets the answer that the framework gives, to the byte."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from api_server import BodyBuilder, Tokens, app_over, engine_of

from analytics.store.store import Store
from schemas.errors import BoundsError, BrokerError, BusyError, StoreError
from service.access.access import AccessStore
from service.http import hot_routes
from service.http.bounds import BODY_LIMITS, EVENTS, EVENTS_BULK, EXCHANGES, INGEST, ApiSettings
from service.http.hot_routes import Answered, Call, Quick

JSON, NDJSON = "application/json", "application/x-ndjson"


class Request(NamedTuple):
    """A call as it goes over the line."""

    path: str
    body: bytes
    token: str = ""
    kind: str = JSON
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def requests(body: BodyBuilder, tokens: Tokens) -> list[Request]:
    """Calls in an order in which each comes to something else: sound ones, repetitions, conflicts, and everything that is refused."""
    one, other = json.dumps(body(1)).encode(), json.dumps(body(1, "Something else.")).encode()
    filed = json.dumps(body(2, session="s2") | {"project": "elsewhere", "agent": "named", "multi_user": True}).encode()
    many = [body(number, session="s3") for number in range(1, 13)]
    batch = json.dumps([*many, body(1), body(1, "Third."), {"session_id": 5}, "text", body(1, timestamp="2031-01-01")]).encode()
    bad = [b"", b"{", b"[]", b"null", b"\xff", b'{"session_id": "s"}', b"[" * 300, b'{"a": NaN}', other[:-1] + b', "a": 1}']
    future = json.dumps(body(9, timestamp="2031-01-01T00:00:00Z")).encode()
    capped = [json.dumps(body(number, "A long answer. " * 400, session="dear")).encode() for number in range(1, 4)]
    return [
        *(Request(INGEST, sent, tokens.ops) for sent in (one, one, other, filed, future, *bad)),
        *(Request(INGEST, sent, tokens.capped) for sent in capped),
        *(Request(INGEST, one, token) for token in ("", "dl_wrong", tokens.dark, tokens.root, tokens.web)),
        *(
            Request(INGEST, one, tokens.ops, kind)
            for kind in ("text/plain", f"{JSON}; charset=utf-8", f"{JSON};charset=latin-1")
        ),
        *(Request(INGEST, sent, tokens.ops) for sent in unusual(body)),
        *(Request(INGEST, one, tokens.ops, headers=(header,)) for header in HEADERS),
        *(Request(INGEST, one, "dl_wrong") for _ in range(10)),
        Request(INGEST, b" " * (BODY_LIMITS[INGEST] + 1), tokens.ops),
        *(Request(INGEST, b"", tokens.ops, method=method) for method in ("GET", "PUT", "HEAD", "OPTIONS")),
        *(Request(f"{INGEST}{rest}", one, tokens.ops) for rest in ("?a=1", "/", "?%ff=1")),
        *(Request(EXCHANGES, sent, tokens.ops) for sent in (batch, batch, b"[]", b"[" + b"1," * 1000 + b"1]", *bad)),
        *(
            Request(EXCHANGES, lines(many), tokens.web, kind)
            for kind in (NDJSON, "application/x-ndjson;charset=UTF-8", "text/csv")
        ),
        *(Request(EXCHANGES, sent, tokens.web, NDJSON) for sent in (b"", b"\n\n", b"{}\n{", b"{}\n\xff", b"[" * 300)),
        Request(EXCHANGES, batch, tokens.root),
        *requests_with_events(tokens),
    ]


HEADERS = (
    ("host", "evil.example"),
    ("host", "LOCALHOST:1"),
    ("authorization", "Basic dXNlcg=="),
    ("content-encoding", "gzip"),
    ("content-encoding", "identity"),
    ("transfer-encoding", "chunked"),
    ("content-type", "text/plain"),
    ("content-length", "99999999999999999999999"),
    ("content-length", "-1"),
    ("cookie", "driftline-8321=nothing"),
    ("accept", "text/html"),
)
"""Headers that a call has beside those that it needs."""


def unusual(body: BodyBuilder) -> list[bytes]:
    """Bodies that readers of JSON take differently: keys twice, large numbers and ids, half a surrogate pair, deep nesting."""
    sound = json.dumps(body(20, session="odd")).encode()
    return [
        sound[:-1] + b', "session_id": "other"}',
        json.dumps(body(2**63, session="odd")).encode(),
        json.dumps(body(21, session="i" * 100_000)).encode(),
        json.dumps(body(22, "\ud800", session="odd")).encode(),
        json.dumps(body(23, session="\ud800")).encode(),
        sound[:-1] + b', "extra": %s}' % (b"[" * 40 + b"]" * 40),
        sound[:-1] + b', "extra": 1e999}',
        b"\xef\xbb\xbf" + sound,
    ]


def lines(values: Sequence[Any]) -> bytes:
    """Values as lines."""
    return b"\n".join(json.dumps(value).encode() for value in values)


def requests_with_events(tokens: Tokens) -> list[Request]:
    """Events of one session and in bulk: new, known, in conflict, wrong, and bodies of which nothing can be taken."""
    events = [{"event": "tool_call", "n": number, "event_id": f"e{number}"} for number in range(3)]
    other = [
        *events[:1],
        {"event": "tool_call", "n": 9, "event_id": "e1"},
        "text",
        {"event": "x", "event_id": "l", "labels": 1},
    ]
    batches = [
        *({"session_id": "s", "events": sent} for sent in (events, other, [{"event": "x"}], [events[0]] * 2, [])),
        {"session_id": "s", "first_seq": 9, "events": events},
        {"session_id": "p", "first_seq": 0, "project": "elsewhere", "events": [{"event": "x", "n": 1}]},
        {"session_id": "p", "first_seq": 0, "events": [{"event": "x", "n": 2}]},
        {"session_id": "p", "first_seq": 2**60, "events": events},
    ]
    bulk = [{"session_id": "b", **event} for event in events] + [{"session_id": "c", "agent": "a", "event": events[0]}]
    wrong = [*bulk, {**bulk[0], "n": 7}, {"session_id": "b", "event": "x"}, {"event_id": "e"}, 5, {**bulk[1], "event": None}]
    named = [{"session_id": "d", "project": "elsewhere", **events[0]}]
    bad = (b"", b"{}", b"[]", b"5", b"\xff", b"[" * 300, b'{"session_id": 1}', b"[" + b"1," * 1000 + b"1]")
    return [
        *(Request(EVENTS, json.dumps(sent).encode(), tokens.ops) for sent in batches),
        *(Request(EVENTS_BULK, json.dumps(sent).encode(), tokens.ops) for sent in (bulk, bulk, wrong, named)),
        Request(EVENTS_BULK, lines(wrong), tokens.web, NDJSON),
        *(Request(path, sent, tokens.ops) for path in (EVENTS, EVENTS_BULK) for sent in bad),
        *(Request(path, b"[]", token) for path in (EVENTS, EVENTS_BULK) for token in (tokens.dark, tokens.root, "")),
        Request(EVENTS, lines(bulk), tokens.ops, NDJSON),
    ]


def answers(sent: Sequence[Request], access: AccessStore, database: Path, fault: Exception | None = None) -> list[Answer]:
    """The answers of a new server to these calls, one after the other; with a fault, its engine takes nothing."""

    async def fail(*_: Any) -> Any:
        assert fault is not None
        raise fault

    async def work(store: Store) -> list[Answer]:
        engine = engine_of(store)
        await engine.start()
        for name in ("take_exchange", "take_exchanges", "publish") if fault else ():
            setattr(engine, name, fail)
        app = app_over(engine, access, ApiSettings())
        found = []
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8321") as client:
            for one in sent:
                headers = [("content-type", one.kind), *one.headers]
                headers += [("authorization", f"Bearer {one.token}")] if one.token else []
                response = await client.request(one.method, one.path, content=one.body, headers=headers)
                shown = dict(response.headers)
                body = response.content.replace(shown.pop("x-request-id").encode(), b"(id)")
                if response.status_code == 429:
                    body = body.replace(shown.pop("retry-after").encode(), b"(seconds)")
                found.append(Answer(response.status_code, shown, body))
        await engine.stop()
        return found

    with Store(database) as store:
        return asyncio.run(work(store))


Ways = Callable[..., tuple[list[Answer], list[Answer]]]
"""Answers some calls in both ways: quickly where that is possible, and by the framework alone."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, access: AccessStore) -> Ways:
    """Two servers, one after the other."""

    def both(sent: Sequence[Request], fault: Exception | None = None) -> tuple[list[Answer], list[Answer]]:
        found = answers(sent, access, tmp_path / "quick.duckdb", fault)
        monkeypatch.setattr(hot_routes, "_QUICK", {})
        return found, answers(sent, access, tmp_path / "framework.duckdb", fault)

    return both


def test_a_quick_answer_is_the_frameworks_to_the_byte(
    monkeypatch: pytest.MonkeyPatch, ways: Ways, tokens: Tokens, exchange_body: BodyBuilder
) -> None:
    """There are two ways to an answer, and a sender must not be able to tell which one it took."""
    sent, quick = requests(exchange_body, tokens), Counter[str]()

    def counting(path: str, function: Quick) -> Quick:
        async def counted(call: Call) -> Answered | None:
            answered = await function(call)
            quick[path] += answered is not None
            return answered

        return counted

    monkeypatch.setattr(hot_routes, "_QUICK", {path: counting(path, one) for path, one in hot_routes._QUICK.items()})
    found, expected = ways(sent)
    for request, theirs, ours in zip(sent, expected, found, strict=True):
        assert theirs == ours, request
    assert {INGEST: 13, EXCHANGES: 7, EVENTS: 5, EVENTS_BULK: 5} == quick
    assert {200, 201, 400, 401, 403, 404, 405, 409, 413, 415, 429} <= {one.status for one in found}


FAULTS = {
    "busy": (503, BusyError("too much waits to be committed")),
    "log_unavailable": (503, BrokerError("no broker answers")),
    "a full disk": (503, StoreError("no space left on device")),
    "a record that may not be written": (400, BoundsError("Exchange.turn_number: is too large")),
    "a fault of ours": (500, RuntimeError("nothing that a sender should see")),
}


@pytest.mark.parametrize(("status", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_fault_behind_a_quick_answer_is_answered_as_the_framework_does(
    ways: Ways, tokens: Tokens, exchange_body: BodyBuilder, status: int, fault: Exception
) -> None:
    """A sender decides by status, code and Retry-After whether to send again."""
    event = {"session_id": "s", "event": "x", "event_id": "e"}
    batch = {"session_id": "s", "events": [event]}
    bodies = {INGEST: exchange_body(1), EXCHANGES: [exchange_body(1)], EVENTS: batch, EVENTS_BULK: [event]}
    found, expected = ways([Request(path, json.dumps(value).encode(), tokens.ops) for path, value in bodies.items()], fault)
    assert expected == found
    assert {status} == {one.status for one in found}


def test_a_call_that_is_refused_has_changed_nothing_before_the_framework_takes_it(
    tmp_path: Path, access: AccessStore, tokens: Tokens, exchange_body: BodyBuilder
) -> None:
    """A quick function that gives up half-way would take an exchange in twice."""
    unsound = exchange_body(1) | {"exchange": {"id": "s1:1"}}
    sent = [Request(INGEST, json.dumps(value).encode(), tokens.ops) for value in (unsound, exchange_body(1))]
    refused, taken = answers(sent, access, tmp_path / "store.duckdb")
    assert (400, 201) == (refused.status, taken.status)
    with Store(tmp_path / "store.duckdb") as store:
        assert 1 == store.count("exchanges")
