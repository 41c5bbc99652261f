"""The laws of `streams.log.log`, for every kind of log: each is a function of something that opens logs over one disk or cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from support import builders as build

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Exchange, Record
from streams.log.log import CONFLICT, KNOWN, WRITTEN, Commit, Log

Opened = Callable[..., AbstractAsyncContextManager[Log]]
"""Opens a log, started; leaves it as a kill would with `is_killed=True`, else stops it."""
TOPIC = "exchanges"


async def brought(log: Log, *exchanges: Exchange) -> list[str]:
    """Append records to a log as the engine does, and return the outcome of each."""
    messages = [encode(exchange) for exchange in exchanges]
    outcomes = await log.outcomes(TOPIC, exchanges, messages)
    new: list[Record] = [exchange for exchange, outcome in zip(exchanges, outcomes, strict=True) if outcome == WRITTEN]
    if new:
        commit = Commit({TOPIC: [encode(record) for record in new]}, {TOPIC: log.end_of(TOPIC)})
        await log.append(commit, {TOPIC: new})
    return outcomes


def in_tables(store: Store) -> list[tuple[str, int, int]]:
    """Return id, partition and offset of each exchange of the tables, in their order."""
    statement = "SELECT exchange_id, _partition, _offset FROM log.exchanges ORDER BY 2, 3"
    return store.cursor().execute(statement).fetchall()


def session(count: int) -> Sequence[Exchange]:
    """Return exchanges of one session, which keep their order on every log."""
    return [build.exchange("s", number) for number in range(1, count + 1)]


async def what_was_appended_survives_a_kill(store: Store, opened: Opened) -> None:
    """Laws 1 and 5: records survive a kill right after the append, and are there once after the restart."""
    async with opened(is_killed=True) as log:
        assert await brought(log, *session(3)) == [WRITTEN] * 3
    async with opened() as log:
        await log.wait_for_tables(TOPIC)
        assert [exchange_id for exchange_id, *_ in in_tables(store)] == ["s:1", "s:2", "s:3"]
        assert await brought(log, *session(3)) == [KNOWN] * 3
        await log.wait_for_tables(TOPIC)
    assert len(in_tables(store)) == 3


async def records_keep_their_order_and_offsets_are_given_once(store: Store, opened: Opened) -> None:
    """Law 2, over several appends and a restart."""
    exchanges = session(9)
    async with opened() as log:
        for exchange in exchanges[:4]:
            await brought(log, exchange)
        await brought(log, *exchanges[4:6])
    async with opened() as log:
        await brought(log, *exchanges[6:])
        await log.wait_for_tables(TOPIC)
    rows = in_tables(store)
    assert [exchange.exchange_id for exchange in exchanges] == [exchange_id for exchange_id, *_ in rows]
    assert len(rows) == len({(partition, offset) for _, partition, offset in rows})


async def what_is_known_is_told_before_and_after_a_flush(store: Store, opened: Opened) -> None:
    """Law 3: duplicates and conflicts are reported within one call, before the flush, and after it."""
    first, other = build.exchange("s", 1), build.exchange("s", 1, "It is not done.", content_digest="f" * 16)
    async with opened() as log:
        assert await brought(log, first, first, other) == [WRITTEN, KNOWN, CONFLICT]
        assert await brought(log, first, other, build.exchange("s", 2)) == [KNOWN, CONFLICT, WRITTEN]
        await log.flush()
        assert await brought(log, first, other) == [KNOWN, CONFLICT]
    assert [exchange_id for exchange_id, *_ in in_tables(store)] == ["s:1", "s:2"]


async def a_flush_returns_when_the_tables_have_everything(store: Store, opened: Opened) -> None:
    """Law 4: a flush returns when every record is in the tables; pending records are counted until then."""
    async with opened() as log:
        for number in range(1, 21):
            await brought(log, build.exchange(f"s{number}", 1))
        await log.flush()
        assert len(in_tables(store)) == 20
        assert log.waiting() == 0
        assert log.waiting(TOPIC) == 0
        await brought(log, build.exchange("t", 1))
        await log.flush_session("local/t")
        assert len(in_tables(store)) == 21


LAWS = (
    what_was_appended_survives_a_kill,
    records_keep_their_order_and_offsets_are_given_once,
    what_is_known_is_told_before_and_after_a_flush,
    a_flush_returns_when_the_tables_have_everything,
)
