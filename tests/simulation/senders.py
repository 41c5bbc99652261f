"""Senders, which outlive the server, and a record of the answers to them: the model that the tables are compared with."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import duckdb
from simulation.history import Step
from simulation.world import World
from support import builders as build

from schemas.errors import BrokerError, BusyError, StoreError
from schemas.records import AgentEvent, Exchange
from streams.engine.engine import Engine
from streams.engine.record_intake import IngestResult
from streams.log.log import CONFLICT, KNOWN, WRITTEN
from streams.upkeep.deletion import erasure, request_erasure

RETRY_SECONDS = 1.0
"""Seconds after which a refused sender tries again."""
REFUSED = (BrokerError, BusyError, StoreError, duckdb.OperationalError, duckdb.FatalException)
"""Errors that a sender receives as 503; the record may or may not be stored."""
Key = tuple[str, str, int]
"""Kind ("exchanges" or "events"), session and number."""


@dataclass
class Attempt:
    """A sent record and its outcome, which is None if there was no answer or an error."""

    content: int
    is_late: bool = False
    """Whether it was sent after the erasure of its session."""
    is_early: bool = False
    """Whether it was sent before any sender was told that the record is stored."""
    outcome: str | None = None


class Answers:
    """The answers to senders; checks the laws for each answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: dict[Key, list[Attempt]] = defaultdict(list)
        self.erasing: set[str] = set()
        """Sessions with a requested erasure."""
        self.erased: set[str] = set()
        """Sessions with a confirmed erasure."""

    def accepted(self, key: Key) -> int | None:
        """Return the content that was accepted under a key, or None if no sender was told so."""
        accepted_contents = (attempt.content for attempt in self.attempts[key] if attempt.outcome in {WRITTEN, KNOWN})
        return next(accepted_contents, None)

    def begin(self, key: Key, content: int) -> Attempt:
        """Record that a sender sends a record."""
        attempt = Attempt(content, is_late=key[1] in self.erased, is_early=self.accepted(key) is None)
        self.attempts[key].append(attempt)
        return attempt

    def end(self, key: Key, attempt: Attempt, outcome: str) -> None:
        """Record the outcome of an attempt, and check that it is a correct answer."""
        name = f"{key}, content {attempt.content}"
        accepted = self.accepted(key)
        other_attempts = [candidate for candidate in self.attempts[key] if candidate is not attempt]
        attempt.outcome = outcome
        if attempt.is_late:
            self._require(outcome == KNOWN, f"{name} is {outcome}, and its session is erased")
        elif key[1] not in self.erasing:
            if accepted is not None:
                is_written_elsewhere = any(other.outcome == WRITTEN for other in other_attempts)
                # Another sender may be told "known" before this one is told "written".
                is_first = outcome == WRITTEN and accepted == attempt.content and attempt.is_early and not is_written_elsewhere
                self._require(
                    is_first or outcome == (KNOWN if accepted == attempt.content else CONFLICT),
                    f"{name} is {outcome}, not {accepted}",
                )
            elif outcome != WRITTEN:
                is_same = outcome == KNOWN
                self._require(
                    any((other.content == attempt.content) == is_same for other in other_attempts),
                    f"{name} is {outcome}: nobody sent it",
                )

    def _require(self, holds: bool, detail: str) -> None:
        self._world.require(holds, "new, known and conflicting records are distinguished", detail)


def exchange_of(session: str, number: int, content: int) -> Exchange:
    """Return the exchange that a sender sends."""
    text = f"It is done, {number} of {session}" + (f", corrected {content} times." if content else ".")
    if number % 4 == 3:
        text = "I can't do that."  # a refusal makes the cascade ask more than one question
    return build.exchange(
        session,
        number,
        f"{text} {content}",
        user_message=f"Is the backup {number} of {session} healthy?",
        agent_thinking="It may be." if number % 3 == 0 else None,
        content_digest=f"{session}{number:03}{content:012}",
    )


