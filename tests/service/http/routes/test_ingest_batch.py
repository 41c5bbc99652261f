"""Taking many exchanges in at once: each has its own result, and what is wrong with one stops no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store
from schemas.errors import BusyError
from service.text.links import EXCHANGES
from service.web.bounds import BODY_LIMITS, MAX_BULK
from streams.engine.engine import Engine

INGEST = "/api/audit/ingest"
LINES = {"content-type": "application/x-ndjson"}


def test_each_exchange_of_a_batch_is_answered_as_if_it_came_alone(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Senders of batches read the same fields."""
    together = call("POST", EXCHANGES, tokens.ops, json=[exchange_body(turn) for turn in (1, 7)])
    alone = [call("POST", INGEST, tokens.ops, json=exchange_body(turn)).json() for turn in (1, 7)]

    assert together.status_code == 201
    assert {k: v for k, v in together.json().items() if k != "results"} == {"accepted": 2, "known": 0, "refused": 0}
    assert [one | {"duplicate": True} for one in together.json()["results"]] == alone
    assert store.count("exchanges") == 2


def test_json_lines_are_equal_to_an_array(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """A file of JSON lines can be sent unchanged, with blank lines and with or without a final line end."""
    lines = "\n".join(json.dumps(exchange_body(turn)) for turn in (1, 2, 3)) + "\n\n"
    answer = call("POST", EXCHANGES, tokens.ops, content=lines.encode(), headers=LINES)

    assert answer.status_code == 201
    assert answer.json()["accepted"] == 3
    assert store.count("exchanges") == 3


def test_an_invalid_json_line_affects_only_itself(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """A faulty line ends at its line break, and the answer names the line and its problem."""
    first, second = (json.dumps(exchange_body(turn)).encode() for turn in (1, 2))
    bad = [b"{bad", b"{", b'"\xff"', b"[" * 5000, b'{"a": NaN}']
    answer = call("POST", EXCHANGES, tokens.ops, content=b"\n".join([first, b"", *bad, second]), headers=LINES)
    results = answer.json()["results"]

    assert answer.status_code == 201
    assert answer.json()["accepted"] == 2
    assert answer.json()["refused"] == 5
    assert [one["code"] for one in results[1:-1]] == ["not_json", "not_json", "not_utf8", "too_deep", "not_json"]
    assert results[1]["error"].startswith("[1]: line 3 is not JSON: ")
    assert "(byte 1)" in results[1]["error"]
    assert all(one["error"].startswith(f"[{place}]: line {place + 2} ") for place, one in enumerate(results[:-1]) if place)
    assert store.count("exchanges") == 2


def test_an_invalid_exchange_stops_no_other(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """The answer names position and field, and every valid exchange is accepted."""
    call("POST", INGEST, tokens.ops, json=exchange_body(2))
    late, deep, other = exchange_body(4), exchange_body(5), exchange_body(2)
    late["exchange"]["timestamp"] = "2098-01-01T00:00:00Z"
    deep["exchange"]["labels"] = json.loads("[" * 200 + "]" * 200)
    other["exchange"]["user_message"]["content"] = "Something else."
    exchanges = [exchange_body(1), exchange_body(2), other, {"session_id": "s1"}, late, deep, None, exchange_body(3)]
    body = call("POST", EXCHANGES, tokens.ops, json=exchanges).json()
    refused = {place: (one["code"], one["error"]) for place, one in enumerate(body["results"]) if "error" in one}

    assert body["accepted"] == 2
    assert body["known"] == 1
    assert body["refused"] == 5
    assert [code for code, _ in refused.values()] == ["conflict", "invalid", "invalid", "too_deep", "invalid"]
    assert refused[2][1].startswith("[2].exchange.id: ")
    assert "exchange.user_message.content" in refused[2][1]
    assert "[3].exchange: is missing" in refused[3][1]
    assert str(refused[4][1]).startswith("[4].exchange.timestamp: ")
    assert store.count("exchanges") == 3


def test_an_id_repeated_within_a_batch_counts_once(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """A sender that collects exchanges may also collect a repetition."""
    other = exchange_body(1)
    other["exchange"]["user_message"]["content"] = "Something else."
    body = call("POST", EXCHANGES, tokens.ops, json=[exchange_body(1), exchange_body(1), other]).json()

    assert body["accepted"] == 1
    assert body["known"] == 1
    assert body["refused"] == 1
    assert body["results"][2]["code"] == "conflict"
    assert store.count("exchanges") == 1


def test_a_thousand_exchanges_are_accepted_and_one_more_is_not(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """The error names the limit, so that a sender can split its batch."""
    bodies = [exchange_body(turn) for turn in range(1, MAX_BULK + 2)]
    most = call("POST", EXCHANGES, tokens.ops, json=bodies[:-1])
    more = call("POST", EXCHANGES, tokens.ops, json=bodies)

    assert most.status_code == 201
    assert most.json()["accepted"] == MAX_BULK
    assert more.status_code == 400
    assert f"{MAX_BULK}" in more.json()["error"]
    assert store.count("exchanges") == MAX_BULK


@pytest.mark.parametrize("body", [[], {}, "text", None])
def test_a_body_that_is_not_a_batch_is_refused(call: Call, tokens: Tokens, body: Any) -> None:
    """A single object belongs to `POST ingest`."""
    assert call("POST", EXCHANGES, tokens.ops, json=body).status_code == 400


def test_an_oversized_body_is_refused(call: Call, tokens: Tokens) -> None:
    """A thousand exchanges of typical size are accepted; a thousand of the largest are not."""
    answer = call("POST", EXCHANGES, tokens.ops, content=b" " * (BODY_LIMITS[EXCHANGES] + 1), headers=LINES)
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


def test_json_lines_are_accepted_for_batches_only(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """On other endpoints, a single line could be half of the intended body."""
    answer = call("POST", INGEST, tokens.ops, content=json.dumps(exchange_body()).encode(), headers=LINES)
    assert answer.status_code == 415
    assert answer.json()["code"] == "not_json"


def test_a_batch_that_exceeds_the_queue_is_refused_completely(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender repeats the batch, and exchanges stored meanwhile are known."""

    async def busy(_: Any) -> Any:
        raise BusyError("too many records wait to be committed")

    monkeypatch.setattr(engine, "ingest_exchanges", busy)
    answer = call("POST", EXCHANGES, tokens.ops, json=[exchange_body()])

    assert answer.status_code == 503
    assert answer.json()["code"] == "busy"
    assert answer.headers["retry-after"] == "2"


def test_an_unaudited_project_accepts_no_batch(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The rule for single exchanges applies to batches as well."""
    answer = call("POST", EXCHANGES, tokens.dark, json=[exchange_body()])
    assert answer.status_code == 403
    assert answer.json()["code"] == "audit_disabled"


def test_only_connections_deliver(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Operators may not deliver records."""
    assert call("POST", EXCHANGES, tokens.root, json=[exchange_body()]).status_code == 403
