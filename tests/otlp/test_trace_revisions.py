"""Law of late spans: however often a trace is taken for complete while its spans come, the end is that of the trace sent whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_captures import CAPTURES, NOW, Json, records_of, requests_of
from support.otlp_spans import agent, chat, request, span, tool

from schemas.records import AgentEvent, Exchange, Span
from streams.judging.rejudging import REVISABLE_FIELDS
from streams.sources.otlp.trace_records import Decision, EarlierEvent, assemble


class Outcome:
    """What is current of one trace after each time that it was taken for complete."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.events: list[AgentEvent] = []
        self.revision = 0
        self._records: dict[str, Span] = {}

    def take(self, records: Sequence[Span]) -> None:
        """Take further spans in, and the trace for complete."""
        self._records |= {record.span_id: record for record in records}
        assembly = assemble(list(self._records.values()), self._decision())
        for exchange in assembly.exchanges:
            before = self.exchanges.pop(exchange.exchange_id, exchange)
            if not exchange.withdrawn:
                kept = {"occurred_at": before.occurred_at, "session_id": before.session_id}
                self.exchanges[exchange.exchange_id] = msgspec.structs.replace(exchange, **kept)
        self.events += assembly.events
        self.revision += 1

    def _decision(self) -> Decision:
        trace_id = next(iter(self._records.values())).trace_id
        is_filed = any(record.session_id == trace_id for record in (*self.exchanges.values(), *self.events))
        return Decision(
            "idle",
            NOW,
            self.revision,
            earlier=sorted(self.exchanges.values(), key=lambda one: (one.occurred_at, one.exchange_id)),
            earlier_events=[EarlierEvent(event.event_id, payload_of(event)) for event in self.events],
            session=trace_id if is_filed else None,
        )

    def told(self) -> list[str]:
        """What the exchanges say, whatever their ids, and the time and session of their first revision."""
        return sorted(
            str([getattr(exchange, name) for name in REVISABLE_FIELDS if name != "tags"])
            for exchange in self.exchanges.values()
        )

    def counts(self) -> Counter[str]:
        """How often each kind of thing was told, whichever span told it, and however much was known of it then.

        An error that two spans tell is told twice where the span between them comes last: until then they have nothing in common.
        """
        return Counter(
            f"{event.event} {payload_of(event).get('usage', {}).get('total')}"
            for event in self.events
            if event.event != "error_event"
        )


def payload_of(event: AgentEvent) -> dict[str, Any]:
    """The payload of an event as fields."""
    found: dict[str, Any] = json.loads(event.payload)
    return found


def traces_of(dialect: str) -> list[list[Span]]:
    """The spans of each trace of a capture, in the order in which they came."""
    traces: dict[str, list[Span]] = {}
    for record in records_of(requests_of(dialect)):
        traces.setdefault(record.trace_id, []).append(record)
    return list(traces.values())


def outcome_of(parts: Sequence[Sequence[Span]]) -> Outcome:
    """What is current of a trace whose spans came in these parts, each of which was taken for the end of it."""
    outcome = Outcome()
    for part in parts:
        if part:
            outcome.take(part)
    return outcome


def cut(records: Sequence[Span], chance: random.Random) -> list[Sequence[Span]]:
    """The spans in up to four parts, each of which repeats some that came before."""
    places = sorted(chance.choices(range(1, len(records) + 1), k=3))
    starts = [0, *places]
    return [
        [*records[start:end], *chance.choices(records[: max(1, end)], k=2 if start < end else 0)]
        for start, end in zip(starts, [*places, len(records)], strict=True)
    ]


def captures() -> list[str]:
    """The names of all captures, also of those of whole frameworks."""
    return sorted(str(file.relative_to(CAPTURES).with_suffix("")) for file in CAPTURES.rglob("*.jsonl") if file.stat().st_size)


@pytest.mark.parametrize("dialect", captures())
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_trace_that_is_cut_ends_as_the_whole_one(dialect: str, seed: int) -> None:
    """A person who approves, or a tool that takes long, lets any trace fall idle anywhere."""
    chance = random.Random(seed)
    for records in traces_of(dialect):
        whole, in_parts = outcome_of([records]), outcome_of(cut(records, chance))
        assert whole.told() == in_parts.told()
        assert whole.counts() == in_parts.counts()


TOKENS = {"gen_ai.usage.input_tokens": 10}
"""Of each request: a span around another one repeats them."""
shapes = st.lists(st.tuples(st.sampled_from([agent, tool, chat, span]), st.integers(0, 7)), min_size=1, max_size=8)
"""Spans by kind, each within one that comes after it, so that children end before their parents."""


def calling(number: int, parent: int | None, called: int) -> Json:
    """The span of a request whose answer calls the tool of another span."""
    part = {"type": "tool_call", "id": f"call-{called}", "name": "exec", "arguments": {"n": called}}
    said = json.dumps([{"role": "assistant", "parts": [part]}])
    return chat(number, parent, attributes={**TOKENS, "gen_ai.output.messages": said})


def spans_of(shape: Sequence[tuple[Any, int]]) -> list[Json]:
    """The spans of a shape, in the order in which they end: the last one is the root."""
    root = len(shape)
    made: list[Json] = []
    for number, (kind, further) in enumerate(shape):
        parent = min(number + 1 + further, root)
        if kind is chat and number + 1 < root and shape[number + 1][0] is tool:
            made.append(calling(number, parent, number + 1))
        else:
            made.append(kind(number, parent, attributes=TOKENS if kind is chat else {}))
    return [*made, agent(root, question="Refund it", answer="Refunded.")]


@settings(max_examples=300, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**32))
def test_a_late_root_makes_one_turn_of_whatever_came_before(shape: Sequence[tuple[Any, int]], seed: int) -> None:
    """The root ends last. Until then each part of the turn looks like a turn of its own."""
    records = records_of([request(*spans_of(shape))])
    whole, in_parts = outcome_of([records]), outcome_of(cut(records, random.Random(seed)))
    assert whole.told() == in_parts.told()
    assert whole.counts() == in_parts.counts()
    assert len(in_parts.exchanges) == 1
