"""Rebuilding the tables from the topics: drop the rows that the topics still hold, and write them again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime

from analytics.store.store import Store
from analytics.store.transaction import Partition
from audit.redaction import Redactor
from schemas.errors import SettingsError
from schemas.registry import topics
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe
from streams.kafka.reading import PartitionReader, Range
from streams.kafka.sink import Sink
from streams.log.ownership import SINK, require_kafka
from streams.upkeep.erasing import erase

REBUILD = "rebuild"
"""Consumer whose watermark is 1 while a rebuild is in progress, else 0."""
REPORT_SECONDS = 0.2


async def rebuild(
    store: Store,
    connection: KafkaConnection,
    redactor: Redactor,
    now: Callable[[], datetime],
    *,
    reframe: Reframe | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """Drop the rows of all records that the partitions still have, and write them again; rows of older records stay.

    Erased records that are still on a topic are erased again. `report` is called with the number of records left. After an
    interruption at any moment, another call or a server writes the rest. BrokerError as in `Sink.start`, before anything is dropped.
    """
    await asyncio.to_thread(require_kafka, store)
    ranges = await _ranges(connection)
    sink = Sink(store, connection, redactor, now, reframe=reframe)
    await asyncio.to_thread(sink.writer.check, ranges)
    if not await asyncio.to_thread(is_unfinished, store):
        await asyncio.to_thread(_drop, store, ranges)
    try:
        await sink.start()
        reporting = asyncio.create_task(_report(sink, report))
        try:
            await sink.caught_up()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
    finally:
        await sink.stop()
    # Records can reach the tables before the request to erase them.
    await asyncio.to_thread(lambda: erase(store, now(), all_again=True))
    await asyncio.to_thread(finish, store)


async def require_records(connection: KafkaConnection) -> None:
    """SettingsError if there is nothing to rebuild from: topics are missing or empty. BrokerError when no broker answers."""
    ranges = await _ranges(connection)
    if all(bounds.beginning == bounds.end for bounds in ranges.values()):
        named = f"no topic that begins with {connection.prefix}" if connection.prefix else "no topic"
        raise SettingsError(
            f"{named} at {connection.bootstrap} holds a record, so there is nothing to rebuild from",
            hint="Check --kafka and DRIFTLINE_KAFKA_PREFIX; `driftline topics check` lists the topics.",
        )


def is_unfinished(store: Store) -> bool:
    """Tell whether a rebuild was cut short."""
    with store.transaction() as transaction:
        return bool(transaction.watermark(REBUILD, ""))


def finish(store: Store) -> None:
    """Note that no rebuild is in progress: a sink writes the rest of an interrupted one."""
    with store.transaction() as transaction:
        if transaction.watermark(REBUILD, ""):
            transaction.set_watermark(REBUILD, "", 0)


async def _ranges(connection: KafkaConnection) -> dict[Partition, Range]:
    partitions = await asyncio.to_thread(partitions_on, connection, topics())
    async with PartitionReader(connection) as reader:
        return await reader.ranges(partitions)


def _drop(store: Store, ranges: Mapping[Partition, Range]) -> None:
    with store.transaction() as transaction:
        for topic in topics():
            transaction.drop(topic, {number: bounds.beginning for (name, number), bounds in ranges.items() if name == topic})
        positions = transaction.watermarks(SINK)
        # Keep the positions of records that retention removed unread, so that the gap is recorded.
        starts = {
            partition: min(positions.get(partition, bounds.beginning), bounds.beginning) for partition, bounds in ranges.items()
        }
        transaction.set_watermarks(SINK, starts)
        transaction.set_watermark(REBUILD, "", 1)


async def _report(sink: Sink, report: Callable[[int], None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            report(sink.progress.lag)
            await asyncio.sleep(REPORT_SECONDS)
