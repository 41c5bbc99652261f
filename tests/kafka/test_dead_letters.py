"""Dead letters of a cluster: read from their topic while a server uses the database, and put back through the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer
from support import builders as build
from support.kafka_sinks import land_all

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.errors import BrokerError
from schemas.records import JudgingRequest, Record, Review
from schemas.registry import topics
from service.cli.main import run
from streams.kafka.connection import KafkaConnection
from streams.kafka.dead_letters import copy_dead_letters
from streams.kafka.producing import RecordProducer, key_of
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal

MakeTopics = Callable[..., None]
Value = tuple[bytes | None, bytes]
TOPICS = (DEAD_LETTERS, "reviews", "exchanges")
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def letters_of(*bodies: tuple[bytes, str, str]) -> list[bytes]:
    """Return encoded dead letters of these bytes, stages and reasons."""
    accepted, admission = EncodedRecords(), Admission(Redactor(Policy().redaction), NOW)
    for offset, (body, stage, reason) in enumerate(bodies):
        admission.add_dead_letter(accepted, RecordOrigin("exchanges", offset, 2), Refusal(stage, reason, "why"), body)
    return accepted.messages[DEAD_LETTERS]


def produce(connection: KafkaConnection, topic: str, values: Sequence[bytes]) -> None:
    """Produce values with different keys."""

    async def all_of_them() -> None:
        producer = RecordProducer(connection)
        await producer.start()
        try:
            await producer.send(topic, [(str(number).encode(), value) for number, value in enumerate(values)])
        finally:
            await producer.stop()

    asyncio.run(all_of_them())


def on_topic(connection: KafkaConnection, topic: str) -> list[Value]:
    """Return all keys and values of a topic."""

    async def all_of_them() -> list[Value]:
        consumer = AIOKafkaConsumer(connection.topic(topic), **connection.for_aiokafka(), auto_offset_reset="earliest")
        await consumer.start()
        try:
            places = list(consumer.assignment())
            ends = await consumer.end_offsets(places)
            values: list[Value] = []
            async with asyncio.timeout(300):
                while len(values) < sum(ends.values()):
                    batches = await consumer.getmany(timeout_ms=200)
                    values += [(record.key, record.value) for records in batches.values() for record in records]
            return values
        finally:
            await consumer.stop()

    return asyncio.run(all_of_them())


def records_on(connection: KafkaConnection, topic: str) -> list[Record]:
    """Return all records of a topic."""
    return [decode(value) for _, value in on_topic(connection, topic)]


@pytest.fixture
def command(
    kafka: KafkaConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command on the test's topics."""
    monkeypatch.setenv("DRIFTLINE_KAFKA_PREFIX", kafka.prefix)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--kafka", kafka.bootstrap])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.any_broker
