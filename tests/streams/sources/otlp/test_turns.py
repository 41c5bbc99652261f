"""One exchange per turn, whatever encloses it: a trace may be a request, a turn or a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.otlp_captures import Json, assembled, records_of
from support.otlp_spans import agent, chat, messages, request, span, tool

from schemas.records import AgentEvent, Exchange
from streams.sources.otlp.kinds import names_helper

USAGE = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 2}
ROOTS = {
    "server": {"http.request.method": "POST", "http.route": "/chat"},
    "queue": {"messaging.system": "kafka"},
    "plain": {"app.version": "3"},
    "chain": {"openinference.span.kind": "CHAIN"},
    "workflow": {"traceloop.span.kind": "workflow"},
    "agent": {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"},
    "strange": {"gen_ai.operation.name": "converse"},
}
TURNS = [("Is the ferry late?", "By an hour."), ("And the bus?", "It is on time."), ("Thanks!", "You are welcome.")]


def text(role: str, content: str) -> Json:
    """Return a message with one text."""
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def history(turns: list[tuple[str, str]], question: str) -> str:
    """Return the messages sent with a question after these turns."""
    spans = [
        message
        for earlier_question, earlier_answer in turns
        for message in (text("user", earlier_question), text("assistant", earlier_answer))
    ]
    return json.dumps([*spans, text("user", question)])


def chat_span(number: int, parent: int | None, **attributes: Any) -> Json:
    """Return a request to a model."""
    return chat(number, parent, name=attributes.pop("name", "chat"), attributes={**USAGE, **attributes})


def turn_request(number: int, parent: int | None, turns: list[tuple[str, str]], question: str, answer: str) -> Json:
    """Return the request of a turn with the history before it."""
    attributes = {"gen_ai.input.messages": history(turns, question), "gen_ai.output.messages": messages("assistant", answer)}
    return brief(chat_span(number, parent, **attributes))


def brief(span_json: Json) -> Json:
    """Return the span, ending before the next one starts."""
    return {**span_json, "endTimeUnixNano": str(int(span_json["startTimeUnixNano"]) + 1_000_000)}


def long(span_json: Json) -> Json:
    """Return the span, extended to the whole conversation."""
    return {**span_json, "endTimeUnixNano": str(int(span_json["startTimeUnixNano"]) + 1_000_000_000_000)}


def root(kind: str, number: int = 0, **fields: Any) -> Json:
    """Return a root of some kind without texts."""
    return long(span(number, name="root", attributes={"session.id": "s1", **ROOTS[kind]}, **fields))


def made_of(*spans: Json) -> tuple[list[Exchange], list[AgentEvent]]:
    """Return the exchanges and events of a trace."""
    [assembly] = assembled(records_of([request(*spans)]))
    return assembly.exchanges, assembly.events


def talk(exchanges: list[Exchange]) -> list[tuple[str, str]]:
    """Return questions and answers."""
    return [(exchange.user_message, exchange.agent_response) for exchange in exchanges]


@pytest.mark.parametrize("kind", ROOTS)
def test_a_conversation_trace_has_one_exchange_per_turn(kind: str) -> None:
    """Its root stays open while the user thinks; it gave one exchange with the first question and the last answer."""
    spans = [turn_request(number + 1, 0, TURNS[:number], *TURNS[number]) for number in range(3)]
    exchanges, events = made_of(root(kind), *spans)
    assert talk(exchanges) == TURNS
    assert [exchange.input_tokens for exchange in exchanges] == [10, 10, 10]
    assert [exchange.exchange_id for exchange in exchanges] == [event.exchange_id for event in events]


@pytest.mark.parametrize("kind", ["plain", "chain", "workflow", "strange"])
def test_a_trace_of_a_conversation_between_agents_has_one_exchange_per_turn(kind: str) -> None:
    """The agent's spans have only the last message; the same agent is asked something else."""
    spans = [brief(agent(number + 1, 0, question, answer)) for number, (question, answer) in enumerate(TURNS)]
    exchanges, _ = made_of(root(kind), *spans)
    assert talk(exchanges) == TURNS


