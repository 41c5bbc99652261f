"""The real worker with the diagnosis stage alone, timed: python -m benchmarks.streams.worker BROKER PREFIX.

Ends at SIGTERM, and prints when the first chunk came and what the process took.
"""

import sys
from collections.abc import Callable

from benchmarks.streams.meter import Meter
from service.server import worker_process
from service.setup.settings import load_settings
from streams.kafka import stages
from streams.kafka.reading import Chunk
from streams.kafka.stages import ComputedPartition
from streams.topology import stage_named


class Timed(ComputedPartition):
    """Notes when the first chunk comes."""

    meter = Meter(1)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk."""
        self.meter.begin()
        await super().take(chunk, done)


if __name__ == "__main__":
    stages.ComputedPartition = Timed  # type: ignore[misc]
    broker, prefix = sys.argv[1:]
    worker_process.run_worker(load_settings(kafka=broker, kafka_prefix=prefix), [stage_named("diagnosis")], None)
    Timed.meter.report()
