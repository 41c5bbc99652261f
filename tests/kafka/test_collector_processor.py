"""The stage of a Collector's topics: the results of each message, without a broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.clocks import NOW
from support.otel_collector import agent_span, traces_request, unix_nanoseconds
from support.otlp_captures import Captured, requests_of
from support.otlp_spans import attributes

from audit.policy import Collector, CollectorRoute, Policy, ProjectSettings
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.errors import BrokerError
from schemas.records import DeadLetter, Record, Span
from streams.kafka import collector
from streams.kafka.collector import CollectorProcessor
from streams.kafka.producing import Message, key_of
from streams.kafka.reading import Chunk
from streams.log.dead_letters import RetryRefusal, plan_retry
from streams.log.span_admission import AdmittedSpan, admit_spans, readers_of
from streams.sources.otlp.received import ReceivedSpan
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import SpanDraft, SpanOwner, build_draft

TOPIC = "otlp_spans"
LATER = build.START.replace(year=2027)
"""A time that the captures' spans lie before."""
GARBAGE = (
    b"",
    None,
    b"hello",
    b"\x0a",
    b"{",
    b"{}x",
    b'{"resourceLogs":[]}',
    b"[]",
    b"\x00" * 100,
    bytes(range(256)),
    b"\x7a\x00",
)


@dataclass
class Broker:
    """Accepts produced messages, except those of the topics in `fails`."""

    accepted: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    fails: frozenset[str] = frozenset()

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> object:
        """Accept messages."""
        assert partition is None, "the key of a session chooses its partition"
        if messages and topic in self.fails:
            raise BrokerError(f"{topic}: away")
        self.accepted[topic] += messages
        return None

    @property
    def spans(self) -> list[Span]:
        """Return the spans with their keys."""
        return [record for record in self._records("spans") if isinstance(record, Span)]

    @property
    def letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return [record for record in self._records("dead-letters") if isinstance(record, DeadLetter)]

    def _records(self, topic: str) -> list[Record]:
        records = [decode(value) for _, value in self.accepted[topic]]
        assert [key_of(record) for record in records] == [key for key, _ in self.accepted[topic]]
        return records


def message(value: bytes | None, offset: int = 0, headers: Mapping[str, str] | None = None) -> Any:
    """Return a message from the broker with a foreign key."""
    header_list = [(name, text.encode()) for name, text in (headers or {}).items()]
    return SimpleNamespace(offset=offset, timestamp=1_795_000_000_000, key=b"\xff\x00", value=value, headers=header_list)


def process_messages(
    *values: Any,
    broker: Broker | None = None,
    policy: Policy | None = None,
    signal: str = "traces",
    topic: str = TOPIC,
    now: datetime = LATER,
) -> Broker:
    """Process a chunk of these messages and return the broker with its results."""
    broker = broker or Broker()
    policy = policy or Policy()
    records = [value if isinstance(value, SimpleNamespace) else message(value, offset) for offset, value in enumerate(values)]
    stage = CollectorProcessor(signal, policy=policy, redactor=Redactor(policy.redaction), now=lambda: now, producer=broker)
    finished: list[bool] = []
    asyncio.run(stage.take(Chunk(topic, 3, records), lambda: finished.append(True)))
    assert finished == [True]
    return broker


def records_over_http(capture: Captured, owner: SpanOwner) -> list[bytes]:
    """Return the records that the HTTP endpoint creates from a request."""
    received_spans = SIGNALS[capture.signal].read(capture.as_protobuf, LATER, is_json=False)
    policy = Policy()
    admitted = admit_spans(received_spans, lambda _: owner, readers_of(policy), Redactor(policy.redaction), LATER)
    return [span.message for span in admitted if isinstance(span, AdmittedSpan)]


