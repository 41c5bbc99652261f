"""What tests of the HTTP API share: tokens of every sort, an engine at a fixed time, a real server in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
from fastapi import FastAPI
from starlette.routing import BaseRoute
from support.servers import LONG

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from service.read.queries.protocol import QueryLimits
from service.server.app import ROUTERS, create_app
from service.server.server_lifecycle import build_http_server, listen
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine
from streams.engine.record_intake import RecordIntake
from streams.judges.protocol import Judge
from streams.judging.judged_stages import JUDGED, JudgedStage

NOW = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
POLICY = {
    "defaults": {"wrapQualityScoring": True},
    "projects": {"dark": {"enabled": False}, "capped": {"costCapPerSession": 0}},
}
PATIENT = QueryLimits(seconds=LONG, patience=LONG, first_patience=LONG)
"""Bounds of analysts' statements that none reaches, on a machine however busy."""
Call = Callable[..., httpx2.Response]
BodyBuilder = Callable[..., dict[str, Any]]


class Tokens:
    """The tokens of a test: connections north (ops), south (web), off (dark); operators everywhere and in ops alone."""

    def __init__(self, access: AccessStore) -> None:
        self.ops = access.add(Holder("connection", "north", "ops"))
        self.web = access.add(Holder("connection", "south", "web", "south-agent"))
        self.dark = access.add(Holder("connection", "off", "dark"))
        self.capped = access.add(Holder("connection", "poor", "capped"))
        self.root = access.add(Holder("operator", "root", None))
        self.ops_reader = access.add(Holder("operator", "reader", "ops"))


def engine_of(store: Store, judge: Judge | None = None, stages: Sequence[JudgedStage[Any]] = JUDGED) -> Engine:
    """Return an engine at a fixed time, without a judge unless one is given."""
    policy = Policy.model_validate(POLICY)
    return Engine(store, policy, Redactor(policy.redaction), lambda: NOW, judge=judge, stages=stages)


_prepared: list[BaseRoute] = []


def app_over(engine: RecordIntake, access: AccessStore, settings: ApiSettings) -> FastAPI:
    """Return the application. All applications of a process share the routes of the first one.

    FastAPI prepares all endpoints with the first request to an application, which takes longer than most tests.
    """
    app = create_app(engine, access, settings)
    if not _prepared:
        _prepared.extend(app.router.routes[-len(ROUTERS) :])
    app.router.routes[-len(ROUTERS) :] = _prepared
    return app


class LiveServer:
    """A real server on a free port, in a thread with its own event loop and engine."""

    def __init__(
        self, store: Store, access: AccessStore, settings: ApiSettings, make: Callable[[Store], Engine] = engine_of
    ) -> None:
        self._parts = store, access, settings
        self._make = make
        self._socket = listen("127.0.0.1", 0)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._started = threading.Event()
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(LONG), self._failure

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self) -> socket.socket:
        """Open a new connection to the server."""
        return socket.create_connection(self.address, timeout=60)

    @property
    def connections(self) -> int:
        """Return the number of connections accepted so far."""
        return len(self._server.server_state.connections)

    def begin_to_end(self) -> None:
        """Start the shutdown; return once the server accepts no more connections and has announced the end to the open ones."""
        self._server.should_exit = True
        assert self._ending.wait(LONG)

    def stop(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._thread.join(LONG)
        self._socket.close()
        assert self._failure is None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told by the test
            self._failure = error

    async def _serve(self) -> None:
        store, access, settings = self._parts
        engine = self._make(store)
        await engine.start()
        self.app = app_over(engine, access, settings)
        self._server = build_http_server(self.app, settings, *self.address)
        start = self._server.startup

        async def started(sockets: list[socket.socket] | None = None) -> None:
            await start(sockets=sockets)
            self._started.set()

        shutdown = self._server.shutdown

        async def ending(sockets: list[socket.socket] | None = None) -> None:
            shutdown_task = asyncio.create_task(shutdown(sockets=sockets))
            await asyncio.sleep(0)
            self._ending.set()
            await shutdown_task

        self._server.startup, self._server.shutdown = started, ending  # type: ignore[method-assign]
        await self._server.serve(sockets=[self._socket])
        await self.app.state.query_pool.close()
        await engine.stop()
