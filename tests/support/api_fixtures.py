"""An application over a real engine, called in one event loop; and the same behind a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pytest
from fastapi import FastAPI
from support.api_server import NOW, PATIENT, BodyBuilder, Call, LiveServer, Tokens, app_over, engine_of
from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here

from analytics.store.store import Store
from schemas.errors import DriftlineError
from service.setup.access import AccessStore
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine


@pytest.fixture
def access(tmp_path: Path) -> Iterator[AccessStore]:
    """Yield an empty file of tokens."""
    with AccessStore(tmp_path / "fleet.access", lambda: NOW) as opened:
        yield opened


@pytest.fixture
def tokens(access: AccessStore) -> Tokens:
    """Yield one token of every kind."""
    return Tokens(access)


@pytest.fixture
def settings() -> ApiSettings:
    """Return the default settings; a test overrides this fixture to set its own limits."""
    return ApiSettings(queries=PATIENT)


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """Yield the event loop of a test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner) -> Iterator[Engine]:
    """Yield a started engine."""
    started = engine_of(store)
    loop.run(started.start())
    yield started
    loop.run(started.stop())


@pytest.fixture
def app(engine: Engine, access: AccessStore, settings: ApiSettings, loop: asyncio.Runner) -> Iterator[FastAPI]:
    """Yield the application."""
    application = app_over(engine, access, settings)
    yield application
    # Pages begin a snapshot and do not wait for it. A loop that ends cancels the parts of starting a process one by one, and then
    # waits for that process for ever (asyncio's transport does not hear that it has ended).
    loop.run(application.state.query_pool.close())


@pytest.fixture
def call(app: FastAPI, loop: asyncio.Runner) -> Call:
    """Return a function that calls the application: `call("GET", path, token, json=…)`; `address` is the client's address."""

    def made(
        method: str, path: str, token: str | None = None, *, address: str = "203.0.113.9", **request: Any
    ) -> httpx2.Response:
        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(app, raise_app_exceptions=True, client=(address, 4711))
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8321") as client:
                headers = httpx2.Headers(request.pop("headers", {}))
                if token:
                    headers["authorization"] = f"Bearer {token}"
                response = await client.request(method, path, headers=headers, **request)
            # Tests look into the tables of this very process, which get the exchanges within half a second.
            with contextlib.suppress(DriftlineError, duckdb.Error):
                await app.state.context.engine.flush()
            return response

        return loop.run(send())

    return made


@pytest.fixture
def exchange_body() -> BodyBuilder:
    """Return a function that builds the body of an ingest request; its arguments override the neutral values."""

    def body(number: int = 1, response: str = "It is done.", session: str = "s1", **exchange: Any) -> dict[str, Any]:
        neutral = {
            "id": f"{session}:{number}",
            "timestamp": f"2026-10-01T09:{number % 60:02}:00Z",
            "turn_number": number,
            "user_message": {"content": "Is the backup healthy?"},
            "agent_response": {"content": response},
        }
        return {"session_id": session, "exchange": neutral | exchange}

    return body


@pytest.fixture
def server(store: Store, access: AccessStore, settings: ApiSettings) -> Iterator[LiveServer]:
    """Yield a running server."""
    live = LiveServer(store, access, settings)
    yield live
    live.stop()
