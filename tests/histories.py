"""Histories for tests of parity: what a fleet's topics hold after weeks of retries, late senders and senders that mix up their ids.

A history is a list of records a topic, in the order they were produced. It holds each record at least once; some again, close by or far
behind; some hours late; some in another order than their turns; and some under an id that another record has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import builders as build
import msgspec

from schemas.records import AgentEvent, Exchange, Record

EXCHANGES, EVENTS, REQUESTS = "exchanges", "agent-events", "evaluation-requests"
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
    """The records of the topics that come from outside, in the order they were produced."""

    exchanges: Sequence[Record]
    events: Sequence[Record]
    requests: Sequence[Record] = ()
    """For evaluations."""

    @property
    def topics(self) -> dict[str, Sequence[Record]]:
        """The records by topic."""
        topics = {EXCHANGES: self.exchanges, EVENTS: self.events, REQUESTS: self.requests}
        return {name: records for name, records in topics.items() if records}


def history(seed: int, sessions: int = 24) -> History:
    """A history of so many sessions side by side, without evaluations; the same for the same seed."""
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(sessions)]
    return History(
        _mixed(chance, [_told_again(chance, _conversation(chance, name)) for name in names]),
        _mixed(chance, [*(_told_again(chance, _run(chance, name)) for name in names), *_ends_without_events()]),
    )


def _conversation(chance: random.Random, session: str) -> list[Record]:
    """A session's exchanges and its end, after which some sessions go on."""
    turns = chance.randrange(1, 40)
    said: list[Record] = [_exchange(chance, session, turn) for turn in range(1, turns + 1)]
    for _ in range(turns // 8):
        place = chance.randrange(len(said) - 1)
        said[place], said[place + 1] = said[place + 1], said[place]
    said.append(build.closing(session, turns))
    if chance.random() < 0.3:
        said += [_exchange(chance, session, turns + more) for more in range(1, 4)]
        said.append(build.closing(session, turns + 10))
    return said


def _exchange(chance: random.Random, session: str, turn: int) -> Exchange:
    fields: dict[str, object] = {"content_digest": f"{turn:016x}"}
    if chance.random() < 0.3:
        fields["agent_thinking"] = "The log says so."
    if chance.random() < 0.1:
        fields["turn_number"] = turn
    if chance.random() < 0.1:
        fields["occurred_at"] = build.START - timedelta(hours=chance.randrange(1, 50))
    return build.exchange(session, turn, chance.choice(RESPONSES), **fields)


def _run(chance: random.Random, session: str) -> list[Record]:
    """A session's events and its end, told by an event or by a record."""
    count = chance.randrange(3, 120)
    events: list[Record] = [
        build.event(session, number, event="tool_call", tool=chance.choice(TOOLS), tokens=chance.randrange(500))
        for number in range(count)
    ]
    if chance.random() < 0.5:
        events.append(build.event(session, count, event="session_end"))
    events.append(build.closing(session, count))
    if chance.random() < 0.3:
        events += [build.event(session, count + more, event="tool_call", tool="exec") for more in range(1, 4)]
        events.append(build.closing(session, count + 10))
    return events


def _ends_without_events() -> list[list[Record]]:
    """Ends of sessions of exchanges alone: one that ends twice, one end again, one whose events come after it."""
    late = [build.event("talk-2", number, event="tool_call", tool="exec") for number in range(4)]
    return [
        [build.closing("talk-0", 1), build.closing("talk-0", 2)],
        [build.closing("talk-1", 1), build.closing("talk-1", 1)],
        [msgspec.structs.replace(build.closing("talk-2", 1), agent="talker"), *late, build.closing("talk-2", 9)],
    ]


def _told_again(chance: random.Random, records: Sequence[Record]) -> list[Record]:
    """The records, some of them again at once or later, and some ids with another content."""
    told: list[Record] = []
    for record in records:
        told.append(record)
        if chance.random() < 0.15:
            told.append(chance.choice(told[-30:]))
        if chance.random() < 0.03:
            told.append(_with_other_content(record))
    return told


def _with_other_content(record: Record) -> Record:
    if isinstance(record, Exchange):
        return msgspec.structs.replace(record, agent_response="Something else.", content_digest="f" * 16)
    if isinstance(record, AgentEvent):
        return msgspec.structs.replace(record, payload='{"event":"other"}')
    return record


def _mixed(chance: random.Random, sessions: Sequence[Sequence[Record]]) -> list[Record]:
    """The sessions side by side, each one's records in order."""
    left: list[Iterator[Record]] = [iter(records) for records in sessions]
    mixed = []
    while left:
        one = chance.choice(left)
        record = next(one, None)
        if record is None:
            left.remove(one)
        else:
            mixed.append(record)
    return mixed
