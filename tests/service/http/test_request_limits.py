"""The limits of requests before their body is parsed, and the headers of every answer."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from support.api_server import BodyBuilder, Call, Tokens

from service.web.bounds import ApiSettings
from service.web.middleware import BodyLimits, ConcurrencyLimit, parse_host
from streams.engine.engine import Engine

INGEST = "/api/audit/ingest"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"localhost", "localhost"),
        (b"LocalHost:8321", "localhost"),
        (b"localhost.", "localhost"),
        (b"127.0.0.1:1", "127.0.0.1"),
        (b"[::1]:8321", "::1"),
        (b"[::1]", "::1"),
        (b"::1", ""),
        (b"localhost:", "localhost"),
        (b"localhost:x", ""),
        (b"localhost@evil.example", "localhost@evil.example"),
        (b"[::1]evil.example", ""),
        (b"\xff", "ÿ"),
        (b"", ""),
    ],
)
def test_a_host_is_a_name_with_a_port(value: bytes, name: str) -> None:
    """Host names that only resemble an allowed one are refused."""
    assert parse_host(value) == name


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8321", "10.0.0.7", ""])
def test_a_foreign_host_name_is_refused(call: Call, tokens: Tokens, host: str) -> None:
    """A foreign site could point its own name at this server, so that its scripts could read answers."""
    response = call("GET", "/api/audit/ops/scores", tokens.root, headers={"host": host})
    assert response.status_code == 400
    assert response.json()["code"] == "host_not_allowed"
    assert "`driftline serve --name HOST`" in response.json()["error"]
    assert call("GET", "/docs", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_may_use_an_ip_address(call: Call, path: str) -> None:
    """The answer reveals only that the server is up."""
    assert call("GET", path, headers={"host": "10.0.0.7:8321"}).status_code == 200


def test_every_answer_disables_content_sniffing(call: Call, tokens: Tokens) -> None:
    """This includes errors and missing pages."""
    answers = [
        call("GET", "/healthz"),
        call("GET", "/nowhere"),
        call("GET", "/api/audit/ops/scores"),
        call("GET", "/api/audit/ops/scores", tokens.root),
        call("GET", "/healthz", headers={"host": "evil.example"}),
        call("DELETE", "/healthz", headers={"content-type": "application/json"}),
    ]
    for response in answers:
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert response.headers["cache-control"] in {"no-store", "private, no-cache"}
        assert len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/static/nothing", 404, "not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/healthz/", 404, "not_found"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", INGEST, 405, "method_not_allowed"),
        ("TRACE", "/healthz", 405, "method_not_allowed"),
        ("POST", "/api/audit/ops/scores/1/2/3", 404, "not_found"),
    ],
)
def test_errors_have_one_form(call: Call, tokens: Tokens, *, method: str, path: str, status: int, code: str) -> None:
    """Programs read the code, people the message."""
    response = call(method, path, tokens.root, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.json()["code"] == code
    assert set(response.json()) == {"error", "code"}


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/nowhere", "this path does not exist"),
        ("GET", INGEST, "GET is not allowed here"),
        ("POST", "/healthz", "POST is not allowed here"),
        ("X-MADE-UP", "/healthz", "this method is not allowed here"),
    ],
)
def test_a_missing_path_or_method_is_explained(call: Call, tokens: Tokens, *, method: str, path: str, words: str) -> None:
    """The Allow header lists the methods, and the answer does not repeat an unknown one."""
    response = call(method, path, tokens.root, headers={"content-type": "application/json"})
    assert response.json()["error"] == words
    assert (response.status_code == 405) == ("allow" in response.headers)


def test_an_internal_error_reveals_nothing_and_is_logged(
    call: Call,
    tokens: Tokens,
    exchange_body: BodyBuilder,
    *,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The id in the answer is the one in the log."""

    async def broken(_: Any) -> Any:
        raise ValueError("secret path")

    monkeypatch.setattr(engine, "ingest_exchange", broken)
    with caplog.at_level(logging.INFO):
        response = call("POST", INGEST, tokens.ops, json=exchange_body())
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    request_id = response.headers["x-request-id"]
    assert request_id in response.json()["error"]
    [fault] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert fault.request_id == request_id
    assert fault.route == INGEST
    assert "secret path" in str(fault.exc_info)


