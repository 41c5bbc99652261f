"""Human scores and anchors on a real broker: API answers precede the flush, and workers score the anchor rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
from support.builders import exchange, score
from support.clocks import TickingClock
from support.invariants import rows
from support.kafka_sinks import MakeTopics, gateway_over, held_back, land_all, produce, producing, tables, until

from analytics.store.store import Store
from audit.policy import Policy
from schemas.registry import topics
from service.server.app import create_app
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.kafka.connection import KafkaConnection
from streams.upkeep.anchors import choose, run_round, withdraw

HUMAN_SCORES = "/api/audit/ops/scores/score s:1/human"


def test_a_human_score_is_answered_before_its_flush_and_listed_after_it(
    kafka: KafkaConnection, make_topics: MakeTopics, tmp_path: Path
) -> None:
    """The answer comes from the produced record, because the tables do not have it yet."""
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
                    responses = [await client.post(HUMAN_SCORES, json={"score": value, "rater": "ann"}) for value in (2, 4)]
                    unflushed = await client.get(HUMAN_SCORES)
                    assert [(response.status_code, response.json()["score"]["humanScore"]) for response in responses] == [
                        (200, 2),
                        (200, 4),
                    ]
                assert unflushed.json()["count"] == 0
                await until(lambda: not gateway.state().queues["unlanded"], "the scores to land")
                human_scores: list[dict[str, Any]] = (await client.get(HUMAN_SCORES)).json()["humanScores"]
                return human_scores

    with Store(None) as store, AccessStore(tmp_path / "fleet.access", TickingClock()) as access:
        human_scores = asyncio.run(run(store, access))
    assert [(score["score"], score["counts"]) for score in human_scores] == [(4, True), (2, False)]


def test_an_anchor_round_is_produced_once_and_stored(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A round is one session with a copy of each anchor, and its closing; repeating it within a minute adds nothing."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [exchange("s", number) for number in (1, 2)])
        async with gateway_over(store, kafka) as gateway:
            anchors = await choose(gateway, "ops", [("local", "s:1"), ("local", "s:2")], "ann")
            await until(lambda: not gateway.state().queues["unlanded"], "the anchors to land")
            first_round = await run_round(gateway, "ops")
            repeated_round = await run_round(gateway, "ops")
            is_withdrawn = await withdraw(gateway, "ops", anchors[0].anchor_id, "bob")
        assert first_round.exchanges == 2
        assert repeated_round.exchanges == 0
        assert is_withdrawn
        await land_all(store, kafka)

    with Store(None) as store:
        asyncio.run(run(store))
        round_sessions = rows(store, "SELECT session_id, _partition FROM log.exchanges WHERE project = 'anchors.ops'")
        stored = tables(store)
        assert len(round_sessions) == 2
        assert len(set(round_sessions)) == 1
        assert len(stored["session_closings"]) == 1
        assert len(stored["anchors"]) == 3
