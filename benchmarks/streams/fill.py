"""An empty database, filled and timed: python -m benchmarks.streams.fill topics|lake BROKER PREFIX LAKE DATABASE ROWS.

It prints the seconds and the seconds of processor time from an empty file to the last commit.
"""

import asyncio
import sys
import time
from pathlib import Path

from analytics.lake import Lake
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.streams.meter import cpu_seconds
from service.setup.workspace import utc_now
from streams.kafka.connection import KafkaConnection
from streams.kafka.sink import Sink
from streams.lake.history import LakeHistory
from streams.process import collect_rarely


async def fill(kind: str, connection: KafkaConnection, lake: str, database: Path, rows: int) -> None:
    """Fill the database from the topics alone, or from the lake first; RuntimeError unless it has so many scores then."""
    history = LakeHistory(Lake(lake)) if kind == "lake" else None
    with Store(database) as store:
        began, cpu = time.time(), cpu_seconds()
        sink = Sink(store, connection, Redactor(Policy().redaction), utc_now, history=history)
        await sink.start()
        await sink.caught_up()
        print(time.time() - began, cpu_seconds() - cpu, flush=True)
        await sink.stop()
        stored = store.count("scores")
        if stored != rows:
            raise RuntimeError(f"there are {stored} scores, not {rows}")


if __name__ == "__main__":
    kind, broker, prefix, lake, database, rows = sys.argv[1:]
    collect_rarely()
    asyncio.run(fill(kind, KafkaConnection(broker, prefix=prefix), lake, Path(database), int(rows)))
