"""Laws of traces: what comes out depends on the spans alone, not on how they came; no shape of a trace hangs or loses anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_captures import NOW, Captured, Json, assembled, dialects, records_of, requests_of
from support.otlp_spans import TRACE, agent, body, chat, request, span, tool

from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS

_LEVELS = {"traces": ("resourceSpans", "scopeSpans", "spans"), "logs": ("resourceLogs", "scopeLogs", "logRecords")}


def single(captured: Captured) -> list[Captured]:
    """A request in requests of one span or record each."""
    groups, scopes, items = _LEVELS[captured.signal]
    return [
        Captured(captured.signal, {groups: [{**group, scopes: [{**scoped, items: [item]}]}]})
        for group in captured.request[groups]
        for scoped in group[scopes]
        for item in scoped[items]
    ]


def told(requests: Sequence[Captured]) -> list[tuple[Any, Any]]:
    """The exchanges and events of some requests, as plain values."""
    made = assembled(records_of(requests))
    return [(msgspec.to_builtins(one.exchanges), msgspec.to_builtins(one.events)) for one in made]


@pytest.mark.parametrize("dialect", dialects())
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_order_split_and_repetition_change_nothing(dialect: str, seed: int) -> None:
    """Exporters send children before parents, in batches that a timer cuts, and again when an answer was lost."""
    chance = random.Random(seed)
    parts = [part for captured in requests_of(dialect) for part in single(captured)]
    again = [*parts, *chance.choices(parts, k=5)]
    chance.shuffle(again)
    assert told(requests_of(dialect)) == told(again)


@pytest.mark.parametrize("dialect", dialects())
def test_protobuf_and_json_say_the_same(dialect: str) -> None:
    """An exporter's protocol is a setting of its user."""
    for captured in requests_of(dialect):
        read = SIGNALS[captured.signal].read
        packed = captured.as_protobuf
        assert list(read(captured.as_json, NOW, is_json=True)) == list(read(packed, NOW, is_json=False))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(given_values=st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=5))
def test_attributes_of_any_kind_are_read_alike(given_values: dict[str, Any]) -> None:
    """64-bit integers are texts in JSON, ids are hexadecimal; beyond that the two are one."""
    sent = body([span(0, attributes=given_values)], resource=given_values)
    read = SIGNALS["traces"].read
    packed = Captured("traces", sent).as_protobuf
    [plain] = read(Captured("traces", sent).as_json, NOW, is_json=True)
    [binary] = read(packed, NOW, is_json=False)
    assert not isinstance(plain, RejectedItem)
    assert plain == binary
    assert plain.attributes == given_values


kinds = st.sampled_from([agent, tool, chat, span])
shapes = st.lists(st.tuples(kinds, st.none() | st.integers(0, 9)), min_size=1, max_size=10)
"""Spans by kind, each with the number of its parent: any of those that are there, itself, one that never came, or none."""


def spans_of(shape: Sequence[tuple[Any, int | None]]) -> list[Json]:
    """The spans of a shape."""
    return [make(number, parent) for number, (make, parent) in enumerate(shape)]


@settings(max_examples=150, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**32))
def test_no_shape_of_a_trace_hangs_or_loses_a_call(shape: Sequence[tuple[Any, int | None]], seed: int) -> None:
    """Parents in a circle, parents that never came, two roots: no SDK makes them, and whoever holds a token can send them."""
    spans = spans_of(shape)
    [assembly] = assembled(records_of([request(*spans)]))
    wrapped = {spans[parent]["spanId"] for make, parent in shape if make is tool and parent is not None and parent < len(spans)}
    wanted = {one["spanId"] for one, (make, _) in zip(spans, shape, strict=True) if make is tool}
    found = {event.event_id.split(":")[1] for event in assembly.events if event.event == "tool_call"}
    assert wanted - wrapped <= found <= wanted
    assert len(assembly.events) == len({event.event_id for event in assembly.events})
    assert {event.exchange_id for event in assembly.events} <= {
        None,
        *(exchange.exchange_id for exchange in assembly.exchanges),
    }
    shuffled = random.Random(seed).sample(spans, len(spans))
    assert told([request(*spans)]) == told([request(one) for one in shuffled])


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.tuples(st.just(chat), st.none() | st.integers(0, 5)), min_size=1, max_size=6))
def test_tokens_of_each_innermost_request_are_counted_once(shape: Sequence[tuple[Any, int | None]]) -> None:
    """A request around others repeats their sum; of one that is told twice the outer span is the same request."""
    spans = spans_of(shape)
    [assembly] = assembled(records_of([request(*spans)]))
    usages = [event for event in assembly.events if event.event == "token_usage"]
    assert len(usages) == len({event.event_id for event in usages})
    alone = [number for number, (_, parent) in enumerate(shape) if parent is None or parent >= len(shape)]
    inside = {parent for _, parent in shape}
    assert {f"{TRACE}:{spans[number]['spanId']}:usage" for number in alone if number not in inside} <= {
        event.event_id for event in usages
    }
    assert usages


def test_a_circle_of_parents_is_no_exchange_less() -> None:
    """Each is within the other: they are one exchange, not none."""
    [assembly] = assembled(records_of([request(agent(0, 1), agent(1, 0), tool(2, 0))]))
    assert len(assembly.exchanges) == 1
    assert len(assembly.events) == 2


def test_two_roots_are_two_exchanges() -> None:
    """Each of them has the events that stand within it."""
    spans = [agent(0), tool(1, 0), agent(2, question="And now?"), tool(3, 2)]
    [assembly] = assembled(records_of([request(*spans)]))
    assert [exchange.user_message for exchange in assembly.exchanges] == ["Is it well?", "And now?"]
    first, second = (exchange.exchange_id for exchange in assembly.exchanges)
    assert [event.exchange_id for event in assembly.events] == [first, first, second, second]


def test_a_deep_trace_takes_no_more_than_its_depth() -> None:
    """A thousand agents, each within the one before: one exchange, and no recursion."""
    spans = [agent(number, number - 1 if number else None) for number in range(1_000)]
    [assembly] = assembled(records_of([request(*spans)]))
    assert [exchange.exchange_id for exchange in assembly.exchanges] == [f"{TRACE}:{spans[0]['spanId']}"]


@pytest.mark.parametrize(
    ("state", "probability"),
    [
        ("", None),
        ("ot=th:8", 0.5),
        ("ot=th:c", 0.25),
        ("ot=th:0", 1.0),
        ("ot=rv:123456789abcde;th:fd70a4", 0.01),
        ("vendor=x,ot=th:8", 0.5),
        ("ot=th:8,vendor=x", 0.5),
        ("vendor=th:8", None),
        ("ot=th:xyz", None),
        ("ot=th:123456789abcdef0", None),
        ("ot=p:8", None),
    ],
)
def test_the_threshold_of_the_trace_state_is_the_share_that_is_kept(state: str, probability: float | None) -> None:
    """A threshold of 0x8 of 0x10 rejects half of all traces; what is not OpenTelemetry's own tells nothing."""
    [assembly] = assembled(records_of([request(agent(traceState=state))]))
    assert probability == pytest.approx(assembly.decision.sampling_probability, abs=1e-6)
