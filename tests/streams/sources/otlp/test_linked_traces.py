"""Traces of one turn are one exchange: a sender may start a trace per request, and two instrumentors report twice."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from support.otlp_captures import NOW, Json, records_of
from support.otlp_spans import START, agent, chat, request, span, tool

from schemas.records import Span
from streams.sources.otlp.stored_spans import to_stored_span
from streams.sources.otlp.trace import RecentRequests, ReportedRequest, find_links
from streams.sources.otlp.trace_records import Assembly, Decision, assemble

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
USAGE = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 2}
QUESTION = {"role": "user", "parts": [{"type": "text", "content": "Which gate?"}]}


def calling(call_id: str) -> Json:
    """Return the message of a model that calls a tool."""
    return {"role": "assistant", "parts": [{"type": "tool_call", "id": call_id, "name": "exec", "arguments": {"of": call_id}}]}


def output(call_id: str, result: str = "result of c1") -> Json:
    """Return the message with the output of a tool."""
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id, "response": result}]}


def chat_request(number: int, trace: str, messages: list[Json], response: Json, **attributes: Any) -> Json:
    """Return a request of a session, in its own trace."""
    texts = {"gen_ai.input.messages": json.dumps(messages), "gen_ai.output.messages": json.dumps([response])}
    assembly = chat(number, None, trace=trace, attributes={**USAGE, "session.id": "s1", **texts, **attributes})
    return {**assembly, "endTimeUnixNano": str(int(assembly["startTimeUnixNano"]) + 500_000_000)}


def answer(text: str) -> Json:
    """Return the message of a model that answers."""
    return {"role": "assistant", "parts": [{"type": "text", "content": text}]}


def made_of(*spans: Json) -> Assembly:
    """Return the assembly of linked traces."""
    records = records_of([request(*spans)])
    return assemble(records, Decision("settled", NOW, trace_id=records[0].trace_id))


def payloads(assembly: Assembly, kind: str) -> list[Json]:
    """Return the payloads of events of a type."""
    return [json.loads(event.payload) for event in assembly.events if event.event == kind]


def steps() -> list[Json]:
    """Return a turn of three requests and two calls, with a trace per request."""
    return [
        chat_request(1, A, [QUESTION], calling("c1")),
        chat_request(3, B, [QUESTION, calling("c1"), output("c1")], calling("c2")),
        chat_request(
            5, C, [QUESTION, calling("c1"), output("c1"), calling("c2"), output("c2", "result of c2")], answer("Gate 4")
        ),
    ]


def test_a_turn_with_a_trace_per_request_is_one_exchange() -> None:
    """Each trace gave an exchange with the same question."""
    assembly = made_of(*steps())
    [exchange] = assembly.exchanges
    assert exchange.user_message == "Which gate?"
    assert exchange.agent_response == "Gate 4"
    assert exchange.input_tokens == 30
    assert exchange.output_tokens == 6
    assert exchange.exchange_id.startswith(A)
    assert {event.exchange_id for event in assembly.events} == {exchange.exchange_id}
    assert [(payload["tool_call_id"], payload["result"]) for payload in payloads(assembly, "tool_output")] == [
        ("c1", "result of c1"),
        ("c2", "result of c2"),
    ]
    assert len(payloads(assembly, "tool_call")) == 2


def test_a_new_question_in_a_later_trace_is_a_new_turn() -> None:
    """Call ids may repeat in each turn: the outputs belong to the turn."""
    second_turn = [
        chat_request(7, "d" * 32, [QUESTION, answer("Gate 4"), QUESTION], calling("c1")),
        chat_request(
            9, "e" * 32, [QUESTION, answer("Gate 4"), QUESTION, calling("c1"), output("c1", "again")], answer("Still gate 4")
        ),
    ]
    assembly = made_of(*steps(), *second_turn)
    assert [exchange.agent_response for exchange in assembly.exchanges] == ["Gate 4", "Still gate 4"]
    assert [exchange.input_tokens for exchange in assembly.exchanges] == [30, 20]
    assert [payload["result"] for payload in payloads(assembly, "tool_output")] == ["result of c1", "result of c2", "again"]


def test_a_tool_with_its_own_trace_is_the_call_of_the_request() -> None:
    """Message and span report the same call."""
    own = tool(2, None, trace=B, attributes={"gen_ai.tool.call.id": "c1", "session.id": "s1"})
    assembly = made_of(chat_request(1, A, [QUESTION], calling("c1")), own)
    assert [payload["tool_call_id"] for payload in payloads(assembly, "tool_call")] == ["c1"]
    assert [payload["result"] for payload in payloads(assembly, "tool_output")] == ["result 2"]


@pytest.mark.parametrize("ids", [True, False])
def test_two_instrumentors_with_their_own_traces_report_one_exchange(ids: bool) -> None:
    """Its tokens and calls count once, whether both have the response id or neither."""
    texts = {"gen_ai.input.messages": json.dumps([QUESTION]), "gen_ai.output.messages": json.dumps([answer("Gate 4")])}
    attributes = {**USAGE, **texts, "gen_ai.response.id": "r1" if ids else None}
    call = {"gen_ai.tool.call.id": None, "gen_ai.tool.call.arguments": '{"n": 1}'}
    spans: list[Json] = []
    for trace in (A, B):
        spans += [
            agent(0, None, "Which gate?", "Gate 4", trace=trace, endTimeUnixNano=str(START + 60_000_000_000)),
            tool(1, 0, trace=trace, attributes=call),
            chat(2, 0, trace=trace, attributes=attributes),
        ]
    spans.append(chat(2, None, trace=C, attributes=attributes))
    assembly = made_of(*spans)
    [exchange] = assembly.exchanges
    assert exchange.agent_response == "Gate 4"
    assert exchange.input_tokens == 10
    assert exchange.output_tokens == 2
    assert len(payloads(assembly, "token_usage")) == 1
    assert len(payloads(assembly, "tool_call")) == 1
    assert len(payloads(assembly, "tool_output")) == 1


def test_the_decision_belongs_to_the_complete_trace() -> None:
    """What another trace contributed is not counted again."""
    records = records_of([request(*steps())])
    decision = assemble(records, Decision("settled", NOW, trace_id=C)).decision
    assert decision.trace_id == C
    assert decision.spans == 1
    assert decision.exchanges == 0
    assert decision.state == "continued"


def kept(*spans: Json) -> list[Any]:
    """Return spans in their stored form."""
    return [to_stored_span(record) for record in records_of([request(*spans)])]


def test_a_trace_with_both_sides_of_its_calls_needs_no_search() -> None:
    """Most traces contain a whole turn, and need no search."""
    complete = [
        chat_request(1, A, [QUESTION], calling("c1")),
        chat_request(3, A, [QUESTION, calling("c1"), output("c1")], answer("Gate 4")),
    ]
    assert not find_links(kept(*complete)).texts
    assert not find_links(kept(agent(0), chat(1))).texts


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_part_of_a_turn_is_linked_by_its_question_and_open_calls(number: int) -> None:
    """The texts are fragments of the stored contents of the other parts."""
    parts = records_of([request(*steps())])
    links = find_links([to_stored_span(parts[number])])
    assert (number > 0) == links.resumes
    for other in parts:
        assert any(text in other.content for text in links.texts)


def test_a_request_reported_twice_at_the_same_time_counts_once() -> None:
    """The same answer may be given again in another turn."""
    recent: RecentRequests[str] = RecentRequests()
    first = ReportedRequest("r", NOW, NOW + timedelta(seconds=2))
    later = ReportedRequest("r", NOW + timedelta(seconds=9), NOW + timedelta(seconds=10))
    assert list(recent.add([first], "x")) == []
    assert list(recent.add([first], "x")) == []
    assert list(recent.add([first], "y")) == ["x"]
    assert list(recent.add([later], "z")) == []


def reported_request(trace: str, session: str | None, **attributes: Any) -> ReportedRequest:
    """Return the only request of a trace whose root has the session."""
    texts = {"gen_ai.input.messages": json.dumps([QUESTION]), "gen_ai.output.messages": json.dumps([answer("Gate 4")])}
    root = span(0, None, trace=trace, attributes={} if session is None else {"session.id": session})
    [request] = find_links(
        kept(root, chat(1, 0, trace=trace, attributes={**texts, "gen_ai.response.id": None, **attributes}))
    ).requests
    return request


@pytest.mark.parametrize(
    ("session", "attributes", "same"),
    [
        ("s2", {}, False),
        ("s1", {}, True),
        (None, {}, True),
        ("s2", {"gen_ai.response.id": "r1"}, True),
    ],
)
def test_two_users_with_the_same_question_stay_apart(session: str | None, attributes: Json, same: bool) -> None:
    """A service desk gives the same answer to the same question many times a minute: texts alone must not join sessions."""
    recent: RecentRequests[str] = RecentRequests()
    assert list(recent.add([reported_request(A, "s1", **attributes)], "x")) == []
    assert list(recent.add([reported_request(B, session, **attributes)], "y")) == (["x"] if same else [])


def test_the_order_of_linked_traces_does_not_matter() -> None:
    """They arrive as they end."""
    records: list[Span] = records_of([request(*steps(), span(6, None, trace=A))])
    decision = Decision("settled", NOW, trace_id=A)
    assert assemble(records, decision) == assemble(records[::-1], decision)
