"""Consume, decode and fold with Quix Streams: python -m benchmarks.streams.with_quix BROKER TOPIC EVENTS."""

import sys
import tempfile
import time
from typing import Any

from quixstreams import Application
from quixstreams.models import Deserializer, SerializationContext

from audit.diagnosis.evidence import SessionEvidence
from benchmarks.streams.meter import Meter
from benchmarks.streams.per_record import decode, fold

READ_AHEAD = {"queued.min.messages": 100_000, "fetch.message.max.bytes": 8 << 20}
"""librdkafka's own default keeps as many; a larger fetch suits it when the topic is full already."""


class SingleObject(Deserializer):
    """Records in Avro's single-object encoding."""

    def __call__(self, value: bytes, ctx: SerializationContext) -> dict[str, Any]:  # noqa: ARG002 - theirs
        """Return the record of a message."""
        return decode(value)


def main(broker: str, topic: str, count: str) -> None:
    """Fold so many events."""
    meter = Meter(int(count))
    evidence: dict[str, SessionEvidence] = {}

    def take(record: dict[str, Any]) -> None:
        meter.begin()
        fold(evidence, [record])
        meter.count(1, evidence.values())

    app = Application(
        broker_address=broker,
        consumer_group=f"bench-{time.time_ns()}",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        state_dir=tempfile.mkdtemp(),
        loglevel="ERROR",
        consumer_extra_config=READ_AHEAD,
    )
    events = app.topic(topic, value_deserializer=SingleObject(), key_deserializer="bytes")
    app.dataframe(events).update(take)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
