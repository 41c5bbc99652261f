"""Values framed for a schema registry, with a real HTTP server that implements the registry's API."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import parse_schema
from support import builders as build
from support.clocks import NOW, TickingClock
from support.kafka_sinks import producing, sink_over, until
from support.kafka_workers import contents

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import PREFIX_BYTES, decode, encode
from schemas.errors import RecordError, RegistryFramingError, SettingsError
from schemas.records import DeadLetter, Exchange, Record
from schemas.registry import Json, published_schemas, schema_of, topics
from service.cli.main import run as run_command
from service.setup.kafka import framing_of
from service.setup.settings import load_settings
from streams.engine.embedded import StageRunner
from streams.judging.judged_stages import read_no_judgements
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import key_of
from streams.kafka.reading import Chunk
from streams.kafka.schema_registry import (
    FORGET_SECONDS,
    MAX_BODY_BYTES,
    MAX_DEPTH,
    RegistryFraming,
    RegistryUnavailableError,
    find_refusal,
)
from streams.kafka.stages import ComputingContext
from streams.kafka.states import StoredState
from streams.log.admission import Admission, EncodedRecords, RecordOrigin, Refusal
from streams.replay.plan import Part, ReplayFiles, Scope, Segment
from streams.replay.topics import open_topics
from streams.topology import stage_named

EXCHANGE = build.exchange("s", 1)
KEY = key_of(EXCHANGE)
SCHEMA = schema_of("Exchange")


class Registry:
    """A schema registry with given answers by schema id."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.arrived = 0
        self.asked: list[int] = []
        self.credentials: set[str | None] = set()
        self.hold = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.arrived += 1
                registry.hold.wait(10)
                _, _, number = self.path.rpartition("/schemas/ids/")
                registry.asked.append(int(number))
                registry.credentials.add(self.headers.get("authorization"))
                missing = 404, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
                status, body = registry.answers.get(int(number), missing)
                self.send_response(status)
                self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                """Log nothing."""

        self.hold.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def register(self, number: int, definition: Any, **fields: Any) -> None:
        """Register a definition under a schema id."""
        self.answers[number] = 200, json.dumps({"schema": json.dumps(definition), **fields}).encode()


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Return a running registry."""
    registry = Registry()
    thread = threading.Thread(target=registry.server.serve_forever, args=(0.01,))
    thread.start()
    yield registry
    registry.hold.set()
    registry.server.shutdown()
    thread.join()
    registry.server.server_close()


def framed(number: int, body: bytes) -> bytes:
    """Return a value in the registry's framing."""
    return b"\0" + number.to_bytes(4, "big") + body


def written(definition: Json, fields: Mapping[str, Any]) -> bytes:
    """Return a body encoded with this schema."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parse_schema(definition), dict(fields))
    return buffer.getvalue()


def reframed(registry: Registry, *values: bytes) -> list[bytes]:
    """Return the reframed values."""
    return list(asyncio.run(RegistryFraming(registry.url).reframe(values)))


def fields_of(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange's fields for an encoder."""
    return {name: getattr(exchange, name) for name in exchange.__struct_fields__}


def changed(**attributes: Any) -> Json:
    """Return the schema of an exchange with other attributes."""
    return json.loads(json.dumps(SCHEMA.definition)) | attributes


def test_a_body_of_our_own_schema_is_accepted_unchanged(registry: Registry) -> None:
    """The usual case: our .avsc is registered and a library does the framing. Docs and the order of attributes are irrelevant."""
    stripped = {name: SCHEMA.definition[name] for name in ("namespace", "fields", "name", "type")}
    registry.register(7, stripped)
    registry.register(8, published_schemas()["Exchange"][0].definition)
    body = encode(EXCHANGE)[PREFIX_BYTES:]
    first, older, untouched = reframed(registry, framed(7, body), framed(8, body), encode(EXCHANGE))
    assert first == untouched == encode(EXCHANGE)
    assert published_schemas()["Exchange"][0].prefix + body == older


