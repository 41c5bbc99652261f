"""Lakes for tests: sinks over them, their rows, and how far they are."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import QueryBuilder
from support.clocks import NOW, TickingClock
from support.servers import PATIENCE

from analytics.lake import ORIGIN, Lake, no_records, record_types, rows_of
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Record
from schemas.registry import topics
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.reading import PartitionReader
from streams.kafka.sink import SinkWriter
from streams.lake.history import LakeHistory
from streams.lake.sink import LakeLimits, LakeSink
from streams.log.log import SINK
from streams.upkeep.deletion import HotDays, purge

QUICK = LakeLimits(seconds=0.05)
TYPES = sorted({name for names in topics().values() for name in names})


def lake_sink(root: Path | str, connection: KafkaConnection, **options: Any) -> LakeSink:
    """Return a sink that is not started."""
    clock = TickingClock(NOW + timedelta(days=1))
    return LakeSink(Lake(str(root)), connection, Redactor(Policy().redaction), clock, **{"limits": QUICK} | options)


@asynccontextmanager
async def sinking(root: Path | str, connection: KafkaConnection, **options: Any) -> AsyncIterator[LakeSink]:
    """Yield a started sink, and stop it at the end."""
    sink = lake_sink(root, connection, **options)
    await sink.start()
    try:
        yield sink
    finally:
        await sink.stop()


async def is_complete(root: Path | str, connection: KafkaConnection) -> bool:
    """Tell whether the lake has everything that is on the topics now."""
    partitions = await asyncio.to_thread(partitions_on, connection, topics())
    async with PartitionReader(connection) as reader:
        ranges = await reader.ranges(partitions)
    lake = Lake(str(root))
    if not lake.exists():
        return False
    stored = await asyncio.to_thread(lake.positions, partitions)
    return all(stored.get(partition, 0) == bounds.end for partition, bounds in ranges.items())


async def completed(root: Path | str, connection: KafkaConnection, *sinks: LakeSink) -> None:
    """Wait until the lake has everything that is on the topics, including what the sinks add to them."""
    async with asyncio.timeout(PATIENCE):
        while not await is_complete(root, connection):
            for sink in sinks:
                if sink.failure is not None:
                    raise sink.failure
            await asyncio.sleep(0.05)


async def fill_lake(root: Path | str, connection: KafkaConnection, **options: Any) -> None:
    """Write everything that is on the topics into the lake."""
    async with sinking(root, connection, **options) as sink:
        await completed(root, connection, sink)


def put(root: Path | str, records: Sequence[tuple[str, Record]]) -> None:
    """Write records into the lake, each on partition 0 of its topic, after those that are there."""
    lake = Lake(str(root))
    lake.create()
    for topic in dict.fromkeys(topic for topic, _ in records):
        partition = (topic, 0)
        start = lake.position(record_types()[topic][-1], partition) or 0
        messages = [encode(record) for name, record in records if name == topic]
        for name, frame in decode_batch(messages).frames.items():
            origin = frame.with_columns(
                pl.lit(0, pl.Int32).alias("_partition"),
                (frame[INDEX] + start).alias("_offset"),
                pl.lit(NOW).alias("received_at").cast(pl.Datetime("us", "UTC")),
            )
            lake.commit(name, rows_of(name, topic, origin), {partition: start + len(messages)})


def rows(root: Path | str, name: str) -> pl.DataFrame:
    """Return every row of the table of a record type, in the order of the topics."""
    table = Lake(str(root)).table(name)
    files = table.file_uris()
    if not files:
        return rows_of(name, "", no_records(name))
    if "://" in str(root):
        return pl.DataFrame(QueryBuilder().register("t", table).execute("SELECT * FROM t")).sort(*ORIGIN)
    return pl.read_parquet(files, hive_partitioning=False).sort("_topic", "_partition", "_offset")


def digest(root: Path | str) -> dict[str, tuple[int, str]]:
    """Return the number of rows and a digest of the rows of each table.

    Each sink that meets a bad value produces its dead letter, which is the same each time. So dead letters count once, without origin.
    """
    digests: dict[str, tuple[int, str]] = {}
    for name in TYPES:
        frame = rows(root, name)
        if name == "DeadLetter":
            frame = frame.drop(ORIGIN).unique().sort("dead_letter_id")
        text = "".join(repr(row) for row in frame.iter_rows(named=True))
        digests[name] = frame.height, hashlib.sha256(text.encode()).hexdigest()
    return digests


def put_all(root: Path | str, store: Store) -> None:
    """Write the records of a store into the lake at their positions, as a sink does that has read all topics."""
    lake = Lake(str(root))
    lake.create()
    for topic in topics():
        end = {(topic, 0): store.end_of(topic)}
        frames = store.read(topic, 0, store.end_of(topic))
        *others, main = record_types()[topic]
        for name in (*others, main):
            frame = frames[name].with_columns(_partition=pl.lit(0, pl.Int32)) if name in frames else no_records(name)
            received = frame.with_columns(received_at=pl.lit(NOW).cast(pl.Datetime("us", "UTC")))
            lake.commit(name, rows_of(name, topic, received), end)


def leave_to_lake(root: Path | str, store: Store, now: datetime, days: int) -> None:
    """Write the records of a store into the lake, and keep the details of the last days only in the store."""
    put_all(root, store)
    with store.transaction() as transaction:
        transaction.set_watermarks(SINK, {(topic, 0): store.end_of(topic) for topic in topics()})
    purge(store, Policy(), now, hot=HotDays(days, Lake(str(root))))


def fill_store(root: Path | str, store: Store) -> None:
    """Write the records of the lake into a store, as a sink does before it reads the topics."""
    history = LakeHistory(Lake(str(root)))
    writer = SinkWriter(store, Redactor(Policy().redaction), lambda: NOW)
    ends = history.ends([(topic, 0) for topic in topics()])
    writer.begin(dict.fromkeys(ends, 0))
    for batch in history.batches(writer.positions(), ends):
        writer.write_batches([batch], batch.positions)
