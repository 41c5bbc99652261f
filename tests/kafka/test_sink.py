"""The sink on a real broker: every record of every topic is in its table once, whatever comes and however often."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders import event, exchange, score
from sinks import MakeTopics, land_all, produce, producing, tables

from analytics.store import Store
from schemas.codec import encode
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection


def test_each_record_lands_once(kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path) -> None:
    """A producer that is not sure sends again, and a sink that starts again reads on."""
    make_topics(*topics())
    events = [event(f"s{number % 7}", number) for number in range(300)]

    async def run() -> None:
        async with producing(kafka) as producer:
            for part in (events[:200], events[100:], events):
                await produce(producer, "agent-events", part)
                with Store(tmp_path / "a.duckdb") as store:
                    await land_all(store, kafka)

    asyncio.run(run())
    with Store(tmp_path / "a.duckdb") as store:
        landed = tables(store)["agent_events"]
    assert 300 == len(landed)