@pytest.mark.parametrize("name", ["openai_v2", "pydantic_ai"])
@pytest.mark.parametrize("encoding", ["as_json", "as_protobuf"])
def test_a_message_gives_the_same_spans_as_over_http(name: str, encoding: str) -> None:
    """Spans over Kafka give the same bytes as over HTTP, in both encodings."""
    owner = SpanOwner("collector", "default")
    for capture in requests_of(name):
        broker = process_messages(getattr(capture, encoding), signal=capture.signal)
        assert [value for _, value in broker.accepted["spans"]] == records_over_http(capture, owner)
        assert broker.letters == []
    assert broker.accepted["spans"]


def test_a_topic_may_have_both_encodings() -> None:
    """A topic may hold both encodings after the Collector is reconfigured."""
    first, second = traces_request(agent_span(1, build.START)), traces_request(agent_span(2, build.START))
    assert [span.session_id for span in process_messages(first.as_json, second.as_protobuf).spans] == ["session-1", "session-2"]


def test_an_unreadable_message_is_a_dead_letter_and_stops_nothing() -> None:
    """Any producer may write to the topic: a bad message affects no other, and is identified by its offset."""
    good = traces_request(agent_span(1, build.START)).as_protobuf
    broker = process_messages(*(value for garbage in GARBAGE for value in (garbage, good)))

    assert len(broker.spans) == len(GARBAGE)
    assert {(letter.source, letter.partition, letter.position) for letter in broker.letters} == {
        (TOPIC, 3, 2 * index) for index in range(len(GARBAGE))
    }
    assert {(letter.stage, letter.reason) for letter in broker.letters} == {("collector", "not_otlp")}
    letters = sorted(broker.letters, key=lambda letter: letter.position)
    assert [letter.body for letter in letters] == [garbage or b"" for garbage in GARBAGE]


def test_an_invalid_span_affects_no_other() -> None:
    """A faulty span must not affect the other spans of its service."""
    bad = [
        {**agent_span(2, build.START), "traceId": "00" * 16},
        {**agent_span(3, build.START), "spanId": "ab"},
        {**agent_span(4, build.START), "startTimeUnixNano": unix_nanoseconds(build.START.replace(year=2200))},
    ]
    for value in (
        traces_request(agent_span(1, build.START), *bad, agent_span(5, build.START)).as_protobuf,
        traces_request(*bad).as_json,
    ):
        letters = process_messages(value).letters
        assert {letter.reason for letter in letters} == {"refused_span"}
        assert {letter.detail.partition(":")[0] for letter in letters} == {"trace_id", "span_id", "start_time_unix_nano"}
        assert all(b"Where is order" in letter.body and b"order 1?" not in letter.body for letter in letters)
    assert [
        span.session_id
        for span in process_messages(
            traces_request(agent_span(1, build.START), *bad, agent_span(5, build.START)).as_protobuf
        ).spans
    ] == [
        "session-1",
        "session-5",
    ]


def test_many_invalid_spans_of_a_message_make_few_letters_with_their_number() -> None:
    """One faulty exporter must not flood the dead letters."""
    bad = [{**agent_span(number, build.START), "traceId": "00" * 16} for number in range(1, 200)]
    letters = process_messages(traces_request(*bad).as_protobuf).letters

    assert len(letters) == collector.MAX_DEAD_LETTERS + 1
    assert len({letter.dead_letter_id for letter in letters}) == len(letters)
    assert any(str(letter.detail).startswith("149 more spans") for letter in letters)


