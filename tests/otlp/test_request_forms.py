"""The forms of a request: every legal name and notation gives the same spans, and a text that is no Unicode costs at most its span."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.otlp_captures import LABELS, NOW, OWNER, REDACTOR, Captured, Json, records_of
from support.otlp_spans import START, TRACE, agent, body, request, span, span_id, tool

from schemas.errors import InputError
from streams.sources.otlp.received import ReceivedSpan, RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.span_facts import SpanFacts
from streams.sources.otlp.stored_spans import build_span_record, to_stored_span

HALF = b"\xed\xa0\xbc"
"""The first surrogate of a boat emoji, as SDKs for Java and JavaScript write it when they truncate UTF-16."""
CUT_BYTES = "⛵".encode()[:2]
"""A boat emoji truncated within its bytes, as SDKs for Go and Rust do."""
SLOT = "@slot@"


def read(content: Json | bytes, *, signal: str = "traces", is_json: bool = True) -> list[ReceivedSpan | RejectedItem]:
    """Return the spans and rejected items of a body."""
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return list(SIGNALS[signal].read(encoded, NOW, is_json=is_json))


def spans_of(content: Json | bytes, **more: Any) -> list[ReceivedSpan]:
    """Return the spans of a body, and check that nothing was rejected."""
    observed = [item for item in read(content, **more) if isinstance(item, ReceivedSpan)]
    assert observed == read(content, **more)
    return observed


def facts_of(content: bytes, *, is_json: bool) -> list[SpanFacts]:
    """Return the stored facts of a body's spans, and check that none was rejected."""
    records = [build_span_record(observed, OWNER, REDACTOR, NOW, LABELS) for observed in spans_of(content, is_json=is_json)]
    return [to_stored_span(record).facts for record in records]


def as_json(content: Json, raw: bytes) -> bytes:
    """Return the body as JSON with raw bytes in the slot."""
    return json.dumps(content).encode().replace(SLOT.encode(), raw)


def as_protobuf(content: Json, raw: bytes) -> bytes:
    """Return the body as protobuf with raw bytes in the slot, padded to its length."""
    encoded = Captured("traces", content).as_protobuf
    assert SLOT.encode() in encoded
    return encoded.replace(SLOT.encode(), raw.ljust(len(SLOT), b"."))


NOTATIONS = [
    pytest.param(lambda sent: as_json(sent, rb"\ud83c"), True, id="escaped-half"),
    pytest.param(lambda sent: as_json(sent, rb"\uDDFF"), True, id="escaped-second-half"),
    pytest.param(lambda sent: as_json(sent, HALF), True, id="json-half"),
    pytest.param(lambda sent: as_json(sent, CUT_BYTES), True, id="json-cut"),
    pytest.param(lambda sent: as_json(sent, b"\xe9"), True, id="json-latin-1"),
    pytest.param(lambda sent: as_protobuf(sent, HALF), False, id="protobuf-half"),
    pytest.param(lambda sent: as_protobuf(sent, CUT_BYTES), False, id="protobuf-cut"),
    pytest.param(lambda sent: as_protobuf(sent, b"\xe9"), False, id="protobuf-latin-1"),
]
Encode = Callable[[Json], bytes]


@pytest.mark.parametrize(("encode", "is_json"), NOTATIONS)
def test_an_incomplete_character_affects_only_its_span(encode: Encode, is_json: bool) -> None:
    """The text gets U+FFFD and a tag; the spans before and after it are unchanged."""
    sent = body([agent(0, answer="Before."), agent(1, answer=f"We sail {SLOT}"), agent(2, answer="After ⛵.")])
    first, truncated, last = facts_of(encode(sent), is_json=is_json)
    assert first.answer == "Before."
    assert first.tags == ()
    assert truncated.answer is not None
    assert truncated.answer.startswith("We sail \ufffd")
    assert truncated.tags == ("truncated",)
    assert last.answer == "After ⛵."
    assert last.tags == ()


