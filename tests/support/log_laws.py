"""The laws of `streams.log.log`, which every kind of log obeys. Each law is a test function that gets the store and a way to open the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from support import builders as build

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Exchange, Record
from streams.log.log import CONFLICT, KNOWN, WRITTEN, Commit, Log

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
"""Opens and starts a log. On exit the log is stopped, or with `is_killed=True` left as after a kill."""
TOPIC = "exchanges"


async def append_records(log: Log, *exchanges: Exchange) -> list[str]:
    """Append records to a log as the engine does, and return the outcome of each."""
    messages = [encode(exchange) for exchange in exchanges]
    outcomes = await log.outcomes(TOPIC, exchanges, messages)
    new_records: list[Record] = [exchange for exchange, outcome in zip(exchanges, outcomes, strict=True) if outcome == WRITTEN]
    if new_records:
        commit = Commit({TOPIC: [encode(record) for record in new_records]}, {TOPIC: log.end_of(TOPIC)})
        await log.append(commit, {TOPIC: new_records})
    return outcomes


def load_rows(store: Store) -> list[tuple[str, int, int]]:
    """Return the id, partition and offset of each exchange in the tables, in order of partition and offset."""
    statement = "SELECT exchange_id, _partition, _offset FROM log.exchanges ORDER BY 2, 3"
    return store.cursor().execute(statement).fetchall()


def build_session(count: int) -> Sequence[Exchange]:
    """Return exchanges of one session, whose order every log keeps."""
    return [build.exchange("s", number) for number in range(1, count + 1)]


async def appended_records_survive_a_kill(store: Store, open_log: OpenLog) -> None:
    """Laws 1 and 5: records survive a kill right after the append, and are there once after the restart."""
    async with open_log(is_killed=True) as log:
        assert await append_records(log, *build_session(3)) == [WRITTEN] * 3
    async with open_log() as log:
        await log.wait_for_tables(TOPIC)
        assert [exchange_id for exchange_id, _, _ in load_rows(store)] == ["s:1", "s:2", "s:3"]
        assert await append_records(log, *build_session(3)) == [KNOWN] * 3
        await log.wait_for_tables(TOPIC)
    assert len(load_rows(store)) == 3


async def records_keep_their_order_and_offsets_are_given_once(store: Store, open_log: OpenLog) -> None:
    """Law 2, over several appends and a restart."""
    exchanges = build_session(9)
    async with open_log() as log:
        for exchange in exchanges[:4]:
            await append_records(log, exchange)
        await append_records(log, *exchanges[4:6])
    async with open_log() as log:
        await append_records(log, *exchanges[6:])
        await log.wait_for_tables(TOPIC)
    rows = load_rows(store)
    assert [exchange_id for exchange_id, _, _ in rows] == [exchange.exchange_id for exchange in exchanges]
    assert len(rows) == len({(partition, offset) for _, partition, offset in rows})


async def duplicates_are_reported_before_and_after_a_flush(store: Store, open_log: OpenLog) -> None:
    """Law 3: duplicates and conflicts are reported within one call, before the flush, and after it."""
    first = build.exchange("s", 1)
    conflicting = build.exchange("s", 1, "It is not done.", content_digest="f" * 16)
    async with open_log() as log:
        assert await append_records(log, first, first, conflicting) == [WRITTEN, KNOWN, CONFLICT]
        assert await append_records(log, first, conflicting, build.exchange("s", 2)) == [KNOWN, CONFLICT, WRITTEN]
        await log.flush()
        assert await append_records(log, first, conflicting) == [KNOWN, CONFLICT]
    assert [exchange_id for exchange_id, _, _ in load_rows(store)] == ["s:1", "s:2"]


async def a_flush_returns_when_the_tables_have_everything(store: Store, open_log: OpenLog) -> None:
    """Law 4: a flush returns when every record is in the tables; pending records are counted until then."""
    async with open_log() as log:
        for number in range(1, 21):
            await append_records(log, build.exchange(f"s{number}", 1))
        await log.flush()
        assert len(load_rows(store)) == 20
        assert log.waiting() == 0
        assert log.waiting(TOPIC) == 0
        await append_records(log, build.exchange("t", 1))
        await log.flush_session("local/t")
        assert len(load_rows(store)) == 21


LAWS = (
    appended_records_survive_a_kill,
    records_keep_their_order_and_offsets_are_given_once,
    duplicates_are_reported_before_and_after_a_flush,
    a_flush_returns_when_the_tables_have_everything,
)
