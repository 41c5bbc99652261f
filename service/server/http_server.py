"""Serving an application over HTTP/1.1 with uvicorn, within limits that uvicorn leaves to its users."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import httptools
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.web.bounds import ApiSettings
from service.web.context import ApiContext

try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

Result = TypeVar("Result")
MAX_CONNECTIONS = 512
MAX_HEAD = 16 * 1024
"""Bytes of a request's line and headers."""
KEEP_ALIVE = 15
"""Seconds for which an idle connection is kept."""
LEAVING_SECONDS = 1.0
"""Seconds for which a server that ends still waits for a request that may be on its way over a connection it has taken."""


class _BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with heads of at most `MAX_HEAD` bytes, for each of which a connection has `read_timeout` seconds.

    uvicorn alone waits for ever for the head of a request that has begun, or for a first request, and takes heads of any size.
    """

    read_timeout: ClassVar[float]
    _head_timer: asyncio.TimerHandle | None = None
    _awaits_head = True
    """Whether the head of a request has begun, or the first one is awaited."""
    _head_size = 0
    """Bytes of a head that has begun in an earlier part."""
    _heads = 0
    """Heads that have begun."""
    _is_idle = False
    """Whether the last request has come whole and the next one has not begun."""
    _is_leaving = False
    """Whether the server ends, so that a request that still comes is the last one."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        heads, was_idle = self._heads, self._is_idle
        if self._awaits_head:
            self._head_size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            self._stop_waiting()
        elif self._awaits_head and self._head_size > MAX_HEAD:
            self.send_400_response("The head of the request is too large.")
        elif self._awaits_head or (was_idle and heads == self._heads):
            # Line breaks begin no request, but they have ended the waiting for an idle connection.
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heads += 1
        self._awaits_head, self._head_size, self._is_idle = True, 0, False

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            raise httptools.HttpParserError("the head of the request is too large")
        self._awaits_head = False
        self._stop_waiting()
        super().on_headers_complete()
        if self.cycle is not None and self._is_leaving:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_idle = True

    def shutdown(self) -> None:
        # uvicorn closes a connection whose first request has not been read yet, and its caller would have no answer.
        if not self._awaits_head:
            super().shutdown()
            return
        self._is_leaving = True
        self.loop.call_later(LEAVING_SECONDS, super().shutdown)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.read_timeout, self._give_up)

    def _give_up(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            # Nothing more is read before the answer of an earlier request is out.
            self._await_head()

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def run(serving: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end in an event loop and return the result: uvloop's, where there is one for the platform."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serving)


def server_of(app: FastAPI, host: str, port: int) -> uvicorn.Server:
    """Build a server for the application that logs no requests of its own and does not identify itself."""
    context: ApiContext = app.state.context
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_protocol(context.settings),
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
    return uvicorn.Server(config)


def _protocol(settings: ApiSettings) -> type[_BoundedProtocol]:
    return type("Protocol", (_BoundedProtocol,), {"read_timeout": settings.read_timeout})