@pytest.mark.parametrize(("encode", "is_json"), NOTATIONS)
@pytest.mark.parametrize(
    "sent",
    [
        body([span(0, name=f"walk {SLOT}")]),
        body([span(0, attributes={f"a.{SLOT}": 1})]),
        body([span(0, attributes={"a": [{"b": [SLOT]}]})]),
        body([span(0, status={"code": 2, "message": SLOT})]),
        body([span(0, events=[{"name": "exception", "attributes": [{"key": "a", "value": {"stringValue": SLOT}}]}])]),
        body([span(0)], {"host.name": SLOT}),
        body([span(0)], scope=SLOT),
    ],
    ids=["name", "key", "nested", "status", "event", "resource", "scope"],
)
def test_an_incomplete_character_is_repaired_in_every_field(encode: Encode, is_json: bool, sent: Json) -> None:
    """A span with an unrepaired text could not be encoded."""
    [observed] = spans_of(encode(sent), is_json=is_json)
    assert "\ufffd" in repr(observed)
    repr(observed).encode()


def test_separately_encoded_surrogates_are_one_character() -> None:
    """Java's modified UTF-8 encodes each surrogate of a pair; the character must survive."""
    [facts] = facts_of(as_protobuf(body([agent(0, answer=f"Sail {SLOT}")]), b"\xed\xa0\xbc\xed\xbf\xbd"), is_json=False)
    assert facts.answer == "Sail \U0001f3fd"


@pytest.mark.parametrize("escape", [r"\ud83c", r"\uDDFF"])
@pytest.mark.parametrize("end", ["", '"}]}]'], ids=["cut", "whole"])
def test_an_incomplete_character_in_json_text_is_repaired(escape: str, end: str) -> None:
    """`JSON.stringify` escapes a lone surrogate within the attribute: the request itself is valid."""
    output_messages = (
        '[{"role":"assistant","parts":[{"type":"text","content":"It floats ' + escape + (" well" + end if end else "")
    )
    [record] = records_of([request(agent(0, attributes={"gen_ai.output.messages": output_messages}))])
    facts = to_stored_span(record).facts
    assert facts.answer is not None
    assert facts.answer.startswith("It floats")
    assert escape not in facts.answer
    assert facts.tags == ("truncated",)


@pytest.mark.parametrize("text", [r"\ud83c\udfd4", r"\\ud83c", r"\n\"\u00e9"])
def test_complete_escapes_are_unchanged(text: str) -> None:
    """A surrogate pair is one character, and an escaped backslash does not start an escape."""
    output_messages = '[{"role":"assistant","parts":[{"type":"text","content":"' + text + '"}]}]'
    [record] = records_of([request(agent(0, attributes={"gen_ai.output.messages": output_messages}))])
    assert to_stored_span(record).facts.answer == json.loads(f'"{text}"')
    assert to_stored_span(record).facts.tags == ()


@pytest.mark.parametrize(("encode", "is_json"), NOTATIONS)
@pytest.mark.parametrize("in_resource", [True, False])
def test_a_session_that_is_no_text_refuses_its_span(encode: Encode, is_json: bool, in_resource: bool) -> None:
    """Repaired, two sessions could become one: the reason names the attribute, and the other spans come."""
    name = {"session.id": f"visit {SLOT}"}
    sent = body([span(0, attributes={} if in_resource else name)], name if in_resource else None)
    sent["resourceSpans"] += body([agent(1)])["resourceSpans"]
    refused, observed = read(encode(sent), is_json=is_json)
    assert isinstance(refused, RejectedItem)
    assert "session.id" in refused.reason
    assert "UTF-8" in refused.reason
    assert isinstance(observed, ReceivedSpan)


def test_what_is_no_protobuf_at_all_is_refused_as_a_whole() -> None:
    """Reading it once more, with any text, changes nothing about that."""
    whole = Captured("traces", body([agent(0)])).as_protobuf
    for broken in (whole[:-7], b"\xff" + whole, b'{"resourceSpans":[]}'):
        with pytest.raises(InputError):
            read(broken, is_json=False)


def test_repair_is_bounded_as_reading_is() -> None:
    """Empty attributes take two bytes each: a body has millions, of which the first thousands are looked at."""
    sent = as_protobuf(body([span(0, name=SLOT)]), HALF)
    flood = b"\x4a\x00" * 3_000_000  # field 9 of a span: an empty attribute
    inner = _wrapped(sent, flood)
    began = time.thread_time()
    [observed] = read(inner, is_json=False)
    assert isinstance(observed, ReceivedSpan)
    assert observed.lost
    assert time.thread_time() - began < 5


