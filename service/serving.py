"""Running the server: it listens before it works, and stops so that nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn

from schemas.errors import SettingsError
from service.access import AccessStore, access_file
from service.api.app import create_app
from service.api.serving import server_of
from service.api.settings import LOOPBACK_NAMES, ApiSettings
from service.judging import open_judge
from service.settings import Settings
from service.workspace import open_workspace
from streams.engine import Engine

GRACE_SECONDS = 20.0
"""What a stop waits for calls of clients, and again for exchanges that are being judged."""


Announce = Callable[[str, str], None]
"""Told the address of a started server, and who judges."""


def serve(settings: Settings, *, names: Sequence[str], expose: bool, announce: Announce) -> None:
    """Serve until a signal asks to stop; `announce` is called once calls are taken.

    SettingsError when the address cannot be had, or when it is no loopback address and `expose` does not say that it may be.
    """
    with listen(settings.host, settings.port, expose=expose) as listener:
        asyncio.run(_serve(settings, listener, names, announce))


async def _serve(settings: Settings, listener: socket.socket, names: Sequence[str], announce: Announce) -> None:
    with (
        open_workspace(settings, create=True) as workspace,
        AccessStore(access_file(settings.database), workspace.now) as access,
    ):
        judge, judge_name = await open_judge(settings, workspace.policy, os.environ)
        engine = Engine(
            workspace.store, workspace.policy, workspace.redactor, workspace.now, judge=judge, judge_name=judge_name
        )
        allowed = LOOPBACK_NAMES | {settings.host} | set(names)
        app = create_app(engine, access, ApiSettings(allowed_hosts=frozenset(allowed)))
        await engine.start()
        try:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            started = partial(announce, f"http://{shown}:{port}", judge_name)
            await _Server(server_of(app, host, port).config, started).serve(sockets=[listener])
        finally:
            await engine.stop(GRACE_SECONDS)


class _Server(uvicorn.Server):
    """Says when it takes calls, and leaves what happens after a signal to its caller."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as usual, then say so."""
        await super().startup(sockets)
        self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, without raising it again: the engine still has to commit what waits."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def listen(host: str, port: int, *, expose: bool = False) -> socket.socket:
    """A socket that listens; SettingsError as `serve` says."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"host {host}: {error.strerror}", hint="Name an address of this machine.") from error
    if not ipaddress.ip_address(address[0]).is_loopback and not expose:
        raise SettingsError(
            f"{host} can be reached from other machines",
            hint="Say --expose when that is wanted, and put TLS in front; without it only loopback is listened on.",
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"{host} port {port}: {error.strerror}", hint="Name another with --port; 0 takes a free one."
        ) from error
    return listener
