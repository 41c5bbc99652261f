"""What real instrumentors sent comes out as the conversation that was had, whichever conventions they follow."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from support.otlp_captures import Json, assembled, dialects, records_of, requests_of

from otlp.capturing.programs import scenario
from otlp.goldens import golden_of, stored
from schemas.records import AgentEvent, Exchange
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
"""Those in which a session has the id that the SDK gave it."""
WITHOUT_LAST_SESSION = frozenset({"openai_v2", "openai_v2_latest"})
"""Those in which the spans of the refused turn name no session."""
WITHOUT_LAST_QUESTION = frozenset({"openinference_openai_agents"})
"""Those in which nothing tells the question that the provider refused."""
WITHOUT_TOKENS = frozenset({"openinference_claude_agent_sdk"})
"""Those that tell tokens of no request: an agent's sum is not taken, which is wrong here."""
WITHOUT_STOP = frozenset({"langfuse"})


@functools.cache
def turns(dialect: str) -> list[Assembly]:
    """The traces of a capture."""
    return assembled(records_of(requests_of(dialect)))


def exchanges(dialect: str) -> list[Exchange]:
    """Its exchanges, in order."""
    return [exchange for turn in turns(dialect) for exchange in turn.exchanges]


def calls(events: Iterable[AgentEvent], kind: str = "tool_call") -> list[Json]:
    """The payloads of the calls among events, or of their outputs."""
    return [json.loads(event.payload) for event in events if event.event == kind]


@pytest.mark.parametrize("dialect", dialects())
def test_a_capture_comes_out_as_its_golden_says(dialect: str) -> None:
    """A change of the tables shows in what it changes: read the difference, then make the goldens again (`otlp.goldens`)."""
    assert stored(dialect) == golden_of(dialect)


def test_at_least_eight_dialects_are_captured() -> None:
    """The bar of the conventions; and no golden is left behind by a capture that went."""
    assert len(dialects()) >= 8


@pytest.mark.parametrize("dialect", TOLD)
def test_each_turn_is_one_exchange(dialect: str) -> None:
    """Question, answer and outcome are those of the conversation."""
    made = exchanges(dialect)
    wanted = [
        (scenario.WEATHER, scenario.WEATHER_ANSWER, "answered"),
        (scenario.BOAT, scenario.BOAT_ANSWER, "answered"),
        *([] if dialect in WITHOUT_LAST_QUESTION else [(scenario.REFUSED, "", "error")]),
    ]
    told = [(one.user_message, "" if one.outcome == "error" else one.agent_response, one.outcome) for one in made]
    assert told == wanted


@pytest.mark.parametrize("dialect", sorted(WITHOUT_CONTENT))
def test_without_content_there_are_events_alone(dialect: str) -> None:
    """An exchange without question and answer would be judged as one that answered nothing."""
    made = turns(dialect)
    assert exchanges(dialect) == []
    assert {turn.decision.state for turn in made} == {"no_content"}
    assert any(turn.events for turn in made)


@pytest.mark.parametrize("dialect", [name for name in TOLD if name not in OWN_SESSIONS])
def test_sessions_are_those_of_the_program(dialect: str) -> None:
    """Both turns of the first session are in it, their events, too; a session is told by any span of the trace."""
    made = turns(dialect)
    assert [exchange.session_id for exchange in exchanges(dialect)[:2]] == [scenario.SESSION] * 2
    assert {event.session_id for turn in made[:2] for event in turn.events} == {scenario.SESSION}
    last = {event.session_id for event in made[2].events}
    assert last == {made[2].decision.trace_id if dialect in WITHOUT_LAST_SESSION else scenario.REFUSED_SESSION}


@pytest.mark.parametrize("dialect", sorted(OWN_SESSIONS))
def test_turns_of_an_own_session_are_together(dialect: str) -> None:
    """The SDK resumes its session."""
    first, second, third = (exchange.session_id for exchange in exchanges(dialect))
    assert first == second != third


@pytest.mark.parametrize("dialect", TOLD)
def test_the_agent_is_the_one_that_spans_name(dialect: str) -> None:
    """Else the service: an exchange without an agent is in nobody's trend."""
    wanted = "weather-service" if dialect in WITHOUT_AGENT else scenario.AGENT
    assert {exchange.agent for exchange in exchanges(dialect)} == {wanted}
    assert {event.agent for turn in turns(dialect) for event in turn.events} == {wanted}


