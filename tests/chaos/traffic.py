"""What a fleet sends while everything around it fails: over HTTP, straight to the topics, again, late, out of order, and rubbish."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import msgspec
from chaos.plant import Plant
from support.clients import Load, bearer
from support.fleet_histories import EVENTS, EXCHANGES, build_history
from support.invariants import Key

from schemas.codec.single_object import encode
from schemas.errors import BrokerError
from schemas.records import Exchange, Record
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer

CONNECTIONS = {"north": "poor", "south": "rich"}
PAUSE = 0.05


@dataclass
class Run:
    """One session's events, told over HTTP in batches, each until it is taken."""

    name: str
    events: int
    told: int = 0

    def next(self) -> tuple[str, dict[str, object]]:
        """What is sent next: some events, or the session's end."""
        if self.told >= self.events:
            return f"/api/audit/sessions/{self.name}/finalize", {}
        batch = [event(number) for number in range(self.told, min(self.told + 7, self.events))]
        return "/api/audit/events", {"session_id": self.name, "first_seq": self.told, "events": batch}


def event(number: int) -> dict[str, object]:
    """The event `number` of any session."""
    kind = ("tool_call", "tool_output", "token_usage", "memory_event")[number % 4]
    moment = f"2026-10-01T09:{number // 60:02}:{number % 60:02}Z"
    return {"event": kind, "tool": "exec", "args": {"n": number % 5}, "usage": {"total": 100}, "timestamp": moment}


@dataclass
class Traffic:
    """A fleet. What counts as accepted is what somebody was told so: by the server with 201, or by the broker."""

    plant: Plant
    chance: random.Random
    load: Load = field(init=False)
    runs: list[Run] = field(default_factory=list)
    poison: dict[str, str] = field(default_factory=dict)
    """Digest of every poison record, with the topic it went to."""
    produced: int = 0
    """Records produced straight to the topics."""
    _direct: set[Key] = field(default_factory=set)
    _opened: int = 0
    _sending: RecordProducer | None = None

    def __post_init__(self) -> None:
        self.load = Load(self.plant.home, CONNECTIONS, self.chance)
        self._connection = KafkaConnection(self.plant.broker.bootstrap, prefix=self.plant.prefix)
        self._token = self.plant.home.connection("north", CONNECTIONS["north"])

    @property
    def accepted(self) -> set[Key]:
        """Connection and id of every exchange that was accepted."""
        return self.load.accepted | self._direct

    def progress(self) -> int:
        """Grows with whatever is accepted."""
        return sum(self.load.seen.values()) + sum(run.told for run in self.runs) + self.produced

    async def round(self) -> None:
        """The traffic of one round, until all of it is accepted."""
        self._opened += 1
        self.load.fill(3)
        runs = [Run(f"run-{self._opened}-{number}", self.chance.randrange(20, 60)) for number in range(2)]
        self.runs += runs
        await asyncio.gather(self._exchanges(), *map(self._run, runs), self._direct_records())

    async def _exchanges(self) -> None:
        while not all(session.ended for session in self.load.sessions):
            await self.load.run(self.plant.url)
            await asyncio.sleep(PAUSE)

    async def _run(self, run: Run) -> None:
        async with httpx2.AsyncClient(timeout=300) as client:
            while run.told <= run.events:
                path, body = run.next()
                try:
                    answer = await client.post(self.plant.url + path, json=body, headers=bearer(self._token))
                except httpx2.TransportError:
                    await asyncio.sleep(PAUSE)
                    continue
                if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
                    await asyncio.sleep(PAUSE)
                    continue
                assert answer.status_code in {200, 201}, answer.text
                run.told += len(body.get("events", [None]))  # type: ignore[arg-type]

    async def _direct_records(self) -> None:
        """Records with repetitions, hours late, out of order, and under ids that others have; then one poison record a topic."""
        told = build_history(self.chance.randrange(2**32), sessions=2)
        for topic, records in ((EXCHANGES, told.exchanges), (EVENTS, told.events)):
            for record in records:
                renamed = self._renamed(record)
                await self._produce(topic, f"{renamed.connection}/{renamed.session_id}".encode(), encode(renamed))  # type: ignore[attr-defined]
                if isinstance(renamed, Exchange):
                    self._direct.add((renamed.connection, renamed.exchange_id))
        for topic in self._poisoned():
            rubbish = self.chance.randbytes(self.chance.randrange(1, 200))
            await self._produce(topic, rubbish[:8], rubbish)
            self.poison[hashlib.sha256(rubbish).hexdigest()] = topic

    def _renamed(self, record: Record) -> Record:
        """The record as one of this round."""
        names = {"session_id": f"direct-{self._opened}-{record.session_id}"}  # type: ignore[attr-defined]
        if isinstance(record, Exchange):
            names["exchange_id"] = f"direct-{self._opened}-{record.exchange_id}"
        return msgspec.structs.replace(record, **names)

    def _poisoned(self) -> Iterator[str]:
        """Every topic in the first round; one of them in each of the others."""
        yield from topics() if self._opened == 1 else [self.chance.choice(list(topics()))]

    async def _produce(self, topic: str, key: bytes, value: bytes) -> None:
        """Produce until the broker has it. What it had already it may have twice then, which is what happens to others, too."""
        while True:
            try:
                await self._producer().send(topic, [(key, value)])
            except BrokerError:
                await asyncio.sleep(PAUSE)
                continue
            self.produced += 1
            return

    def _producer(self) -> RecordProducer:
        if self._sending is None:
            self._sending = RecordProducer(self._connection, time_limit=5)
        return self._sending

    async def stop(self) -> None:
        """Let go of the broker."""
        if self._sending is not None:
            await self._sending.stop()