def test_a_compatible_schema_is_read_by_avros_rules(registry: Registry) -> None:
    """A producer may have more fields in another order, and omit fields with defaults."""
    fields = [field for field in SCHEMA.fields if field["name"] != "agent_thinking"]
    theirs = changed(fields=[{"name": "own", "type": {"type": "array", "items": "string"}}, *reversed(fields)])
    registry.register(9, theirs)
    value = framed(9, written(theirs, fields_of(EXCHANGE) | {"own": ["a", "b"]}))
    (body,) = reframed(registry, value)
    assert body == encode(EXCHANGE)


UNREADABLE: dict[str, tuple[Any, str]] = {
    "another record": (changed(name="Chat"), "not a record of Driftline"),
    "another namespace": (changed(namespace="com.example"), "not a record of Driftline"),
    "a field that is needed is missing": (
        changed(fields=[field for field in SCHEMA.fields if field["name"] != "session_id"]),
        "Avro's rules",
    ),
    "another type": (
        changed(fields=[field | ({"type": "int"} if field["name"] == "session_id" else {}) for field in SCHEMA.fields]),
        "Avro's rules",
    ),
    "no record": ("string", "not the schema of a record"),
    "no schema": ({"type": "record", "name": "Exchange", "fields": [{"name": "a", "type": "nothing"}]}, "not an Avro schema"),
    "of itself": (changed(fields=[*SCHEMA.fields, {"name": "next", "type": ["null", "driftline.Exchange"]}]), "itself"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_incompatible_schema_gives_dead_letters(case: str, registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """A dead letter that names the schema is better than a guess; the log reports the problem once."""
    definition, reason = UNREADABLE[case]
    registry.register(11, definition)
    value = framed(11, encode(EXCHANGE)[PREFIX_BYTES:])
    assert reframed(registry, value, value) == [value, value]
    assert registry.asked == [11]
    (logged,) = [record.getMessage() for record in caplog.records if "schema id 11" in record.getMessage()]
    assert reason in logged
    (rejected,) = decode_batch([value]).rejected
    assert isinstance(rejected.error, RegistryFramingError)
    assert rejected.error.code == "registry_framing"
    assert "schema id 11" in str(rejected.error)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"schemaType": "PROTOBUF"}, "not an Avro schema"),
        ({"references": [{"name": "driftline.Redaction", "subject": "r", "version": 1}]}, "refers to other schemas"),
        ({"padding": "x" * MAX_BODY_BYTES}, "more than"),
    ],
)
def test_an_unusable_answer_counts_against_the_schema(
    answer: dict[str, Any], reason: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry would not change it, so nothing waits."""
    registry.register(3, SCHEMA.definition, **answer)
    value = framed(3, b"")
    assert reframed(registry, value) == [value]
    assert reason in caplog.text


def test_damaged_bodies_are_skipped_one_by_one(registry: Registry) -> None:
    """One damaged value must not affect others."""
    theirs = changed(fields=list(reversed(SCHEMA.fields)))
    registry.register(4, theirs)
    good = written(theirs, fields_of(EXCHANGE))
    values = [framed(4, good), framed(4, good[:-3]), framed(4, good + b"x"), b"\0\0\0", b"", framed(5, good)]
    bodies = reframed(registry, *values)
    assert bodies == [encode(EXCHANGE), *values[1:]]
    errors = {rejected.index: type(rejected.error).__name__ for rejected in decode_batch(bodies).rejected}
    assert (errors) == {
        1: "RegistryFramingError",
        2: "RegistryFramingError",
        3: "FramingError",
        4: "FramingError",
        5: "RegistryFramingError",
    }


def test_a_schema_is_requested_once_and_a_missing_one_again_later(registry: Registry) -> None:
    """The registry must not be called per value, and a schema added later must work without a restart."""
    registry.register(1, SCHEMA.definition)
    clock = [0.0]

    async def run() -> None:
        framing = RegistryFraming(registry.url, now=lambda: clock[0])
        value, missing = framed(1, encode(EXCHANGE)[PREFIX_BYTES:]), framed(2, encode(EXCHANGE)[PREFIX_BYTES:])
        for _ in range(5):
            assert await framing.reframe([value, missing]) == [encode(EXCHANGE), missing]
        assert registry.asked == [1, 2]
        registry.register(2, SCHEMA.definition)
        clock[0] += FORGET_SECONDS
        assert await framing.reframe([missing]) == [encode(EXCHANGE)]

    asyncio.run(run())
    assert registry.asked == [1, 2, 2]


def test_more_schemas_than_are_kept_at_once_stop_nobody(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers may invent schema ids: evicted schemas must be fetched again, even within one batch."""
    monkeypatch.setattr("streams.kafka.schema_registry.MAX_SCHEMAS", 3)
    registry.register(1, SCHEMA.definition)

    async def run() -> None:
        framing = RegistryFraming(registry.url)
        good, made_up = framed(1, encode(EXCHANGE)[PREFIX_BYTES:]), [framed(number, b"") for number in range(2, 8)]
        assert await framing.reframe([good]) == [encode(EXCHANGE)]
        assert await framing.reframe([good, *made_up]) == [encode(EXCHANGE), *made_up]
        assert await framing.reframe([*made_up, good]) == [*made_up, encode(EXCHANGE)]

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [(503, b"busy"), (401, b'{"error_code": 40101}'), (404, b"<html>"), (200, b"<html>"), (302, b""), (200, b"[" * 99_999)],
)
def test_a_registry_that_does_not_answer_as_one_is_waited_for(
    answer: tuple[int, bytes], registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the registry must neither create dead letters nor lose values."""
    registry.answers[1] = answer
    value, slept = framed(1, encode(EXCHANGE)[PREFIX_BYTES:]), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 7:
            registry.register(1, SCHEMA.definition)

    async def run() -> None:
        framing = RegistryFraming(registry.url, ("me", "a-password-not-to-be-shown"), sleep=sleep)
        with pytest.raises(RegistryUnavailableError):
            await framing.reframe([value])
        assert await framing.reframe_when_available([value]) == [encode(EXCHANGE)]

    caplog.set_level(logging.DEBUG)
    asyncio.run(run())
    assert slept == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert registry.credentials == {"Basic " + base64.b64encode(b"me:a-password-not-to-be-shown").decode()}
    assert "records wait for a schema" in caplog.text
    assert "a-password-not-to-be-shown" not in caplog.text


def test_who_waits_for_a_registry_can_be_stopped(registry: Registry) -> None:
    """A worker that stops or loses its partition must not wait for the registry."""
    registry.hold.clear()

    async def run() -> None:
        waiting = asyncio.create_task(RegistryFraming(registry.url).reframe_when_available([framed(1, b"")]))
        await until(lambda: registry.arrived, "the registry to be asked")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < 2


def test_values_of_our_own_cost_nothing(registry: Registry) -> None:
    """Values in our framing are returned unchanged, without the cost of a registry."""
    values = [encode(EXCHANGE)] * 20_000

    async def run() -> float:
        framing = RegistryFraming(registry.url)
        began = time.process_time()
        assert values is await framing.reframe(values)
        assert await framing.reframe([]) == []
        return time.process_time() - began

    assert min(asyncio.run(run()) for _ in range(3)) / len(values) < 1e-6
    assert registry.asked == []


Nest = Callable[[Any], Any]
HOSTILE: dict[str, Any] = {
    "an array of nulls": {"type": "array", "items": "null"},
    "nulls in disguise": {"type": "array", "items": {"type": {"type": "null"}}},
    "a record without fields": {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
    "a record of nulls": {
        "type": "record",
        "name": "Nulls",
        "fields": [{"name": f"n{place}", "type": "null"} for place in range(9)],
    },
    "a fixed type of no bytes": {"type": "array", "items": {"type": "fixed", "name": "None", "size": 0}},
    "a list of itself": {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
    "no type": {"type": "record", "name": "Odd", "fields": [{"name": "a"}]},
    "no fields": {"type": "record", "name": "Odd"},
    "fields that are none": {"type": "record", "name": "Odd", "fields": [1]},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_schema_that_makes_small_bodies_large_is_refused(case: str) -> None:
    """A few bytes of such a body could use all memory or crash a library."""
    definition = changed(fields=[*SCHEMA.fields, {"name": "extra", "type": HOSTILE[case]}])
    assert find_refusal(definition) is not None


def test_a_schema_that_nests_too_deep_is_refused() -> None:
    """Parsers are recursive."""
    node: Any = "string"
    for _ in range(MAX_DEPTH * 100):
        node = {"type": "array", "items": node}
    assert find_refusal({"type": "record", "name": "Exchange", "fields": [{"name": "a", "type": node}]}) == "it nests too deep"


@pytest.mark.parametrize("name", ["Exchange", "AgentEvent", "Diagnosis", "Score"])
def test_our_own_schemas_are_not_refused(name: str) -> None:
    """Our own schemas comply with the rules for foreign ones."""
    assert find_refusal(schema_of(name).definition) is None


def test_without_a_registry_the_letter_says_what_to_set() -> None:
    """The most common reason for such values is a missing setting."""
    with pytest.raises(RecordError) as raised:
        decode(framed(17, b"body"))
    assert "schema id 17" in str(raised.value)
    assert "DRIFTLINE_SCHEMA_REGISTRY" in raised.value.hint


def test_the_settings_make_a_reader_and_a_login_needs_a_registry() -> None:
    """A password without a registry suggests a misspelt setting."""
    assert framing_of(load_settings()) is None
    assert framing_of(load_settings(schema_registry="http://registry:8081", schema_registry_auth="me:secret:word")) is not None
    for given in (
        {"schema_registry_auth": "me:secret"},
        {"schema_registry_auth": "secret", "schema_registry": "http://registry"},
    ):
        with pytest.raises(SettingsError) as raised:
            framing_of(load_settings(**given))
        assert "secret" not in str(raised.value)


# Where it is used: the workers' stages and the sink


class NoStates:
    """An empty state topic that stores nothing."""

    partitions = 0

    async def load(self, partition: int) -> None:
        """Do nothing."""

    def get(self, partition: int, keys: Any) -> dict[str, StoredState]:  # noqa: ARG002 - as the topic has it
        """Return no states."""
        return {}

    async def save(self, partition: int, states: Mapping[str, StoredState]) -> None:
        """Discard the states."""


class Sent:
    """Records the messages that a stage produces, by topic."""

    def __init__(self) -> None:
        self.messages: dict[str, list[bytes]] = {}

    async def send(self, topic: str, messages: Sequence[tuple[bytes, bytes]], *, partition: int | None = None) -> None:  # noqa: ARG002
        """Record the messages."""
        self.messages.setdefault(topic, []).extend(value for _, value in messages)


@dataclass(frozen=True)
class Raw:
    """A record from the broker."""

    offset: int
    value: bytes
    key: bytes | None = None
    timestamp: int = 1_791_000_000_000


async def _worked(framing: RegistryFraming, values: Sequence[bytes]) -> Sent:
    """Return intake's results for the values."""
    sent, policy, done = Sent(), Policy(), list[bool]()
    redactor = Redactor(policy.redaction)
    states: Any = NoStates()
    computing = ComputingContext(
        stage=stage_named("intake"),
        runner=StageRunner(policy, read_no_judgements, redactor, TickingClock(NOW)),
        redactor=redactor,
        producer=sent,
        states=states,
        reframe=framing.reframe_when_available,
    )
    await computing.open_partition(0).take(
        Chunk("exchanges", 0, [Raw(offset, value, KEY) for offset, value in enumerate(values)]), lambda: done.append(True)
    )
    assert done == [True]
    return sent


def test_a_stage_waits_for_the_registry_and_takes_framed_values_as_its_own(registry: Registry) -> None:
    """Results must not depend on the framing; nothing is processed before the registry answers."""
    registry.hold.clear()
    registry.register(1, SCHEMA.definition)
    body = encode(EXCHANGE)[PREFIX_BYTES:]

    async def run() -> None:
        framing = RegistryFraming(registry.url)
        work = asyncio.create_task(_worked(framing, [framed(1, body), framed(2, body)]))
        await until(lambda: registry.arrived, "the registry to be asked")
        assert not work.done()
        registry.hold.set()
        found = (await work).messages
        letters = [decode(message) for message in found.pop("dead-letters")]
        assert len(letters) == 1, [(letter.reason, letter.detail) for letter in letters]
        (letter,) = letters
        assert isinstance(letter, DeadLetter)
        assert letter.stage == "decoding"
        assert letter.reason == "registry_framing"
        assert letter.position == 1
        assert (await _worked(framing, [encode(EXCHANGE)])).messages == found

    asyncio.run(run())


def test_framed_values_land_and_what_cannot_be_read_is_set_aside(
    registry: Registry, kafka: KafkaConnection, make_topics: Callable[..., None]
) -> None:
    """The sink on a real broker, with a registry that is down at first: records are written once it is back."""
    make_topics(*topics(), partitions=1)
    registry.answers[1] = 503, b"busy"
    body = encode(EXCHANGE)[PREFIX_BYTES:]

    async def run() -> None:
        async with producing(kafka) as producer:
            await producer.send("exchanges", [(KEY, framed(1, body)), (KEY, framed(2, body)), (KEY, encode(EXCHANGE))])
        with Store(None) as store:
            sink = sink_over(store, kafka, reframe=RegistryFraming(registry.url).reframe)
            await sink.start()
            try:
                await until(lambda: "schema registry" in sink.problem, "the sink to say what it waits for")
                assert store.count("exchanges") == 0
                registry.register(1, SCHEMA.definition)
                await sink.caught_up()
            finally:
                await sink.stop()
            assert store.count("exchanges") == 1
            assert store.count("dead_letters") == 1

    asyncio.run(run())


def test_a_framed_value_that_was_set_aside_goes_back_once_its_registry_is_named(
    registry: Registry,
    kafka: KafkaConnection,
    make_topics: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the setting was missing at first, the dead letters are complete and can be put back."""
    make_topics("exchanges", "dead-letters", "reviews", partitions=1)
    registry.register(1, SCHEMA.definition)
    accepted = EncodedRecords()
    value = framed(1, encode(EXCHANGE)[PREFIX_BYTES:])
    Admission(Redactor(Policy().redaction), NOW).add_dead_letter(
        accepted, RecordOrigin("exchanges", 0, 0), Refusal("decoding", "registry_framing", "why"), value
    )

    async def set_aside() -> None:
        async with producing(kafka) as producer:
            await producer.send("dead-letters", [(b"k", message) for message in accepted.messages["dead-letters"]])

    def retry() -> tuple[int, str]:
        code = run_command(["dead-letters", "retry", "--reason", "registry_framing", "--kafka", kafka.bootstrap])
        return code, capsys.readouterr().out

    asyncio.run(set_aside())
    monkeypatch.setenv("DRIFTLINE_KAFKA_PREFIX", kafka.prefix)
    code, said = retry()
    assert code == 1
    assert "Set DRIFTLINE_SCHEMA_REGISTRY" in said
    monkeypatch.setenv("DRIFTLINE_SCHEMA_REGISTRY", registry.url)
    assert retry() == (0, "1 dead letter retried, 0 not retried\n")
    assert [record.value for record in asyncio.run(contents(kafka, "exchanges", 1))] == [encode(EXCHANGE)]


def test_a_replay_of_the_topics_reads_framed_values(
    registry: Registry, kafka: KafkaConnection, make_topics: Callable[..., None], tmp_path: Path
) -> None:
    """A replay must read what workers have scored."""
    make_topics("exchanges", partitions=1)
    registry.register(1, SCHEMA.definition)

    async def run() -> list[Record]:
        async with producing(kafka) as producer:
            await producer.send("exchanges", [(KEY, framed(1, encode(EXCHANGE)[PREFIX_BYTES:]))])
        files, reframe_when_available = (
            ReplayFiles(tmp_path / "driftline.duckdb", "again"),
            RegistryFraming(registry.url).reframe_when_available,
        )
        files.parts.mkdir(parents=True)
        with closing(await open_topics(kafka, Part(0, (Segment(0, 0, 1),)), Scope(), files, reframe_when_available)) as history:
            return [record async for window in history.windows(0) for _, _, record in window.batch.records()]

    assert asyncio.run(run()) == [EXCHANGE]
