"""Secrets that agents and senders leak are in no file, log, prompt or response of a real server."""

from __future__ import annotations

import base64
import json
import random
import signal
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.clients import INGEST, bearer, exchange_body, waiting
from support.invariants import rows
from support.servers import PATIENCE, Home, nursery, until

from analytics.store.store import Store
from driftline_trial.simulator import running

RANDOM = random.Random(20261103)
HARMLESS_TEXT = "harmless-words-beside-a-secret"
"""Sent together with every secret: a place that contains it would also contain a secret that is not redacted."""
OBSERVED_AT = "2026-10-01T09:00:00Z"


@dataclass(frozen=True)
class LeakedSecret:
    """A secret in the text in which it leaks."""

    text: str
    secret: str
    """The part that nobody may read."""


@dataclass
class Traces:
    """Everything that a server left behind, by where it was found, and the server's own keys and tokens."""

    contents: dict[str, bytes] = field(default_factory=dict)
    credentials: list[str] = field(default_factory=list)

    def add(self, place: str, content: bytes) -> None:
        """Append content to that of a place."""
        self.contents[place] = self.contents.get(place, b"") + content

    def places_with(self, text: str) -> set[str]:
        """Return the places that contain a text."""
        return {place for place, content in self.contents.items() if text.encode() in content}


def generate_secret(length: int) -> str:
    """Return random letters and digits, at least one digit and both cases among them."""
    return "aB3" + "".join(RANDOM.choices(string.ascii_letters + string.digits, k=length - 3))


def encode_token_part(claims: Mapping[str, str]) -> str:
    """Return a part of a JSON Web Token: JSON in base64url without padding."""
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def leak_secrets() -> dict[str, LeakedSecret]:
    """Return a secret of each kind."""
    provider_key = generate_secret(48)
    private_key = generate_secret(64)
    signature = generate_secret(43)
    bearer_token = generate_secret(40)
    password = generate_secret(20)
    token_head = f"{encode_token_part({'alg': 'HS256'})}.{encode_token_part({'sub': 'somebody'})}"
    return {
        "provider key": LeakedSecret(f"sk-ant-api03-{provider_key}", provider_key),
        "private key": LeakedSecret(
            f"-----BEGIN RSA PRIVATE KEY-----\n{private_key}\n-----END RSA PRIVATE KEY-----", private_key
        ),
        "token": LeakedSecret(f"{token_head}.{signature}", signature),
        "header": LeakedSecret(f"Authorization: Bearer {bearer_token}", bearer_token),
        "connection string": LeakedSecret(f"postgres://app:{password}@db.internal:5432/orders", password),
    }


LEAKED = leak_secrets()
PROVIDER_KEY = LEAKED["provider key"].text
BEARER_TOKEN = LEAKED["header"].secret
PASSWORD = LEAKED["connection string"].secret
ALL_SECRETS = "\n".join([HARMLESS_TEXT, *(leaked.text for leaked in LEAKED.values())])


def build_events() -> list[Any]:
    """Return events with secrets in texts, in fields with sensitive names, in unknown fields, and in parts that are refused."""
    return [
        {"event": "tool_call", "tool": "exec", "args": {"command": ALL_SECRETS}, "timestamp": OBSERVED_AT},
        {
            "event": "tool_result",
            "tool": "exec",
            "result": {"text": ALL_SECRETS, "password": PASSWORD},
            "timestamp": OBSERVED_AT,
        },
        {
            "event": "something_else",
            "headers": {"authorization": f"Bearer {BEARER_TOKEN}"},
            "note": ALL_SECRETS,
            "timestamp": OBSERVED_AT,
        },
        {"event": "error", "error": ALL_SECRETS, "timestamp": OBSERVED_AT},
        {"event": "tool_call", "args": ALL_SECRETS, "timestamp": f"not a time: {ALL_SECRETS}"},
        ALL_SECRETS,
    ]


def build_exchanges() -> Iterator[dict[str, Any]]:
    """Yield exchanges with secrets in their texts, the model's thoughts and names. The last two are refused."""
    for turn in range(1, 4):
        body = exchange_body(
            "s", turn, f"It is in {ALL_SECRETS}", thinking=f"They want {ALL_SECRETS}", model=f"model {PROVIDER_KEY}"
        )
        body["exchange"]["user_message"]["content"] = f"Please keep {ALL_SECRETS}"
        yield body | {"agent": f"agent {PROVIDER_KEY}"}
    with_invalid_time = exchange_body("s", 4, ALL_SECRETS)
    with_invalid_time["exchange"]["timestamp"] = ALL_SECRETS
    yield with_invalid_time
    yield {"session_id": ["s", ALL_SECRETS], "exchange": ALL_SECRETS}


