"""The events of a fleet, encoded, and how they come to a topic."""

import itertools
import json
import logging
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.codec.single_object import encode
from schemas.records import AgentEvent

CONNECTION = "fleet"
LENGTH = 100
"""Events of a session; the last one ends it."""
AT_ONCE = 400
"""Sessions under way at the same time."""
BATCH_BYTES = 256 << 10
START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("tool_call", "tool_output", "token_usage", "memory_event", "decision", "context_event")


class Message(NamedTuple):
    """A message to produce."""

    partition: int
    key: bytes
    value: bytes


def fleet(events: int, partitions: int) -> list[Message]:
    """Events of sessions side by side, in the order in which they come; the same ones every time."""
    chance = random.Random(7)
    numbers = itertools.count()
    open_sessions = [session(next(numbers), partitions, chance) for _ in range(AT_ONCE)]
    messages: list[Message] = []
    unopened_sessions = events // LENGTH - AT_ONCE
    while open_sessions:
        index = chance.randrange(len(open_sessions))
        message = next(open_sessions[index], None)
        if message is not None:
            messages.append(message)
        elif unopened_sessions > 0:
            open_sessions[index] = session(next(numbers), partitions, chance)
            unopened_sessions -= 1
        else:
            open_sessions[index] = open_sessions[-1]
            open_sessions.pop()
    return messages


def session(number: int, partitions: int, chance: random.Random) -> Iterator[Message]:
    """Return the events of one session, the last one its end."""
    name = f"session-{number:06}"
    key = f"{CONNECTION}/{name}".encode()
    partition = (murmur2(key) & 0x7FFFFFFF) % partitions
    for seq in range(LENGTH):
        kind = chance.choice(KINDS) if seq < LENGTH - 1 else "session_end"
        yield Message(partition, key, encode(event(number, name, seq, kind, chance)))


def event(number: int, name: str, seq: int, kind: str, chance: random.Random) -> AgentEvent:
    """Return one event with the fields that its kind has."""
    tool = chance.choice(["search", "read_file", "run_tests"]) if kind in {"tool_call", "tool_output"} else None
    payload = {"event": kind, "event_id": f"e{seq}", "args": {"path": f"src/module_{chance.randrange(500)}.py"}, "tool": tool}
    at = START + timedelta(seconds=number, milliseconds=700 * seq)
    return AgentEvent(
        connection=CONNECTION,
        project="billing",
        agent=f"agent-{number % 40}",
        session_id=name,
        event_id=f"e{seq}",
        seq=seq,
        event=kind,
        occurred_at=at,
        ingested_at=at + timedelta(milliseconds=40),
        tool=tool,
        call_key=f"{chance.randrange(40):016x}" if kind == "tool_call" else None,
        action=chance.choice(["recalled", "recalled", "miss"]) if kind == "memory_event" else None,
        used=chance.random() < 0.9 if kind == "tool_output" else None,
        saturation=chance.uniform(10, 90) if kind == "context_event" else None,
        tokens=chance.randrange(5_000) if kind == "token_usage" else None,
        payload=json.dumps(payload),
    )


async def produce(bootstrap: str, topic: str, messages: Sequence[Message], compression: str = "lz4") -> None:
    """Bring messages to a topic, each to its partition; the broker has them when it returns."""
    # It would tell how often it asked before the new topic had a leader.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=compression, max_request_size=8 << 20, max_batch_size=BATCH_BYTES
    )
    await producer.start()
    try:
        batches: dict[int, BatchBuilder] = {}
        deliveries = []
        for partition, key, value in messages:
            batch = batches.get(partition) or producer.create_batch()
            if batch.append(key=key, value=value, timestamp=None) is None:
                deliveries.append(await producer.send_batch(batch, topic, partition=partition))
                batch = producer.create_batch()
                batch.append(key=key, value=value, timestamp=None)
            batches[partition] = batch
        deliveries += [await producer.send_batch(batch, topic, partition=partition) for partition, batch in batches.items()]
        for delivery in deliveries:
            await delivery
    finally:
        await producer.stop()
