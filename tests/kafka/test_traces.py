"""Traces over Kafka: the stage runs in the serving process, publishes its records, and keeps its states in the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from support.clocks import NOW
from support.engines import rows
from support.kafka_sinks import MakeTopics, gateway_over
from support.otlp_captures import records_of
from support.otlp_spans import agent, chat, request, tool

from analytics.store.store import Store
from schemas.registry import topics
from streams.engine.engine import Engine
from streams.kafka.connection import KafkaConnection
from streams.kafka.kafka_log import KafkaLog
from streams.log.log import Commit
from streams.upkeep.assembling import TraceAssembler

MARKS = "1234"
TRACES = [
    span
    for mark in MARKS
    for span in (
        agent(0, trace=mark * 32, attributes={"gen_ai.conversation.id": mark}),
        chat(1, trace=mark * 32, attributes={"gen_ai.response.id": mark}),
        tool(2, trace=mark * 32),
    )
]
SPANS = [replace(span, ingested_at=NOW) for span in records_of([request(*TRACES)])]
"""Spans of traces that are complete by a gateway's clock, which is a day ahead."""


class Killed(BaseException):
    """Raised where the process is killed."""


def kill_at(gateway: Engine, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process before it produces to a topic, or before it writes the states of records."""
    log = gateway._log
    assert isinstance(log, KafkaLog)
    send, write_states = log._producer.send, log._write_states

    async def sent(name: str, values: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        if name == topic:
            raise Killed
        return await send(name, values)

    def written(commit: Commit) -> None:
        if topic == "states" and commit.records:
            raise Killed
        write_states(commit)

    monkeypatch.setattr(log._producer, "send", sent)
    monkeypatch.setattr(log, "_write_states", written)


@pytest.mark.any_broker
@pytest.mark.parametrize("topic", ["agent-events", "trace-assemblies", "states"])
def test_a_kill_duplicates_nothing(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """The next process recognises published records, whatever states and positions the tables have."""
    make_topics(*topics())

    async def begin(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            await gateway.publish("spans", SPANS)
            await gateway.wait_for_tables("spans")
            kill_at(gateway, topic, monkeypatch)
            working = asyncio.create_task(TraceAssembler(gateway).run())
            await gateway.broken.wait()
            working.cancel()

    async def go_on(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            await TraceAssembler(gateway).run()
            for name in topics():
                await gateway.wait_for_tables(name)

    with Store(None) as store:
        asyncio.run(begin(store))
        asyncio.run(go_on(store))
        tables = rows(store, "exchanges", "*"), rows(store, "agent_events", "*"), rows(store, "trace_assemblies", "*")
        asyncio.run(go_on(store))
        assert tables == (rows(store, "exchanges", "*"), rows(store, "agent_events", "*"), rows(store, "trace_assemblies", "*"))
        assert len(tables[0]) == len({row[0] for row in rows(store, "exchanges", "exchange_id")}) == len(MARKS)
        assert rows(store, "trace_assemblies", "trace_id, revision, spans") == [(mark * 32, 0, 3) for mark in MARKS]
        assert rows(store, "stage_state WHERE stage = 'traces'") == []


@pytest.mark.any_broker
def test_the_stage_is_poked_after_spans_are_stored(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The stage continues at once, without polling the tables."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            poked = asyncio.Event()
            gateway.has_more = lambda: poked.set() if sum(gateway.ends_in_tables("spans").values()) else None
            await gateway.publish("spans", SPANS)
            await asyncio.wait_for(poked.wait(), 60)
            await gateway.wait_for_tables("spans")
            assert sum(gateway.ends_in_tables("spans").values()) == len(SPANS)

    with Store(None) as store:
        asyncio.run(run(store))
        assert store.count("spans") == len(SPANS)