def test_a_request_is_logged_without_its_query(call: Call, tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    """More people read the log than the data."""
    with caplog.at_level(logging.INFO, logger="service.web"):
        call("GET", "/api/audit/ops/scores?limit=7", tokens.root)
        call("GET", f"/nowhere/{tokens.root}")
        call("GET", f"/api/audit/{tokens.root}/scores", tokens.root)
    first, second, third = [record for record in caplog.records if record.message == "request"]
    assert first.method == "GET"
    assert first.route == "/api/audit/{project}/scores"
    assert first.status == 200
    assert first.operator == "root"
    assert second.route == "-"
    assert second.status == 404
    assert third.route == "/api/audit/{project}/scores"
    for record in (first, second, third):
        assert 0 <= record.ms < 60_000
        assert tokens.root.split("_", 2)[2] not in json.dumps(vars(record), default=str)


def scope_of(method: str, **headers: str) -> dict[str, Any]:
    """Return the scope of a request to the ingest."""
    return {
        "type": "http",
        "method": method,
        "path": INGEST,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


def test_a_request_over_the_limit_is_told_to_retry() -> None:
    """Requests in progress are bounded, and further ones are asked to retry."""

    async def scenario() -> list[dict[str, Any]]:
        release, messages = asyncio.Event(), []

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            del scope, receive, send
            await release.wait()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        bounded = ConcurrencyLimit(slow, 2)
        working = [asyncio.create_task(bounded(scope_of("POST"), receive, send)) for _ in range(2)]
        await asyncio.sleep(0)
        await bounded(scope_of("POST"), receive, send)
        release.set()
        await asyncio.gather(*working)
        before = len(messages)
        await bounded(scope_of("POST"), receive, send)
        assert len(messages) == before
        return messages

    start, body, _ = asyncio.run(scenario())
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert set(json.loads(body["body"])) == {"error", "code"}


@pytest.mark.parametrize("length", ["999999999", "9" * 5000])
def test_a_body_with_a_declared_length_over_the_limit_is_not_read(length: str) -> None:
    """The declared length suffices to refuse it."""
    messages: list[dict[str, Any]] = []
    gone = [{"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        assert messages, "the body was read before the answer"
        return gone[0]

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    async def never(*_: Any) -> None:
        pytest.fail("the endpoint was called")

    scope = scope_of("POST", content_type="application/json", content_length=length)
    asyncio.run(BodyLimits(never, ApiSettings())(scope, receive, send))
    assert messages[0]["status"] == 413
    assert (b"connection", b"close") in messages[0]["headers"]


def test_the_interface_description_is_correct(app: FastAPI) -> None:
    """Clients are generated from it: statuses, errors and tokens must match, without impossible answers."""
    description = app.openapi()
    text = json.dumps(description)
    assert "422" not in text
    assert "HTTPValidationError" not in text
    ingest = description["paths"][INGEST]["post"]
    assert {"200", "201", "400", "401", "403", "408", "409", "413", "415", "429", "500", "503"} <= set(ingest["responses"])
    assert ingest["security"] == [{"connectionToken": []}]
    assert ingest["responses"]["400"]["content"]["application/json"]["schema"]["required"] == ["error", "code"]
    schemas = description["components"]["schemas"]
    assert schemas["IngestBody"]["examples"]
    assert set(schemas["ScoredExchange"]["properties"]) == {
        "exchangeId",
        "scoreId",
        "scored",
        "reason",
        "tier1",
        "anomaly",
        "duplicate",
        "project",
        "note",
    }
    assert description["paths"]["/api/audit/{project}/scores"]["get"]["security"] == [{"operatorToken": ["read"]}]


def test_the_example_of_the_description_is_accepted(app: FastAPI, call: Call, tokens: Tokens) -> None:
    """The example must be accepted as it is."""
    [example] = app.openapi()["components"]["schemas"]["IngestBody"]["examples"]
    assert call("POST", INGEST, tokens.ops, json=example).status_code == 201
    [example] = app.openapi()["components"]["schemas"]["EventsBody"]["examples"]
    assert call("POST", "/api/audit/events", tokens.ops, json=example).json()["accepted"] == 1


def test_the_documentation_page_needs_no_internet(call: Call) -> None:
    """Every resource is served here, and its policy allows nothing else."""
    page = call("GET", "/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "//" not in page.text.replace("<!DOCTYPE html>", "")
    assert "<script>" not in page.text
    for name, kind in {
        "swagger-ui-bundle.js": "text/javascript",
        "swagger-ui.css": "text/css",
        "favicon.png": "image/png",
        "start.js": "text/javascript",
    }.items():
        assert f"/docs/{name}" in page.text
        response = call("GET", f"/docs/{name}")
        assert response.status_code == 200
        assert response.headers["content-type"].split(";")[0] == kind
    assert "/openapi.json" in call("GET", "/docs/start.js").text
    assert call("GET", "/openapi.json").json()["openapi"][:2] == "3."


@pytest.mark.parametrize("name", ["__init__.py", "..%2Fcore.py", "redoc.standalone.js", "%2e%2e%2fcore.py"])
def test_the_documentation_page_serves_only_its_files(call: Call, name: str) -> None:
    """A file name is looked up, and never joined to a path."""
    assert call("GET", f"/docs/{name}").status_code == 404


class TestBehindAName:
    """A server with its own host name."""

    @pytest.fixture
    def settings(self) -> ApiSettings:
        """One allowed name."""
        return ApiSettings(allowed_hosts=frozenset({"Audit.Example"}))

    def test_only_allowed_names_are_answered(self, call: Call) -> None:
        """The loopback names are a default, no addition."""
        assert call("GET", "/docs", headers={"host": "audit.example:443"}).status_code == 200
        assert call("GET", "/docs", headers={"host": "localhost"}).status_code == 400


def test_duplicate_headers_are_refused(call: Call, tokens: Tokens) -> None:
    """Proxies disagree about which of the two counts."""
    headers = httpx2.Headers([("content-type", "application/json"), ("content-type", "text/plain")])
    assert call("POST", INGEST, tokens.ops, content=b"{}", headers=headers).status_code == 415
