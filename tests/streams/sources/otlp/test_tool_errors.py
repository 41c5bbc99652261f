"""A failed tool is recognised by its protocol, its attributes or its message even if the span's status is unset."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, chat, request, span, tool

from streams.sources.otlp.messages import failed_by_result

FAILED: list[Any] = [
    {"content": [{"type": "text", "text": "no such gate"}], "isError": True},
    {"blocks": [{"text": "no such gate"}], "raw_output": "no such gate", "is_error": True},
    {"toolUseId": "t1", "status": "error", "content": [{"text": "no such gate"}]},
    {"status": "error", "message": "no such gate"},
    {"type": "error-text", "value": "no such gate"},
    {"type": "error-json", "value": {"gate": None}},
    {"type": "tool-error", "toolCallId": "t1", "error": "no such gate"},
    {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    {"jsonrpc": "2.0", "id": 3, "error": {"code": -32602, "message": "no such gate"}},
    {"jsonrpc": "2.0", "id": 3, "result": {"content": [], "isError": True}},
    {"output": {"type": "error-text", "value": "no such gate"}, "toolName": "gate", "toolCallId": "t1"},
    [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no such gate"}],
    {"isError": "true"},
]
SUCCEEDED: list[Any] = [
    {"error": None, "gate": 3},
    {"error": "", "gate": 3},
    {"ticket": 9, "status": "error", "owner": "ann"},
    {"isError": False, "content": [{"type": "text", "text": "error: is_error true"}]},
    {"log": [{"level": "error", "text": "isError"}]},
    {"type": "error", "count": 3},
    {"rows": [{"status": "error", "message": "of yesterday"}]},
    {"result": {"is_error": True}, "of": "the run that was asked about"},
    "Error: the word is in the text",
    "isError",
    "",
    7,
    None,
]


def errors_of(*spans: Any) -> list[bool | None]:
    """Return whether each tool output is an error."""
    payloads = [json.loads(event.payload) for assembly in assembled(records_of([request(*spans)])) for event in assembly.events]
    return [payload.get("is_error") for payload in payloads if payload["event"] == "tool_output"]


@pytest.mark.parametrize("result", FAILED)
@pytest.mark.parametrize("name", ["gen_ai.tool.call.result", "output.value"])
def test_a_result_that_reports_a_failure_is_a_failure(result: Any, name: str) -> None:
    """MCP, Strands, Vercel, Anthropic and JSON-RPC put it into the result and leave the span's status unset."""
    attributes = {"gen_ai.tool.call.result": None, name: json.dumps(result)}
    assert errors_of(agent(0), tool(1, 0, attributes=attributes)) == [True]


@pytest.mark.parametrize("result", SUCCEEDED)
def test_a_result_that_only_mentions_errors_is_no_failure(result: Any) -> None:
    """A tool that reads a log or a ticket returns other programs' errors."""
    assert failed_by_result(result) is not True
    if result not in (None, ""):
        attributes = {"gen_ai.tool.call.result": result if isinstance(result, str) else json.dumps(result)}
        assert errors_of(agent(0), tool(1, 0, attributes=attributes)) == [False]


@pytest.mark.parametrize(
    "attributes",
    [
        {"error.type": "GateClosed"},
        {"gen_ai.tool.status": "ERROR"},
        {"gen_ai.tool.status": "timeout"},
        {"gen_ai.tool.is_error": True},
        {"lk.function_tool.is_error": True},
        {"langfuse.observation.level": "ERROR"},
    ],
)
def test_span_attributes_mark_a_failed_tool(attributes: dict[str, Any]) -> None:
    """The result is only a sentence for the model."""
    assert errors_of(agent(0), tool(1, 0, attributes=attributes)) == [True]


@pytest.mark.parametrize("attributes", [{"gen_ai.tool.status": "success"}, {"gen_ai.tool.is_error": False}, {"error.type": ""}])
def test_span_attributes_that_report_success_are_no_failure(attributes: dict[str, Any]) -> None:
    """Some SDKs write them on every span."""
    assert errors_of(agent(0), tool(1, 0, attributes=attributes)) == [False]


def test_a_failure_without_a_result_gives_the_error() -> None:
    """Otherwise a page would show an empty output."""
    attributes = {"gen_ai.tool.call.result": None, "error.type": "GateClosed"}
    assemblies = assembled(records_of([request(agent(0), tool(1, 0, attributes=attributes))]))
    [payload] = [
        json.loads(event.payload) for assembly in assemblies for event in assembly.events if event.event == "tool_output"
    ]
    assert payload["result"] == "GateClosed"
    assert payload["is_error"] is True


def test_a_message_that_reports_a_failure_overrides_an_unset_span_status() -> None:
    """The span has only the text that the model saw; the message tells the outcome."""
    attributes = [
        {"role": "user", "parts": [{"type": "text", "content": "Open gate 4"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "call-1", "name": "exec", "arguments": {"n": 1}}]},
        {"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "call-1", "is_error": True, "content": "no"}]},
    ]
    request = chat(2, 0, attributes={"gen_ai.input.messages": json.dumps(attributes)})
    assert errors_of(agent(0), tool(1, 0), request) == [True]


@pytest.mark.parametrize("result", [result for result in FAILED if isinstance(result, dict)])
@pytest.mark.parametrize("written", [lambda result: result, json.dumps])
def test_a_message_result_that_reports_a_failure_is_a_failure(result: Any, written: Any) -> None:
    """Without tool spans, the messages are all there is."""
    call = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "gate", "arguments": {}}]}
    parts = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": written(result)}]}
    flat = {"role": "tool", "tool_call_id": "c1", "content": json.dumps(result)}
    for output in (parts, flat):
        attributes = {"gen_ai.input.messages": json.dumps([{"role": "user", "content": "Open it"}, call, output])}
        first = chat(1, 0, attributes={"gen_ai.output.messages": json.dumps([call])})
        assert errors_of(agent(0), first, chat(2, 0, attributes=attributes)) == [True]


@settings(max_examples=60, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["isError", "status", "result", "a"]), inner)
        ),
        max_leaves=20,
    )
)
def test_results_of_any_shape_raise_no_error(value: Any) -> None:
    """Results are untrusted JSON."""
    assert failed_by_result(value) in (True, False, None)
    assert failed_by_result(json.dumps(value)) == failed_by_result(value) or isinstance(value, str)


def test_the_name_of_a_tool_is_that_of_its_object() -> None:
    """DSPy appends the method to the name."""
    span_of_tool = span(1, 0, name="number.__call__", attributes={"openinference.span.kind": "TOOL", "input.value": "{}"})
    [call] = [
        json.loads(event.payload)
        for assembly in assembled(records_of([request(agent(0), span_of_tool)]))
        for event in assembly.events
        if event.event == "tool_call"
    ]
    assert call["tool"] == "number"
