"""One HTTP call as the simulated judge sees it: read, answer, wait, break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SIMULATED = "x-driftline-simulated"
"""Header of every answer, so that it is not taken for a provider's."""


class Call:
    """A call in progress."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, cut: Callable[[], None]) -> None:
        self.target = f"{scope['method']} {scope['path']}"
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.status = 0
        """Status of the answer; 0 before."""
        self._receive, self._send, self._cut = receive, send, cut

    async def body(self, limit: int) -> bytes | None:
        """Return the whole body; None if it is longer than the limit or the client went away."""
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if message["type"] == "http.disconnect" or len(body) > limit:
                return None
        return bytes(body)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of the answer."""
        self.status = status
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {SIMULATED: "1", **headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; wait until the client has read most of the earlier ones."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes, kind: str = "application/json") -> None:
        """Answer in one piece."""
        await self.start(status, {"content-type": kind, "content-length": str(len(body)), **headers})
        await self.write(body, more=False)

    async def pause(self, seconds: float | None) -> bool:
        """Wait some seconds, or for good; return whether the client is still there. Ends at once when it goes away."""
        if seconds == 0:
            return True
        try:
            async with asyncio.timeout(seconds):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return True
        return False

    async def reset(self) -> None:
        """Reset the connection, so that the client sees it break."""
        self._cut()
        await self.pause(None)


def json_bytes(value: Any) -> bytes:
    """Return the value as JSON in ASCII, in which lone surrogates survive."""
    return json.dumps(value).encode()
