"""Load over HTTP: clients in a process of their own that post exchanges, each over one kept connection, one after the other.

    python -m benchmarks.load URL TOKEN CLIENTS REQUESTS SALT

prints the seconds of all of it and of each request as JSON. An answer that is not 201 is an error.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

TURNS = 10
"""Exchanges of a session."""
CREATED = b"HTTP/1.1 201"
ANSWER = "The worker is up again: the queue has been empty since 09:04, and no job was lost on the way. " * 3
THINKING = "Only worker 3 was down; a restart is safe, because its jobs are leased and come back. " * 2


@dataclass(frozen=True)
class Load:
    """What a run of clients took."""

    requests: int
    seconds: float
    latencies: list[float]
    """Seconds of each request, ascending."""

    @property
    def rate(self) -> float:
        """Requests a second, of all clients together."""
        return self.requests / self.seconds

    def quantile(self, share: float) -> float:
        """Milliseconds that this share of the requests took at most."""
        return 1000 * self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def load(url: str, token: str, *, clients: int, requests: int, salt: str) -> Load:
    """Post `requests` exchanges from `clients` at once; `salt` makes their ids new. CalledProcessError when one is not taken."""
    command = [sys.executable, "-m", "benchmarks.load", url, token, str(clients), str(requests), salt]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds, latencies = json.loads(done.stdout)
    return Load(len(latencies), seconds, sorted(latencies))


def body(session_id: str, turn: int) -> bytes:
    """One exchange, about 700 bytes, as the webhook delivers it."""
    response = {"content": ANSWER, "thinking": THINKING, "model": "claude-sonnet-4-5", "usage": {"input_tokens": 812}}
    exchange = {
        "id": f"{session_id}:{turn}",
        "timestamp": f"2026-10-01T09:{turn:02}:00Z",
        "turn_number": turn,
        "user_message": {"content": f"Please restart worker {turn} and tell me what was lost."},
        "agent_response": response,
    }
    return json.dumps({"session_id": session_id, "exchange": exchange}).encode()


def request(host: str, token: str, content: bytes) -> bytes:
    """The request as it is sent."""
    head = (
        f"POST /api/audit/ingest HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def client(url: str, token: str, number: int, requests: int, salt: str) -> list[float]:
    """Post exchanges one after the other; answers the seconds of each."""
    host = urlsplit(url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    seconds = []
    for place in range(requests):
        asked = request(host.netloc, token, body(f"{salt}-{number}-{place // TURNS}", place % TURNS + 1))
        start = time.perf_counter()
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await reader.readexactly(int(length))
        seconds.append(time.perf_counter() - start)
        if not head.startswith(CREATED):
            raise RuntimeError(f"{head.splitlines()[0]!r} {answer!r}")
    writer.close()
    await writer.wait_closed()
    return seconds


async def run(url: str, token: str, clients: int, requests: int, salt: str) -> tuple[float, list[float]]:
    """Seconds of all clients together, and of each request."""
    start = time.perf_counter()
    each = await asyncio.gather(*(client(url, token, number, requests // clients, salt) for number in range(clients)))
    return time.perf_counter() - start, [seconds for one in each for seconds in one]


if __name__ == "__main__":
    url, token, clients, requests, salt = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, token, int(clients), int(requests), salt))))
