"""The real server: what only shows on a socket."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import time

import httpx2
import pytest
from support.api_server import BodyBuilder, LiveServer, Tokens
from support.servers import until

from service.server.server_lifecycle import MAX_HEAD_BYTES
from service.setup.access import AccessStore
from service.web.bounds import ApiSettings

INGEST = "/api/audit/ingest"


@pytest.fixture
def settings() -> ApiSettings:
    """Return settings with short time limits, so that tests are short."""
    return ApiSettings(read_timeout=0.4)


def head(token: str, *lines: str) -> bytes:
    """Return the head of an ingest request."""
    return "\r\n".join(
        [f"POST {INGEST} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *lines, "", ""]
    ).encode()


def until_the_end(connection: socket.socket) -> bytes:
    """Return the bytes received until the connection ends, cleanly or not."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the bytes received until the connection ends."""
    top, _, body = until_the_end(connection).partition(b"\r\n\r\n")
    first, *header_lines = top.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in header_lines), body


def test_a_stopping_server_answers_requests_in_progress(server: LiveServer) -> None:
    """It restarts by itself after a saved policy, and a sender that has just connected must not notice."""
    with server.connect() as connection:
        until(lambda: server.connections, "the connection to be taken")
        server.begin_to_end()
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(connection)[0] == 200


def test_an_exchange_is_accepted_over_a_socket(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The test covers the whole path once."""
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {tokens.ops}"}, timeout=60) as client:
        response = client.post(INGEST, json=exchange_body())
        assert response.status_code == 201
        assert response.json()["scored"] is True
        assert "server" not in response.headers
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics", headers={"authorization": f"Bearer {tokens.root}"}).status_code == 200


@pytest.mark.parametrize("lines", [["Content-Length: 100"], ["Transfer-Encoding: chunked"]])
def test_a_slow_body_is_aborted(server: LiveServer, tokens: Tokens, lines: list[str]) -> None:
    """The time limit covers the whole body, so that slow senders cannot occupy a connection."""
    with server.connect() as connection:
        connection.sendall(head(tokens.ops, "Content-Type: application/json", *lines) + b"5\r\n")
        started = time.monotonic()
        status, headers, body = answer(connection)
        assert status == 408
        assert headers["connection"] == "close"
        assert json.loads(body)["code"] == "too_slow"
        assert 0.3 < time.monotonic() - started < 9  # it is 10 s without the setting


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_a_missing_head_ends_the_connection(server: LiveServer, start: bytes) -> None:
    """There is no request to answer."""
    with server.connect() as connection:
        connection.sendall(start)
        started = time.monotonic()
        assert until_the_end(connection) == b""
        assert 0.3 < time.monotonic() - started < 9  # it is 10 s without the setting


def test_a_missing_second_head_ends_the_connection(server: LiveServer) -> None:
    """A connection that was used once gets no longer time limit."""
    with server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = connection.recv(65536)
        connection.sendall(b"GET /heal")
        started = time.monotonic()
        received += until_the_end(connection)
        assert 0.3 < time.monotonic() - started < 9  # it is 10 s without the setting
        assert received.startswith(b"HTTP/1.1 200")
        assert received.count(b"HTTP/1.1") == 1


def test_line_breaks_between_requests_do_not_keep_a_connection_open(server: LiveServer) -> None:
    """Otherwise each line break would restart the idle time limit without starting a request."""
    with server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = connection.recv(65536)
        connection.sendall(b"\r\n")
        started = time.monotonic()
        received += until_the_end(connection)
        assert time.monotonic() - started < 9  # an idle connection is kept for 10 s
        assert received.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("parts", [1, 8])
def test_an_endless_head_is_refused_however_it_is_split(server: LiveServer, parts: int) -> None:
    """Heads are buffered before authentication, so their size must be bounded."""
    line = b"X: " + b"y" * (MAX_HEAD_BYTES // 4) + b"\r\n"
    raw = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + line * 5
    size = -(-len(raw) // parts)
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(raw), size):
            connection.sendall(raw[start : start + size])
        assert until_the_end(connection).startswith(b"HTTP/1.1 400")


def test_pipelined_requests_are_answered_in_order(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """A client may send the next request before it has read the answer."""
    with server.connect() as connection:
        for turn in (1, 2, 3):
            content = json.dumps(exchange_body(turn)).encode()
            lines = ["Content-Type: application/json", f"Content-Length: {len(content)}"]
            connection.sendall(head(tokens.ops, *lines) + content)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = until_the_end(connection)
    assert re.findall(rb"HTTP/1\.1 ([0-9]{3})", received) == [b"201"] * 3 + [b"200"]
    assert re.findall(rb'"exchangeId":"s1:([0-9])"', received) == [b"1", b"2", b"3"]


def test_a_compressed_bomb_is_not_decompressed(server: LiveServer, tokens: Tokens) -> None:
    """A compressed body is refused without being read."""
    bomb = gzip.compress(b" " * 50_000_000)
    with server.connect() as connection:
        lines = ["Content-Type: application/json", "Content-Encoding: gzip", f"Content-Length: {len(bomb)}"]
        connection.sendall(head(tokens.ops, *lines) + bomb)
        status, _, body = answer(connection)
        assert status == 415
        assert json.loads(body)["code"] == "content_encoding"


@pytest.mark.parametrize("token", ["ops", None])
def test_a_sender_of_an_oversized_body_still_reads_the_answer(server: LiveServer, tokens: Tokens, token: str | None) -> None:
    """The connection stays open while the body is being sent."""
    secret = getattr(tokens, token) if token else "dl_wrong"
    content = b" " * 3_000_000
    with server.connect() as connection:
        connection.sendall(head(secret, "Content-Type: application/json", f"Content-Length: {len(content)}"))
        connection.sendall(content)
        status, _, body = answer(connection)
        assert status == (413 if token else 401)
        assert set(json.loads(body)) == {"error", "code"}


def test_a_client_that_disconnects_early_leaves_no_trace(
    server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder
) -> None:
    """An incomplete body is neither a record nor an error."""
    with server.connect() as connection:
        connection.sendall(head(tokens.ops, "Content-Type: application/json", "Content-Length: 100") + b"{")
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {tokens.ops}"}, timeout=60) as client:
        assert client.post(INGEST, json=exchange_body()).status_code == 201


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
def test_an_invalid_request_is_refused(server: LiveServer, raw: bytes) -> None:
    """The server keeps serving afterwards."""
    with server.connect() as connection:
        connection.sendall(raw)
        received = until_the_end(connection)
        assert received[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 415", b"")
    assert httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200


def test_a_chunked_body_is_read_to_its_end(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The first part of a body may arrive with the head."""
    content = json.dumps(exchange_body(1)).encode()
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            head(tokens.ops, "Content-Type: application/json", "Connection: close", f"Content-Length: {len(content)}")
            + content[:50]
        )
        time.sleep(0.05)
        connection.sendall(content[50:])
        assert answer(connection)[0] == 201


def test_a_revoked_token_is_refused_for_the_next_request(
    server: LiveServer, access: AccessStore, tokens: Tokens, exchange_body: BodyBuilder
) -> None:
    """A valid token is cached only until any token changes."""
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {tokens.ops}"}, timeout=60) as client:
        assert [client.post(INGEST, json=exchange_body(turn)).status_code for turn in (1, 2)] == [201, 201]
        access.revoke("connection", "north")
        assert client.post(INGEST, json=exchange_body(3)).status_code == 401
