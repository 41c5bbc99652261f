"""The listener for OTLP over gRPC: opened if configured, which needs gRPC to be installed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from schemas.errors import SettingsError
from service.setup.settings import Settings
from service.web.context import ApiContext

if TYPE_CHECKING:
    from service.http.otlp.grpc_server import Receiver

STOP_SECONDS = 5.0
"""Seconds that calls in progress have to finish."""


class Listener:
    """A bound address for OTLP over gRPC; calls are answered within `taking`."""

    def __init__(self, receiver: Receiver, address: str) -> None:
        self._receiver = receiver
        self.address = address
        """Host and port for exporters."""

    @contextlib.asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Accept calls while the context is open."""
        await self._receiver.start()
        try:
            yield
        finally:
            await self._receiver.stop(STOP_SECONDS)


def listen(settings: Settings, services: ApiContext) -> Listener | None:
    """Bind the address; None if it is not configured. SettingsError if gRPC is not installed or the address is in use."""
    if settings.otlp_grpc_port is None:
        return None
    try:
        from service.http.otlp.grpc_server import Receiver  # noqa: PLC0415 - most installations have no gRPC
    except ImportError as error:
        words = "DRIFTLINE_OTLP_GRPC_PORT: OTLP over gRPC needs grpcio, which is not installed"
        raise SettingsError(
            words, hint="pip install 'driftline[grpc]', or send OTLP over HTTP to the server's own port."
        ) from error
    receiver = Receiver(services)
    host = settings.host
    try:
        port = receiver.listen(host, settings.otlp_grpc_port)
    except RuntimeError as error:
        words = f"DRIFTLINE_OTLP_GRPC_PORT: {host}:{settings.otlp_grpc_port} cannot be had"
        raise SettingsError(words, hint="Stop what listens there, or give another port.") from error
    return Listener(receiver, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
