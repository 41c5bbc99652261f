"""The log on a real broker: answers are correct before and after the tables have the records."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from support import evaluation_builders as evaluated
from support.builders import event, exchange, judgement, score
from support.kafka_sinks import MakeTopics, gateway_over, held_back, produce, producing, sink_of, tables, until

from analytics.store.store import Store
from audit.evaluation.evaluating import evaluating, questions_of
from audit.exchanges.cascade import drive
from audit.exchanges.questions import Reply
from schemas.codec.single_object import encode
from schemas.errors import BusyError, SettingsError
from schemas.records import Heartbeat, JudgingRequest, SessionClosed
from schemas.registry import topics
from streams.engine.embedded import EmbeddedRunner
from streams.engine.record_intake import EngineLimits, IngestResult
from streams.judging.judged_stages import judgement_reader
from streams.judging.rejudging import revise
from streams.kafka.connection import KafkaConnection
from streams.log.admission import EncodedRecords
from streams.log.log import CONFLICT, KNOWN, WRITTEN

ASKED = exchange("s", 1)
OTHERS = exchange("s", 1, "It is not done.", content_digest="f" * 16)


def test_a_repetition_is_known_before_and_after_it_lands(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A sender may repeat at once, before the tables have the record; other content is always a conflict."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            with held_back(gateway):
                assert (await gateway.ingest_exchange(ASKED)).outcome == WRITTEN
                again = await gateway.ingest_exchange(ASKED)
                assert again.outcome == KNOWN
                assert again.reason == "queued"
                assert (await gateway.ingest_exchange(OTHERS)).outcome == CONFLICT
                assert gateway.state().queues["unlanded"] == 1
            await until(lambda: not gateway.state().queues["unlanded"], "the exchange to land")
            assert (await gateway.ingest_exchange(ASKED)).outcome == KNOWN
            assert (await gateway.ingest_exchange(OTHERS)).outcome == CONFLICT

    with Store(None) as store:
        asyncio.run(run(store))
        assert len(tables(store)["exchanges"]) == 1


def test_a_repetition_is_known_after_the_sink_has_read_its_identities_again(
    kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """The sink does so after a failed transaction; later records are recognised, too."""
    make_topics(*topics())

    async def run(store: Store) -> list[str]:
        async with gateway_over(store, kafka) as gateway:
            await asyncio.to_thread(sink_of(gateway).writer.read_identities)
            await gateway.ingest_exchange(ASKED)
            await gateway.wait_for_tables("exchanges")
            results = [await gateway.ingest_exchange(exchange) for exchange in (ASKED, OTHERS)]
            return [result.outcome for result in results]

    with Store(None) as store:
        assert asyncio.run(run(store)) == [KNOWN, CONFLICT]


def test_an_id_that_is_repeated_in_a_batch_is_known_or_a_conflict(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The result is the same as one after another, and the topic has one record."""
    make_topics(*topics())

    async def run(store: Store) -> list[str]:
        async with gateway_over(store, kafka) as gateway:
            results = await gateway.ingest_exchanges([ASKED, ASKED, OTHERS])
            await until(lambda: not gateway.state().queues["unlanded"], "the exchange to land")
            return [result.outcome for result in results if isinstance(result, IngestResult)]

    with Store(None) as store:
        assert asyncio.run(run(store)) == [WRITTEN, KNOWN, CONFLICT]
        assert len(tables(store)["exchanges"]) == 1