@pytest.mark.parametrize("kind", ROOTS)
def test_a_turn_with_calls_is_one_exchange_under_any_root(kind: str) -> None:
    """Its requests are sent the same question, then the tool outputs."""
    question, answer = TURNS[0]
    call = {"role": "assistant", "parts": [{"type": "tool_call", "id": "call-2", "name": "exec", "arguments": {"n": 2}}]}
    output = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-2", "response": "result 2"}]}
    first = chat_span(
        1, 0, **{"gen_ai.input.messages": messages("user", question), "gen_ai.output.messages": json.dumps([call])}
    )
    second = {
        "gen_ai.input.messages": json.dumps([text("user", question), call, output]),
        "gen_ai.output.messages": messages("assistant", answer),
    }
    exchanges, events = made_of(root(kind), brief(first), brief(tool(2, 0)), brief(chat_span(3, 0, **second)))
    assert talk(exchanges) == [(question, answer)]
    assert exchanges[0].input_tokens == 20
    assert [event.event for event in events if event.event.startswith("tool")] == ["tool_call", "tool_output"]
    assert {event.exchange_id for event in events} == {exchanges[0].exchange_id}


@pytest.mark.parametrize("kind", ["server", "queue", "plain", "chain"])
def test_several_agents_that_answer_one_message_are_one_exchange(kind: str) -> None:
    """One takes the question and another answers it, by a handoff, with the first one's result, or with its own prompt."""
    question = "Refund my ticket, please"
    for passed_on in (question, "Plan: look up the ticket. Then refund it.", "Write a kind answer"):
        first = brief(
            agent(1, 0, question, "Plan: look up the ticket. Then refund it.", attributes={"gen_ai.agent.name": "planner"})
        )
        second = brief(agent(2, 0, passed_on, "It is refunded.", attributes={"gen_ai.agent.name": "writer"}))
        exchanges, _ = made_of(root(kind), first, second)
        assert talk(exchanges) == [(question, "It is refunded.")]


def test_concurrent_agents_are_one_exchange() -> None:
    """A fan-out asks each of them something else."""
    parts = [long(agent(number, 0, f"Look at part {number}", f"Part {number} is fine")) for number in (1, 2, 3)]
    exchanges, _ = made_of(root("plain"), *parts)
    assert len(exchanges) == 1


def test_a_root_with_question_and_answer_is_complete() -> None:
    """A loop that improves a draft sends it as the user's message; the root has the real question and answer."""
    draft, final = ("Write a poem", "Roses are read"), ("Mend the spelling", "Roses are red")
    spans = [turn_request(1, 0, [], *draft), turn_request(2, 0, [draft], *final)]
    exchanges, _ = made_of(long(agent(0, None, draft[0], final[1])), *spans)
    assert talk(exchanges) == [(draft[0], final[1])]


def test_a_critique_by_another_model_is_not_a_user_message() -> None:
    """The critic's answer is sent to the writer in the user's role."""
    draft = ("Write a poem", "Roses are read")
    critic = brief(
        chat_span(
            2,
            0,
            **{"gen_ai.input.messages": messages("user", draft[1]), "gen_ai.output.messages": messages("assistant", "Mend it")},
        )
    )
    exchanges, _ = made_of(
        root("chain"), turn_request(1, 0, [], *draft), critic, turn_request(3, 0, [draft], "Mend it", "Roses are red")
    )
    assert talk(exchanges) == [("Write a poem", "Roses are red")]


def test_a_window_over_a_long_conversation_has_its_turns() -> None:
    """Only the newest messages are sent, so their number stays the same."""
    spans = [turn_request(1, 0, TURNS[:1], *TURNS[1]), turn_request(2, 0, TURNS[1:2], *TURNS[2])]
    exchanges, _ = made_of(root("plain"), *spans)
    assert talk(exchanges) == TURNS[1:]