def _wrapped(request: bytes, more: bytes) -> bytes:
    """The request's one span with more fields."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from streams.sources.otlp.request_protobuf import read_lenient

    lenient = read_lenient(ExportTraceServiceRequest, request)
    [span] = lenient.resource_spans[0].scope_spans[0].spans
    span.MergeFromString(more)
    packed: bytes = lenient.SerializeToString()
    return packed


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The JSON value with members of other names."""
    if isinstance(value, dict):
        return {names.get(name, name): renamed(item, names) for name, item in value.items()}
    return [renamed(item, names) for item in value] if isinstance(value, list) else value


SNAKE = {
    "resourceSpans": "resource_spans", "scopeSpans": "scope_spans", "traceId": "trace_id", "spanId": "span_id",
    "parentSpanId": "parent_span_id", "startTimeUnixNano": "start_time_unix_nano", "endTimeUnixNano": "end_time_unix_nano",
    "stringValue": "string_value", "intValue": "int_value",
}  # fmt: skip
OLD = {"scopeSpans": "instrumentationLibrarySpans", "scope": "instrumentationLibrary"}
OLD_SNAKE = {**SNAKE, "scopeSpans": "instrumentation_library_spans", "scope": "instrumentation_library"}


@pytest.mark.parametrize("names", [SNAKE, OLD, OLD_SNAKE], ids=["snake", "old", "old-snake"])
def test_every_name_that_was_ever_legal_is_read(names: dict[str, str]) -> None:
    """Protobuf's JSON takes both spellings, and collectors of before 2022 name scopes otherwise."""
    sent = body([agent(0), tool(1, 0, attributes={"n": 4})], {"service.name": "sailing"}, scope="deck")
    assert spans_of(sent) == spans_of(renamed(sent, names))
    assert {observed.scope for observed in spans_of(renamed(sent, names))} == {"deck"}


def test_logs_have_their_names_too() -> None:
    """The same for records, whose list had a shorter name."""
    about = {"traceId": TRACE, "spanId": span_id(0), "timeUnixNano": str(START), "eventName": "gen_ai.user.message"}
    sent = {"resourceLogs": [{"scopeLogs": [{"logRecords": [about]}]}]}
    snake = {"resource_logs": [{"scope_logs": [{"log_records": [about]}]}]}
    old = {"resourceLogs": [{"instrumentationLibraryLogs": [{"logs": [about]}]}]}
    assert len(spans_of(sent, signal="logs")) == 1
    assert spans_of(sent, signal="logs") == spans_of(snake, signal="logs") == spans_of(old, signal="logs")


NOTED = {
    "base64": {
        "traceId": base64.b64encode(bytes.fromhex(TRACE)).decode(),
        "spanId": base64.b64encode(bytes.fromhex(span_id(1))).decode(),
        "parentSpanId": base64.b64encode(bytes.fromhex(span_id(0))).decode(),
    },
    "upper": {"traceId": TRACE.upper(), "spanId": span_id(1).upper()},
    "numbers": {"startTimeUnixNano": START + 1_000_000_000, "endTimeUnixNano": START + 2_001_000_000},
    "floats": {"startTimeUnixNano": float(START + 1_000_000_000)},
    "enums": {"kind": "SPAN_KIND_CLIENT", "status": {"code": "STATUS_CODE_ERROR", "message": "sunk"}},
    "null": {"events": None, "links": None, "traceState": None},
    "unknown": {"flags": 257, "later": {"a": [1]}},
}


@pytest.mark.parametrize("fields", NOTED.values(), ids=NOTED)
def test_a_value_in_any_legal_notation_is_the_same(fields: Json) -> None:
    """Hex or Base64, numbers or texts, enums by number or name, null for nothing."""
    plain = spans_of(body([tool(1, 0, status={"code": 2, "message": "sunk"})]))
    assert plain == spans_of(body([{**tool(1, 0, status={"code": 2, "message": "sunk"}), **fields}]))


@pytest.mark.parametrize("parent", ["0" * 16, "", None, "AAAAAAAAAAA="])
def test_a_parent_of_zeros_is_none(parent: str | None) -> None:
    """Such a span is a root: its trace is complete with it, and does not wait until it is idle."""
    [observed] = spans_of(body([agent(0, parentSpanId=parent)]))
    assert observed.parent_id is None


def test_a_parent_of_zeros_is_none_in_protobuf() -> None:
    """Eight bytes that say nothing."""
    [observed] = spans_of(Captured("traces", body([agent(0, parentSpanId="0" * 16)])).as_protobuf, is_json=False)
    assert observed.parent_id is None
