"""Bodies that are not what they should be: each is answered with what is wrong, and nothing of it is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store
from service.web.bounds import BODY_LIMITS
from service.web.models import NO_MOMENT

INGEST = "/api/audit/ingest"
LIMIT = BODY_LIMITS[INGEST]
JSON = {"content-type": "application/json"}


def with_value(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the body with one value replaced."""
    *steps, last = path.split(".")
    target = body
    for step in steps:
        target[step] = dict(target[step])
        target = target[step]
    target[last] = value
    return body


A_NAME = "must be 1 to 63 of a-z, 0-9, dot, dash and underscore, and begin with a letter or digit"
WRONG = [
    ("session_id", 7),
    ("session_id", ""),
    ("session_id", " "),
    ("session_id", "a\x00b"),
    ("session_id", "a\nb"),
    ("session_id", "x" * 257),
    ("session_id", None),
    ("exchange", []),
    ("exchange.id", None),
    ("exchange.id", "x" * 257),
    ("exchange.timestamp", "yesterday"),
    ("exchange.timestamp", None),
    ("exchange.timestamp", ""),
    ("exchange.timestamp", True),
    ("exchange.timestamp", {}),
    ("exchange.timestamp", "1970-01-01T00:00:00Z"),
    ("exchange.timestamp", 0),
    ("exchange.timestamp", "2100-01-01T00:00:00Z"),
    ("exchange.timestamp", "2026-10-03T00:00:00Z"),
    ("exchange.timestamp", 2**63),
    ("exchange.turn_number", "7"),
    ("exchange.turn_number", 7.5),
    ("exchange.turn_number", True),
    ("exchange.turn_number", -1),
    ("exchange.turn_number", 2**31),
    ("exchange.turn_number", 2**63),
    ("exchange.user_message", "hello"),
    ("exchange.user_message.content", None),
    ("exchange.agent_response.content", ["x"]),
    ("exchange.agent_response.thinking", 1),
    ("exchange.agent_response.model", {}),
    ("exchange.agent_response.usage", [1, 2]),
    ("exchange.agent_response.usage", {"input_tokens": -1}),
    ("exchange.agent_response.usage", {"output_tokens": 2**63}),
    ("exchange.agent_response.usage", {"output_tokens": "12"}),
    ("agent", 3),
    ("multi_user", "yes"),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{path}={str(value)[:24]!r}" for path, value in WRONG])
def test_an_invalid_value_is_refused_with_its_field(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, *, store: Store, path: str, value: Any
) -> None:
    """The error must name the field, for the author of the webhook."""
    response = call("POST", INGEST, tokens.ops, json=with_value(exchange_body(), path, value))
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith(path)
    assert set(response.json()) == {"error", "code"}
    assert store.count("exchanges") == 0


def test_a_value_is_not_repeated_in_the_answer(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Answers are logged, and the value may be a secret."""
    for field in ("turn_number", "timestamp"):
        response = call("POST", INGEST, tokens.ops, json=exchange_body(**{field: "hunter2-hunter2"}))
        assert response.status_code == 400
        assert "hunter2" not in response.text


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("exchange", [], "must be an object"),
        ("exchange.user_message", "hello", "must be an object"),
        ("session_id", 7, "must be a string"),
        ("session_id", "", "must have 1 or more characters"),
        ("session_id", "x" * 257, "must have 256 or fewer characters"),
        ("exchange.turn_number", "7", "must be a whole number"),
        ("exchange.turn_number", 7.5, "must be a whole number"),
        ("exchange.turn_number", -1, "must be 0 or more"),
        ("exchange.turn_number", 2**31, "must be less than 2147483648"),
        ("exchange.timestamp", "yesterday", NO_MOMENT),
        ("exchange.timestamp", "", "is missing"),
        ("exchange.agent_response.usage", {"input_tokens": 2**63}, "must be 9007199254740992 or less"),
        ("multi_user", "yes", "must be true or false"),
    ],
)
def test_an_error_is_understandable(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, *, path: str, value: Any, words: str
) -> None:
    """Errors must be understandable without knowledge of the validation library."""
    error = call("POST", INGEST, tokens.ops, json=with_value(exchange_body(), path, value)).json()["error"]
    assert error.startswith(path)
    assert error.partition(": ")[2] == words


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "events", {"session_id": "s", "first_seq": 0, "events": []}, "events: must hold 1 or more"),
        ("POST", "events", {"session_id": "s", "first_seq": 0, "events": {}}, "events: must be a list"),
        ("POST", "heartbeat", {"session_id": "s", "connection": "A"}, f"connection: {A_NAME}"),
        ("POST", "ops/rejudge", {"limit": 0}, "limit: must be 1 or more"),
        ("GET", "OPS/scores", None, f"project: {A_NAME}"),
        ("GET", "ops/scores?limit=ten", None, "limit: must be a whole number"),
        ("GET", "ops/scores?anomalies=maybe", None, "anomalies: must be true or false"),
    ],
)
def test_other_calls_give_the_same_messages(
    call: Call, tokens: Tokens, *, method: str, path: str, body: Any, words: str
) -> None:
    """The same mistake has the same message everywhere."""
    token = tokens.ops if path in ("events", "heartbeat") else tokens.root
    response = call(method, f"/api/audit/{path}", token, **({} if body is None else {"json": body}))
    assert response.status_code == 400
    assert response.json()["error"] == words


BROKEN = {
    "nothing": (b"", "invalid"),
    "one byte": (b"{", "not_json"),
    "a number": (b"1", "invalid"),
    "a list": (b"[]", "invalid"),
    "NaN": (b'{"session_id": NaN}', "not_json"),
    "infinity": (b'{"session_id": Infinity}', "not_json"),
    "a number beyond a double": (b'{"session_id": 1e999}', "not_json"),
    "an integer of a thousand digits": (b'{"session_id": ' + b"9" * 5000 + b"}", "not_json"),
    "half a surrogate pair, and a brace too few": (b'{"session_id": "\\ud83d"', "not_json"),
    "bytes that are no UTF-8": (b'{"session_id": "\xff"}', "not_utf8"),
    "a surrogate in UTF-8": (b'{"session_id": "\xed\xa0\xbd"}', "not_utf8"),
    "a byte order mark": (b'\xef\xbb\xbf{"session_id": "s"}', "not_json"),
    "UTF-16": ('{"session_id": "s"}'.encode("utf-16"), "not_json"),
    "a hundred thousand lists": (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep"),
    "33 lists": (b'{"x":' + b"[" * 33 + b"]" * 33 + b"}", "too_deep"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_invalid_json_is_refused(call: Call, tokens: Tokens, store: Store, what: str) -> None:
    """JSON parsers disagree about these values, so all of them are refused."""
    body, code = BROKEN[what]
    response = call("POST", INGEST, tokens.ops, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["code"] == code
    assert store.count("exchanges") == 0


def test_lone_surrogates_and_null_characters_are_accepted(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Otherwise an agent could escape its audit with an odd character."""
    body = json.dumps(exchange_body(response="cut \ud83d here \x00 and \ud83d\ude00"))
    assert call("POST", INGEST, tokens.ops, content=body.encode(), headers=JSON).status_code == 201
    answers = store.cursor().execute("SELECT agent_response FROM exchanges").fetchall()
    assert answers == [("cut \ufffd here \x00 and \U0001f600",)]


def test_depth_in_ignored_fields_is_refused_too(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Ignored fields must be harmless as well."""
    deep: Any = 0
    for _ in range(40):
        deep = {"x": deep}
    response = call("POST", INGEST, tokens.ops, json=exchange_body() | {"extra": deep})
    assert response.status_code == 400
    assert response.json()["code"] == "too_deep"


def padded(body: dict[str, Any], size: int) -> bytes:
    """Return the body padded to this many bytes."""
    text = json.dumps(body)
    return (text + " " * (size - len(text))).encode()


@pytest.mark.parametrize(("more", "status"), [(0, 201), (1, 413)])
def test_the_largest_body_is_accepted_and_one_byte_more_is_not(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, more: int, status: int
) -> None:
    """The documented limit is exact."""
    response = call("POST", INGEST, tokens.ops, content=padded(exchange_body(), LIMIT + more), headers=JSON)
    assert response.status_code == status


def test_a_body_without_a_declared_length_is_counted(call: Call, tokens: Tokens) -> None:
    """A chunked body has no length to check beforehand."""

    async def chunks() -> Any:
        for _ in range(LIMIT // 1024 + 1):
            yield b" " * 1024

    response = call("POST", INGEST, tokens.ops, content=chunks(), headers=JSON)
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"


def test_texts_that_outgrow_a_record_by_redaction_are_too_large(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Markers may be longer than the secrets that they replace, and a record must fit into a message."""
    text = "pwd=a1b2c3; " * (LIMIT // 13)
    response = call("POST", INGEST, tokens.ops, json=exchange_body(response=text))
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "content-encoding": "br"},
    ],
)
def test_a_body_that_is_not_plain_json_is_unsupported(call: Call, tokens: Tokens, headers: dict[str, str]) -> None:
    """Forms of other sites cannot send JSON, and a compressed bomb is never decompressed."""
    response = call("POST", INGEST, tokens.ops, content=b"{}", headers=headers)
    assert response.status_code == 415
    assert set(response.json()) == {"error", "code"}


def test_right_to_left_text_is_stored_unchanged(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Direction marks are shown on pages; refusing them would let an agent escape its audit."""
    text = "safe\u202egpj.exe\u202c \u200b \u2066x\u2069 \U0001f600"
    assert call("POST", INGEST, tokens.ops, json=exchange_body(response=text)).status_code == 201
    assert store.cursor().execute("SELECT agent_response FROM exchanges").fetchone() == (text,)
