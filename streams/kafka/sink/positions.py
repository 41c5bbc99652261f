"""Positions of the sink in each partition, checked against what the topics still have."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from analytics.store.store import Store
from analytics.store.transaction import Partition
from schemas.errors import BrokerError
from streams.kafka.connection import KafkaConnection
from streams.kafka.partition_reader import Range
from streams.kafka.sink.sink_batches import SinkWriter

log = logging.getLogger(__name__)


class SinkPositions:
    """The positions that a database has of the topics. Its methods read and write the database: not for the event loop."""

    def __init__(self, store: Store, connection: KafkaConnection, writer: SinkWriter) -> None:
        self._store = store
        self._connection = connection
        self._writer = writer

    def check(self, ranges: Mapping[Partition, Range]) -> None:
        """BrokerError when the topics end before what was read of them."""
        for partition, position in self._writer.positions().items():
            if partition in ranges:
                self._check(partition, position, ranges[partition])

    def open(self, ranges: Mapping[Partition, Range]) -> dict[Partition, int]:
        """Return the position to go on from in each partition.

        A partition that was never read is read from the first record it has.
        """
        known = self._writer.positions()
        new = {one: found.beginning for one, found in ranges.items() if one not in known}
        self._writer.begin(new)
        return new | {one: self.within(one, known[one], found) for one, found in ranges.items() if one in known}

    def within(self, partition: Partition, position: int, found: Range) -> int:
        """The position, or the beginning where retention took what was to be read next; BrokerError when it lies beyond the end."""
        self._check(partition, position, found)
        if position < found.beginning:
            words = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(words, self._connection.topic(partition[0]), partition[1], position, found.beginning - 1)
            self._writer.pass_over(partition, position, found.beginning)
        return max(position, found.beginning)

    def _check(self, partition: Partition, position: int, found: Range) -> None:
        """BrokerError when the position lies beyond the end."""
        if position > found.end:
            topic, number = self._connection.topic(partition[0]), partition[1]
            raise BrokerError(
                f"{self._store.path} has read topic {topic}, partition {number}, up to offset {position}, and it ends at {found.end}: "
                "it is not the topic that the database was filled from, or brokers have lost records",
                hint="Name the cluster and prefix that this database belongs to, or another database with --db.",
            )
