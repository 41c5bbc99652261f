"""Whatever a span holds, its record is admissible, without secrets, and made in bounded time; a bad span costs itself alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue as Attribute
from support.otlp_captures import LABELS, NOW, OWNER, REDACTOR, Captured, assembled, records_of
from support.otlp_spans import agent, body, messages, request, span, tool

from otlp.capturing.readable import to_protobuf
from schemas.bounds import MAX_ID
from schemas.records import Span
from streams.log.admission import encode_validated
from streams.sources.otlp import conventions
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import build_span_record, to_stored_span

SECRET = "ghp_" + "aB3" * 12
NAMES = sorted(
    {
        *(convention.name for convention in (*conventions.REQUEST_MESSAGES, *conventions.RESPONSE_MESSAGES)),
        *conventions.CONVERSATIONS, *conventions.TOOL_CALLS, *conventions.REASONING, *conventions.SESSION, *conventions.AGENT, *conventions.MODEL,
        *conventions.RESPONSE_ID, *conventions.STOP_REASON, *conventions.TOOL, *conventions.TOOL_CALL_ID, *conventions.ARGUMENTS,
        *conventions.RESULT, *conventions.ERROR, conventions.SERVICE, conventions.AGENT_OF_ENTITY,
        *(counting.container for counting in conventions.TOKEN_CONVENTIONS if counting.container is not None),
        "gen_ai.agent.version", "langfuse.observation.status_message",
    }
)  # fmt: skip
"""All attributes whose content may be stored."""
KINDS = ({"gen_ai.operation.name": name} for name in ("chat", "invoke_agent", "execute_tool", "search_memory"))
SPAN_KINDS = [
    *KINDS,
    {"openinference.span.kind": "LLM"},
    {"langfuse.observation.type": "tool"},
    {"traceloop.span.kind": "agent"},
]


def record_of(capture: Captured) -> Span:
    """Return the record of the only span of a request, and check that it is valid and can be read again."""
    [record] = records_of([capture])
    encode_validated(record)
    to_stored_span(record)
    return record


def shapes(text: str) -> list[Any]:
    """Return a text in every shape in which an attribute may hold it."""
    call = {"id": text, "name": text, "arguments": {text: text}}
    parts = [{"type": "text", "content": text}, {"type": "tool_call", **call}, {"type": "reasoning", "content": text}]
    messages_with_text = [{"role": role, "parts": parts} for role in ("user", "assistant", "tool")]
    truncated_json = json.dumps(messages_with_text)[: -len(text) // 2]
    return [
        text,
        f"a {text} b",
        [text],
        {"a": text},
        json.dumps(messages_with_text),
        messages_with_text,
        json.dumps({text: text}),
        truncated_json,
        json.dumps(text),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_gets_into_a_record(name: str) -> None:
    """Spans are stored for a day, and everyone with query access can read them."""
    for kind in SPAN_KINDS:
        for value in shapes(SECRET):
            record = record_of(request(span(0, attributes={**kind, name: value}), resource={name: value}))
            assert SECRET.encode() not in encode_validated(record), (kind, value)


def test_no_secret_outside_the_attributes_gets_into_a_record() -> None:
    """Name, status, events, scope and trace state also contain text."""
    event = {"name": "exception", "attributes": body([span(0, attributes={"exception.message": SECRET})])["resourceSpans"]}
    choice_event = {"name": "gen_ai.choice", "attributes": [{"key": "message", "value": {"stringValue": SECRET}}]}
    agent_span = agent(
        name=SECRET,
        traceState=f"ot={SECRET}",
        status={"code": 2, "message": SECRET},
        events=[choice_event, {**event, "attributes": []}],
    )
    assert SECRET.encode() not in encode_validated(record_of(request(agent_span, scope=SECRET)))


@pytest.mark.parametrize("offset", range(MAX_ID - len(SECRET), MAX_ID + 1, 3))
@pytest.mark.parametrize(
    "name", ["gen_ai.agent.name", "gen_ai.tool.name", "session.id", "gen_ai.response.model", "gen_ai.response.id"]
)
def test_truncation_exposes_no_part_of_a_secret(name: str, offset: int) -> None:
    """Truncating a name before redaction would keep a part of the secret that no pattern matches."""
    text = "x" * (offset - 1) + " " + SECRET
    for kind in SPAN_KINDS:
        record = record_of(request(span(0, name=text, attributes={**kind, name: text}), resource={"service.name": text}))
        assert SECRET[:12].encode() not in encode_validated(record)


LONG = 10_000_000
"""Bytes of the longest value; a body has at most 16 MB."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gen_ai.input.messages", "chat"), ("gen_ai.output.messages", "chat"), ("gen_ai.tool.call.arguments", "execute_tool")],
)
@pytest.mark.parametrize("shape", ["text", "json", "cut", "nested", "wide"])
def test_a_huge_value_gives_a_valid_record(name: str, kind: str, shape: str) -> None:
    """The value has 10 MB of text or JSON, truncated JSON, or deep or wide nesting."""
    text = "x" * LONG
    values = {
        "text": lambda: text,
        "json": lambda: messages("user", text),
        "cut": lambda: messages("user", text)[:-200],
        "nested": lambda: "[" * 1_000 + "]" * 1_000,
        "wide": lambda: json.dumps([{"role": "assistant", "tool_calls": [{"name": "x", "arguments": {}}] * 50_000}]),
    }
    packed = Attribute(key=name, value={"string_value": values[shape]()})
    record_of_bytes([Attribute(key="gen_ai.operation.name", value={"string_value": kind}), packed])


