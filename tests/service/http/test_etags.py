"""Polling: what the caller has already is not sent again, and what has changed always is."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Send
from support.api_server import BodyBuilder, Call, Tokens
from support.pages import cookie, signed_in

from service.web import middleware
from streams.engine.engine import Engine

SCORES = "/api/audit/ops/scores"


def test_an_unchanged_answer_has_no_body(call: Call, tokens: Tokens) -> None:
    """Only the caller may cache it."""
    first = call("GET", SCORES, tokens.root)
    repeated = call("GET", SCORES, tokens.root, headers={"if-none-match": first.headers["etag"]})
    assert repeated.status_code == 304
    assert repeated.content == b""
    caching_headers = [(one.headers["etag"], one.headers["cache-control"], one.headers["vary"]) for one in (first, repeated)]
    assert [(first.headers["etag"], "private, no-cache", "Authorization, Cookie")] * 2 == caching_headers
    assert {"content-type", "content-length"}.isdisjoint(repeated.headers)
    assert repeated.headers["x-content-type-options"] == "nosniff"


def test_a_changed_answer_is_sent_completely(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, loop: asyncio.Runner, engine: Engine
) -> None:
    """A polling dashboard must not show old data."""
    etag = call("GET", SCORES, tokens.root).headers["etag"]
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    loop.run(engine.wait_until_drained())
    answer = call("GET", SCORES, tokens.root, headers={"if-none-match": etag})
    assert answer.status_code == 200
    assert answer.json()["count"] == 1
    assert etag != answer.headers["etag"]


@pytest.mark.parametrize("form", ["W/{}", '"other", {}', ' {} , W/"x"', "*"])
def test_every_form_of_a_tag_is_recognised(call: Call, tokens: Tokens, form: str) -> None:
    """Compressing proxies mark tags as weak, and some clients send all tags they have."""
    etag = call("GET", SCORES, tokens.root).headers["etag"]
    assert call("GET", SCORES, tokens.root, headers={"if-none-match": form.format(etag)}).status_code == 304


@pytest.mark.parametrize("value", [b"", b'"', b"\xff\xfe", b'"' + b"a" * 5000, b"***", b"W/", b'"a""b"'])
def test_an_invalid_tag_is_ignored(call: Call, tokens: Tokens, value: bytes) -> None:
    """The answer is sent completely, without an error."""
    assert call("GET", SCORES, tokens.root, headers={b"if-none-match": value}).status_code == 200


def test_errors_and_writes_have_no_tag(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """They must not be cached."""
    answers = [
        call("GET", SCORES, "dl_wrong", headers={"if-none-match": "*"}),
        call("GET", f"{SCORES}?limit=0", tokens.root, headers={"if-none-match": "*"}),
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(), headers={"if-none-match": "*"}),
    ]
    assert [answer.status_code for answer in answers] == [401, 400, 201]
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
    assert not any("etag" in answer.headers for answer in answers)


def test_answers_about_access_are_not_cached(call: Call, tokens: Tokens) -> None:
    """Answers about access must not be stored by browsers, but polling still works."""
    first = call("GET", "/api/audit/operators", tokens.root)
    assert first.headers["cache-control"] == "no-store"
    assert call("GET", "/api/audit/operators", tokens.root, headers={"if-none-match": first.headers["etag"]}).status_code == 304


def test_an_answer_too_large_to_buffer_is_streamed() -> None:
    """Buffering it would cost its size in memory per caller."""
    messages: list[dict[str, object]] = []

    async def app(_scope: object, _receive: object, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send(
                {"type": "http.response.body", "body": b"x" * (middleware.MAX_BUFFERED_BYTES // 2 + 1), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async def receive() -> dict[str, object]:
        return {}

    async def send(message: dict[str, object]) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/audit/x", "headers": [(b"if-none-match", b"*")]}
    asyncio.run(middleware.Etags(app)(scope, receive, send))  # type: ignore[arg-type]
    assert [message["type"] for message in messages] == ["http.response.start", *["http.response.body"] * 3]
    assert messages[0]["status"] == 200
    assert messages[0]["headers"] == []
    assert [len(message["body"]) for message in messages[1:]] == [
        middleware.MAX_BUFFERED_BYTES + 2,
        middleware.MAX_BUFFERED_BYTES // 2 + 1,
        3,
    ]  # type: ignore[arg-type]
    assert [message["more_body"] for message in messages[1:]] == [True, True, False]


def test_a_page_is_compressed_for_clients_that_accept_it(call: Call, tokens: Tokens) -> None:
    """Caches must keep both encodings apart, and the ETag is valid for both."""
    head = cookie(signed_in(call, tokens.root))
    plain = call("GET", "/help", headers={**head, "accept-encoding": "identity, gzip;q=0"})
    small = call("GET", "/help", headers={**head, "accept-encoding": "br, gzip"})
    assert [one.headers.get("content-encoding") for one in (plain, small)] == [None, "gzip"]
    assert [one.headers["vary"] for one in (plain, small)] == ["Authorization, Cookie, Accept-Encoding"] * 2
    assert plain.text == small.text
    assert f"W/{plain.headers['etag']}" == small.headers["etag"]
    assert int(small.headers["content-length"]) < len(plain.content) / 2
    for response in (plain, small):
        repeated = call("GET", "/help", headers={**head, "accept-encoding": "gzip", "if-none-match": response.headers["etag"]})
        assert repeated.status_code == 304
        assert repeated.content == b""
        assert repeated.headers.get("content-encoding") is None


def test_static_files_are_sent_compressed(call: Call) -> None:
    """Static files contain no secrets and are always compressed to the same bytes."""
    plain, small = (call("GET", "/static/pages.css", headers={"accept-encoding": how}) for how in ("identity", "gzip"))
    assert small.text == plain.text
    assert small.headers["content-encoding"] == "gzip"
    assert [one.headers["vary"] for one in (plain, small)] == ["Accept-Encoding"] * 2
    repeated = call("GET", "/static/pages.css", headers={"if-none-match": small.headers["etag"]})
    assert repeated.status_code == 304
    assert repeated.content == b""


def test_api_answers_are_not_compressed(call: Call, tokens: Tokens) -> None:
    """They may quote an attacker's text next to a secret, and the compressed length would reveal it."""
    answer = call("GET", SCORES, tokens.root, headers={"accept-encoding": "gzip"})
    assert answer.headers["vary"] == "Authorization, Cookie"
    assert answer.headers.get("content-encoding") is None
