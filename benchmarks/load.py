"""Load over HTTP: clients in another process that post exchanges one after another, each over a persistent connection.

    python -m benchmarks.load URL TOKEN CLIENTS REQUESTS SALT

prints the total seconds and those of each request as JSON. Any status but 201 is an error.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

TURNS = 10
"""Exchanges per session."""
CREATED = 201
INGEST = "/api/audit/ingest"
PATIENCE = 600.0
"""Seconds after which a client gives up."""
ANSWER = "The worker is up again: the queue has been empty since 09:04, and no job was lost on the way. " * 3
THINKING = "Only worker 3 was down; a restart is safe, because its jobs are leased and come back. " * 2


@dataclass(frozen=True)
class Load:
    """The cost of a run of clients."""

    requests: int
    seconds: float
    latencies: list[float]
    """Seconds of each request, ascending."""

    @property
    def rate(self) -> float:
        """Return requests per second of all clients together."""
        return self.requests / self.seconds

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies, in milliseconds."""
        return 1000 * self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def load(url: str, token: str, *, clients: int, requests: int, salt: str) -> Load:
    """Post `requests` exchanges from concurrent clients; `salt` makes their ids new. CalledProcessError if one is refused."""
    command = [sys.executable, "-m", "benchmarks.load", url, token, str(clients), str(requests), salt]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds, latencies = json.loads(process.stdout)
    return Load(len(latencies), seconds, sorted(latencies))


def body(session_id: str, turn: int) -> bytes:
    """Return one exchange, about 700 bytes, as the webhook delivers it."""
    response = {"content": ANSWER, "thinking": THINKING, "model": "claude-sonnet-4-5", "usage": {"input_tokens": 812}}
    exchange = {
        "id": f"{session_id}:{turn}",
        "timestamp": f"2026-10-01T09:{turn:02}:00Z",
        "turn_number": turn,
        "user_message": {"content": f"Please restart worker {turn} and tell me what was lost."},
        "agent_response": response,
    }
    return json.dumps({"session_id": session_id, "exchange": exchange}).encode()


class Line:
    """A persistent connection for one request at a time; reopened when the server closes it."""

    def __init__(self, url: str, token: str) -> None:
        self._host = urlsplit(url)
        self._token = token

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def call(self, path: str, content: bytes | None = None) -> tuple[int, bytes, float]:
        """Post JSON, or get without content; return status, body and seconds."""
        request = self._request(path, content)
        start = time.perf_counter()
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        (length,) = (line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await self._reader.readexactly(int(length))
        seconds = time.perf_counter() - start
        if b"\r\nconnection: close\r\n" in head:
            await self._close()
            await self._open()
        return int(head.split(b" ", 2)[1]), answer, seconds

    async def _open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host.hostname, self._host.port)

    async def _close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def _request(self, path: str, content: bytes | None) -> bytes:
        head = f"{'GET' if content is None else 'POST'} {path} HTTP/1.1\r\nHost: {self._host.netloc}\r\nAuthorization: Bearer {self._token}\r\n"
        kind = "" if content is None else f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return f"{head}{kind}\r\n".encode() + (content or b"")


async def client(url: str, token: str, number: int, requests: int, salt: str) -> list[float]:
    """Post exchanges one after another; return the seconds of each."""
    durations = []
    async with asyncio.timeout(PATIENCE), Line(url, token) as line:
        for number_of_request in range(requests):
            status, answer, seconds = await line.call(
                INGEST, body(f"{salt}-{number}-{number_of_request // TURNS}", number_of_request % TURNS + 1)
            )
            durations.append(seconds)
            if status != CREATED:
                raise RuntimeError(f"{status} {answer!r}")
    return durations


async def run(url: str, token: str, clients: int, requests: int, salt: str) -> tuple[float, list[float]]:
    """Return the total seconds and those of each request."""
    start = time.perf_counter()
    durations_by_client = await asyncio.gather(
        *(client(url, token, number, requests // clients, salt) for number in range(clients))
    )
    return time.perf_counter() - start, [seconds for durations in durations_by_client for seconds in durations]


if __name__ == "__main__":
    url, token, clients, requests, salt = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, token, int(clients), int(requests), salt))))
