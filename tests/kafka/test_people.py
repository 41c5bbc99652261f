"""Human scores and anchors on a real broker: answers are correct before the tables have them, and workers get the rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
from support.builders import exchange, score
from support.clocks import TickingClock
from support.kafka_sinks import MakeTopics, gateway_over, held_back, land_all, produce, producing, tables, until

from analytics.store.store import Store
from audit.policy import Policy
from schemas.registry import topics
from service.server.app import create_app
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.kafka.connection import KafkaConnection
from streams.upkeep.anchors import choose, run_round, withdraw

HUMAN = "/api/audit/ops/scores/score s:1/human"


def test_a_human_score_is_answered_before_it_lands_and_read_once_it_has(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """The answer comes from the sent record, because the tables do not have it yet."""
    make_topics(*topics())

    async def run(store: Store, access: AccessStore) -> list[dict[str, Any]]:
        async with producing(kafka) as producer:
            await produce(producer, "scores", [score("s", 1)])
        async with gateway_over(store, kafka) as gateway:
            gateway.policy = Policy.model_validate({"defaults": {"bidirectionalScoring": True}})
            headers = {"authorization": f"Bearer {access.add(Holder('operator', 'root', None))}"}
            transport = httpx2.ASGITransport(create_app(gateway, access, ApiSettings()))
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
                with held_back(gateway):
                    answers = [await client.post(HUMAN, json={"score": value, "rater": "ann"}) for value in (2, 4)]
                    assert [(answer.status_code, answer.json()["score"]["humanScore"]) for answer in answers] == [
                        (200, 2),
                        (200, 4),
                    ]
                    assert (await client.get(HUMAN)).json()["count"] == 0
                await until(lambda: not gateway.state().queues["unlanded"], "the scores to land")
                found: list[dict[str, Any]] = (await client.get(HUMAN)).json()["humanScores"]
                return found

    with Store(None) as store, AccessStore(tmp_path / "fleet.access", TickingClock()) as access:
        told = asyncio.run(run(store, access))
    assert [(one["score"], one["counts"]) for one in told] == [(4, True), (2, False)]


def test_a_round_goes_to_the_workers_and_lands(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A round is copies with the key of one session, and its end; a repetition within the minute adds nothing."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [exchange("s", number) for number in (1, 2)])
        async with gateway_over(store, kafka) as gateway:
            anchors = await choose(gateway, "ops", [("local", "s:1"), ("local", "s:2")], "ann")
            await until(lambda: not gateway.state().queues["unlanded"], "the anchors to land")
            assert [(await run_round(gateway, "ops")).exchanges for _ in range(2)] == [2, 0]
            assert await withdraw(gateway, "ops", anchors[0].anchor_id, "bob")
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        found = tables(store)
        columns = [row for row in found["exchanges"] if "anchors.ops" in row]
        assert len(columns) == 2
        assert len(found["session_closings"]) == 1
        assert len(found["anchors"]) == 3
        assert len({row[1] for row in columns}) == 1