def test_a_message_with_too_many_spans_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must stay bounded, and the other messages are read."""
    monkeypatch.setattr(collector, "MAX_SPANS", 3)
    small, large = (
        traces_request(*(agent_span(number, build.START) for number in range(1, count))).as_protobuf for count in (4, 5)
    )
    broker = process_messages(small, large, small)

    assert [(letter.reason, letter.position) for letter in broker.letters] == [("too_many_spans", 1)]
    assert len(broker.spans) == 6


@pytest.mark.parametrize("is_json", [True, False])
def test_an_incomplete_character_affects_only_its_span(is_json: bool) -> None:
    """A Collector forwards text that an SDK cut within a character, in one message with other spans."""
    request = traces_request(agent_span(1, build.START), agent_span(2, build.START, **{"gen_ai.agent.name": "clerk @@@"}))
    value = request.as_json.replace(b"@@@", rb"\udc9f") if is_json else request.as_protobuf.replace(b"@@@", b"\xed\xb2\x9f")
    broker = process_messages(value)

    assert broker.letters == []
    assert ["\ufffd" in span.content and "truncated" in span.content for span in broker.spans] == [False, True]


def test_a_session_id_that_is_not_text_is_a_dead_letter() -> None:
    """A repaired id could name another session; the other spans are accepted."""
    request = traces_request(agent_span(1, build.START), agent_span(2, build.START, session="visit @@@"))
    broker = process_messages(request.as_protobuf.replace(b"@@@", b"\xed\xb2\x9f"))

    assert [span.session_id for span in broker.spans] == ["session-1"]
    [letter] = broker.letters
    assert letter.reason == "refused_span"
    assert "gen_ai.conversation.id" in letter.detail


@pytest.mark.parametrize("names", [("resource_spans", "scope_spans"), ("resourceSpans", "instrumentationLibrarySpans")])
def test_every_valid_json_name_is_read(names: tuple[str, str]) -> None:
    """HTTP accepts the same names."""
    groups, scopes = (f'"{name}"'.encode() for name in names)
    value = (
        traces_request(agent_span(1, build.START)).as_json.replace(b'"resourceSpans"', groups).replace(b'"scopeSpans"', scopes)
    )
    broker = process_messages(value)
    assert broker.letters == []
    assert [span.session_id for span in broker.spans] == ["session-1"]


def test_letters_contain_no_secret() -> None:
    """Attribute names identify secrets, in protobuf as in JSON."""
    secret = "not-a-known-form-0123456789"
    bad = {**agent_span(2, build.START, api_key=secret, Authorization=f"Bearer {secret}"), "traceId": "00" * 16}
    letters = [
        letter
        for value in (traces_request(bad).as_json, traces_request(bad).as_protobuf)
        for letter in process_messages(value).letters
    ]
    assert len(letters) == 2
    assert all(secret.encode() not in letter.body for letter in letters)


def test_an_unexpected_error_affects_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the mapping would otherwise end every worker at the same message."""

    def faulty(observed: ReceivedSpan, *arguments: Any) -> SpanDraft:
        if observed.trace_id.endswith("2"):
            raise KeyError("unforeseen")
        return build_draft(observed, *arguments)

    monkeypatch.setattr("streams.log.span_admission.build_draft", faulty)
    broker = process_messages(traces_request(*(agent_span(number, build.START) for number in (1, 2, 3))).as_protobuf)

    assert [span.session_id for span in broker.spans] == ["session-1", "session-3"]
    assert [letter.detail for letter in broker.letters] == ["0000000000000002: cannot be read: KeyError"]


def test_the_same_message_gives_the_same_ids_and_letters() -> None:
    """After a kill a message is read again, and readers recognize the records by their ids."""
    values = [traces_request(agent_span(1, build.START), {**agent_span(2, build.START), "spanId": ""}).as_protobuf, b"garbage"]
    first, repeated = process_messages(*values), process_messages(*values, now=LATER + timedelta(days=1))
    assert first.letters == repeated.letters
    assert first.spans == [msgspec.structs.replace(span, ingested_at=LATER) for span in repeated.spans]


def test_a_message_is_done_only_after_the_broker_has_its_spans() -> None:
    """An offset committed before its spans are durable would lose them in a crash."""
    value = traces_request(agent_span(1, build.START)).as_protobuf
    for topic in ("spans", "dead-letters"):
        completions: list[bool] = []
        broker = Broker(fails=frozenset({topic}))
        stage = CollectorProcessor(
            "traces", policy=Policy(), redactor=Redactor(Policy().redaction), now=lambda: LATER, producer=broker
        )
        chunk = Chunk(TOPIC, 0, [message(value, 0), message(b"garbage", 1)])
        with pytest.raises(BrokerError):
            asyncio.run(stage.take(chunk, lambda: completions.append(True)))  # noqa: B023 - called before the next turn
        assert completions == []


