"""The least that anyone could do: consume with aiokafka, decode to Arrow, and nothing else.

python -m benchmarks.streams.bare BROKER TOPIC EVENTS proven|unproven
"""

import asyncio
import sys
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer

from benchmarks.streams.meter import Meter
from schemas.codec.arrow import decode_batch, decode_columns
from schemas.codec.single_object import PREFIX_BYTES
from schemas.registry import schema_of

FETCH_BYTES = 4 << 20


def proven(messages: Sequence[bytes]) -> int:
    """Rows that the product's decoder believes."""
    return sum(frame.height for frame in decode_batch(messages).frames.values())


def unproven(messages: Sequence[bytes]) -> int:
    """Rows that polars makes of the bodies, nothing proven."""
    frame = decode_columns(schema_of("AgentEvent"), b"".join(message[PREFIX_BYTES:] for message in messages), len(messages))
    return 0 if frame is None else frame.height


async def consume(broker: str, topic: str, events: int, decode: Callable[[Sequence[bytes]], int]) -> None:
    """Read a topic from its beginning, all partitions of it, without a group."""
    meter = Meter(events)
    reading = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": FETCH_BYTES}
    async with AIOKafkaConsumer(topic, bootstrap_servers=broker, **reading) as consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                meter.begin()
                meter.count(decode([record.value for record in records]))


if __name__ == "__main__":
    broker, topic, events, how = sys.argv[1:]
    asyncio.run(consume(broker, topic, int(events), {"proven": proven, "unproven": unproven}[how]))
