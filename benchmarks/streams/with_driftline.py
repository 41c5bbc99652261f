"""Consume, decode and fold with Driftline's transport: python -m benchmarks.streams.with_driftline BROKER PREFIX EVENTS.

The worker is the real one, with something in the place of the diagnosis stage that only folds.
"""

import asyncio
import sys
from collections.abc import Callable

from audit.diagnosis.diagnosis import EVIDENCE_REFERENCES
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from benchmarks.streams.meter import Meter
from schemas.codec.arrow import decode_batch
from streams.kafka.agents import Worker
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import KafkaStage
from streams.kafka.reading import Chunk
from streams.topology import stage_named

COLUMNS = ("session_id", *FOLD_COLUMNS[1:])


class Folding:
    """Folds each chunk in memory."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._evidence: dict[str, SessionEvidence] = {}

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Decode and fold a chunk."""
        self._meter.begin()
        frame = decode_batch([record.value for record in chunk.records if record.value]).frames["AgentEvent"]
        rows = zip(*(frame[name].to_list() for name in COLUMNS), strict=True)
        fold_columns(self._evidence, rows, reference_limit=EVIDENCE_REFERENCES)
        done()
        self._meter.count(frame.height, self._evidence.values())

    async def end(self, grace: float) -> None:
        """Nothing is under way between two chunks."""


async def main(broker: str, prefix: str, events: str) -> None:
    """Run until the meter ends the process."""
    stage = stage_named("diagnosis")
    folding = Folding(Meter(int(events)))
    at_work = KafkaStage(stage.source, lambda _: folding, records_at_once=stage.records_at_once)
    worker = Worker(KafkaConnection(broker, prefix=prefix), [at_work])
    await worker.start()
    raise await worker.failed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