def test_the_policy_assigns_spans_by_topic_service_and_header() -> None:
    """One Collector serves many teams, and its messages have no token."""
    routes = (
        CollectorRoute(service="checkout-*", project="shop", agent="cart"),
        CollectorRoute(headers={"x-tenant": "north"}, project="north"),
        CollectorRoute(topic="other", connection="south"),
    )
    policy = Policy(collector=Collector(connection="fleet", project="ops", routes=routes))

    def filed(service: str | None, topic: str = TOPIC, **headers: str) -> tuple[str, str, str]:
        record = message(traces_request(agent_span(1, build.START), service=service).as_protobuf, 0, headers)
        (span,) = process_messages(record, policy=policy, topic=topic).spans
        facts = span.content
        return span.connection, span.project, "cart" if '"agent":"cart"' in facts else "clerk"

    assert filed("checkout-web") == ("fleet", "shop", "cart")
    assert filed("web") == ("fleet", "ops", "clerk")
    assert filed(None) == ("fleet", "ops", "clerk")
    assert filed("web", **{"x-tenant": "north"}) == ("fleet", "north", "clerk")
    assert filed("web", **{"x-tenant": "east"}) == ("fleet", "ops", "clerk")
    assert filed("web", "other") == ("south", "ops", "clerk")


def test_spans_of_two_services_in_one_message_are_assigned_separately() -> None:
    """The Collector's batch processor combines spans of different services."""
    policy = Policy(collector=Collector(routes=(CollectorRoute(service="a", project="one"),)))
    groups = [
        traces_request(agent_span(number, build.START), service=name).request["resourceSpans"][0]
        for number, name in ((1, "a"), (2, "b"))
    ]
    broker = process_messages(Captured("traces", {"resourceSpans": groups}).as_protobuf, policy=policy)
    assert {(span.session_id, span.project) for span in broker.spans} == {("session-1", "one"), ("session-2", "default")}


def test_spans_of_an_unaudited_project_are_skipped() -> None:
    """A disabled project must store nothing, over any path."""
    policy = Policy(projects={"default": ProjectSettings(enabled=False)})
    broker = process_messages(traces_request(agent_span(1, build.START)).as_protobuf, policy=policy)
    assert broker.spans == []
    assert broker.letters == []


def test_no_secret_is_produced() -> None:
    """Secrets are removed before producing, also in dead letters, because the topic may have other readers."""
    secret = "AKIA" + "QXDR7TVWCB2MHJ5K"
    attributes_with_secret = attributes(
        {"gen_ai.input.messages": f'[{{"role":"user","parts":[{{"type":"text","content":"My key is {secret}."}}]}}]'}
    )
    good = agent_span(1, build.START)
    good["attributes"] += attributes_with_secret
    broker = process_messages(traces_request(good, {**good, "spanId": ""}).as_protobuf, f"key {secret}".encode())

    assert len(broker.spans) == 1
    assert len(broker.letters) == 2
    assert not any(secret.encode() in value for messages in broker.accepted.values() for _, value in messages)
    assert "[SECRET:" in broker.spans[0].content


def test_a_letter_says_that_it_cannot_be_requeued() -> None:
    """The error says what to do instead."""
    (letter,) = process_messages(b"garbage").letters
    requeued = plan_retry(letter, now=NOW)
    assert isinstance(requeued, RetryRefusal)
    assert "an OpenTelemetry Collector" in requeued.reason


def test_other_log_records_are_skipped() -> None:
    """The topic may contain an application's whole log beside records of model calls."""
    record = {
        "timeUnixNano": unix_nanoseconds(build.START),
        "traceId": f"{1:032x}",
        "spanId": f"{1:016x}",
        "body": {"stringValue": "starting"},
    }
    capture = Captured("logs", {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [record]}]}]})
    broker = process_messages(capture.as_json, capture.as_protobuf, signal="logs")
    assert {topic: messages for topic, messages in broker.accepted.items() if messages} == {}