def event_of(session: str, number: int, content: int) -> AgentEvent:
    """Return the event that a sender sends."""
    return build.event(session, number, type="message", text=f"{number} of {session}: {content}")


class Sender:
    """Runs its steps in order and repeats each until it is answered."""

    def __init__(self, world: World, answers: Answers, number: int, steps: list[Step]) -> None:
        self._world = world
        self._answers = answers
        self._number = number
        self._steps = steps
        self._done = 0
        self._tried = False

    async def run(self, engine: Engine) -> None:
        """Run the remaining steps against a server."""
        while self._done < len(self._steps):
            step = self._steps[self._done]
            if not self._tried:
                self._tried = True
                await asyncio.sleep(step.pause)
            try:
                await getattr(self, f"_do_{step.does}")(engine, step)
            except REFUSED as error:
                self._note(step, f"refused: {error}")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._done += 1
            self._tried = False

    async def _do_exchanges(self, engine: Engine, step: Step) -> None:
        keys = [("exchanges", step.session, step.first + index) for index in range(step.count)]
        attempts = [self._answers.begin(key, step.content) for key in keys]
        exchanges = [exchange_of(session, number, step.content) for _, session, number in keys]
        self._note(step, "sends")
        if step.count > 1:
            answers = await engine.ingest_exchanges(exchanges)
        else:
            answers = [await engine.ingest_exchange(exchanges[0])]
        for key, attempt, answer in zip(keys, attempts, answers, strict=True):
            outcome = answer.outcome if isinstance(answer, IngestResult) else str(answer)
            self._note(step, f"{key[2]} {outcome}")
            self._answers.end(key, attempt, outcome)

    async def _do_events(self, engine: Engine, step: Step) -> None:
        keys = [("events", step.session, step.first + index) for index in range(step.count)]
        attempts = [self._answers.begin(key, step.content) for key in keys]
        self._note(step, "sends")
        published = await engine.publish(
            "agent-events", [event_of(session, number, step.content) for _, session, number in keys]
        )
        for key, attempt, outcome in zip(keys, attempts, published.outcomes, strict=True):
            self._note(step, f"{key[2]} {outcome}")
            self._answers.end(key, attempt, outcome)

    async def _do_end(self, engine: Engine, step: Step) -> None:
        self._note(step, f"ended: {await engine.finalize('local', step.session)}")

    async def _do_erase(self, engine: Engine, step: Step) -> None:
        self._answers.erasing.add(step.session)
        await request_erasure(engine, erasure("local", step.session, "me", None, self._world.read_clock()))
        self._answers.erased.add(step.session)
        self._note(step, "erased")

    async def _do_rejudge(self, engine: Engine, step: Step) -> None:
        self._note(step, f"asked for again: {await engine.rejudge(None, None, 100)}")

    async def _do_read(self, engine: Engine, step: Step) -> None:
        accepted = {key for key in self._answers.attempts if self._answers.accepted(key) is not None}
        for topic in ("exchanges", "agent-events"):
            await engine.wait_for_tables(topic)
        with contextlib.closing(engine.store.cursor()) as cursor:
            readable_keys = stored_keys(cursor)
        missing = {key for key in accepted - readable_keys if key[1] not in self._answers.erasing}
        self._world.require(not missing, "a reader sees what was answered", f"{sorted(missing)}")
        self._note(step, f"reads {len(readable_keys)} records")

    def _note(self, step: Step, text: str) -> None:
        self._world.note(f"sender {self._number}, {step.does} {step.session} {step.first}: {text}")


def stored_keys(cursor: Any) -> set[Key]:
    """Return the keys of all records in the tables."""
    exchanges = cursor.execute("SELECT exchange_id FROM log.exchanges").fetchall()
    events = cursor.execute("SELECT session_id, seq FROM log.agent_events").fetchall()
    return {("exchanges", *_parts(name)) for (name,) in exchanges} | {("events", session, seq) for session, seq in events}


def _parts(exchange_id: str) -> tuple[str, int]:
    session, _, number = exchange_id.partition(":")
    return session, int(number)