def test_letters_of_the_topic_are_listed_and_requeued(
    command: Callable[..., tuple[int, str, str]], kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """Without a database, readable bytes go back unchanged, and exchanges as requests, each with its session's key."""
    make_topics(*TOPICS)
    exchange = build.exchange("s", 1)
    failed, unread = encode(build.exchange("t", 2)), encode(exchange)
    produce(
        kafka,
        DEAD_LETTERS,
        letters_of(
            (unread, "decoding", "unknown_schema"), (failed, "intake", "stage_failed"), (b"no record", "decoding", "framing")
        ),
    )
    listed = json.loads(command("dead-letters", "list", "--json")[1])

    assert {row["reason"] for row in listed["reasons"]} == {"framing", "stage_failed", "unknown_schema"}
    code, out, _ = command("dead-letters", "retry", "--source", "exchanges")
    assert code == 1
    assert out.splitlines()[-1] == "2 dead letters retried, 1 not retried"
    values = dict(on_topic(kafka, "exchanges"))
    assert unread == values[b"local/s"]
    request = decode(values[b"local/t"])
    assert isinstance(request, JudgingRequest)
    assert request.revision == 1
    assert request.exchange_id == "t:2"
    assert key_of(request) == b"local/t"
    assert len(records_on(kafka, "reviews")) == 2
    open_letters = json.loads(command("dead-letters", "list", "--json")[1])
    assert [row["reason"] for row in open_letters["letters"]] == ["framing"]
    assert json.loads(command("dead-letters", "retry", "--reason", "unknown_schema", "--json")[1])["putBack"] == []


@pytest.mark.any_broker
def test_a_kill_between_the_record_and_its_review_changes_nothing(
    command: Callable[..., tuple[int, str, str]],
    kafka: KafkaConnection,
    make_topics: MakeTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dead letter is still open and is put back again with the same bytes, which readers drop as a duplicate."""
    make_topics(*TOPICS)
    produce(kafka, DEAD_LETTERS, letters_of((encode(build.exchange("t", 2)), "intake", "stage_failed")))
    sound = RecordProducer.send

    async def dies(self: RecordProducer, topic: str, *arguments: object, **options: object) -> object:
        if topic == "reviews":
            raise BrokerError("killed")
        return await sound(self, topic, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordProducer, "send", dies)
    assert command("dead-letters", "retry", "--stage", "intake")[0] == 2
    assert len(on_topic(kafka, "exchanges")) == 1
    assert len(on_topic(kafka, "reviews")) == 0
    monkeypatch.setattr(RecordProducer, "send", sound)
    assert command("dead-letters", "retry", "--stage", "intake")[0] == 0
    first, second = on_topic(kafka, "exchanges")
    assert first == second
    (review,) = records_on(kafka, "reviews")
    assert isinstance(review, Review)
    assert review.kind == "dead_letter"
    assert review.status == "retried"


@pytest.mark.any_broker
def test_unreadable_and_repeated_letters_stop_no_reader(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The topic may contain unreadable values; all letters of both partitions are read."""
    make_topics(*TOPICS)
    letters = letters_of(*((f"line {number}".encode(), "decoding", "framing") for number in range(700)))
    produce(kafka, DEAD_LETTERS, [*letters, letters[0], b"no letter", encode(build.exchange("s", 1))])
    with Store(None) as store:
        asyncio.run(copy_dead_letters(kafka, store))
        assert store.count("dead_letters") == 700
        assert store.count("exchanges") == 0


@pytest.mark.any_broker
def test_missing_topics_are_reported_with_the_command(command: Callable[..., tuple[int, str, str]]) -> None:
    """The command creates no topics by itself."""
    code, _, err = command("dead-letters", "list")

    assert code == 2
    assert "topics are missing" in err
    assert "driftline topics create" in err


def test_letters_of_the_sink_are_listed_and_requeued_like_all_others(
    command: Callable[..., tuple[int, str, str]], kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """Letters of the sink must be on the topic, not only in the table."""
    make_topics(*topics(), partitions=2)
    under_another_key, praise = build.judgement("s", 1), build.judgement("s", 2, outcome="praise")
    produce(kafka, "judgements", [encode(under_another_key), encode(praise)])
    with Store(None) as store:
        asyncio.run(land_all(store, kafka))
        assert store.count("judgements") == 0
        listed = json.loads(command("dead-letters", "list", "--json")[1])
        assert {(row["source"], row["reason"]) for row in listed["letters"]} == {
            ("judgements", "bounds"),
            ("judgements", "wrong_key"),
        }
        code, out, _ = command("dead-letters", "retry", "--source", "judgements")
        assert code == 1
        assert out.splitlines()[-1] == "1 dead letter retried, 1 not retried"
        assert "Judgement.outcome: 'praise' is none of" in out
        asyncio.run(land_all(store, kafka))
        assert store.count("judgements") == 1
        assert store.count("dead_letters") == 2
        open_letters = json.loads(command("dead-letters", "list", "--json")[1])
        assert [row["reason"] for row in open_letters["letters"]] == ["bounds"]
