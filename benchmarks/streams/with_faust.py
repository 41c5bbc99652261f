"""Consume, decode and fold with an agent as Faust's documentation writes it: python -m benchmarks.streams.with_faust BROKER TOPIC EVENTS."""

import sys
import tempfile
import time
from typing import Any

import faust

from audit.diagnosis.evidence import SessionEvidence
from benchmarks.streams.meter import Meter
from benchmarks.streams.per_record import decode, fold

BROKER, TOPIC, EVENTS = sys.argv[1:]
meter = Meter(int(EVENTS))
evidence: dict[str, SessionEvidence] = {}
app = faust.App(
    f"bench-{time.time_ns()}",
    broker=f"kafka://{BROKER}",
    datadir=tempfile.mkdtemp(),
    consumer_auto_offset_reset="earliest",
    topic_disable_leader=True,
)
events = app.topic(TOPIC, value_type=bytes, value_serializer="raw", key_serializer="raw")


@app.agent(events)
async def fold_events(stream: Any) -> None:
    """One record at a time."""
    async for message in stream:
        meter.begin()
        fold(evidence, [decode(message)])
        meter.count(1, evidence.values())


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "worker", "-l", "error", "--without-web"]
    app.main()
