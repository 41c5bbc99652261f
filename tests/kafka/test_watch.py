"""The watch over Kafka: what it finds goes through the broker, and is known before it lands."""

from __future__ import annotations

import asyncio

from sinks import MakeTopics, gateway_over, held_back, produce, producing, tables, until
from watched import END, fallen, history

from analytics.store.store import Store
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.watch.watching import Watch


def test_an_incident_is_opened_once_however_late_it_lands(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The next check comes before the sink does, and a person decides at once: one incident, one decision, in that order."""
    make_topics(*topics())
    scores = history(fallen(6), 30)

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await produce(producer, "scores", scores)
            await until(lambda: len(tables(store)["scores"]) == len(scores), "the scores to land")
            watch = Watch(gateway)
            with held_back(gateway):
                (first,) = await watch.check(["ops"], END)
                (again,) = await watch.check(["ops"], END)
                assert (1, 0, False) == (len(first.opened), len(again.incidents), again.is_new_baseline)
                (incident,) = first.opened
                assert [] == tables(store)["incidents"]
                assert incident == await watch.incident("ops", incident.incident_id)
                decided = await watch.decide("ops", incident.incident_id, "accepted", "ann", "seen")
                assert decided is not None
                assert ("resolved", 1) == (decided.status, decided.revision)
                assert first.baseline == await watch.baseline("ops")
            await until(lambda: len(tables(store)["incidents"]) == 2 and tables(store)["reviews"], "the decision to land")
            (after,) = await watch.check(["ops"], END)
            assert ((), False) == (after.incidents, after.is_new_baseline)
            (restarted,) = await Watch(gateway).check(["ops"], END)
            assert () == restarted.incidents

    with Store(None) as store:
        asyncio.run(run(store))
        rows = store.cursor().execute("SELECT status, revision, resolved_by FROM incidents").fetchall()
        assert ([("resolved", 1, "ann")], 1) == (rows, store.count("baselines"))
