"""Secrets that agents and senders let slip: planted everywhere, and afterwards in no file, log, prompt or answer of a real server."""

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

CHANCE = random.Random(20261103)
CONTROL = "harmless-words-beside-a-secret"
"""Stands beside each secret: where it is found, a secret would have been found."""


def drawn(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    """Letters drawn by lot, a digit and both cases among them."""
    return "aB3" + "".join(CHANCE.choices(letters, k=length - 3))


def urlsafe(text: str) -> str:
    """Base64 as tokens have it."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


PEM, SIGNATURE, HEADER, PASSWORD = drawn(64), drawn(43), drawn(40), drawn(20)
PLANTED = {
    "provider key": (f"sk-ant-api03-{(key := drawn(48))}", key),
    "private key": (f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n-----END RSA PRIVATE KEY-----", PEM),
    "token": (f"{urlsafe(json.dumps({'alg': 'HS256'}))}.{urlsafe(json.dumps({'sub': 'somebody'}))}.{SIGNATURE}", SIGNATURE),
    "header": (f"Authorization: Bearer {HEADER}", HEADER),
    "connection string": (f"postgres://app:{PASSWORD}@db.internal:5432/orders", PASSWORD),
}
"""Secrets as they are let slip, and the part of each that nobody may read."""
EVERYTHING = f"{CONTROL}\n" + "\n".join(secret for secret, _ in PLANTED.values())


@dataclass
class Traces:
    """All that a server left behind, by where it is."""

    places: dict[str, bytes] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)

    def note(self, place: str, content: bytes | str) -> None:
        """Add what was found at a place."""
        self.places[place] = self.places.get(place, b"") + (content.encode() if isinstance(content, str) else content)


def events() -> list[Mapping[str, Any]]:
    """Events that carry secrets: in texts, under telling names, in what nobody knows, and in what is refused."""
    at = "2026-10-01T09:00:00Z"
    return [
        {"event": "tool_call", "tool": "exec", "args": {"command": EVERYTHING}, "timestamp": at},
        {"event": "tool_result", "tool": "exec", "result": {"text": EVERYTHING, "password": PASSWORD}, "timestamp": at},
        {"event": "something_else", "headers": {"authorization": f"Bearer {HEADER}"}, "note": EVERYTHING, "timestamp": at},
        {"event": "error", "error": EVERYTHING, "timestamp": at},
        {"event": "tool_call", "args": EVERYTHING, "timestamp": "no time at all: " + EVERYTHING},
        EVERYTHING,  # type: ignore[list-item] - no event at all
    ]


def exchanges() -> Iterator[dict[str, Any]]:
    """Exchanges with secrets in what was said, thought and named; the last ones are refused."""
    for turn in range(1, 4):
        body = exchange_body(
            "s", turn, f"It is in {EVERYTHING}", thinking=f"They want {EVERYTHING}", model=f"m {PLANTED['provider key'][0]}"
        )
        body["exchange"]["user_message"]["content"] = f"Please keep {EVERYTHING}"
        yield body | {"agent": f"agent {PLANTED['provider key'][0]}"}
    wrong = exchange_body("s", 4, EVERYTHING)
    wrong["exchange"]["timestamp"] = EVERYTHING
    yield wrong
    yield {"session_id": ["s", EVERYTHING], "exchange": EVERYTHING}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """What a server left behind that was sent every secret, over every way in, and was read over every way out."""
    traces = Traces()
    with running() as judge, nursery() as children:
        folder = tmp_path_factory.mktemp("secrets")
        keys = {"ANTHROPIC_API_KEY": f"sk-ant-api03-{drawn(48)}", "DRIFTLINE_REDACTION_KEY": drawn(32)}
        home = Home(folder, ANTHROPIC_BASE_URL=judge.base_url, **keys)
        tokens = [home.connection("north"), home.operator()]
        traces.tokens = [*keys.values(), *(token.split("_", 2)[2] for token in tokens)]
        server = children.serve(home)
        url = server.serving()
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            for answer in calls(client, *tokens):
                traces.note("answers", answer.text + str(answer.headers))
            until(lambda: not waiting(url, tokens[1]), "everything to be judged")
            for path in ("scores", "anomalies", "summary", "banner"):
                traces.note("answers", client.get(f"/api/audit/ops/{path}", headers=bearer(tokens[1])).text)
            traces.note("answers", client.get("/metrics", headers=bearer(tokens[1])).text + client.get("/openapi.json").text)
        for file in files_of(folder):
            traces.note("files while it runs", file.read_bytes())
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        for file in files_of(folder):
            traces.note("files afterwards", file.read_bytes())
        traces.note("log", server.logged + server.printed)
        traces.note("prompts", b"\n".join(judge.received))
    with Store(home.database) as store:
        for (table,) in rows(store, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'log'"):
            traces.note("tables", repr(rows(store, f'FROM log."{table}"')))
    return traces


def files_of(folder: Path) -> list[Path]:
    """The files of a database: itself, its logs, and its tokens."""
    files = [file for one in folder.glob("fleet.*") for file in (one.rglob("*") if one.is_dir() else [one])]
    return [file for file in files if file.is_file()]  # not the socket


def calls(client: httpx2.Client, token: str, operator: str) -> Iterator[httpx2.Response]:
    """Send the secrets: in bodies that are taken and refused, in addresses, in tokens that are wrong."""
    for body in exchanges():
        yield client.post(INGEST, json=body, headers=bearer(token))
    yield client.post("/api/audit/events", json={"session_id": "s", "first_seq": 0, "events": events()}, headers=bearer(token))
    yield client.post(INGEST, content=EVERYTHING.encode(), headers=bearer(token) | {"content-type": "application/json"})
    yield client.post(f"{INGEST}?token={operator}", json={}, params={"key": PLANTED["provider key"][0]})
    yield client.get(f"/api/audit/{PLANTED['provider key'][0]}/scores", headers=bearer(operator))
    yield client.get("/api/audit/ops/scores", headers=bearer(HEADER))
    yield client.get("/api/audit/ops/scores", headers=bearer(token))
    yield client.post("/api/audit/sessions/s/finalize", json={}, headers=bearer(token))


def test_the_searched_places_contain_what_was_sent(traces: Traces) -> None:
    """An empty search result proves something only if there was data to search."""
    assert traces.places.keys() == {"answers", "files while it runs", "files afterwards", "log", "prompts", "tables"}
    assert all(CONTROL.encode() in traces.places[place] for place in ("files while it runs", "prompts", "tables"))
    assert b"[SECRET:" in traces.places["tables"]
    assert b'"route"' in traces.places["log"]


@pytest.mark.parametrize("kind", PLANTED)
def test_no_planted_secret_is_found_anywhere(traces: Traces, kind: str) -> None:
    """A secret of an agent must not be in its audit."""
    _, secret = PLANTED[kind]
    assert [place for place, content in traces.places.items() if secret.encode() in content] == []


def test_keys_and_tokens_are_found_nowhere(traces: Traces) -> None:
    """The server uses them, but its files, logs and answers must not contain them."""
    assert len(traces.tokens) == 4
    for secret in traces.tokens:
        assert [place for place, content in traces.places.items() if secret.encode() in content] == []
