"""Serving the simulated judge on loopback from a thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from schemas.errors import SettingsError
from service.simulator.api.app import SimulatedJudge
from service.simulator.api.caching import PrefixCache
from service.simulator.api.http_calls import Scope
from service.simulator.api.plays import Arrivals, Plays
from service.simulator.api.script import Play

HOST = "127.0.0.1"
_PATIENCE = 10.0
_NO_LINGER = struct.pack("ii", 1, 0)


class RunningJudge:
    """A simulated judge that is being served."""

    def __init__(self, judge: SimulatedJudge, port: int, *, faults: float, seed: int) -> None:
        self.base_url = f"http://{HOST}:{port}"
        """The base URL for clients of the Messages API."""
        self._judge = judge
        self._faults, self._seed = faults, seed

    @property
    def requests(self) -> int:
        """Count the requests for a message since the start or the last reset."""
        return self._judge.play.requests

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return the newest request bodies, the oldest first: everything that a provider would see."""
        return tuple(self._judge.received)

    @property
    def batch_calls(self) -> int:
        """Count the calls of the batch API since the start or the last reset."""
        return self._judge.batch_play.requests

    def reset(
        self,
        script: str,
        *,
        batch_script: str = "answer",
        batch_seconds: float = 0.0,
        scripts_for: Mapping[str, str] | None = None,
    ) -> None:
        """Start over with other scripts, an empty cache, no requests and no batches.

        `batch_script` is for the calls of the batch API, `batch_seconds` how long a batch takes, `scripts_for` are scripts of requests
        whose prompt holds a text. SettingsError for a script that cannot be read.
        """
        self._judge.play = Plays(script, scripts_for or {}, faults=self._faults, seed=self._seed)
        self.script_batches(batch_script)
        self._judge.batches.forget(seconds=batch_seconds)
        self._judge.cache = PrefixCache()
        self._judge.arrivals = Arrivals()
        self._judge.received.clear()

    def script_batches(self, script: str) -> None:
        """Answer calls of the batch API by this script from now on."""
        self._judge.batch_play = Play(script)


@contextmanager
def running(
    script: str = "answer",
    latency: float = 0.0,
    seed: int = 0,
    faults: float = 0.0,
    port: int = 0,
    *,
    batch_seconds: float = 0.0,
    scripts_for: Mapping[str, str] | None = None,
) -> Iterator[RunningJudge]:
    """Serve the simulated judge while the context is open; connections that are still open at its end are cut.

    `latency` in seconds comes before each answer, `faults` is the share of requests that get a fault drawn by `seed`, port 0 is any
    free one, and a batch is processed for `batch_seconds`. Requests whose prompt holds a text of `scripts_for` go by its script instead,
    each question by itself. SettingsError for a script that cannot be read or a port that cannot be had.
    """
    server = _Server(Plays(script, scripts_for or {}, faults=faults, seed=seed), latency, batch_seconds)
    listening = _listen(port)
    thread = threading.Thread(target=server.run, args=([listening],), name="simulated-judge", daemon=True)
    thread.start()  # the socket is already listening, so there is no need to wait for the thread
    try:
        yield RunningJudge(server.judge, listening.getsockname()[1], faults=faults, seed=seed)
    finally:
        server.should_exit = True
        thread.join(_PATIENCE)


class _Server(uvicorn.Server):
    """Stops at once, even with open connections."""

    def __init__(self, play: Plays, latency: float, batch_seconds: float) -> None:
        self.judge = SimulatedJudge(play, latency=latency, batch_seconds=batch_seconds, cut=self._reset)
        # Clients keep an idle connection for 5 s; one that we close at that very moment would lose their next call.
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "timeout_keep_alive": 75}
        super().__init__(uvicorn.Config(self.judge, loop="asyncio", http="h11", ws="none", lifespan="off", **options))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut the connections, then stop as usual."""
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _reset(self, scope: Scope) -> None:
        """Reset the connection of a call; it may already be closed."""
        for connection in self._connections():
            if connection.client == scope["client"]:
                own: socket.socket = connection.transport.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                connection.transport.abort()

    def _connections(self) -> list[H11Protocol]:
        return [one for one in self.server_state.connections if isinstance(one, H11Protocol)]


def _listen(port: int) -> socket.socket:
    # With another protocol number asyncio would not send small answers at once.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise SettingsError(f"port {port}: {error}", hint="Name another port, or 0 for any free one.") from error
    listening.listen(128)
    return listening
