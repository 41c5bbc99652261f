"""Clients of a server for tests: they tell sessions side by side, and send again what got no answer."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from support.invariants import Key
from support.servers import PATIENCE, Home

INGEST = "/api/audit/ingest"
CUT_OFF, DUPLICATE, TAKEN, REFUSED = "cut off", "duplicate", "taken", "refused"
_QUEUE = re.compile(r'^driftline_queue_size\{queue="\w+"\} ([0-9.]+)$', re.MULTILINE)


def exchange_body(session: str, turn: int, answer: str, **response: object) -> dict[str, Any]:
    """Return the body of an ingest request for one turn of a session; the same arguments give the same body."""
    exchange = {
        "id": f"{session}:{turn}",
        "timestamp": f"2026-10-01T09:{turn % 60:02}:00Z",
        "user_message": {"content": "Is the backup of this night healthy?"},
        "agent_response": {"content": answer, **response},
    }
    return {"session_id": session, "exchange": exchange}


@dataclass
class Session:
    """One session of a connection, sent exchange by exchange."""

    connection: str
    token: str
    name: str
    turns: int
    turn: int = 1

    @property
    def ended(self) -> bool:
        """Return whether every exchange and the end of the session were sent and acknowledged."""
        return self.turn > self.turns + 1

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the path and body of the next request: an exchange, or the end of the session."""
        if self.turn > self.turns:
            return f"/api/audit/sessions/{self.name}/finalize", {}
        answer = f"The backup of night {self.turn} is healthy." if self.turn % 4 else "I'm unable to read the backup."
        thinking = {} if self.turn % 3 else {"thinking": "It looks healthy."}
        return INGEST, exchange_body(self.name, self.turn, answer, **thinking)


@dataclass
class Load:
    """Clients of one fleet, spread over any number of servers. `projects` maps each connection to its project."""

    home: Home
    projects: Mapping[str, str]
    chance: random.Random
    sessions: list[Session] = field(default_factory=list)
    accepted: set[Key] = field(default_factory=set)
    """Connection and id of every exchange that was answered 201 or 200."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often an exchange was taken, known already, refused for now or cut off."""
    opened: int = 0

    def fill(self, count: int) -> None:
        """Open sessions until this many are in progress; all connections use the same session names."""
        self.sessions = [one for one in self.sessions if not one.ended]
        while len(self.sessions) < count:
            connection_index, number = self.opened % len(self.projects), self.opened // len(self.projects)
            connection, project = list(self.projects.items())[connection_index]
            token = self.home.connection(connection, project)
            self.sessions.append(Session(connection, token, f"s{number}", self.chance.randrange(5, 25)))
            self.opened += 1

    async def run(self, url: str) -> None:
        """Send the rest of every session in order, until everything is sent or the server accepts no more."""
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            await asyncio.gather(*(self._tell(client, session) for session in self.sessions))

    async def _tell(self, client: httpx2.AsyncClient, session: Session) -> None:
        while not session.ended:
            path, body = session.next()
            try:
                answer = await client.post(path, json=body, headers=bearer(session.token))
            except httpx2.TransportError:
                self.seen[CUT_OFF] += 1
                return
            if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
                self.seen[REFUSED] += 1
                return
            assert answer.status_code in {200, 201}, answer.text
            if path == INGEST:
                self.seen[DUPLICATE if answer.status_code == httpx2.codes.OK else TAKEN] += 1
                self.accepted.add((session.connection, body["exchange"]["id"]))
            session.turn += 1


def bearer(token: str) -> dict[str, str]:
    """Return the authorization header for a token."""
    return {"authorization": f"Bearer {token}"}


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; raise TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.002)


def waiting(url: str, token: str) -> float:
    """Return the number of records in a server that wait to be committed, scored or evaluated."""
    queues = _QUEUE.findall(httpx2.get(f"{url}/metrics", headers=bearer(token), timeout=60).text)
    assert len(queues) == 4
    return sum(map(float, queues))
