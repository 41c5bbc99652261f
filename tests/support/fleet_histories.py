"""Random histories of a fleet: the records of its input topics, with retries, late records and reopened sessions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from support import builders as build

from schemas.records import AgentEvent, Exchange, Record, SessionClosed

EXCHANGES = "exchanges"
EVENTS = "agent-events"
REQUESTS = "evaluation-requests"
RESPONSES = (
    "It is done.",
    "I disagree: the backup of last night is not healthy.",
    "You are absolutely right, what a brilliant question! Everything is perfect.",
    "I cannot help with that.",
    "",
)
TOOLS = ("exec", "read", "search")


@dataclass(frozen=True)
class History:
    """The records of the input topics, each in the order in which they were produced. `requests` asks for evaluations."""

    exchanges: Sequence[Record]
    events: Sequence[Record]
    requests: Sequence[Record] = ()

    @property
    def topics(self) -> dict[str, Sequence[Record]]:
        """Return the records by topic."""
        topics = {EXCHANGES: self.exchanges, EVENTS: self.events, REQUESTS: self.requests}
        return {name: records for name, records in topics.items() if records}


def build_history(seed: int, sessions: int = 24) -> History:
    """Return a history of this many concurrent sessions, without evaluations; the same seed gives the same history."""
    rng = random.Random(seed)
    names = [f"s{number}" for number in range(sessions)]
    conversations = [_add_duplicates(rng, _build_conversation(rng, name)) for name in names]
    exchanges = _interleave(rng, conversations)
    runs = [_add_duplicates(rng, _build_run(rng, name)) for name in names]
    events = _interleave(rng, [*runs, *_build_closings_without_events()])
    return History(exchanges, events)


def two_project_exchanges(seed: int = 1, sessions: int = 9) -> list[Exchange | SessionClosed]:
    """Return the exchanges and closings of a history in order of arrival. Every third session belongs to the project "shop"."""
    records = []
    for record in build_history(seed, sessions).exchanges:
        assert isinstance(record, Exchange | SessionClosed)
        session_number = int(record.session_id.removeprefix("s"))
        records.append(msgspec.structs.replace(record, project="shop") if session_number % 3 == 0 else record)
    return records


def _build_conversation(rng: random.Random, session: str) -> list[Record]:
    """Return a session's exchanges, a few out of order, and its closing. Some sessions continue after it."""
    turns = rng.randrange(1, 40)
    records: list[Record] = [_build_exchange(rng, session, turn) for turn in range(1, turns + 1)]
    for _ in range(turns // 8):
        index = rng.randrange(len(records) - 1)
        records.insert(index + 1, records.pop(index))
    records.append(build.closing(session, turns))
    if rng.random() < 0.3:
        records += [_build_exchange(rng, session, turns + extra) for extra in range(1, 4)]
        records.append(build.closing(session, turns + 10))
    return records


def _build_exchange(rng: random.Random, session: str, turn: int) -> Exchange:
    fields: dict[str, object] = {"content_digest": f"{turn:016x}"}
    if rng.random() < 0.3:
        fields["agent_thinking"] = "The log says so."
    if rng.random() < 0.1:
        fields["turn_number"] = turn
    if rng.random() < 0.1:
        fields["occurred_at"] = build.START - timedelta(hours=rng.randrange(1, 50))
    return build.exchange(session, turn, rng.choice(RESPONSES), **fields)


def _build_run(rng: random.Random, session: str) -> list[Record]:
    """Return a session's events and its closing. Half of the sessions also have a `session_end` event; some continue after the closing."""
    count = rng.randrange(3, 120)
    events: list[Record] = [
        build.event(session, number, event="tool_call", tool=rng.choice(TOOLS), tokens=rng.randrange(500))
        for number in range(count)
    ]
    if rng.random() < 0.5:
        events.append(build.event(session, count, event="session_end"))
    events.append(build.closing(session, count))
    if rng.random() < 0.3:
        events += [build.event(session, count + extra, event="tool_call", tool="exec") for extra in range(1, 4)]
        events.append(build.closing(session, count + 10))
    return events


def _build_closings_without_events() -> list[list[Record]]:
    """Return three sessions whose closing precedes any event: two different closings, the same one twice, and one with late events."""
    late = [build.event("talk-2", number, event="tool_call", tool="exec") for number in range(4)]
    return [
        [build.closing("talk-0", 1), build.closing("talk-0", 2)],
        [build.closing("talk-1", 1), build.closing("talk-1", 1)],
        [msgspec.structs.replace(build.closing("talk-2", 1), agent="talker"), *late, build.closing("talk-2", 9)],
    ]


def _add_duplicates(rng: random.Random, records: Sequence[Record]) -> list[Record]:
    """Return the records with retries: exact duplicates, at once or later, and a few ids with different content."""
    delivered: list[Record] = []
    for record in records:
        delivered.append(record)
        if rng.random() < 0.15:
            delivered.append(rng.choice(delivered[-30:]))
        if rng.random() < 0.03:
            delivered.append(_change_content(record))
    return delivered


def _change_content(record: Record) -> Record:
    if isinstance(record, Exchange):
        return msgspec.structs.replace(record, agent_response="Something else.", content_digest="f" * 16)
    if isinstance(record, AgentEvent):
        return msgspec.structs.replace(record, payload='{"event":"other"}')
    return record


def _interleave(rng: random.Random, sessions: Sequence[Sequence[Record]]) -> list[Record]:
    """Interleave the sessions at random, keeping the order of each session's records."""
    remaining: list[Iterator[Record]] = [iter(records) for records in sessions]
    interleaved = []
    while remaining:
        session = rng.choice(remaining)
        record = next(session, None)
        if record is None:
            remaining.remove(session)
        else:
            interleaved.append(record)
    return interleaved
