"""What real instrumentors sent comes out as the conversation that was had, whichever conventions they follow."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from support.otlp_captures import NOW, OWNER, REDACTOR, Captured, Json, assembled, dialects, records_of, requests_of

from audit.detectors.thresholds import Profile
from audit.diagnosis.diagnosis import diagnose
from audit.diagnosis.evidence import SessionEvidence
from audit.policy import Policy
from otlp.capturing.programs import scenario
from otlp.goldens import golden_of, stored
from schemas.records import AgentEvent, Exchange
from streams.log.span_admission import AdmittedSpan, admit_spans, readers_of
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.trace_records import Assembly

WITHOUT_CONTENT = frozenset(name for name in dialects() if name.endswith("_without_content"))
"""Captures of which the sender records no contents: there are events alone."""
TOLD = [name for name in dialects() if name not in WITHOUT_CONTENT]
WITHOUT_THOUGHT = frozenset(
    {
        "langfuse", "langsmith", "logfire", "openai_v2", "openai_v2_latest", "openinference_langchain", "openinference_openai",
        "openinference_openai_limited", "openllmetry_legacy",
    }
)  # fmt: skip
WITHOUT_AGENT = frozenset({"logfire", "openai_v2", "openai_v2_latest", "openinference_claude_agent_sdk"})
"""Those in which no span names the agent: the name of the service stands in for it."""
OWN_SESSIONS = frozenset({"openinference_claude_agent_sdk"})
"""Dialects in which the SDK chooses the session id."""
WITHOUT_LAST_SESSION = frozenset({"openai_v2", "openai_v2_latest"})
"""Dialects in which the spans of the refused turn have no session id."""
WITHOUT_LAST_QUESTION = frozenset({"openinference_openai_agents"})
"""Dialects that do not export the question that the provider refused."""
WITHOUT_TOKENS = frozenset({"openinference_claude_agent_sdk"})
"""Dialects without tokens per request; the sum of an agent is ignored because it is wrong here."""
WITHOUT_STOP = frozenset({"langfuse"})
WITH_DEFINITIONS = frozenset(
    {
        "genai_openai", "genai_openai_agents", "langsmith", "logfire", "openinference_anthropic", "openinference_anthropic_genai",
        "openinference_langchain", "openinference_openai", "openinference_openai_agents", "openllmetry", "pydantic_ai", "vercel_ai",
        "vercel_ai_6",
    }
)  # fmt: skip
"""Dialects with the descriptions of tools."""


@functools.cache
def turns(dialect: str) -> list[Assembly]:
    """Return the traces of a capture."""
    return assembled(records_of(requests_of(dialect)))


def exchanges(dialect: str) -> list[Exchange]:
    """Return the exchanges of a capture, in order."""
    return [exchange for turn in turns(dialect) for exchange in turn.exchanges]


def payloads(events: Iterable[AgentEvent], event_type: str = "tool_call") -> list[Json]:
    """Return the payloads of the events of a type."""
    return [json.loads(event.payload) for event in events if event.event == event_type]


@pytest.mark.parametrize("dialect", dialects())
def test_a_denied_tool_is_a_finding_whoever_sends_the_spans(dialect: str) -> None:
    """A rule for tools must hold for every instrumentor, with or without contents; `get_weather`, which was called, too, is allowed."""
    profile = Profile.of("events", {}, {"denied": ("*book_boat",)})
    evidence = SessionEvidence.held_to(profile)
    for seq, event in enumerate(event for turn in turns(dialect) for event in turn.events):
        evidence.add(event, seq)
    findings = [cause for cause in diagnose(evidence, profile.thresholds).causes if cause.type == "forbidden_calls"]
    assert [cause.evidence_count for cause in findings] == [1]


@pytest.mark.parametrize("dialect", dialects())
def test_the_descriptions_of_tools_are_read_if_a_policy_says_so(dialect: str) -> None:
    """Instrumentors write definitions in different forms; the same descriptions must be no change, and another one must be."""
    policy = Policy.model_validate({"defaults": {"detectors": {"tools": {"definitions": True}}}})
    requests = requests_of(dialect)
    changed = [Captured(signal, json.loads(json.dumps(sent).replace("Book a boat.", "Book two."))) for signal, sent in requests]
    events = [event for sent in (requests, changed) for event in _read_events(sent, policy)]
    definitions = payloads(events, "tool_definitions")
    profile = policy.for_project("ops").settings.detectors.profile("events", None)
    evidence = SessionEvidence.held_to(profile)
    for seq, event in enumerate(events):
        evidence.add(event, seq)
    findings = [cause for cause in diagnose(evidence, profile.thresholds).causes if cause.type == "changed_tool_descriptions"]
    assert {tool for payload in definitions for tool in payload["tools"]} == (
        {"get_weather", "book_boat"} if dialect in WITH_DEFINITIONS else set()
    )
    assert [(cause.evidence_count, "book_boat." in cause.description) for cause in findings] == (
        [(1, True)] if dialect in WITH_DEFINITIONS else []
    )
    assert payloads((event for turn in turns(dialect) for event in turn.events), "tool_definitions") == []


def _read_events(requests: Iterable[Captured], policy: Policy) -> list[AgentEvent]:
    """Return the events of a capture that arrives under a policy."""
    items = [item for one in requests for item in SIGNALS[one.signal].read(one.as_json, NOW, is_json=True) if item is not None]
    admitted = admit_spans(iter(items), lambda _: OWNER, readers_of(policy), REDACTOR, NOW)
    records = [span.record for span in admitted if isinstance(span, AdmittedSpan)]
    return [event for trace in assembled(records) for event in trace.events]


@pytest.mark.parametrize("dialect", dialects())
def test_a_capture_matches_its_golden(dialect: str) -> None:
    """A change of the conventions shows as a difference: review it, then generate the goldens again (`otlp.goldens`)."""
    assert stored(dialect) == golden_of(dialect)


def test_at_least_eight_dialects_are_captured() -> None:
    """The conventions must work for at least eight dialects."""
    assert len(dialects()) >= 8


@pytest.mark.parametrize("dialect", TOLD)
def test_each_turn_is_one_exchange(dialect: str) -> None:
    """Question, answer and outcome match the conversation."""
    expected = [
        (scenario.WEATHER, scenario.WEATHER_ANSWER, "answered"),
        (scenario.BOAT, scenario.BOAT_ANSWER, "answered"),
        *([] if dialect in WITHOUT_LAST_QUESTION else [(scenario.REFUSED, "", "error")]),
    ]
    actual = [
        (exchange.user_message, "" if exchange.outcome == "error" else exchange.agent_response, exchange.outcome)
        for exchange in exchanges(dialect)
    ]
    assert actual == expected


@pytest.mark.parametrize("dialect", sorted(WITHOUT_CONTENT))
def test_without_content_a_trace_has_events_but_no_exchange(dialect: str) -> None:
    """An exchange without question and answer would be judged as an unanswered one."""
    traces = turns(dialect)
    assert exchanges(dialect) == []
    assert {turn.decision.state for turn in traces} == {"no_content"}
    assert any(turn.events for turn in traces)


@pytest.mark.parametrize("dialect", [name for name in TOLD if name not in OWN_SESSIONS])
def test_sessions_are_those_of_the_program(dialect: str) -> None:
    """Any span of a trace may have the session id; it applies to all exchanges and events of the trace."""
    traces = turns(dialect)
    assert [exchange.session_id for exchange in exchanges(dialect)[:2]] == [scenario.SESSION] * 2
    assert {event.session_id for turn in traces[:2] for event in turn.events} == {scenario.SESSION}
    refused_trace = traces[2]
    expected_session = refused_trace.decision.trace_id if dialect in WITHOUT_LAST_SESSION else scenario.REFUSED_SESSION
    assert {event.session_id for event in refused_trace.events} == {expected_session}


@pytest.mark.parametrize("dialect", sorted(OWN_SESSIONS))
def test_turns_of_a_resumed_sdk_session_are_one_session(dialect: str) -> None:
    """The SDK resumes its session."""
    first, second, third = (exchange.session_id for exchange in exchanges(dialect))
    assert second == first
    assert third != first


@pytest.mark.parametrize("dialect", TOLD)
def test_the_agent_is_the_one_named_by_the_spans(dialect: str) -> None:
    """The service name is the fallback, because an exchange without an agent is in no trend."""
    expected_agent = "weather-service" if dialect in WITHOUT_AGENT else scenario.AGENT
    assert {exchange.agent for exchange in exchanges(dialect)} == {expected_agent}
    assert {event.agent for turn in turns(dialect) for event in turn.events} == {expected_agent}


@pytest.mark.parametrize("dialect", TOLD)
def test_reasoning_is_recorded_once(dialect: str) -> None:
    """Message histories and wrappers of models repeat it."""
    expected = None if dialect in WITHOUT_THOUGHT else scenario.THOUGHT
    assert exchanges(dialect)[0].agent_thinking == expected


@pytest.mark.parametrize("dialect", TOLD)
def test_tokens_are_counted_once(dialect: str) -> None:
    """The spans of agents and of a second instrumentation repeat the tokens of the requests."""
    traces = turns(dialect)
    trace_exchanges = exchanges(dialect)
    if dialect in WITHOUT_TOKENS:
        assert {exchange.output_tokens for exchange in trace_exchanges} == {None}
        return
    assert [exchange.output_tokens for exchange in trace_exchanges[:2]] == [61 + 17, 24 + 8]
    output_tokens = [[payload["usage"]["output"] for payload in payloads(turn.events, "token_usage")] for turn in traces[:2]]
    assert output_tokens == [[61, 17], [24, 8]]


@pytest.mark.parametrize("dialect", [name for name in TOLD if name not in WITHOUT_STOP])
def test_the_reason_to_stop_is_that_of_the_answer(dialect: str) -> None:
    """Earlier requests of the turn stopped to call tools."""
    assert {exchange.stop_reason for exchange in exchanges(dialect)[:2]} <= {"stop", "end_turn"}


@pytest.mark.parametrize("dialect", TOLD)
def test_each_tool_call_is_recorded_once_with_its_arguments(dialect: str) -> None:
    """Messages, spans and the spans of other libraries all report the same call."""
    first, second = ([_tool_and_arguments(call) for call in payloads(turn.events)] for turn in turns(dialect)[:2])
    assert sorted(first, key=str) == [("get_weather", {"town": town}) for town in ("Bergen", "Lisbon")]
    assert second == [("book_boat", {"destination": "Atlantis"})]


def _tool_and_arguments(call: Json) -> tuple[str, Any]:
    return call["tool"].removeprefix("mcp__weather__"), call["arguments"]


@pytest.mark.parametrize("dialect", TOLD)
def test_each_output_is_paired_with_its_call(dialect: str) -> None:
    """Parallel tool calls may finish in any order."""
    for call, output in _pair_calls([event for turn in turns(dialect)[:1] for event in turn.events]):
        assert output is not None
        assert json.loads(output["result"])["town"] == call["arguments"]["town"]


@pytest.mark.parametrize("dialect", TOLD)
def test_a_failed_tool_call_has_its_error_text(dialect: str) -> None:
    """Only some dialects mark the failure itself; the text is always there."""
    [(_, output)] = _pair_calls(turns(dialect)[1].events)
    assert output is not None
    assert output.get("is_error") is not False
    assert "no boat goes to Atlantis" in output["result"] or "An error occurred" in output["result"]


def test_of_all_calls_at_least_99_percent_have_their_outputs() -> None:
    """A tool call without an output looks like one that hangs."""
    pairs = [pair for dialect in TOLD for turn in turns(dialect) for pair in _pair_calls(turn.events)]
    assert len(pairs) >= 3 * len(TOLD)
    assert sum(output is not None for _, output in pairs) / len(pairs) >= 0.99


def _pair_calls(events: Iterable[AgentEvent]) -> list[tuple[Json, Json | None]]:
    """Return the tool calls with their outputs, matched by the id of the call or else by the id of their span."""
    all_events = list(events)
    outputs = payloads(all_events, "tool_output")
    outputs_by_call_id = {output["tool_call_id"]: output for output in outputs if "tool_call_id" in output}
    outputs_by_call_event = {output["event_id"].replace(":out", ":call"): output for output in outputs}
    return [
        (call, outputs_by_call_id.get(call.get("tool_call_id", "")) or outputs_by_call_event.get(call["event_id"]))
        for call in payloads(all_events)
    ]


@pytest.mark.parametrize("dialect", TOLD)
def test_events_belong_to_exchanges_that_exist(dialect: str) -> None:
    """Pages link events to exchanges, and sequence numbers must be consecutive and ids unique."""
    for turn in turns(dialect):
        exchange_ids = {exchange.exchange_id for exchange in turn.exchanges}
        assert {event.exchange_id for event in turn.events} <= {*exchange_ids, None}
        assert sorted(event.seq for event in turn.events) == list(range(len(turn.events)))
        assert len({event.event_id for event in turn.events}) == len(turn.events)
        assert not exchange_ids or all(event.exchange_id is not None for event in turn.events)


@pytest.mark.parametrize("dialect", TOLD)
def test_the_refused_turn_leaves_one_error(dialect: str) -> None:
    """Every span around a failed request repeats the failure."""
    [error] = payloads(turns(dialect)[2].events, "error_event")
    assert "400" in error["message"] or "scripted" in error["message"]
    assert "Traceback" not in error["message"]
