"""The watch over Kafka: findings go through the broker, and are known before the tables have them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from support.builders import incident
from support.kafka_sinks import MakeTopics, gateway_over, held_back, produce, producing, tables, until
from support.watch_histories import END, fallen, history, put

from analytics.store.store import Store
from audit.policy import Policy
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.log.sink import StorePublisher
from streams.watch.watching import Change, Person, Watch, apply_change


def test_an_incident_is_opened_once_however_late_it_is_stored(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The next check and a decision may come before the sink's write: one incident, one decision, in that order."""
    make_topics(*topics())
    scores = history(fallen(6), 30)

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await produce(producer, "scores", scores)
            await until(lambda: len(tables(store)["scores"]) == len(scores), "the scores to land")
            watch = Watch(gateway)
            with held_back(gateway):
                (first,) = await watch.check(["ops"], END)
                (check,) = await watch.check(["ops"], END)
                assert len(first.opened) == 1
                assert len(check.incidents) == 0
                assert check.is_new_baseline is False
                (incident,) = first.opened
                assert tables(store)["incidents"] == []
                assert incident == await watch.incident("ops", incident.incident_id)
                decided = await watch.decide("ops", incident.incident_id, "accepted", "ann", "seen")
                assert decided is not None
                assert decided.status == "resolved"
                assert decided.revision == 1
                assert first.baseline == await watch.baseline("ops")
            await until(lambda: len(tables(store)["incidents"]) == 2 and tables(store)["reviews"], "the decision to land")
            (after,) = await watch.check(["ops"], END)
            assert after.incidents == ()
            assert after.is_new_baseline is False
            (restarted,) = await Watch(gateway).check(["ops"], END)
            assert restarted.incidents == ()

    with Store(None) as store:
        asyncio.run(run(store))
        rows = store.cursor().execute("SELECT status, revision, resolved_by FROM incidents").fetchall()
        assert rows == [("resolved", 1, "ann")]
        assert store.count("baselines") == 1


def test_assignments_and_comments_are_the_same_over_kafka(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Consecutive changes, none stored before the next, give the same records as one process."""
    make_topics(*topics())

    async def act(watch: Watch) -> None:
        for number, expected_rows in enumerate(
            (
                Change(comment="the prompt?"),
                Change(assigns=True, assignee="bob", comment="yours"),
                Change(decision="acknowledged"),
                Change(decision="resolved", assigns=True, assignee=None, comment="fixed"),
            )
        ):
            at = END + timedelta(minutes=number)
            assert None is (await apply_change(watch, ("ops", "i1"), expected_rows, Person("ann", "root"), at)).problem

    async def over_kafka(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await produce(producer, "incidents", [incident()])
            await until(lambda: tables(store)["incidents"], "the incident to land")
            with held_back(gateway):
                await act(Watch(gateway))
                assert len(tables(store)["incidents"]) == 1
            await until(lambda: tuple(len(tables(store)[one]) for one in ("incidents", "reviews")) == (5, 5), "all to land")

    with Store(None) as far, Store(None) as near:
        asyncio.run(over_kafka(far))
        put(near, "incidents", [incident()])
        asyncio.run(act(Watch(StorePublisher(near, Policy(), lambda: END))))
        for table in ("incidents", "reviews"):
            statement = f"SELECT * FROM {table} ORDER BY ALL"
            kafka_rows, other = (store.cursor().execute(statement).fetchall() for store in (far, near))
            assert kafka_rows == other
