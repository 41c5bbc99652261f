"""Invalid records and states on a real broker: each becomes a dead letter with its offset, and everything else continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.clocks import NOW, TickingClock
from support.kafka_judging import SoundJudge, answer, dialogue, scoring_on, tasks_of
from support.kafka_sinks import land_all
from support.kafka_workers import EVENTS, EXCHANGES, contents, produce, until_committed, working

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.errors import BrokerError
from schemas.records import DeadLetter, Diagnosis, Heartbeat, Record, Review
from schemas.registry import topics
from streams.engine.embedded import StageRunner
from streams.judging.judged_stages import SCORING, JudgedState, read_no_judgements
from streams.kafka import stages
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Message, RecordProducer, key_of, partition_of
from streams.kafka.stages import ComputingContext
from streams.kafka.states import ENCODE, StateTopic, StoredState
from streams.kafka.topics import state_topic
from streams.log.admission import DEAD_LETTERS
from streams.steps.diagnosis import DiagnosisState
from streams.topology import Stage

MakeTopics = Callable[..., None]
POLICY = Policy()
REDACTOR = Redactor(POLICY.redaction)
STAGES = (EXCHANGES, EVENTS)
STATES = tuple(state_topic(stage.name) for stage in STAGES)
PARTITIONS = 3
LONG_AFTER = build.START.replace(year=2099)


@asynccontextmanager
async def at_work(kafka: KafkaConnection, stages: Sequence[Stage] = STAGES) -> AsyncIterator[None]:
    """Run a worker with these stages, wired as in a process; an escaped exception fails the test."""
    producer = RecordProducer(kafka)
    await producer.start()
    runs = StageRunner(POLICY, read_no_judgements, REDACTOR, TickingClock(NOW))
    states = {stage: states_of(kafka, stage, producer) for stage in stages}
    means = {
        stage: ComputingContext(
            stage=stage,
            runner=runs,
            redactor=REDACTOR,
            producer=producer,
            states=states[stage],
        )
        for stage in stages
    }
    try:
        async with working(kafka, means):
            yield
    finally:
        await producer.stop()
        for topic in states.values():
            topic.close()


def states_of(kafka: KafkaConnection, stage: Stage, producer: RecordProducer) -> StateTopic:
    """Return a stage's state topic as a worker reads it."""
    return StateTopic(kafka, stage.name, producer, source=stage.source, state_type=stage.state_type, redactor=REDACTOR)


def keyed(*records: Record) -> list[Message]:
    """Return records with their keys."""
    return [(key_of(record), encode(record)) for record in records]


async def letters_on(kafka: KafkaConnection, partitions: int = PARTITIONS) -> list[DeadLetter]:
    """Return the dead letters on their topic, each once."""
    found = {record.value: decode(record.value) for record in await contents(kafka, DEAD_LETTERS, partitions)}
    return [one for one in found.values() if isinstance(one, DeadLetter)]


async def diagnosed(kafka: KafkaConnection, partitions: int = PARTITIONS) -> dict[str, int]:
    """Return the number of events of each diagnosed session."""
    found = [decode(record.value) for record in await contents(kafka, "diagnoses", partitions)]
    return {one.session_id: one.event_count for one in found if isinstance(one, Diagnosis)}


