"""Serving an application over HTTP/1.1 with uvicorn, within limits that uvicorn leaves to its users."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.http.bounds import ApiSettings
from service.http.context import ApiContext

MAX_CONNECTIONS = 512
MAX_HEAD = 16 * 1024
"""Bytes of a request's line and headers."""
KEEP_ALIVE = 15
"""Seconds for which an idle connection is kept."""


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
        h11_max_incomplete_event_size=MAX_HEAD,
    )
    return uvicorn.Server(config)


def _protocol(settings: ApiSettings) -> type[asyncio.Protocol]:
    """Return HTTP/1.1 that gives a connection `read_timeout` to send the head of a request."""

    class TimedProtocol(H11Protocol):
        """uvicorn waits for ever for the head of a request that has begun, or for a first request."""

        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._await_head()
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(settings.read_timeout, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return TimedProtocol