def test_steps_of_a_program_are_not_turns() -> None:
    """DSPy's chains have the same name and different prompts."""
    steps = []
    for number, (prompt, answer) in ((1, ("Think of a step", "Look it up")), (3, ("Answer now", "By an hour"))):
        steps.append(brief(span(number, 0, name="Predict.forward", attributes=ROOTS["chain"])))
        steps.append(turn_request(number + 1, number, [], prompt, answer))
    exchanges, _ = made_of(root("chain"), *steps)
    assert talk(exchanges) == [("Think of a step", "By an hour")]


def test_a_loop_of_agents_is_one_turn() -> None:
    """A supervisor gives the same agent one task after another."""
    spans = [
        brief(agent(1, 0, "Plan my trip", "Ask the researcher", attributes={"gen_ai.agent.name": "supervisor"})),
        brief(agent(2, 0, "Find a train", "At nine", attributes={"gen_ai.agent.name": "researcher"})),
        brief(agent(3, 0, "Find a hotel", "The Anchor", attributes={"gen_ai.agent.name": "researcher"})),
        brief(agent(4, 0, "Plan my trip", "Train at nine, then The Anchor", attributes={"gen_ai.agent.name": "supervisor"})),
    ]
    exchanges, _ = made_of(root("chain"), *spans)
    assert talk(exchanges) == [("Plan my trip", "Train at nine, then The Anchor")]


@pytest.mark.parametrize("kind", ["plain", "chain", "strange"])
@pytest.mark.parametrize("within", ["request", "chain"])
def test_turns_without_a_history_differ_by_their_questions(kind: str, within: str) -> None:
    """A provider may keep the history, so that only the newest message is sent."""
    spans = []
    for number, (question, answer) in enumerate(TURNS):
        around = {"openinference.span.kind": "CHAIN", "input.value": question, "output.value": answer}
        spans.append(turn_request(2 * number + 2, 2 * number + 1 if within == "chain" else 0, [], question, answer))
        if within == "chain":
            spans.append({**brief(span(2 * number + 1, 0, name="turn", attributes=around))})
    exchanges, _ = made_of(root(kind), *spans)
    assert talk(exchanges) == TURNS


@pytest.mark.parametrize("kind", ["server", "agent"])
def test_prompts_of_one_call_or_agent_are_one_turn(kind: str) -> None:
    """A search asks a model for its query first, then for the answer."""
    spans = [
        turn_request(1, 0, [], "Write a query", "ferry times"),
        turn_request(2, 0, [], "Answer from this: …", "By an hour."),
    ]
    exchanges, _ = made_of(root(kind), *spans)
    assert [exchange.agent_response for exchange in exchanges] == ["By an hour."]


def test_tools_may_be_nested_to_any_depth() -> None:
    """Each tool is inside the previous one, with a request in the last."""
    depth = 1_500
    tools = [tool(number, number - 1 if number else None) for number in range(depth)]
    exchanges, _ = made_of(*tools, turn_request(depth, depth - 1, [], *TURNS[0]))
    assert talk(exchanges) == TURNS[:1]


def test_an_unfinished_turn_continues() -> None:
    """A framework that gives up after some steps asks for an answer with its own prompt in the user's role."""
    call = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "exec", "arguments": {}}]}])
    first = brief(chat_span(1, 0, **{"gen_ai.input.messages": history([], "Is it late?"), "gen_ai.output.messages": call}))
    forced = turn_request(3, 0, [("Is it late?", "I look")], "Answer from what you have", "I do not know")
    exchanges, _ = made_of(root("agent"), first, brief(tool(2, 0)), forced)
    assert talk(exchanges) == [("Is it late?", "I do not know")]


