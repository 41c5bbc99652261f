"""kill -9 of a server under load, again and again: what was accepted is there once, and what was paid for is accounted for."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from invariants import Key, check, rows, scores_of
from servers import PATIENCE, Child, Home, Nursery, nursery

from analytics.store import Store
from service.simulator import RunningJudge, running

ROUNDS = 50
CAPS = {"poor": 0.06, "rich": 0.6}
PROJECTS = {"north": "poor", "south": "rich"}
"""Which project each connection's sessions belong to."""
POLICY = "version: 1\nprojects:\n" + "".join(f"  {name}:\n    costCapPerSession: {cap}\n" for name, cap in CAPS.items())
INGEST = "/api/audit/ingest"
MOODS = (
    *["answer"] * 12,
    *["slow:0.15"] * 4,
    *["thinking_first", "garbage", "out_of_range", "refusal", "cut_off", "no_usage", "reset", "truncated_json", "html"],
)
"""What the judge does, drawn for each request. None is free of charge, so that each call needs a reservation of its own."""


@dataclass
class Session:
    """One session of a connection, told exchange by exchange; what got no answer is sent again."""

    connection: str
    token: str
    name: str
    turns: int
    turn: int = 1

    @property
    def exchange_id(self) -> str:
        """The exchange that is sent next."""
        return f"{self.name}:{self.turn}"

    @property
    def ended(self) -> bool:
        """Whether everything of it was sent, and answered."""
        return self.turn > self.turns + 1

    def next(self) -> tuple[str, dict[str, Any]]:
        """What is sent next, the same each time it is asked for: an exchange, or the session's end."""
        if self.turn > self.turns:
            return f"/api/audit/sessions/{self.name}/finalize", {}
        said = f"The backup of night {self.turn} is healthy." if self.turn % 4 else "I'm unable to read the backup."
        thinking = {} if self.turn % 3 else {"thinking": "It looks healthy."}
        exchange = {
            "id": self.exchange_id,
            "timestamp": f"2026-10-01T09:{self.turn:02}:00Z",
            "user_message": {"content": "Is the backup of this night healthy?"},
            "agent_response": {"content": said, **thinking},
        }
        return INGEST, {"session_id": self.name, "exchange": exchange}


@dataclass
class Load:
    """Clients that tell sessions side by side, to as many servers as it takes."""

    home: Home
    chance: random.Random
    sessions: list[Session] = field(default_factory=list)
    accepted: set[Key] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    """How often a call was answered with a status, or `cut off`."""
    opened: int = 0

    def fill(self, count: int) -> None:
        """Have so many sessions under way; two connections use the same names."""
        self.sessions = [one for one in self.sessions if not one.ended]
        while len(self.sessions) < count:
            connection, project = list(PROJECTS.items())[self.opened % 2]
            token, turns = self.home.connection(connection, project), self.chance.randrange(5, 25)
            self.sessions.append(Session(connection, token, f"s{self.opened // 2}", turns))
            self.opened += 1

    async def run(self, url: str) -> None:
        """Tell what is left of every session, each in order, until everything is told or the server is gone."""
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            await asyncio.gather(*(self._tell(client, session) for session in self.sessions))

    async def _tell(self, client: httpx.AsyncClient, session: Session) -> None:
        while not session.ended:
            path, body = session.next()
            try:
                answer = await client.post(path, json=body, headers={"authorization": f"Bearer {session.token}"})
            except httpx.TransportError:
                self.seen["cut off"] += 1
                return
            assert answer.status_code in {200, 201}, answer.text
            if path == INGEST:
                self.seen["duplicate" if answer.status_code == 200 else "taken"] += 1
                self.accepted.add((session.connection, session.exchange_id))
            session.turn += 1


async def until(condition: Callable[[], object], loading: asyncio.Task[None]) -> None:
    """Return when the condition holds, or when there is no load any more."""
    async with asyncio.timeout(PATIENCE):
        while not condition() and not loading.done():
            await asyncio.sleep(0.002)


async def drained(url: str, token: str) -> None:
    """Return when the server has scored everything that it took in."""
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(base_url=url) as client:
        while True:
            text = (await client.get("/metrics", headers={"authorization": f"Bearer {token}"})).text
            waiting = re.findall(r'^driftline_queue_size\{queue="\w+"\} ([0-9.]+)$', text, re.MULTILINE)
            assert 3 == len(waiting)
            if not any(map(float, waiting)):
                return
            await asyncio.sleep(0.02)


class Killer:
    """Starts a server, lets clients at it, and kills it at a moment drawn by lot."""

    def __init__(self, children: Nursery, home: Home, judge: RunningJudge, load: Load, chance: random.Random) -> None:
        self.children, self.home, self.judge, self.load, self.chance = children, home, judge, load, chance
        self.landed: Counter[str] = Counter()
        """How many kills came before the server listened, between two answers to clients, between two calls to the judge."""

    async def round(self) -> None:
        """One server's life."""
        server = self.children.serve(self.home)
        moment = self.chance.choice(["start", "ingest", "ingest", "judging", "judging"])
        if moment == "start":
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))
            self.landed["start" if "docs at" not in server.printed else "idle"] += 1
        else:
            await self._under_load(server, moment)
        assert -9 == server.kill()

    async def _under_load(self, server: Child, moment: str) -> None:
        url = server.serving()
        self.load.fill(8)
        loading = asyncio.create_task(self.load.run(url))
        count = {"ingest": lambda: self.load.seen["taken"], "judging": lambda: self.judge.requests}[moment]
        target = count() + self.chance.randrange(1, 25)
        await until(lambda: count() >= target, loading)
        await asyncio.sleep(self.chance.uniform(0.0, 0.03))
        self.landed[moment if not loading.done() else "idle"] += 1
        server.kill()
        await loading


@pytest.mark.slow
def test_fifty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """A machine loses its power without asking. Whatever was answered 201 is there, once, with one score and its cost."""
    chance = random.Random(20261101)
    script = ",".join(chance.choices(MOODS, k=6000))
    with running(script) as judge, nursery() as children:
        home = Home(tmp_path, POLICY, ANTHROPIC_BASE_URL=judge.base_url, DRIFTLINE_JUDGE_DEADLINE="10")
        load = Load(home, chance)
        killer = Killer(children, home, judge, load, chance)

        async def work() -> None:
            for _ in range(ROUNDS):
                await killer.round()
            server = children.serve(home)
            url = server.serving()
            await load.run(url)
            await drained(url, home.operator())
            server.send(15)  # type: ignore[arg-type]
            assert 0 == server.wait()

        asyncio.run(work())
        print(killer.landed, load.seen, len(load.accepted), judge.requests)
        check(home.database, load.accepted, CAPS, judge.requests)
        before = scores_of(home.database)
        with Store(home.database) as store:
            print(rows(store, "SELECT outcome, count(*), sum(attempts) FROM judgements GROUP BY ALL"))
            print(rows(store, "SELECT disposition, count(*) FROM scores GROUP BY ALL"))
        assert 0 == children.run(home, "rebuild")[0]
        assert before == scores_of(home.database)
