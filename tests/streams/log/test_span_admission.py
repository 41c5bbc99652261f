"""Admission of spans: the fast path for many spans gives the same results as admitting each alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders as build
from support.effort import examples

from audit.policy import Policy
from audit.redaction import Redactor
from schemas.bounds import MAX_ID
from schemas.records import Span
from streams.log.span_admission import AdmittedSpan, admit_spans, readers_of
from streams.sources.otlp.received import Event, ReceivedSpan
from streams.sources.otlp.stored_spans import MAX_CALLS, SpanOwner, build_span_record

SECRET = "AKIA" + "QXDR7TVWCB2MHJ5K"
TEXT = st.sampled_from(
    ["a", " b ", "", "x" * (MAX_ID + 1), f"key {SECRET}", "call_" + "4f9a" * 8, "Zq8Jx2Lm9Vt4Rb7Kw3Ns6Pd5Hc", "é"]
)
NAME = st.sampled_from(["order", "password", "api_key", "max_tokens", "at"])
ARGUMENTS = st.one_of(
    TEXT,
    st.dictionaries(NAME, st.one_of(TEXT, st.integers(0, 9), st.lists(TEXT, max_size=2)), max_size=3),
    st.just(["--password", "hunter2"]),
    st.just([[[]]] * 2),
    st.just(json.loads("[" * 40 + "]" * 40)),
)
PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "content": TEXT}),
    st.fixed_dictionaries({"type": st.just("tool_call"), "id": TEXT, "name": TEXT, "arguments": ARGUMENTS}),
    st.fixed_dictionaries({"type": st.just("tool_call_response"), "id": TEXT, "response": TEXT}),
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "parts": st.lists(PART, max_size=3)}),
    max_size=3,
).map(json.dumps)
ATTRIBUTES = st.fixed_dictionaries(
    {"gen_ai.operation.name": st.sampled_from(["chat", "execute_tool", "invoke_agent", "other"])},
    optional={
        "gen_ai.conversation.id": TEXT,
        "gen_ai.agent.name": TEXT,
        "gen_ai.tool.name": TEXT,
        "gen_ai.input.messages": MESSAGES,
        "gen_ai.output.messages": MESSAGES,
        "gen_ai.tool.call.arguments": ARGUMENTS.map(json.dumps),
        "gen_ai.tool.call.result": TEXT,
        "deployment.environment.name": TEXT,
    },
)
RATING = Event("gen_ai.evaluation.result", {"gen_ai.evaluation.name": "a", "gen_ai.evaluation.explanation": SECRET})


def observed(number: int, attributes: Mapping[str, Any], events: tuple[Event, ...] = ()) -> ReceivedSpan:
    """Return a span with these attributes."""
    return ReceivedSpan(
        "1" * 32,
        f"{number:016}",
        None,
        attributes.get("gen_ai.agent.name", ""),
        "",
        build.START,
        build.START,
        attributes,
        {},
        events,
    )


def records_together(spans: list[ReceivedSpan], owner: SpanOwner, redactor: Redactor) -> list[Span]:
    """Return the records of spans admitted together."""
    records = admit_spans(iter(spans), lambda _: owner, readers_of(Policy()), redactor, build.START)
    return [record.record for record in records if isinstance(record, AdmittedSpan)]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(ATTRIBUTES, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([None, "agent", " agent "]),
    st.booleans(),
)
def test_spans_admitted_together_give_the_same_records_as_alone(
    spans_attributes: list[tuple[dict[str, Any], bool]], agent: str | None, is_hiding: bool
) -> None:
    """The prefilter for hundreds of spans must not miss a secret, a length or a depth."""
    redactor = Redactor(Policy().redaction.model_copy(update={"enabled": is_hiding}))
    owner = SpanOwner("c", "p", agent)
    spans = [
        observed(number, attributes, (RATING,) if is_rated else ())
        for number, (attributes, is_rated) in enumerate(spans_attributes)
    ]
    labels = Policy().defaults.traces.labels
    alone = {span.span_id: build_span_record(span, owner, redactor, build.START, labels) for span in spans}
    records = records_together(spans, owner, redactor)
    assert records
    assert records == [alone[record.span_id] for record in records]


def test_calls_beyond_the_maximum_are_truncated() -> None:
    """A message with too many calls is truncated to what a record may hold, with a note."""
    call = {"type": "tool_call", "id": "c", "name": "run", "arguments": {}}
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [call] * (MAX_CALLS + 1)}]),
    }
    owner, redactor = SpanOwner("c", "p"), Redactor(Policy().redaction)
    (record,) = records_together([observed(0, attributes)], owner, redactor)
    assert record == build_span_record(observed(0, attributes), owner, redactor, build.START, {})
    assert json.loads(record.content)["tags"] == ["truncated"]
