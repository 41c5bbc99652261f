"""Serving an application over HTTP/1.1 with uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.web.context import ApiContext

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop does not exist for Windows
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

Result = TypeVar("Result")
MAX_CONNECTIONS = 512
"""Connections beyond which requests are answered 503."""
MAX_HEAD = 16 * 1024
"""Bytes of a request's head that may wait for its end."""
KEEP_ALIVE = 10
"""Seconds for which an idle connection is kept."""
LEAVING_SECONDS = 1.0
"""Seconds that a stopping server waits for the first request of an accepted connection."""


class HttpServer(uvicorn.Server):
    """uvicorn's server, which also ends connections that send no request, and waits for first requests when it stops.

    uvicorn closes a connection that is idle after an answer, but waits for ever for a first request and for the rest of a head, so
    slow senders could occupy all `MAX_CONNECTIONS`.
    """

    def __init__(self, config: uvicorn.Config, head_seconds: float) -> None:
        """`head_seconds` is the time limit for the head of a request on a connection."""
        super().__init__(config)
        self.head_seconds = head_seconds
        self._without_request: dict[H11Protocol, tuple[object, float]] = {}
        """The connections without a request in progress: their last request, and the time since when."""

    async def on_tick(self, counter: int) -> bool:
        """Close connections that have waited too long for a request. uvicorn calls this ten times a second."""
        now, before = asyncio.get_running_loop().time(), self._without_request
        self._without_request = {}
        for connection in self._connections():
            last = connection.cycle
            if last is not None and not last.response_complete:
                continue
            known, since = before.get(connection, (last, now))
            if known is not last:
                since = now
            self._without_request[connection] = last, since
            if now - since > self.head_seconds:
                connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, wait for the first requests of accepted ones, and stop as usual."""
        # uvicorn closes connections whose first request it has not read yet, and their callers would get no answer.
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LEAVING_SECONDS
        while loop.time() < ends_at and any(connection.cycle is None for connection in self._connections()):  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    def _connections(self) -> set[H11Protocol]:
        return cast("set[H11Protocol]", self.server_state.connections)


def run(serving: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end and return the result, on uvloop if the platform has it."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serving)


def server_of(app: FastAPI, host: str, port: int) -> HttpServer:
    """Build a server for the application, without uvicorn's request log and Server header."""
    context: ApiContext = app.state.context
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=30,
    )
    return HttpServer(config, context.settings.read_timeout)
