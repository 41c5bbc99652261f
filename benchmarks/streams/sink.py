"""The real sink, timed: python -m benchmarks.streams.sink BROKER PREFIX FILE DIAGNOSES TOPICS.

It takes in the topics named, separated by commas. Prints `ready`, and its measures once so many diagnoses are in the file.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from analytics.store.store import Partition, Store
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.streams.meter import Meter
from service.setup.kafka import connection_of
from service.setup.settings import load_settings
from service.setup.workspace import utc_now
from streams.kafka import sink as sinks
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import open_encryption


async def main(connection: KafkaConnection, file: Path, diagnoses: int, topics: Sequence[str]) -> None:
    """Run until the diagnoses are in the file; the meter ends the process."""
    all_of = sinks.partitions_on

    def some_of(connection: KafkaConnection, _: object) -> Sequence[Partition]:
        return all_of(connection, topics)

    sinks.partitions_on = some_of  # type: ignore[assignment]
    async with open_encryption(connection) as encryption:
        with Store(file) as store:
            sink = sinks.Sink(store, connection, Redactor(Policy().redaction), utc_now, encryption=encryption)
            moved, meter = asyncio.Event(), Meter(diagnoses)
            sink.on_progress = moved.set
            await sink.start()
            meter.begin()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while on_progress(store) < diagnoses:
                await moved.wait()
                moved.clear()
            meter.count(diagnoses)


def on_progress(store: Store) -> int:
    """Count the sessions that have a diagnosis."""
    with store.cursor() as cursor:
        (count,) = cursor.execute("SELECT count(*) FROM log.diagnoses").fetchone() or (0,)
        return int(count)


if __name__ == "__main__":
    broker, prefix, name, count, wanted = sys.argv[1:]
    connection = connection_of(load_settings(kafka=broker, kafka_prefix=prefix))
    asyncio.run(main(connection, Path(name), int(count), wanted.split(",")))
