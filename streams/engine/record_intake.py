"""The interface of record intake: the embedded engine and the gateway to Kafka implement it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.errors import DriftlineError, RecordError
from schemas.records import Exchange, Record
from streams.engine.engine_state import EngineState, Published
from streams.log.ingest_outcome import Taken


class RecordIntake(Protocol):
    """Takes records in, durable on return, and has them audited. BusyError or BrokerError: nothing was promised, send it again."""

    judge_name: str
    """Who judges, in words."""

    @property
    def store(self) -> Store:
        """Where everything lands and is read from."""
        ...

    @property
    def policy(self) -> Policy:
        """What is judged by."""
        ...

    @property
    def redactor(self) -> Redactor:
        """What takes secrets out of texts."""
        ...

    @property
    def broken(self) -> asyncio.Event:
        """Set when it cannot go on without a new process."""
        ...

    @property
    def has_judge(self) -> bool:
        """Whether anybody can be asked to judge."""
        ...

    def now(self) -> datetime:
        """The present, UTC."""
        ...

    async def start(self) -> None:
        """Take up what was left, then work in the background."""
        ...

    async def stop(self, grace: float = 20.0) -> None:
        """Finish what was begun, for `grace` seconds at most. Called again while it stops, with less grace, it hurries."""
        ...

    async def take_exchange(self, exchange: Exchange) -> Taken:
        """Take an exchange in."""
        ...

    async def take_exchanges(self, exchanges: Sequence[Exchange]) -> list[Taken | RecordError]:
        """Take exchanges in together; what became of each, or why it may not be written."""
        ...

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Take records from outside in. Known ones are left out, so that sending twice changes nothing."""
        ...

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended; False where no record of it is there."""
        ...

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Ask for exchanges that stayed unscored to be judged again; answers how many."""
        ...

    async def landed(self, topic: str) -> None:
        """Return when the store shows everything that the topic has at this moment; BusyError when that takes too long."""
        ...

    async def land_taken(self) -> None:
        """Let the store show what this process has taken in and keeps in a log of its own; on Kafka there is none."""
        ...

    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:
        """The events of a session that were taken in and that the store does not show yet: id and position."""
        ...

    def state(self) -> EngineState:
        """How it is at this moment."""
        ...

    def failure(self) -> DriftlineError:
        """Why it is broken, and what to do about it."""
        ...
