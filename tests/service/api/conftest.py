"""An application over a real engine, called in one event loop; and the same behind a real server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from analytics.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from service.access import AccessStore, Holder
from service.api.app import create_app
from service.api.serving import bound_socket, server_of
from service.api.settings import ApiSettings
from streams.engine import Engine

NOW = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
POLICY = {"projects": {"dark": {"enabled": False}, "capped": {"costCapPerSession": 0}}}
Call = Callable[..., httpx.Response]


class Tokens:
    """The tokens of a test: connections north (ops), south (web), off (dark); operators everywhere and in ops alone."""

    def __init__(self, access: AccessStore) -> None:
        self.ops = access.add(Holder("connection", "north", "ops"))
        self.web = access.add(Holder("connection", "south", "web", "south-agent"))
        self.dark = access.add(Holder("connection", "off", "dark"))
        self.capped = access.add(Holder("connection", "poor", "capped"))
        self.root = access.add(Holder("operator", "root", None))
        self.ops_reader = access.add(Holder("operator", "reader", "ops"))


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a store has just made."""
    path = tmp_path_factory.mktemp("empty") / "fleet.duckdb"
    Store(path).close()
    return path


@pytest.fixture
def store(empty_file: Path, tmp_path: Path) -> Iterator[Store]:
    """An empty store. Its file is a copy, because making the tables takes longer than most tests."""
    with Store(Path(shutil.copy(empty_file, tmp_path / "fleet.duckdb"))) as opened:
        yield opened


@pytest.fixture
def access(tmp_path: Path) -> Iterator[AccessStore]:
    """An empty file of tokens."""
    with AccessStore(tmp_path / "fleet.access", lambda: NOW) as opened:
        yield opened


@pytest.fixture
def tokens(access: AccessStore) -> Tokens:
    """A token of every sort."""
    return Tokens(access)


@pytest.fixture
def settings() -> ApiSettings:
    """Every default; a test overrides it with its own limits."""
    return ApiSettings()


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """The event loop of a test."""
    with asyncio.Runner() as runner:
        yield runner


def engine_of(store: Store) -> Engine:
    """An engine without a judge, at a fixed time."""
    policy = Policy.model_validate(POLICY)
    return Engine(store, policy, Redactor(policy.redaction), lambda: NOW)


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner) -> Iterator[Engine]:
    """A started engine."""
    started = engine_of(store)
    loop.run(started.start())
    yield started
    loop.run(started.stop())


@pytest.fixture
def app(engine: Engine, access: AccessStore, settings: ApiSettings) -> FastAPI:
    """The application."""
    return create_app(engine, access, settings)


@pytest.fixture
def call(app: FastAPI, loop: asyncio.Runner) -> Call:
    """Calls the application: `call("GET", path, token, json=…)`; `address` is where the call comes from."""

    def made(
        method: str, path: str, token: str | None = None, *, address: str = "203.0.113.9", **request: Any
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=True, client=(address, 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8321") as client:
                headers = httpx.Headers(request.pop("headers", {}))
                if token:
                    headers["authorization"] = f"Bearer {token}"
                return await client.request(method, path, headers=headers, **request)

        return loop.run(send())

    return made


@pytest.fixture
def exchange_body() -> Callable[..., dict[str, Any]]:
    """Builds the body of an ingest; what is said replaces what is neutral."""

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


class LiveServer:
    """A real server on a free port, in a thread with its own event loop and engine."""

    def __init__(self, store: Store, access: AccessStore, settings: ApiSettings) -> None:
        self._parts = store, access, settings
        self._socket = bound_socket("127.0.0.1", 0)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(20), self._failure

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self) -> socket.socket:
        """A connection of its own."""
        return socket.create_connection(self.address, timeout=15)

    def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
        assert self._failure is None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told by the test
            self._failure = error

    async def _serve(self) -> None:
        store, access, settings = self._parts
        engine = engine_of(store)
        await engine.start()
        self._server = server_of(create_app(engine, access, settings), *self.address)
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._started.set()
        await serving
        await engine.stop()


@pytest.fixture
def server(store: Store, access: AccessStore, settings: ApiSettings) -> Iterator[LiveServer]:
    """A running server."""
    live = LiveServer(store, access, settings)
    yield live
    live.stop()