def test_a_chunk_of_nothing_but_wrong_keys_ends_no_worker(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Such a record must not end every worker that reads its partition."""
    make_topics(*topics(), *STATES, partitions=PARTITIONS)

    async def run() -> None:
        for stage, wrong in ((EVENTS, build.event("s", 1)), (EXCHANGES, build.exchange("s", 1))):
            for partition in range(PARTITIONS):
                await produce(kafka, stage.source, [(b"wrong", encode(wrong))], partition)
        async with at_work(kafka):
            for stage in STAGES:
                await until_committed(kafka, stage.source, PARTITIONS)
            await produce(kafka, EVENTS.source, keyed(build.event("t", 1), build.closing("t", 2)))
            await until_committed(kafka, EVENTS.source, PARTITIONS)
        letters = await letters_on(kafka)
        assert Counter(letter.reason for letter in letters) == {"wrong_key": 2 * PARTITIONS}
        assert await diagnosed(kafka) == {"t": 1}

    asyncio.run(run())


def test_a_session_on_another_partition_than_its_keys_is_set_aside(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Otherwise two workers would have a state each: the session would be diagnosed in parts, with two caps."""
    make_topics(*topics(), *STATES, partitions=PARTITIONS)
    right = partition_of(b"local/s", PARTITIONS)
    wrong = (right + 1) % PARTITIONS

    async def run() -> None:
        records = keyed(build.event("s", 1), build.closing("s", 2))
        await produce(kafka, EVENTS.source, records, right)
        await produce(kafka, EVENTS.source, keyed(build.event("s", 3)), wrong)
        async with at_work(kafka):
            await until_committed(kafka, EVENTS.source, PARTITIONS)
        [letter] = await letters_on(kafka)
        assert letter.reason == "wrong_partition"
        assert letter.partition == wrong
        assert letter.position == 0
        assert letter.detail.startswith("partition: session local/s ")
        assert f"on partition {right}, not on {wrong}" in letter.detail
        assert await diagnosed(kafka) == {"s": 1}

    asyncio.run(run())


def heartbeat(session: str, **fields: Any) -> Heartbeat:
    """Return a heartbeat."""
    values = {"connection": "local", "project": "ops", "occurred_at": build.START, "ingested_at": build.START}
    return Heartbeat(session_id=session, **values | fields)


def review(review_id: str, **fields: Any) -> Review:
    """Return a review by a person."""
    values: dict[str, Any] = {"project": "ops", "kind": "human_score", "subject_id": "x", "reviewer": "ada", "score": 3}
    return Review(review_id=review_id, occurred_at=build.START, ingested_at=build.START, **values | fields)


BREACHES: list[tuple[str, Record, str]] = [
    ("exchanges", build.exchange("a", 1, project="../etc"), "Exchange.project: '../etc' is not a valid name"),
    ("exchanges", build.exchange("", 1), "Exchange.session_id: has 0 characters"),
    ("exchanges", build.exchange("b", 1, exchange_id=""), "Exchange.exchange_id: has 0 characters"),
    ("exchanges", build.exchange("c", 1, turn_number=-1), "Exchange.turn_number: -1 is not from 0"),
    ("exchanges", build.exchange("d", 1, input_tokens=-7), "Exchange.input_tokens: -7 is not from 0"),
    ("exchanges", build.exchange("e", 1, outcome="splendid"), "Exchange.outcome: 'splendid' is none of"),
    ("exchanges", build.exchange("f", 1, occurred_at=LONG_AFTER, ingested_at=LONG_AFTER), "Exchange.occurred_at: 2099-10-01"),
    ("exchanges", build.exchange("g\0", 1, exchange_id="g"), "Exchange.session_id: contains control characters"),
    ("exchanges", build.exchange("h" * 257, 1, exchange_id="h"), "Exchange.session_id: has 257 characters"),
    ("exchanges", msgspec.structs.replace(build.closing("i", 1), closed_at=LONG_AFTER), "SessionClosed.closed_at: 2099-10-01"),
    ("agent-events", msgspec.structs.replace(build.event("a", 1), payload="no JSON"), "AgentEvent.payload: is not JSON"),
    ("agent-events", msgspec.structs.replace(build.event("b", 1), seq=-1), "AgentEvent.seq: -1 is not from 0"),
    ("agent-events", msgspec.structs.replace(build.event("c", 1), event_id=""), "AgentEvent.event_id: has 0 characters"),
    ("agent-events", build.closing("d", 1, "whim"), "SessionClosed.reason: 'whim' is none of"),
    ("heartbeats", heartbeat(""), "Heartbeat.session_id: has 0 characters"),
    ("heartbeats", heartbeat("a", occurred_at=LONG_AFTER, ingested_at=LONG_AFTER), "Heartbeat.occurred_at: 2099-10-01"),
    ("reviews", review("a", kind="praise"), "Review.kind: 'praise' is none of"),
    ("reviews", review("b", score=9), "Review.score: 9 is not from 1 to 5"),
    ("judgements", build.judgement("a", 1, outcome="won"), "Judgement.outcome: 'won' is none of"),
    ("scores", build.score("a", 1, project="../etc"), "Score.project: '../etc' is not a valid name"),
]
GOOD: list[tuple[str, Record]] = [
    ("exchanges", build.exchange("z", 1)),
    ("agent-events", build.event("z", 1)),
    ("agent-events", build.closing("z", 2)),
    ("heartbeats", heartbeat("z")),
    ("reviews", review("z")),
    ("judgements", build.judgement("z", 1)),
]


def test_the_contract_holds_on_topics(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Records on a topic bypass the checks of HTTP, so invalid ones must not reach tables and pages.

    Workers and sink reject a record alike, so that there is one dead letter, on its topic and in the table.
    """
    make_topics(*topics(), *STATES, partitions=PARTITIONS)
    expected = sorted((topic, words) for topic, _, words in BREACHES)

    async def run(store: Store) -> None:
        for topic, record in [*((topic, record) for topic, record, _ in BREACHES), *GOOD]:
            await produce(kafka, topic, keyed(record))
        async with at_work(kafka):
            for stage in STAGES:
                await until_committed(kafka, stage.source, PARTITIONS)
        await land_all(store, kafka)
        await land_all(store, kafka)
        letters = await letters_on(kafka)
        assert len(letters) == len({letter.dead_letter_id for letter in letters}) == len(BREACHES)
        assert await diagnosed(kafka) == {"z": 1}

    with Store(None) as store:
        asyncio.run(run(store))
        rows = store.cursor().execute("SELECT source, reason, detail FROM dead_letters ORDER BY 1, 3").fetchall()
        sessions = (
            store.cursor().execute("SELECT session_id FROM exchanges UNION SELECT session_id FROM agent_events").fetchall()
        )
    assert sessions == [("z",)]
    assert {reason for _, reason, _ in rows} == {"bounds"}
    assert len(rows) == len(expected)
    for (topic, words), (source, _, detail) in zip(expected, rows, strict=True):
        assert (source, detail.startswith(words)) == (topic, True), (words, detail)


def test_a_record_that_a_stage_cannot_even_look_at_is_set_aside_alone(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any bug triggered by a record affects that record alone, not its chunk, its partition or the process."""
    make_topics(*topics(), *STATES, partitions=1)
    deduplicate = stages.deduplicate

    def fail_on_event(batch: Any, *arguments: Any) -> Any:
        for _, _, record in batch.records():
            assert getattr(record, "event_id", "") != "event_13", "a fault of ours"
        return deduplicate(batch, *arguments)

    monkeypatch.setattr(stages, "deduplicate", fail_on_event)

    async def run() -> None:
        await produce(kafka, EVENTS.source, keyed(*(build.event("s", number) for number in range(50)), build.closing("s", 50)))
        async with at_work(kafka, [EVENTS]):
            await until_committed(kafka, EVENTS.source, 1)
        [letter] = await letters_on(kafka, 1)
        assert letter.stage == "diagnosis"
        assert letter.reason == "stage_failed"
        assert letter.position == 13
        assert "a fault of ours" in letter.detail
        assert await diagnosed(kafka, 1) == {"s": 49}

    asyncio.run(run())


def stored(next_offset: int, inside: Any, identities: bytes = b"") -> bytes:
    """Return a value of a state topic."""
    return ENCODE(StoredState(next_offset, identities, msgspec.msgpack.encode(inside)))


NO_STATES = {
    "the source ends at": stored(10**15, JudgedState()),
    "it cannot be read": ENCODE(StoredState(0, b"", b"\xc1 garbage")),
    "it cannot be read: Expected `array`": stored(0, {"spent": "all"}),
    "it cannot be read: Expected `int` >= 0": stored(0, [0, -5]),
    "but its content up to 7": stored(0, JudgedState(7)),
    "not a multiple of 16": stored(0, JudgedState(), b"odd"),
}


@pytest.mark.parametrize("value", NO_STATES.values(), ids=NO_STATES)
def test_what_is_no_scoring_state_ends_no_worker_and_is_told(
    kafka: KafkaConnection, value: bytes, request: pytest.FixtureRequest
) -> None:
    """An invalid value must not end every worker that judges its session or reads its partition."""
    make_topics: MakeTopics = request.getfixturevalue("make_topics")
    make_topics(*topics(), state_topic(SCORING.name), partitions=2)
    words = next(words for words, known in NO_STATES.items() if known == value).removeprefix("the ")

    async def run() -> None:
        policy = Policy()
        exchanges = [one for session in ("s", "t", "u", "v") for one in dialogue(session, 2)]
        async with scoring_on(kafka, policy) as rig:
            await rig.publish(tasks_of(policy, exchanges))
            await produce(kafka, state_topic(SCORING.name), [(b"local/s", value)], partition_of(b"local/s", 2))
            process = rig.process(SoundJudge(answer))
            await process.work(*rig.records)
            await process.wait_until_drained()
            await process.stop()
            assert rig.failures == []
            assert sorted(exchange.exchange_id for exchange in exchanges) == sorted(
                score.exchange_id for score in await rig.scores()
            )
            [letter] = await rig.letters()
            assert letter.stage == "state"
            assert letter.reason == "no_state"
            assert letter.source == "scoring-state"
            assert "local/s" in letter.detail
            assert words in letter.detail

    asyncio.run(run())


@pytest.mark.parametrize(
    "value", [stored(10**15, {}), ENCODE(StoredState(0, b"", b"\xc1")), stored(0, [1]), stored(0, {}, b"odd")]
)
def test_what_is_no_state_of_a_diagnosis_stops_no_other_session(
    kafka: KafkaConnection, make_topics: MakeTopics, value: bytes
) -> None:
    """A session with only an invalid state starts afresh; the other sessions are unaffected."""
    make_topics(*topics(), *STATES, partitions=1)

    async def run() -> None:
        await produce(kafka, state_topic(EVENTS.name), [(b"local/s", value)], 0)
        records = [record for session in "st" for record in (build.event(session, 1), build.closing(session, 2))]
        await produce(kafka, EVENTS.source, keyed(*records))
        async with at_work(kafka, [EVENTS]):
            await until_committed(kafka, EVENTS.source, 1)
        [letter] = await letters_on(kafka, 1)
        assert letter.reason == "no_state"
        assert letter.source == state_topic(EVENTS.name)
        assert letter.position == 0
        assert await diagnosed(kafka, 1) == {"s": 1, "t": 1}

    asyncio.run(run())


def test_the_right_state_is_gone_on_from_where_garbage_was_written_over_it(
    kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """Compaction would keep only the invalid value, so it is overwritten, and reported once."""
    make_topics(EVENTS.source, state_topic(EVENTS.name), DEAD_LETTERS, partitions=1)
    evidence = msgspec.msgpack.decode(msgspec.msgpack.encode({"event_count": 3}))
    right = stored(2, {"connection": "local", "session_id": "s", "project": "ops", "agent": None, "evidence": evidence})

    async def run() -> None:
        msgspec.msgpack.decode(msgspec.msgpack.decode(right)[2], type=DiagnosisState)
        await produce(kafka, EVENTS.source, keyed(build.event("s", 1), build.event("s", 2)), 0)
        await produce(kafka, state_topic(EVENTS.name), [(b"local/s", right), (b"local/s", stored(10**15, {}))], 0)
        producer = RecordProducer(kafka)
        for _ in range(2):
            states = states_of(kafka, EVENTS, producer)
            await states.load(0)
            assert states.get(0, ["local/s"])["local/s"].next_offset == 2
            states.close()
        await producer.stop()
        assert right == (await contents(kafka, state_topic(EVENTS.name), 1))[-1].value
        assert len(await letters_on(kafka, 1)) == 1

    asyncio.run(run())


def test_more_than_a_few_states_beyond_their_source_are_of_another_topic(
    kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """A single one is a mistake; several mean that the source was recreated, and its records would be skipped."""
    make_topics(EVENTS.source, state_topic(EVENTS.name), DEAD_LETTERS, partitions=1)

    async def run() -> None:
        values = [(b"local/s%d" % number, stored(100, {})) for number in range(2)]
        producer = RecordProducer(kafka)
        states = StateTopic(kafka, EVENTS.name, producer, source=EVENTS.source, redactor=REDACTOR)
        await produce(kafka, state_topic(EVENTS.name), values[:1], 0)
        await states.load(0)
        await produce(kafka, state_topic(EVENTS.name), values, 0)
        with pytest.raises(BrokerError, match=r"offset 0, but diagnosis-state .* up to 100"):
            await states.load(0)
        states.close()
        await producer.stop()

    asyncio.run(run())