def send_secrets(client: httpx2.Client, token: str, operator: str) -> Iterator[httpx2.Response]:
    """Send the secrets in accepted and refused bodies, in addresses and as wrong tokens; yield the responses."""
    for body in build_exchanges():
        yield client.post(INGEST, json=body, headers=bearer(token))
    batch = {"session_id": "s", "first_seq": 0, "events": build_events()}
    yield client.post("/api/audit/events", json=batch, headers=bearer(token))
    yield client.post(INGEST, content=ALL_SECRETS.encode(), headers=bearer(token) | {"content-type": "application/json"})
    yield client.post(f"{INGEST}?token={operator}", json={}, params={"key": PROVIDER_KEY})
    yield client.get(f"/api/audit/{PROVIDER_KEY}/scores", headers=bearer(operator))
    yield client.get("/api/audit/ops/scores", headers=bearer(BEARER_TOKEN))
    yield client.get("/api/audit/ops/scores", headers=bearer(token))
    yield client.post("/api/audit/sessions/s/finalize", json={}, headers=bearer(token))


def read_everything(client: httpx2.Client, operator: str) -> Iterator[httpx2.Response]:
    """Yield what an operator can read about the exchanges and events."""
    for path in (
        "/api/audit/ops/scores",
        "/api/audit/ops/anomalies",
        "/api/audit/ops/summary",
        "/api/audit/ops/banner",
        "/metrics",
    ):
        yield client.get(path, headers=bearer(operator))
    yield client.get("/openapi.json")


def database_files(folder: Path) -> list[Path]:
    """Return the files of a database: its own, its logs and its tokens, without the socket."""
    return [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0].startswith("fleet.")]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """The traces of a server that was sent every secret and then read and stopped."""
    traces = Traces()
    with running() as judge, nursery() as children:
        folder = tmp_path_factory.mktemp("secrets")
        keys = {"ANTHROPIC_API_KEY": f"sk-ant-api03-{generate_secret(48)}", "DRIFTLINE_REDACTION_KEY": generate_secret(32)}
        home = Home(folder, ANTHROPIC_BASE_URL=judge.base_url, **keys)
        token = home.connection("north")
        operator = home.operator()
        traces.credentials = [*keys.values(), *(secret_of_token(issued) for issued in (token, operator))]
        server = children.serve(home)
        url = server.serving()
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            for response in send_secrets(client, token, operator):
                traces.add("responses", f"{response.text}{response.headers}".encode())
            until(lambda: not waiting(url, operator), "everything to be judged")
            for response in read_everything(client, operator):
                traces.add("responses", response.content)
        for file in database_files(folder):
            traces.add("files of the running server", file.read_bytes())
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        for file in database_files(folder):
            traces.add("files of the stopped server", file.read_bytes())
        traces.add("log", f"{server.logged}{server.printed}".encode())
        traces.add("prompts", b"\n".join(judge.received))
    with Store(home.database) as store:
        for (table,) in rows(store, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'log'"):
            traces.add("tables", repr(rows(store, f'FROM log."{table}"')).encode())
    return traces


def secret_of_token(token: str) -> str:
    """Return the last part of a token, such as `dl_5f1c6b_secret`. The other parts are not secret."""
    return token.split("_", 2)[2]


def test_the_searched_places_contain_what_was_sent(traces: Traces) -> None:
    """A search without a match proves something only if there was data to search."""
    assert traces.places_with(HARMLESS_TEXT) == {
        "responses",
        "files of the running server",
        "files of the stopped server",
        "prompts",
        "tables",
    }
    # The log contains no texts of requests, only their routes.
    assert b'"route"' in traces.contents["log"]
    assert b"[SECRET:" in traces.contents["tables"]


@pytest.mark.parametrize("kind", LEAKED)
def test_no_leaked_secret_is_found_anywhere(traces: Traces, kind: str) -> None:
    """A secret of an agent must not be in its audit."""
    assert traces.places_with(LEAKED[kind].secret) == set()


def test_keys_and_tokens_are_found_nowhere(traces: Traces) -> None:
    """The server uses them, but its files, logs and responses must not contain them."""
    assert len(traces.credentials) == 4
    for secret in traces.credentials:
        assert traces.places_with(secret) == set()
