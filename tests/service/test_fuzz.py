"""Every endpoint is sent what its description allows and what it forbids, and keeps to that description: no fault of the server.

What is sent is drawn from the OpenAPI document that the running server hands out. So that more is reached than refusals, every
second request names things that are there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi import checks
from support.clients import bearer, exchange_body
from support.effort import times
from support.servers import LONG, PATIENCE, Home, Nursery, nursery, until

EXAMPLES = times(2, soak=20)
"""Requests of each endpoint and mode; they are the same each time, however fast the machine."""
DESTRUCTIVE = ("retention", "erasure", "revoke")
"""What ends the things that others name comes last."""
MAX_ADDRESS_BYTES = 2000
"""Characters of what goes into an address; the server ends the connection of one whose head is over 16 KiB."""
MOST_TOLD = 1500
"""Characters of a problem that are told."""
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
EVENTS = [{"event": "tool_call", "tool": "exec", "args": {"command": "ls"}, "timestamp": "2026-10-01T09:00:00Z"}]


@dataclass
class Target:
    """A running server with something in it."""

    url: str
    tokens: dict[str, str]
    """By the name of the security scheme."""
    known: dict[str, Any]
    """Values of parameters that name things that are there."""
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def nursed() -> Iterator[Nursery]:
    """What starts servers."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def target(tmp_path: Path, nursed: Nursery) -> Target:
    """A server with two projects, a score, a run, and a connection to rotate."""
    home = Home(tmp_path)
    tokens = {"connectionToken": home.connection("north"), "operatorToken": home.operator()}
    home.connection("spare", "web")
    url = nursed.serve(home).serving()
    with httpx2.Client(base_url=f"{url}/api/audit", timeout=PATIENCE) as client:
        deliver, read = bearer(tokens["connectionToken"]), bearer(tokens["operatorToken"])
        for turn in range(1, 7):
            client.post("ingest", json=exchange_body("s", turn, "It is done." if turn % 2 else ""), headers=deliver)
        client.post("events", json={"session_id": "s", "first_seq": 0, "events": EVENTS}, headers=deliver)
        client.post("sessions/s/finalize", headers=deliver)
        until(lambda: bool(client.get("ops/runs", headers=read).json()["runs"]), "a run")
        until(lambda: client.get("ops/scores", headers=read).json()["count"] == 6, "every score")
        statement = {"sql": "SELECT 1 AS one"}
        until(lambda: client.post("query", json=statement, headers=read).is_success, "the first snapshot for analysts", LONG)
        score = client.get("ops/scores", headers=read).json()["scores"][0]
    known = {
        "project": "ops",
        "score_id": score["id"],
        "exchange_id": score["exchangeId"],
        "session_id": "s",
        "run_id": "run_001",
        "name": "spare",
    }
    return Target(url, tokens, known)


@pytest.mark.slow
def test_every_endpoint_conforms_to_its_description(target: Target) -> None:
    """Clients are generated from the description."""
    schema = schemathesis.openapi.from_url(f"{target.url}/openapi.json")
    schema.config.generation.update(with_security_parameters=False)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == sum(len(methods) for methods in schema.raw_schema["paths"].values())
    operations.sort(key=lambda operation: any(word in operation.path for word in DESTRUCTIVE))
    for operation, mode in itertools.product(operations, MODES):
        _fuzz(target, operation, mode)
    assert target.problems == []
    assert target.statuses.keys() >= {200, 201, 400, 404}
    assert target.statuses.keys().isdisjoint({401, 429})
    assert EXAMPLES * len(operations) < target.statuses.total()
    assert httpx2.get(f"{target.url}/readyz", timeout=60).status_code == 200


def _fuzz(target: Target, operation: Any, mode: schemathesis.GenerationMode) -> None:
    """Send what is drawn for an endpoint, so many times."""
    numbers = itertools.count()

    @seed(1)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(mode))
    def ask(case: Any) -> None:
        if next(numbers) % 2 and mode is schemathesis.GenerationMode.POSITIVE:
            there = {name: target.known[name] for name in case.path_parameters or {} if name in target.known}
            case.path_parameters = {**(case.path_parameters or {}), **there}
        _ask(target, operation, case)

    try:
        ask()
    except Unsatisfiable:
        pass  # what takes nothing can be asked nothing wrong
    except Exception as error:  # noqa: BLE001 - every endpoint is asked, and all that is wrong is told at the end
        target.problems.append(f"{operation.label} ({mode}): {str(error)[:MOST_TOLD]}")


def _ask(target: Target, operation: Any, case: Any) -> None:
    if len(str(case.query)) + len(str(case.path_parameters)) > MAX_ADDRESS_BYTES:
        return
    response = case.call(base_url=target.url, headers=_headers(target, operation), timeout=PATIENCE)
    target.statuses[response.status_code] += 1
    case.validate_response(response, checks=CHECKS)


def _headers(target: Target, operation: Any) -> dict[str, str]:
    """The header that opens an endpoint, by what its description says of tokens."""
    schemes = [name for one in operation.definition.raw.get("security", []) for name in one]
    return bearer(target.tokens[schemes[-1]]) if schemes else {}
