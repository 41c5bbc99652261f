"""Ending sessions for concurrent callers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from support import builders as build

from analytics.store.store import Store
from schemas.codec.single_object import decode, encode
from schemas.errors import BoundsError, BrokerError, DriftlineError
from schemas.records import SessionClosed
from streams.log.admission import EncodedRecords
from streams.upkeep.closing import SessionEnds

NOW = datetime(2026, 10, 2, tzinfo=UTC)


class Recorder:
    """Records which sessions are ended together, and refuses those with some names."""

    def __init__(self, refused: DriftlineError | None = None, names: frozenset[str] = frozenset()) -> None:
        self.groups: list[dict[str, set[str]]] = []
        self._refused = refused
        self._names = names

    async def __call__(self, ended: EncodedRecords) -> None:
        """Accept ends, or refuse them."""
        group: dict[str, set[str]] = {}
        for topic, messages in ended.messages.items():
            closed = [record for message in messages if isinstance(record := decode(message), SessionClosed)]
            group[topic] = {record.session_id for record in closed}
        if self._refused and self._names.intersection(*group.values()):
            raise self._refused
        self.groups.append(group)


@pytest.fixture
def sessions() -> Store:
    """Return five sessions, each with an exchange and an event."""
    store = Store(None)
    names = [f"s{number}" for number in range(5)]
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(build.exchange(name, 1)) for name in names])
        transaction.append("agent-events", [encode(build.event(name, 1)) for name in names])
    return store


def ended(store: Store, recorder: Recorder, names: list[str]) -> list[bool | BaseException]:
    """End sessions concurrently; return each caller's answer."""

    async def work() -> list[bool | BaseException]:
        ends = SessionEnds(store, lambda: NOW, recorder)
        return await asyncio.gather(*(ends.end("local", name) for name in names), return_exceptions=True)

    return asyncio.run(work())


def test_sessions_that_end_at_the_same_time_share_one_query(sessions: Store) -> None:
    """A query for each session took a sixth of the CPU time between spans and diagnoses."""
    recorder = Recorder()
    results = ended(sessions, recorder, ["s0", "s1", "s2", "nobody", "s3", "s3"])

    assert results == [True, True, True, False, True, True]
    both = {"s0", "s1", "s2", "s3"}
    assert recorder.groups == [{"exchanges": both, "agent-events": both}]


def test_a_session_that_cannot_be_ended_delays_no_other(sessions: Store) -> None:
    """Sessions that end at the same time are independent."""
    fault = BoundsError("SessionClosed.agent: is too long")
    recorder = Recorder(fault, frozenset({"s2"}))

    assert ended(sessions, recorder, ["s0", "s1", "s2", "s3"]) == [True, True, fault, True]
    assert sorted(name for group in recorder.groups for name in group["exchanges"]) == ["s0", "s1", "s3"]


def test_every_caller_learns_that_the_broker_is_unavailable(sessions: Store) -> None:
    """Without an error, a caller would assume that the session ended."""
    fault = BrokerError("Kafka does not answer")

    assert ended(sessions, Recorder(fault, frozenset({"s1"})), ["s0", "s1"]) == [fault, fault]