def test_an_agent_with_its_question_is_complete() -> None:
    """It failed before it could answer, after several attempts with its own prompts."""
    around = long(agent(0, None, "Is it late?", "", attributes={"gen_ai.output.messages": None}))
    spans = [turn_request(1, 0, [], "Is it late?", "{"), turn_request(2, 0, [("Is it late?", "{")], "That is no JSON", "}")]
    exchanges, _ = made_of(around, *spans)
    assert [exchange.user_message for exchange in exchanges] == ["Is it late?"]


@pytest.mark.parametrize("attributes", [{}, {"gen_ai.response.id": "r1"}])
def test_two_instrumentors_of_one_trace_report_one_request_and_one_call(attributes: Json) -> None:
    """Both wrap the framework, and only one of them has the response id."""
    chat_attributes = {
        "gen_ai.input.messages": history([], "Is it late?"),
        "gen_ai.output.messages": messages("assistant", "No"),
        "gen_ai.response.id": None,
    }
    around = long(span(0, name="root", attributes=ROOTS["agent"]))
    call = tool(2, 0, attributes={"gen_ai.tool.call.id": None})
    langchain_request = request(
        around, chat_span(1, 0, **chat_attributes), call, scope="openinference.instrumentation.langchain"
    )
    other = request(
        chat_span(3, 0, **{**chat_attributes, **attributes}), tool(4, 0), scope="opentelemetry.instrumentation.langchain"
    )
    at = {
        name: langchain_request.request["resourceSpans"][0]["scopeSpans"][0]["spans"][1][name]
        for name in ("startTimeUnixNano", "endTimeUnixNano")
    }
    of_tool = langchain_request.request["resourceSpans"][0]["scopeSpans"][0]["spans"][2]
    request_span, tool_span = other.request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    request_span.update(at)
    tool_span.update({name: of_tool[name] for name in ("startTimeUnixNano", "endTimeUnixNano", "attributes")})
    [assembly] = assembled(records_of([langchain_request, other]))
    assert [exchange.input_tokens for exchange in assembly.exchanges] == [10]
    assert sorted(event.event for event in assembly.events) == ["token_usage", "tool_call", "tool_output"]


HELPERS = {
    "guardrail": {"openinference.span.kind": "GUARDRAIL"},
    "evaluator": {"langfuse.observation.type": "evaluator"},
    "moderation": {"gen_ai.operation.name": "moderation"},
    "reranker": {"openinference.span.kind": "RERANKER"},
    "memory": {"gen_ai.operation.name": "update_memory"},
    "retriever": {"traceloop.span.kind": "task", "openinference.span.kind": "RETRIEVER"},
}
NAMED = ["generate_title", "ChatTitle", "summarize conversation", "update_memory", "input guardrails", "follow-up questions"]


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("kind", ["server", "chain", "agent"])
@pytest.mark.parametrize("helper", [*HELPERS, *NAMED])
def test_a_helper_request_is_neither_question_nor_answer(helper: str, kind: str, at: str) -> None:
    """A guardrail, an evaluator or a chat title asks a model as well, before or after the turn; its tokens are not the turn's."""
    question, answer = TURNS[0]
    number = 1 if at == "before" else 5
    around = brief(span(number, 0, name=helper, attributes=HELPERS.get(helper, {"openinference.span.kind": "CHAIN"})))
    inner = {"gen_ai.input.messages": messages("user", "Look at this"), "gen_ai.output.messages": messages("assistant", "safe")}
    helping = brief(chat_span(number + 1, number, **inner, **{"gen_ai.usage.input_tokens": 7}))
    exchanges, events = made_of(root(kind), around, helping, turn_request(3, 0, [], question, answer))
    assert talk(exchanges) == [(question, answer)]
    assert exchanges[0].input_tokens == 10
    assert exchanges[0].output_tokens == 2
    tokens = {
        event.exchange_id: json.loads(event.payload)["usage"]["input"] for event in events if event.event == "token_usage"
    }
    assert tokens == {None: 7, exchanges[0].exchange_id: 10}