@pytest.mark.parametrize("dialect", TOLD)
def test_thinking_is_told_once(dialect: str) -> None:
    """A history has it again, and so has whoever wraps a model."""
    first = exchanges(dialect)[0]
    assert (None if dialect in WITHOUT_THOUGHT else scenario.THOUGHT) == first.agent_thinking


@pytest.mark.parametrize("dialect", TOLD)
def test_tokens_are_counted_once(dialect: str) -> None:
    """61 and 17 tokens were written in the first turn, 24 and 8 in the second: an agent's span and a second instrumentor repeat them."""
    made, told = turns(dialect), exchanges(dialect)
    if dialect in WITHOUT_TOKENS:
        assert {exchange.output_tokens for exchange in told} == {None}
        return
    assert [exchange.output_tokens for exchange in told[:2]] == [61 + 17, 24 + 8]
    used = [[said["usage"]["output"] for said in calls(turn.events, "token_usage")] for turn in made[:2]]
    assert used == [[61, 17], [24, 8]]


@pytest.mark.parametrize("dialect", [name for name in TOLD if name not in WITHOUT_STOP])
def test_the_reason_to_stop_is_that_of_the_answer(dialect: str) -> None:
    """Not that of the request which called tools."""
    assert {exchange.stop_reason for exchange in exchanges(dialect)[:2]} <= {"stop", "end_turn"}


@pytest.mark.parametrize("dialect", TOLD)
def test_each_call_is_told_once_with_its_arguments(dialect: str) -> None:
    """Messages and spans tell of it, and other libraries' spans, too."""
    first, second = ([_told(said) for said in calls(turn.events)] for turn in turns(dialect)[:2])
    towns = [("get_weather", {"town": town}) for town in ("Bergen", "Lisbon")]
    assert towns == sorted(first, key=str)
    assert second == [("book_boat", {"destination": "Atlantis"})]


def _told(said: Json) -> tuple[str, Any]:
    return said["tool"].removeprefix("mcp__weather__"), said["arguments"]


@pytest.mark.parametrize("dialect", TOLD)
def test_each_output_is_that_of_its_call(dialect: str) -> None:
    """Tools that run at the same time end in any order: a town's weather is not the other's."""
    for said, output in _paired([event for turn in turns(dialect)[:1] for event in turn.events]):
        assert output is not None
        assert said["arguments"]["town"] == json.loads(output["result"])["town"]


@pytest.mark.parametrize("dialect", TOLD)
def test_a_failed_call_says_so(dialect: str) -> None:
    """In its words; that it failed only where a span or a message tells it."""
    [(_, output)] = _paired(turns(dialect)[1].events)
    assert output is not None
    assert output.get("is_error") is not False
    assert "no boat goes to Atlantis" in output["result"] or "An error occurred" in output["result"]


def test_of_all_calls_at_least_99_percent_have_their_outputs() -> None:
    """The bar: a call without its output looks like one that hangs."""
    pairs = [pair for dialect in TOLD for turn in turns(dialect) for pair in _paired(turn.events)]
    assert len(pairs) >= 3 * len(TOLD)
    assert sum(output is not None for _, output in pairs) / len(pairs) >= 0.99


def _paired(events: Iterable[AgentEvent]) -> list[tuple[Json, Json | None]]:
    """The calls with their outputs: by the id of the call, else by the id of the event, which begins with that of the span."""
    known = list(events)
    outputs = calls(known, "tool_output")
    by_id = {said["tool_call_id"]: said for said in outputs if "tool_call_id" in said}
    by_span = {said["event_id"].replace(":out", ":call"): said for said in outputs}
    return [(said, by_id.get(said.get("tool_call_id", "")) or by_span.get(said["event_id"])) for said in calls(known)]


@pytest.mark.parametrize("dialect", TOLD)
def test_events_belong_to_exchanges_that_exist(dialect: str) -> None:
    """A page that leads from an event to its exchange finds it; positions in a trace's session follow on each other, ids are unique."""
    for turn in turns(dialect):
        made = {exchange.exchange_id for exchange in turn.exchanges}
        assert {event.exchange_id for event in turn.events} <= {*made, None}
        assert list(range(len(turn.events))) == sorted(event.seq for event in turn.events)
        assert len(turn.events) == len({event.event_id for event in turn.events})
        assert not made or all(event.exchange_id is not None for event in turn.events)


@pytest.mark.parametrize("dialect", TOLD)
def test_the_refused_turn_leaves_one_error(dialect: str) -> None:
    """Every span around a failed request tells of the failure again."""
    [said] = calls(turns(dialect)[2].events, "error_event")
    assert "400" in said["message"] or "scripted" in said["message"]
    assert "Traceback" not in said["message"]
