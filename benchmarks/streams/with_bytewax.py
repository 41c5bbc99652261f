"""Consume, decode and fold with Bytewax: python -m benchmarks.streams.with_bytewax BROKER TOPIC EVENTS."""

import sys
from collections.abc import Iterable
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow
from bytewax.testing import cluster_main

from audit.diagnosis.evidence import SessionEvidence
from benchmarks.streams.meter import Meter
from benchmarks.streams.per_record import decode, fold

READ_AHEAD = {"queued.min.messages": "100000", "fetch.message.max.bytes": str(8 << 20)}
BATCH = 10_000


def main(broker: str, topic: str, count: str) -> None:
    """Fold so many events."""
    meter = Meter(int(count))
    evidence: dict[str, SessionEvidence] = {}

    def take(messages: list[Any]) -> Iterable[None]:
        meter.begin()
        fold(evidence, (decode(message.value) for message in messages))
        meter.count(len(messages), evidence.values())
        return ()

    flow = Dataflow("bench")
    messages = op.input("events", flow, KafkaSource([broker], [topic], tail=False, add_config=READ_AHEAD, batch_size=BATCH))
    op.output("nothing", op.flat_map_batch("fold", messages, take), StdOutSink())
    cluster_main(flow, [], 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
