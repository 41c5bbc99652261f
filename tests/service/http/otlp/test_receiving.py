"""Mapping a request of OTLP: packed or not it is the same, and a damaged one is refused in words."""

from __future__ import annotations

import contextlib
import gzip
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.otlp_captures import dialects, requests_of
from support.otlp_spans import agent, request, span

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from service.http.routes.traces import Body, MappedSpans, Origin, map_spans
from service.web.errors import ApiError
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.stored_spans import SpanOwner

SECRET = "AKIA" + "QXDR7TVWCB2MHJ5K"
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
LABELS = {"agent_version": ("gen_ai.agent.version", "service.version")}
REDACTOR = Redactor(RedactionSettings())


def spans_of(signal: str, body: Body) -> MappedSpans:
    """Return the spans of a request of the connection north."""
    return map_spans(Origin(signal, SpanOwner("north", "ops"), lambda _: FactReader(LABELS), NOW), body, REDACTOR)


@pytest.mark.parametrize("dialect", dialects())
def test_a_compressed_request_has_the_same_spans(dialect: str) -> None:
    """This holds for JSON and protobuf, and each record equals its encoding."""
    for captured in requests_of(dialect):
        for is_json, content in ((True, captured.as_json), (False, captured.as_protobuf)):
            spans = spans_of(captured.signal, Body(content, is_json))
            assert spans == spans_of(captured.signal, Body(gzip.compress(content), is_json, is_compressed=True))
            assert spans.records == [*map(decode, spans.messages)]


_SOUND = [one for dialect in dialects()[:3] for one in requests_of(dialect)[:2]] + [
    request(agent(0), {**span(1), "traceId": "00"}, agent(2, question=f"the key {SECRET}"))
]


@given(st.data())
@settings(max_examples=examples(200))
def test_a_damaged_request_has_some_spans_or_is_refused(data: st.DataObject) -> None:
    """An exporter would repeat a request answered 500 indefinitely."""
    captured = data.draw(st.sampled_from(_SOUND))
    is_json, is_compressed = data.draw(st.booleans()), data.draw(st.booleans())
    content = bytearray(captured.as_json if is_json else captured.as_protobuf)
    for position, byte in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=3)):
        content[position] = byte
    body = gzip.compress(bytes(content)) if is_compressed else bytes(content)
    damaged = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    with contextlib.suppress(ApiError):
        spans = spans_of(captured.signal, Body(damaged, is_json, is_compressed))
        assert len(spans.records) == len(spans.messages)
