"""Transport spans of tool calls are found as by comparing every pair of spans, but faster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.otlp_captures import Json, assembled, records_of
from support.otlp_spans import agent, chat, request, span

from streams.sources.otlp.span_facts import SpanFacts, ToolCall
from streams.sources.otlp.trace import StoredSpan
from streams.sources.otlp.trace_records import find_transports

START = datetime(2026, 10, 1, tzinfo=UTC)
NAMES = st.sampled_from([None, "a", "ba", "cba", "ab", "b"])
CALLS = st.none() | st.builds(ToolCall, NAMES, st.none() | st.just("id"), st.none() | st.just({"x": 1}))


def tool(number: int, called: ToolCall | None, start: float, seconds: float) -> StoredSpan:
    """Return a span of a tool."""
    began = START + timedelta(seconds=start)
    return StoredSpan(str(number), None, began, began + timedelta(seconds=seconds), SpanFacts("tool", called=called))


def beside_all(spans: Sequence[StoredSpan]) -> set[str]:
    """Return the transports by definition: compare each span with all others."""
    return {
        span.span_id
        for span in spans
        if (own := span.facts.called) is not None
        and own.name is not None
        and own.call_id is None
        and own.arguments is None
        and any(
            (other.facts.called.name or "").endswith(own.name) and other.started_at <= span.started_at <= other.ended_at
            for other in spans
            if other.facts.called is not None and other.facts.called.arguments is not None
        )
    }


@given(st.lists(st.tuples(CALLS, st.integers(0, 5), st.integers(0, 3)), max_size=12))
def test_the_index_finds_the_same_transports_as_pairwise_comparison(
    calls_and_times: list[tuple[ToolCall | None, int, int]],
) -> None:
    """A transport counted as a separate call would double every MCP call."""
    spans = [tool(number, *arguments) for number, arguments in enumerate(calls_and_times)]
    assert beside_all(spans) == find_transports(spans)


class Counted(datetime):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: Any) -> bool:
        Counted.compared += 1
        return super().__lt__(other)

    def __gt__(self, other: Any) -> bool:
        Counted.compared += 1
        return super().__gt__(other)

    def __le__(self, other: Any) -> bool:
        Counted.compared += 1
        return super().__le__(other)


def comparisons(count: int) -> int:
    """Count the time comparisons for this many calls with and without arguments, all of one tool and none overlapping."""
    spans = []
    for number in range(count):
        at = Counted.fromtimestamp(number, UTC)
        spans.append(
            StoredSpan(f"a{number}", None, at, at, SpanFacts("tool", called=ToolCall("mcp.find", None, {"x": number})))
        )
        at = Counted.fromtimestamp(number + 0.5, UTC)
        spans.append(StoredSpan(f"b{number}", None, at, at, SpanFacts("tool", called=ToolCall("find"))))
    Counted.compared = 0
    assert find_transports(spans) == frozenset()
    return Counted.compared


def test_a_trace_of_thousands_of_calls_is_compared_once() -> None:
    """With pairwise comparison, one trace of 20 000 calls would block the assembling of all others."""
    few_comparisons, many_comparisons = comparisons(500), comparisons(4_000)
    assert few_comparisons > 500
    assert many_comparisons < 12 * few_comparisons, "eight times as many spans, and their order"


SERVER, INTERNAL = 2, 1
"""Kinds of spans, as OTLP numbers them."""


def served(number: int, parent: int | None = None, *, kind: int = SERVER, **more: Any) -> Json:
    """Return the span of a tool server, as an MCP server writes it."""
    attributes = {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "depth"}
    content = {"gen_ai.tool.call.arguments": '{"port": 3}', "gen_ai.tool.call.result": "4 m"}
    return span(number, parent, kind=kind, attributes={**attributes, **content, **more})


@pytest.mark.parametrize(
    ("spans", "calls"),
    [
        ([served(0)], 0),
        ([span(0, kind=SERVER, attributes={"http.request.method": "POST"}), served(1, 0)], 0),
        ([served(0, kind=INTERNAL)], 1),
        ([served(0, **{"session.id": "s-1"})], 1),
        ([agent(0), chat(1, 0), served(2, 0)], 1),
    ],
    ids=["alone", "below HTTP", "no server", "of a session", "in the agent's trace"],
)
def test_a_trace_of_a_tool_server_counts_no_call_again(spans: list[Json], calls: int) -> None:
    """If the context is not propagated, the agent reports the call in another trace; the server became an agent with a run."""
    [assembly] = assembled(records_of([request(*spans)]))
    assert [event.event for event in assembly.events].count("tool_call") == calls
    if not calls:
        assert assembly.decision.state == "no_model"
        assert assembly.events == []
        assert len(spans) == sum(group.spans for group in assembly.decision.unused_spans)
