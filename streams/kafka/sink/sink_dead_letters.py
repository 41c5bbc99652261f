"""The dead letters of what the sink does not land: produced to their topic before the positions move (`streams.kafka.sink.sink_batches`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import keyed
from streams.kafka.producing import RecordProducer
from streams.kafka.sink.progress import Progress
from streams.kafka.sink.sink_batches import SinkWriter, UntoldError
from streams.log.admission import DEAD_LETTERS

TELLING_SECONDS = 10.0
"""Seconds that a broker has to take dead letters."""
Found = TypeVar("Found")


class SinkLetters:
    """See the module. Belongs to one event loop; connects with the first letter."""

    def __init__(self, connection: KafkaConnection, writer: SinkWriter, progress: Progress) -> None:
        self._producer = RecordProducer(connection, time_limit=TELLING_SECONDS)
        self._writer = writer
        self._progress = progress

    async def telling(self, work: Callable[[], Found]) -> Found:
        """Do what lands or moves positions, in a thread, once the dead letters that it makes are produced; BrokerError when they are not.

        They are to land, too, before what was there at the start counts as done.
        """
        while True:
            try:
                return await asyncio.to_thread(work)
            except UntoldError as error:
                produced = await self._producer.send(DEAD_LETTERS, keyed(error.letters.values()))
                self._writer.told.update(error.letters)
                self._progress.expect({(DEAD_LETTERS, one.partition): one.offset + 1 for one in sorted(produced)})

    async def stop(self) -> None:
        """Let go of the broker."""
        await self._producer.stop()