def test_a_million_attributes_are_truncated() -> None:
    """Only the first thousands are read; the limit of an SDK is 128."""
    attributes = [
        Attribute(key=f"llm.input_messages.{number}.message.content", value={"string_value": "x"}) for number in range(10_000)
    ]
    assert to_stored_span(record_of_bytes(attributes * 100)).facts.tags == ("truncated",)


def record_of_bytes(attributes: list[Attribute]) -> Span:
    """Return the record of a span with these attributes sent as protobuf, and check that it is valid."""
    export_request = to_protobuf("traces", body([span(0)]))
    export_request.resource_spans[0].scope_spans[0].spans[0].attributes.extend(attributes)  # type: ignore[attr-defined]
    [observed] = SIGNALS["traces"].read(export_request.SerializeToString(), NOW, is_json=False)
    assert not isinstance(observed, RejectedItem)
    record = build_span_record(observed, OWNER, REDACTOR, NOW, LABELS)
    encode_validated(record)
    return record


def test_deeply_nested_values_do_not_exhaust_the_stack() -> None:
    """Attributes and JSON arguments may be nested a thousand levels deep."""
    deep: Any = "x"
    for _ in range(12):
        deep = {"a": [deep]}
    record_of(request(tool(0, None, attributes={"gen_ai.tool.call.arguments": deep})))
    record_of(request(tool(0, None, attributes={"gen_ai.tool.call.arguments": '{"a":' * 1_000 + "1" + "}" * 1_000})))


texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES), kind=st.sampled_from(SPAN_KINDS), value=texts | numbers | st.lists(texts | numbers, max_size=3)
)
def test_any_value_gives_a_valid_record(name: str, kind: dict[str, str], value: Any) -> None:
    """Values include control characters, NUL, NaN, integers beyond 2^53 and types that violate the conventions."""
    encoded = to_protobuf("traces", body([span(0, attributes={**kind, name: value})])).SerializeToString()
    [observed] = SIGNALS["traces"].read(encoded, NOW, is_json=False)
    assert not isinstance(observed, RejectedItem)
    record = build_span_record(observed, OWNER, REDACTOR, NOW, LABELS)
    encode_validated(record)
    for assembly in assembled([record]):
        for record in (*assembly.exchanges, *assembly.events, assembly.decision):
            encode_validated(record)


@pytest.mark.parametrize("character", ["\0", "\x1b", "\u202e", "\ufffe", "\x7f", "\n"])
def test_odd_names_give_valid_records(character: str) -> None:
    """The name of a session or an agent may contain any character."""
    odd = f"a{character}b"
    call = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "id": odd, "name": odd, "arguments": odd}]}])
    agent_span = agent(
        0, question=odd, answer=odd, name=odd, attributes={"gen_ai.conversation.id": odd, "gen_ai.agent.name": odd}
    )
    chat = span(
        1, 0, attributes={"gen_ai.operation.name": "chat", "gen_ai.output.messages": call, "gen_ai.response.model": odd}
    )
    for assembly in assembled(records_of([request(agent_span, chat, resource={"service.name": odd})])):
        assert assembly.exchanges
        assert assembly.events
        for record in (*assembly.exchanges, *assembly.events, assembly.decision):
            encode_validated(record)


def test_long_names_in_messages_are_cut() -> None:
    """The name and id of a call come from a model."""
    long = "x" * 5_000
    call = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "id": long, "name": long, "arguments": {}}]}])
    told = span(0, attributes={"gen_ai.operation.name": "chat", "gen_ai.output.messages": call})
    [assembly] = assembled(records_of([request(told)]))
    assert assembly.events
    for made in (*assembly.exchanges, *assembly.events, assembly.decision):
        encode_validated(made)


@pytest.mark.parametrize(
    "fault",
    [
        {"traceId": ""}, {"traceId": "0" * 32}, {"traceId": "xyz"}, {"spanId": "00"}, {"spanId": None}, {"spanId": 4},
        {"startTimeUnixNano": "0"}, {"startTimeUnixNano": "x"}, {"startTimeUnixNano": "7258118400000000000"}, {"startTimeUnixNano": "1"},
        {"startTimeUnixNano": "99999999999999999999"}, {"attributes": 4}, {"attributes": [4]}, {"events": "x"}, {"status": 4}, {"name": 4},
        {"parentSpanId": "zz"}, {"attributes": [{"key": "a", "value": {"intValue": "x"}}]},
    ],
)  # fmt: skip
def test_a_bad_span_is_rejected_alone(fault: dict[str, Any]) -> None:
    """The other spans are accepted, and the rejection has a reason."""
    items = list(SIGNALS["traces"].read(json.dumps(body([span(0), {**span(1), **fault}, span(2)])).encode(), NOW, is_json=True))
    assert [isinstance(item, RejectedItem) for item in items] == [False, True, False]
    assert all(item.reason for item in items if isinstance(item, RejectedItem))


@pytest.mark.parametrize("value", [None, 4, "x", [], [[]]])
def test_a_value_that_is_no_span_is_rejected(value: Any) -> None:
    """JSON of another shape may be in the list of spans."""
    items = list(SIGNALS["traces"].read(json.dumps(body([value, span(0)])).encode(), NOW, is_json=True))
    assert [isinstance(item, RejectedItem) for item in items] == [True, False]


def test_an_end_in_the_year_2200_is_ignored() -> None:
    """The end would become the time of an event."""
    [record] = records_of([request(span(0, endTimeUnixNano="7258118400000000000"))])
    assert record.started_at == record.ended_at
