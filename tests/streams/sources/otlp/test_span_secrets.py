"""Secrets in a span never reach its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support import builders as build

from audit.policy import Policy
from audit.redaction import Redactor
from schemas.records import Span
from streams.sources.otlp.received import Event, ReceivedSpan
from streams.sources.otlp.stored_spans import SpanOwner, build_span_record

SECRET = "AKIA" + "QXDR7TVWCB2MHJ5K"
REDACTOR = Redactor(Policy().redaction)


def record_of(attributes: Mapping[str, Any], **overrides: Any) -> Span:
    """Return the record of a span with these attributes."""
    fields = {"name": "span", "scope": "", "resource": {}, "events": (), **overrides}
    observed = ReceivedSpan(
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id=None,
        started_at=build.START,
        ended_at=build.START,
        attributes=attributes,
        **fields,
    )
    return build_span_record(
        observed, SpanOwner("c", "p"), REDACTOR, build.START, {"deployment": ("deployment.environment.name",)}
    )


def messages(part: Mapping[str, Any], role: str = "user") -> str:
    """Return the text of a message of one part."""
    return json.dumps([{"role": role, "parts": [part]}])


CHAT, TOOL = {"gen_ai.operation.name": "chat"}, {"gen_ai.operation.name": "execute_tool"}
CALL = {"type": "tool_call", "id": "c", "name": "run", "arguments": {"key": SECRET}}
PLACES: dict[str, Span] = {
    "name": record_of(CHAT, name=SECRET),
    "session": record_of(CHAT | {"gen_ai.conversation.id": SECRET}),
    "agent": record_of(CHAT | {"gen_ai.agent.name": SECRET}),
    "service": record_of(CHAT, resource={"service.name": SECRET}),
    "label": record_of(CHAT, resource={"deployment.environment.name": SECRET}),
    "question": record_of(CHAT | {"gen_ai.input.messages": messages({"type": "text", "content": SECRET})}),
    "answer": record_of(CHAT | {"gen_ai.output.messages": messages({"type": "text", "content": SECRET}, "assistant")}),
    "thinking": record_of(CHAT | {"gen_ai.output.messages": messages({"type": "reasoning", "content": SECRET}, "assistant")}),
    "call": record_of(CHAT | {"gen_ai.output.messages": messages(CALL, "assistant")}),
    "call's name": record_of(
        CHAT | {"gen_ai.output.messages": messages({**CALL, "name": SECRET, "arguments": {}}, "assistant")}
    ),
    "call's id": record_of(CHAT | {"gen_ai.output.messages": messages({**CALL, "id": SECRET, "arguments": {}}, "assistant")}),
    "password": record_of(
        CHAT | {"gen_ai.output.messages": messages({**CALL, "arguments": {"password": SECRET}}, "assistant")}
    ),
    "output": record_of(
        CHAT | {"gen_ai.input.messages": messages({"type": "tool_call_response", "id": "c", "response": SECRET}, "tool")}
    ),
    "tool's arguments": record_of(TOOL | {"gen_ai.tool.call.arguments": json.dumps({"a": [SECRET]})}),
    "tool's result": record_of(TOOL | {"gen_ai.tool.call.result": SECRET}),
    "tool's name": record_of(TOOL | {"gen_ai.tool.name": SECRET}),
    "model": record_of(CHAT | {"gen_ai.request.model": SECRET}),
    "response": record_of(CHAT | {"gen_ai.response.id": SECRET}),
    "reason": record_of(CHAT | {"gen_ai.response.finish_reasons": SECRET}),
    "error": record_of(CHAT, failed=True, message=f"denied: {SECRET}"),
    "rating": record_of(
        CHAT,
        events=(
            Event(
                "gen_ai.evaluation.result",
                {"gen_ai.evaluation.name": "a", "gen_ai.evaluation.score.value": 1.0, "gen_ai.evaluation.explanation": SECRET},
            ),
        ),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_record_contains_a_secret_of_its_span(place: str) -> None:
    """A record goes to a topic that others read, and into a table that is exported."""
    record = PLACES[place]
    assert SECRET not in record.content + record.session_id
    assert "[SECRET:" in record.content


def test_a_cached_name_is_redacted_each_time() -> None:
    """Names are cached: the redacted name must be returned each time."""
    redactor = Redactor(Policy().redaction)
    first, second = (redactor.redact_name(f"run {SECRET}") for _ in range(2))
    assert first == second == redactor.redact(f"run {SECRET}")[0]
    assert SECRET not in first


def test_a_random_id_is_kept_and_a_random_key_is_redacted() -> None:
    """Most ids are random and are not checked for passwords, but keys must be."""
    ids = ("call_Zx81kQw0Rb7mLp2VtYc9", "5f0f54b2-38a1-4c62-9b7f-4f0f9e1b7c11", "4bf92f3577b34da6a3ce929d0e0e4736")
    assert list(ids) == [REDACTOR.redact(one)[0] for one in ids]
    assert "[SECRET:high_entropy:" in REDACTOR.redact("qR7xT2mZ9kLw4VbN8cYp3HsD6fGj")[0]
