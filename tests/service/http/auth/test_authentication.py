"""Authorization: no request under /api without a token, and none beyond the token's rights."""

from __future__ import annotations

import re

import httpx2
import pytest
from fastapi import FastAPI
from support.api_server import BodyBuilder, Call, Tokens

from service.setup.access import AccessStore
from service.web.authentication import FAILURE_WINDOW, Failures
from service.web.bounds import ApiSettings

OPEN = {"/healthz", "/readyz", "/metrics"}


def endpoints(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of every documented endpoint."""
    return [
        (method.upper(), re.sub(r"\{\w+\}", "s1", path.replace("{project}", "ops")))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    ]


def test_every_endpoint_requires_a_token(app: FastAPI, call: Call) -> None:
    """Every endpoint must require a token, writing ones in particular."""
    endpoint_list = [(method, path) for method, path in endpoints(app) if path not in OPEN]
    assert len(endpoint_list) >= 8
    for number, (method, path) in enumerate(endpoint_list):
        response = call(method, path, json={}, address=f"203.0.113.{number}")
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized"), path
        assert "Bearer" in response.headers["www-authenticate"]


def test_an_unknown_path_requires_a_token(call: Call) -> None:
    """New endpoints must require a token from the start, so unknown paths do as well."""
    assert call("GET", "/api/audit/whatever/it/is").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer dl_000000000000_wrong",
        b"Bearer dl__",
        b"Basic dXNlcjpwYXNz",
        b"Bearer d\xc3\xa4\xff",
        b"Bearer dl_0000000000\xff\xff_x",
        b"Bearer " + b"x" * 8000,
        b"dl_000000000000_wrong",
    ],
)
def test_a_wrong_token_is_unauthorized(call: Call, header: bytes) -> None:
    """No bytes of a token may cause a server error."""
    response = call("GET", "/api/audit/ops/scores", headers={b"authorization": header})
    assert response.status_code == 401
    assert set(response.json()) == {"error", "code"}


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "Authorization: Bearer dl_…"),
        ([b"Basic dXNlcjpwYXNz"], "no other scheme"),
        ([b"Bearer dl_wrong"], "wrong, expired or revoked"),
        ([b"Bearer a", b"Bearer b"], "Authorization: must be given once"),
    ],
)
def test_the_refusal_names_the_required_token(call: Call, headers: list[bytes], words: str) -> None:
    """A client that sends a password must learn that a token is required."""
    response = call("GET", "/api/audit/ops/scores", headers=[(b"authorization", value) for value in headers])
    assert response.status_code == 401
    assert words in response.json()["error"]


def test_a_token_with_one_wrong_character_is_wrong(call: Call, tokens: Tokens) -> None:
    """The prefix only identifies the token; the secret must match."""
    wrong = tokens.root[:-1] + ("A" if tokens.root[-1] != "A" else "B")
    assert call("GET", "/api/audit/ops/scores", wrong).status_code == 401


def test_two_tokens_are_refused(call: Call, tokens: Tokens) -> None:
    """Proxies disagree about which of two headers counts."""
    headers = [("authorization", f"Bearer {tokens.root}"), ("authorization", "Bearer other")]
    assert call("GET", "/api/audit/ops/scores", headers=httpx2.Headers(headers)).status_code == 401


def test_a_token_in_the_address_is_ignored(call: Call, tokens: Tokens) -> None:
    """Addresses end up in logs and histories."""
    assert call("GET", f"/api/audit/ops/scores?token={tokens.root}&access_token={tokens.root}").status_code == 401


def test_a_revoked_token_is_refused_at_once(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Revocation takes effect immediately, despite caching."""
    assert call("GET", "/api/audit/ops/scores", tokens.root).status_code == 200
    access.revoke("operator", "root")
    assert call("GET", "/api/audit/ops/scores", tokens.root).status_code == 401


@pytest.mark.parametrize("what", ["scores", "anomalies", "summary", "banner"])
def test_a_connection_cannot_read(call: Call, tokens: Tokens, what: str) -> None:
    """A connection's token is stored on the audited agent's machine."""
    response = call("GET", f"/api/audit/ops/{what}", tokens.ops)
    assert response.status_code == 403
    assert response.json()["code"] == "operator_token_required"


@pytest.mark.parametrize("path", ["ingest", "events"])
def test_an_operator_cannot_deliver_records(call: Call, tokens: Tokens, exchange_body: BodyBuilder, path: str) -> None:
    """An operator's token names no connection to file records under."""
    body = exchange_body() | {"events": [{}], "first_seq": 0}
    response = call("POST", f"/api/audit/{path}", tokens.root, json=body)
    assert response.status_code == 403
    assert response.json()["code"] == "connection_token_required"


def test_too_many_failures_are_throttled(call: Call, tokens: Tokens) -> None:
    """Failures are counted by address, but a valid token is always accepted, so that nobody can lock out others."""
    answers = [call("GET", "/api/audit/ops/scores", "dl_wrong").status_code for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    refused = call("GET", "/api/audit/ops/scores", "dl_wrong")
    assert 1 <= int(refused.headers["retry-after"]) <= FAILURE_WINDOW + 1
    assert call("GET", "/api/audit/ops/scores", "dl_wrong", address="203.0.113.10").status_code == 401
    assert call("GET", "/api/audit/ops/scores", tokens.root).status_code == 200


def test_addresses_of_one_ipv6_network_are_one_client(call: Call) -> None:
    """A client can use all 2^64 addresses of its IPv6 network."""
    addresses = [f"2001:db8::{number:x}" for number in range(11)]
    answers = [call("GET", "/api/audit/ops/scores", "dl_wrong", address=address).status_code for address in addresses]
    assert answers == [401] * 10 + [429]


def test_failures_are_forgotten_after_a_minute() -> None:
    """A corrected setting must work again after a minute."""
    now = [100.0]
    failures = Failures(2, lambda: now[0])
    assert [failures.count("a") for _ in range(4)] == [0, 0, 61, 61]
    now[0] += 30.5
    assert failures.count("a") == 30
    now[0] += 30
    assert failures.count("a") == 0


def test_the_memory_for_failures_is_bounded() -> None:
    """An attacker can choose addresses, so memory must be bounded."""
    failures = Failures(1)
    for number in range(10_050):
        failures.count(str(number))
    assert len(failures._counts) == 10_000


class TestWithoutPatience:
    """A server that allows no failed attempt."""

    @pytest.fixture
    def settings(self) -> ApiSettings:
        """Return settings with a limit of zero."""
        return ApiSettings(max_failures=0)

    def test_the_limit_is_a_setting(self, call: Call) -> None:
        """The limit follows the setting."""
        assert call("GET", "/api/audit/ops/scores", "dl_wrong").status_code == 429