@pytest.mark.parametrize("name", NAMED)
def test_a_request_named_after_its_task_is_recognised(name: str) -> None:
    """There is no span around it."""
    exchanges, _ = made_of(root("server"), turn_request(1, 0, [], *TURNS[0]), brief(chat_span(2, 0, name=name)))
    assert talk(exchanges) == TURNS[:1]


@pytest.mark.parametrize("operation", ["generate_title", "summarize_history", "memory_extraction"])
def test_a_helper_operation_is_not_a_request(operation: str) -> None:
    """The operation, not only the span's name, marks it as a helper."""
    helping = brief(chat_span(2, 0, **{"gen_ai.operation.name": operation}))
    exchanges, _ = made_of(root("plain"), turn_request(1, 0, [], *TURNS[0]), helping)
    assert talk(exchanges) == TURNS[:1]


@pytest.mark.parametrize("name", NAMED)
def test_a_helper_task_that_is_the_only_request_is_the_turn(name: str) -> None:
    """An agent that writes titles is no helper."""
    exchanges, _ = made_of(
        span(0, name=name, attributes=ROOTS["chain"]), turn_request(1, 0, [], "A title for my book?", "The Ferry")
    )
    assert talk(exchanges) == [("A title for my book?", "The Ferry")]


@pytest.mark.parametrize("name", ["summarize", "chat gpt-x", "answer_question", "agent", "entitle", "memorable"])
def test_a_name_that_only_resembles_a_helper_is_not_one(name: str) -> None:
    """The last step of a search summarises the results: that is the answer."""
    assert not names_helper(name)


@pytest.mark.parametrize(
    "attributes", [{"gen_ai.operation.name": "embeddings"}, {"llm.request.type": "rerank"}, {"ai.operationId": "ai.embedMany"}]
)
def test_embeddings_and_reranking_alone_give_no_exchange(attributes: Json) -> None:
    """A job that indexes documents is not a session."""
    exchanges, events = made_of(
        span(0, attributes={**attributes, "gen_ai.request.model": "e", "gen_ai.prompt.0.content": "a", **USAGE})
    )
    assert exchanges == []
    assert events == []


def test_a_request_that_serves_a_tool_does_not_answer_the_turn() -> None:
    """An agent used as a tool has its own answer, and its tokens are the turn's."""
    inner = turn_request(3, 2, [], "Find the price", "It is 9 euro")
    exchanges, _ = made_of(root("chain"), turn_request(1, 0, [], "How much is it?", "Nine euro."), brief(tool(2, 0)), inner)
    assert talk(exchanges) == [("How much is it?", "Nine euro.")]
    assert exchanges[0].input_tokens == 20


@pytest.mark.parametrize(
    ("called", "name"),
    [("transfer_to_billing_desk", "handoff to Billing Desk"), ("transfer_to_billing_desk", "handoff_to_Billing Desk")],
)
def test_a_handoff_is_one_call(called: str, name: str) -> None:
    """The model calls a tool, and the framework's span for it has another name."""
    call = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": called, "arguments": {}}]}
    handoff = {"openinference.span.kind": "TOOL", "tool.name": name, "input.value": '{"to_agent": "Billing Desk"}'}
    _, events = made_of(
        agent(0), chat_span(1, 0, **{"gen_ai.output.messages": json.dumps([call])}), span(2, 0, attributes=handoff)
    )
    [payload] = [json.loads(event.payload) for event in events if event.event == "tool_call"]
    assert payload["tool"] == called
    assert payload["tool_call_id"] == "c1"


def test_spans_of_two_traces_may_share_an_id() -> None:
    """A span id is unique only within its trace: events of the second were taken for those of the first."""
    assemblies = assembled(records_of([request(chat(0, None)), request(chat(0, None, trace="b" * 32))]))
    assert len({event.event_id for assembly in assemblies for event in assembly.events}) == 2
