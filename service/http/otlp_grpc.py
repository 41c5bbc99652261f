"""OTLP over gRPC: the same spans and records as over HTTP, for exporters and Collectors that default to gRPC.

Only a server that is configured to listen imports this module, because gRPC is an extra that most installations lack.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from starlette.exceptions import HTTPException

from schemas.errors import BrokerError, BusyError, SettingsError
from service.http.routes.traces import Body, receive
from service.setup.access import Holder
from service.text.links import TRACES
from service.web.authentication import Failures, bearer_token, counted_address, explain_refusal
from service.web.bounds import BODY_LIMITS
from service.web.context import ApiContext

SERVICES: Mapping[str, str] = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
"""The services of OTLP by signal; each has the one method Export."""
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
}
STOP_SECONDS = 5.0
"""Seconds that calls in progress have to finish after a stop."""
log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[bytes, bytes]
Method = Callable[[bytes, Context], Awaitable[bytes]]


class Receiver:
    """The server, bound to an address; it belongs to the event loop that starts it."""

    def __init__(self, host: str, port: int, services: ApiContext) -> None:
        """Bind the address, with a free port for port 0. Raises SettingsError if it is not available."""
        self._services = services
        self._failures = Failures(services.settings.max_failures)
        limit = BODY_LIMITS[TRACES]
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=services.settings.max_in_flight,
            options=[("grpc.max_receive_message_length", limit), ("grpc.so_reuseport", 0)],
        )
        for signal, name in SERVICES.items():
            method: Any = grpc.unary_unary_rpc_method_handler(self._method(signal))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": method}),))

        bracketed = f"[{host}]" if ":" in host else host
        try:
            bound_port = self._server.add_insecure_port(f"{bracketed}:{port}")
        except RuntimeError as error:
            raise SettingsError(
                f"DRIFTLINE_OTLP_GRPC_PORT: {host}:{port} is not available",
                hint="Stop what listens there, or give another port.",
            ) from error
        self.address = f"{bracketed}:{bound_port}"
        """Host and port for exporters."""

    @contextlib.asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Accept calls while the context is open."""
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(STOP_SECONDS)

    def _method(self, signal: str) -> Method:
        async def export(body: bytes, context: Context) -> bytes:
            caller = await self._caller(context)
            try:
                answer = await receive(signal, Body(body), caller, self._services)
            except HTTPException as error:
                await context.abort(_CODES.get(error.status_code, grpc.StatusCode.INTERNAL), error.detail)
            except BusyError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            except BrokerError as error:
                log.warning("spans were refused: %s", error)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the log cannot take records at the moment")
            return bytes(answer.SerializeToString())

        return export

    async def _caller(self, context: Context) -> Holder:
        """Return the calling connection; abort a call without a valid token of a connection."""
        credentials = [_bytes(value) for name, value in context.invocation_metadata() or () if name == "authorization"]
        token = bearer_token(credentials)
        caller = self._services.access.find(token) if token else None
        if caller is None:
            await self._refuse(credentials, context)
        if caller.kind != "connection":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this needs the token of a connection")
        return caller

    async def _refuse(self, credentials: list[bytes], context: Context) -> NoReturn:
        wait = self._failures.count(_address(context.peer()))
        if wait:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"too many wrong tokens; wait {wait} s")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, explain_refusal(credentials))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _address(peer: str) -> str:
    """Extract the address from `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    return counted_address(unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]"))