def test_a_revision_is_stored_and_repeating_it_is_known(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Revisions are separate records on the topic; readers see the latest, and a repeated one is known."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await gateway.ingest_exchange(ASKED)
            await gateway.wait_for_tables("exchanges")
            revised = replace(OTHERS, input_tokens=80)
            waiting = revise(store, gateway.policy, [revised], ASKED.ingested_at)
            assert waiting.waiting == [revised]
            assert waiting.records == []
            await produce(producer, "scores", [score("s", 1, exchange_id=ASKED.exchange_id)])
            await until(lambda: tables(store)["scores"], "the score to land")
            revisions = revise(store, gateway.policy, [revised], ASKED.ingested_at)
            with held_back(gateway):
                first = await gateway.publish("exchanges", revisions.records)
                repeated = await gateway.publish("exchanges", revisions.records)
            assert first.written == 2
            assert first.known == 0
            assert repeated.written == 0
            assert repeated.known == 2
            await gateway.wait_for_tables("exchanges")
            results = [await gateway.ingest_exchange(exchange) for exchange in (ASKED, OTHERS)]
            assert [result.outcome for result in results] == [KNOWN, KNOWN]
            assert revise(store, gateway.policy, [replace(revised, withdrawn=False)], ASKED.ingested_at).waiting == []

    with Store(None) as store:
        asyncio.run(run(store))
        current = "SELECT agent_response, input_tokens, revision FROM exchanges"
        assert store.cursor().execute(current).fetchall() == [("It is not done.", 80, 1)]
        assert len(tables(store)["exchanges"]) == 2
        assert len(tables(store)["judging_requests"]) == 1


def test_only_one_of_two_concurrent_exchanges_is_accepted(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Two concurrent calls with one id must not both be accepted."""
    make_topics(*topics())

    async def run(store: Store) -> list[str]:
        async with gateway_over(store, kafka) as gateway:
            answers = await asyncio.gather(*(gateway.ingest_exchange(exchange) for exchange in (ASKED, OTHERS, ASKED)))
        return [answer.outcome for answer in answers]

    with Store(None) as store:
        assert asyncio.run(run(store)) == [WRITTEN, CONFLICT, KNOWN]


def test_only_one_of_equal_concurrent_events_is_written(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Concurrent calls are decided together, and one repeats the other."""
    make_topics(*topics())

    async def run(store: Store) -> list[str]:
        async with gateway_over(store, kafka) as gateway:
            with held_back(gateway):
                calls = await asyncio.gather(*(gateway.publish("agent-events", [event("s", 1)]) for _ in range(8)))
            await until(lambda: not gateway.state().queues["unlanded"], "the event to land")
            return [call.outcomes[0] for call in calls]

    with Store(None) as store:
        assert asyncio.run(run(store)) == [WRITTEN, *[KNOWN] * 7]
        assert len(tables(store)["agent_events"]) == 1


def test_concurrent_calls_get_their_own_outcomes(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Calls are produced in groups, and each must get its own outcomes."""
    make_topics(*topics())
    events_by_call = {number: [event(f"s{number}", seq) for seq in range(1, number % 4 + 1)] for number in range(40)}

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            await gateway.publish("agent-events", events_by_call[2])
            calls = await asyncio.gather(
                *(gateway.publish("agent-events", events_by_call[number]) for number in events_by_call)
            )
            expected = [[KNOWN if number == 2 else WRITTEN] * len(events) for number, events in events_by_call.items()]
            assert [list(call.outcomes) for call in calls] == expected
            await until(lambda: not gateway.state().queues["unlanded"], "the events to land")

    with Store(None) as store:
        asyncio.run(run(store))
        assert len(tables(store)["agent_events"]) == sum(map(len, events_by_call.values()))


def test_the_event_loop_does_not_wait_for_the_index(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The sink sometimes sorts millions of hashes; other callers must be answered meanwhile."""
    make_topics(*topics())

    async def run(store: Store) -> str:
        async with gateway_over(store, kafka) as gateway:
            with sink_of(gateway).writer.identities._lock:
                call = asyncio.create_task(gateway.ingest_exchange(ASKED))
                await until(lambda: gateway.state().queues["producing"], "the call to wait")
                assert not call.done()
            return (await call).outcome

    with Store(None) as store:
        assert asyncio.run(run(store)) == WRITTEN


def test_records_on_the_topics_at_the_start_are_known(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Records from other producers or a lost database are known before the first call is answered."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with producing(kafka) as producer:
            await produce(producer, "exchanges", [exchange("s", number) for number in range(20)])
        async with gateway_over(store, kafka) as gateway:
            assert (await gateway.ingest_exchange(ASKED)).outcome == KNOWN

    with Store(None) as store:
        asyncio.run(run(store))


def test_pending_events_are_known_and_keep_their_sequence_numbers(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A session's next events continue after its last ones, stored or pending, and repeated events are skipped."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            with held_back(gateway):
                first = await gateway.publish("agent-events", [event("s", number) for number in range(3)])
                overlapping = await gateway.publish("agent-events", [event("s", number) for number in range(1, 5)])
                assert first.written == 3
                assert first.known == 0
                assert overlapping.written == 2
                assert overlapping.known == 2
                pending = gateway.pending_events("local", "s")
                assert pending == {event("s", number).event_id: number for number in range(5)}
            await until(lambda: not gateway.pending_events("local", "s"), "the events to land")

    with Store(None) as store:
        asyncio.run(run(store))
        assert len(tables(store)["agent_events"]) == 5


def test_a_repeated_evaluation_request_sees_the_recorded_answers(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A result may be stored before its judgements; not waiting for them would pay for them twice."""
    make_topics(*topics())
    request = evaluated.make_request()
    judgement = evaluated.judgement(questions_of(request)[0], evaluated.answer_json(evaluated.answer()))
    evaluation = drive(evaluating(request), lambda _: Reply(text=judgement.answer or "", judgements=(judgement,)))

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as worker:
            with held_back(gateway):
                first = await gateway.publish("evaluation-requests", [request])
                repeated = await gateway.publish("evaluation-requests", [request])
                assert first.written == 1
                assert repeated.written == 0
                assert repeated.known == 1
                await produce(worker, "judgements", [judgement])
                await produce(worker, "evaluations", [evaluation])
                landing = asyncio.create_task(gateway.wait_for_tables("judgements"))
                await asyncio.sleep(0)
                assert not landing.done()
            await landing
            assert judgement_reader(store)([("local", "evaluation 1")]) == {("local", "evaluation 1"): [judgement]}
            await gateway.wait_for_tables("evaluations")
            published = await gateway.publish("evaluation-requests", [request])
            assert published.known == 1

    with Store(None) as store:
        asyncio.run(run(store))
        evaluations = store.cursor().execute("SELECT evaluation_id, request_id, status FROM evaluations").fetchall()
    assert evaluations == [("evaluation 1", "request 1", "completed")]


def test_a_session_ends_after_its_last_record(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Ending a session covers its pending records, too."""
    make_topics(*topics())

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            assert not await gateway.finalize("local", "s")
            with held_back(gateway):
                await gateway.ingest_exchange(ASKED)
                await gateway.publish("agent-events", [event("s", 1)])
                finalizing = asyncio.create_task(gateway.finalize("local", "s"))
                await asyncio.sleep(0)
                assert not finalizing.done()
            assert await finalizing
            await until(lambda: not gateway.state().queues["unlanded"], "the ends to land")

    with Store(None) as store:
        asyncio.run(run(store))
        closings = store.cursor().execute("SELECT _topic, session_id, reason FROM log.session_closings ORDER BY ALL").fetchall()
    assert closings == [("agent-events", "s", "explicit"), ("exchanges", "s", "explicit")]


def test_an_exchange_that_the_cap_left_out_is_said_to_be_left_out(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The spending is in the worker's state; the answer must still say that the cap is exhausted."""
    make_topics(*topics())
    capped = score("s", 1, exchange_id=ASKED.exchange_id, disposition="skipped_cost_cap")

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await gateway.ingest_exchange(ASKED)
            await produce(producer, "judgements", [judgement("s", 2), judgement("other", 1)])
            await produce(producer, "scores", [capped])
            await until(
                lambda: tables(store)["scores"] and len(tables(store)["judgements"]) == 2, "score and judgements to land"
            )
            again = await gateway.ingest_exchange(ASKED)
            assert again.outcome == KNOWN
            assert again.capped is True
            assert again.spent_usd == 0.001
            assert again.cap_usd == 1.0

    with Store(None) as store:
        asyncio.run(run(store))


def test_judging_again_waits_for_what_was_judged(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A score may be stored before its judgements; a request without them would pay for the same answer again."""
    make_topics(*topics())
    unscored, answered = score("s", 1, exchange_id=ASKED.exchange_id), judgement("s", 1, subject_id=ASKED.exchange_id)

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway, producing(kafka) as producer:
            await gateway.ingest_exchange(ASKED)
            await produce(producer, "scores", [unscored])
            await until(lambda: tables(store)["scores"], "the score to land")
            with held_back(gateway):
                await produce(producer, "judgements", [answered])
                judging = asyncio.create_task(gateway.rejudge(None, None, 10))
                await asyncio.wait([judging], timeout=0.2)
                assert not judging.done()
            assert await judging == 1
            await until(lambda: tables(store)["judging_requests"], "the request to land")

    with Store(None) as store:
        asyncio.run(run(store))
        frame = store.read("exchanges", 0, 10)[JudgingRequest.__name__]
    assert frame["earlier_judgements"].to_list() == [[encode(answered)]]


def test_an_idle_session_is_ended(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Only the server ends idle sessions, because workers have no clock. A session without events also ends on the topic of events."""
    make_topics(*topics())

    def ends(store: Store) -> list[list[str]]:
        frames = [store.read(topic, 0, 10) for topic in ("exchanges", "agent-events")]
        return [frame[SessionClosed.__name__]["reason"].to_list() for frame in frames if SessionClosed.__name__ in frame]

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka, limits=EngineLimits(idle_check_seconds=0.05)) as gateway:
            await gateway.ingest_exchange(ASKED)
            await until(lambda: len(ends(store)) == 2, "the session to be ended")

    with Store(None) as store:
        asyncio.run(run(store))
        assert ends(store) == [["idle"], ["idle"]]


def test_other_records_are_known_again(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A heartbeat's identity contains a time, which the tables return in another form."""
    make_topics(*topics())
    sign = Heartbeat(
        connection="local", project="ops", session_id="s", occurred_at=ASKED.occurred_at, ingested_at=ASKED.ingested_at
    )

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            assert (await gateway.publish("heartbeats", [sign])).written == 1
            await until(lambda: tables(store)["heartbeats"], "the heartbeat to land")
            assert ((again := await gateway.publish("heartbeats", [sign])).written, again.known) == (0, 1)

    with Store(None) as store:
        asyncio.run(run(store))


def test_it_takes_no_more_than_it_can_keep_in_mind(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the tables do not advance, memory is bounded and senders must retry."""
    make_topics(*topics())
    monkeypatch.setattr("streams.kafka.kafka_log.MAX_IN_FLIGHT", 2)

    async def run(store: Store) -> None:
        async with gateway_over(store, kafka) as gateway:
            with held_back(gateway):
                await gateway.publish("agent-events", [event("s", 1), event("s", 2)])
                with pytest.raises(BusyError, match="wait for the tables"):
                    await gateway.ingest_exchange(ASKED)
                assert ((state := gateway.state()).ready, state.not_ready_reason) == (
                    False,
                    "too many records wait for the tables",
                )
            await until(lambda: gateway.state().ready, "the events to land")
            assert (await gateway.ingest_exchange(ASKED)).outcome == WRITTEN

    with Store(None) as store:
        asyncio.run(run(store))


def test_missing_topics_are_named(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Topics are not created automatically, and a missing one would lose records."""
    make_topics(*(name for name in topics() if name != "reviews"))

    async def run(store: Store) -> None:
        with pytest.raises(SettingsError, match=f"topics are missing: {kafka.topic('reviews')}") as raised:
            async with gateway_over(store, kafka):
                pass
        assert "driftline topics create" in raised.value.hint

    with Store(None) as store:
        asyncio.run(run(store))


def test_a_database_of_the_embedded_runner_is_left_alone(kafka: KafkaConnection) -> None:
    """Its positions belong to another log and must not be mixed with offsets."""

    async def run(store: Store) -> None:
        with pytest.raises(SettingsError, match="did not come from Kafka"):
            async with gateway_over(store, kafka):
                pass

    with Store(None) as store:
        from support.engines import runner_over

        from schemas.codec.single_object import encode

        accepted = EncodedRecords()
        accepted.add("exchanges", encode(ASKED))
        runner: EmbeddedRunner = runner_over(store)
        runner.publish(accepted)
        asyncio.run(run(store))
