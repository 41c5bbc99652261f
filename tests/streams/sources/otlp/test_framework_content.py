"""What frameworks write in their own forms: each fault with its smallest span, and each family of attributes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.otlp_captures import Captured, Json, assembled, records_of
from support.otlp_spans import TRACE, attributes, request, span, span_id

from schemas.records import AgentEvent, Exchange

QUESTION, ANSWER = "Is the tide in?", "Since noon."
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "tide"}
SENT, CAME = [{"role": "user", "content": QUESTION}], [{"role": "assistant", "content": ANSWER}]
REPR = "StopEvent(result=AgentOutput(response=ChatMessage(role=<MessageRole.ASSISTANT: 'assistant'>)))"


def event(name: str, **fields: Any) -> Json:
    """Return an event of a span. Two underscores in a field's name stand for a point."""
    return {"name": name, "attributes": attributes({field.replace("__", "."): value for field, value in fields.items()})}


def made_of(*spans: Json, records: Sequence[Json] = ()) -> tuple[list[Exchange], list[AgentEvent], str]:
    """Return the exchanges and events of one trace, and its state."""
    requests = [request(*spans)]
    if records:
        requests.append(Captured("logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}))
    [assembly] = assembled(records_of(requests))
    return assembly.exchanges, assembly.events, assembly.decision.state


def question_and_answer(*spans: Json, records: Sequence[Json] = ()) -> tuple[str, str]:
    """Return the question and answer of the only exchange of a trace."""
    [exchange], _, _ = made_of(*spans, records=records)
    return exchange.user_message, exchange.agent_response


def called(*spans: Json) -> list[tuple[Any, Any]]:
    """Return arguments and outputs of the calls of a trace."""
    _, events, _ = made_of(*spans)
    payloads = [json.loads(event.payload) for event in events]
    arguments = [payload.get("arguments") for payload in payloads if payload["event"] == "tool_call"]
    outputs = [payload["result"] for payload in payloads if payload["event"] == "tool_output"]
    return list(zip(arguments, outputs or [None] * len(arguments), strict=True))


def test_f1_a_list_of_one_complete_answer_is_read() -> None:
    """OpenInference writes it for streamed chat completions; the response id is inside."""
    answer = {
        "id": "r-1",
        "object": "response",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}],
    }
    attrs = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"messages": SENT}),
        "output.value": json.dumps([answer]),
    }
    assert question_and_answer(span(0, attributes=attrs)) == (QUESTION, ANSWER)


@pytest.mark.parametrize("completion", [ANSWER, json.dumps([{"text": ANSWER}])], ids=["text", "blocks"])
def test_f2_events_with_untyped_blocks_and_plain_texts_are_read(completion: str) -> None:
    """Strands writes them on the spans of its agent and of its requests."""
    events = [
        event("gen_ai.user.message", content=json.dumps([{"text": QUESTION}])),
        event("gen_ai.choice", message=completion, finish_reason="end_turn"),
    ]
    for operation in ("chat", "invoke_agent"):
        [exchange], _, _ = made_of(span(0, attributes={**CHAT, "gen_ai.operation.name": operation}, events=events))
        assert exchange.user_message == QUESTION
        assert exchange.agent_response == ANSWER
        assert exchange.stop_reason == "end_turn"


def test_f2_events_of_a_tool_span_give_its_arguments_and_output() -> None:
    """No attribute has them."""
    events = [
        event("gen_ai.tool.message", role="tool", content='{"hour": 9}', id="c-1"),
        event("gen_ai.choice", message=json.dumps([{"text": "low"}]), id="c-1"),
    ]
    use = json.dumps([{"toolUse": {"toolUseId": "c-1", "name": "tide", "input": {"hour": 9}}}])
    asking = span(
        0, attributes=CHAT, events=[event("gen_ai.user.message", content=QUESTION), event("gen_ai.choice", message=use)]
    )
    assert called(asking, span(1, 0, attributes={**TOOL, "gen_ai.tool.call.id": "c-1"}, events=events)) == [
        ({"hour": 9}, "low")
    ]


ADK_SENT = {"model": "g", "contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}
ADK_CAME = {
    "content": {"role": "model", "parts": [{"text": "Looking.", "thought": True}, {"text": ANSWER}]},
    "finish_reason": "STOP",
}


def test_f3_google_adk_attributes_are_read() -> None:
    """Requests, calls, outputs and the session are read; a thought is not an answer."""
    own = {"gen_ai.request.model": "g", "gcp.vertex.agent.session_id": "harbour"}
    chat = {**own, "gcp.vertex.agent.llm_request": json.dumps(ADK_SENT), "gcp.vertex.agent.llm_response": json.dumps(ADK_CAME)}
    tool = {**TOOL, "gcp.vertex.agent.tool_call_args": '{"hour": 9}', "gcp.vertex.agent.tool_response": '{"result": "low"}'}
    spans = (span(0, attributes=chat), span(1, 0, attributes=tool))
    [exchange], _, _ = made_of(*spans)
    assert exchange.user_message == QUESTION
    assert exchange.agent_response == ANSWER
    assert exchange.agent_thinking == "Looking."
    assert exchange.session_id == "harbour"
    assert called(*spans) == [({"hour": 9}, '{"result": "low"}')]


def test_f3_placeholders_of_adk_are_no_content() -> None:
    """Without the opt-in, `{}` replaces requests, calls and outputs, and ids are made up."""
    chat = {"gen_ai.request.model": "g", "gcp.vertex.agent.llm_request": "{}", "gcp.vertex.agent.llm_response": "{}"}
    tool = {
        **TOOL,
        "gen_ai.tool.call.id": "<not specified>",
        "gcp.vertex.agent.tool_call_args": "{}",
        "gcp.vertex.agent.tool_response": "{}",
    }
    exchanges, events, state = made_of(span(0, attributes=chat), span(1, 0, attributes=tool))
    assert exchanges == []
    assert state == "no_content"
    [call] = [json.loads(event.payload) for event in events]
    assert {"arguments", "tool_call_id"}.isdisjoint(call)


def test_f3_calls_merged_by_adk_are_not_counted_again() -> None:
    """ADK writes one extra span for two parallel calls."""
    merged = {**TOOL, "gen_ai.tool.name": "(merged tools)", "gcp.vertex.agent.tool_call_args": "N/A"}
    chat = {"gen_ai.request.model": "g", "gcp.vertex.agent.llm_request": json.dumps(ADK_SENT)}
    assert called(span(0, attributes=chat), span(1, 0, attributes=merged)) == []


def test_an_empty_output_is_an_output() -> None:
    """A call without an output would look like a hanging call."""
    assert called(span(0, attributes={**TOOL, "gen_ai.tool.call.result": ""})) == [(None, "")]


def test_f3_openinference_for_adk() -> None:
    """The runner's message and its last event are read; an output is a whole function response."""
    root = {
        "openinference.span.kind": "CHAIN",
        "input.value": json.dumps({"user_id": "u", "new_message": {"parts": [{"text": QUESTION}]}}),
        "output.value": json.dumps(ADK_CAME),
    }
    output = json.dumps({"id": "c-9", "name": "tide", "response": {"result": "low"}})
    tool = {"openinference.span.kind": "TOOL", "tool.name": "tide", "input.value": '{"hour": 9}', "output.value": output}
    assert question_and_answer(span(0, attributes=root), span(1, 0, attributes=tool)) == (QUESTION, ANSWER)
    assert called(span(0, attributes=root), span(1, 0, attributes=tool)) == [({"hour": 9}, '{"result":"low"}')]


def test_f4_mastra_attributes_are_read() -> None:
    """The output of an agent's run is an object with a text."""
    run = {
        "gen_ai.operation.name": "invoke_agent",
        "mastra.span.type": "agent_run",
        "mastra.agent_run.input": json.dumps(SENT),
        "mastra.agent_run.output": json.dumps({"text": ANSWER, "files": []}),
    }
    assert question_and_answer(span(0, attributes=run)) == (QUESTION, ANSWER)
    model = {
        "mastra.span.type": "model_generation",
        "mastra.model_generation.input": json.dumps({"messages": SENT}),
        "mastra.model_generation.output": json.dumps({"text": ANSWER}),
    }
    assert question_and_answer(span(0, attributes=model)) == (QUESTION, ANSWER)


def test_f5_a_models_answer_takes_precedence_over_a_repr() -> None:
    """The repr of LlamaIndex's last event is not what the agent said."""
    root = {"openinference.span.kind": "CHAIN", "input.value": json.dumps({"user_msg": QUESTION}), "output.value": REPR}
    inner = {**CHAT, "gen_ai.input.messages": json.dumps(SENT), "gen_ai.output.messages": json.dumps(CAME)}
    assert question_and_answer(span(0, attributes=root), span(1, 0, attributes=inner)) == (QUESTION, ANSWER)
    assert made_of(span(0, attributes={**root, "openinference.span.kind": "AGENT", "input.value": REPR}))[::2] == (
        [],
        "no_content",
    )


ENVELOPES = [
    {"kwargs": {"hour": 9}},
    {"args": [], "kwargs": {"hour": 9}},
    {"args": [], "sanitize_inputs_outputs": True, "kwargs": {"hour": 9}},
    {"input_str": "{'hour': 9}", "tags": [], "metadata": {}, "inputs": {"hour": 9}, "kwargs": {}},
    {"hour": 9},
]


@pytest.mark.parametrize("value", ENVELOPES)
@pytest.mark.parametrize("name", ["gen_ai.tool.call.arguments", "input.value"])
def test_f5_f6_f7_arguments_are_unwrapped(name: str, value: Json) -> None:
    """A framework's calling convention is not what the model asked for."""
    for shape in (json.dumps(value), json.dumps(json.dumps(value)), value):
        [(arguments, _)] = called(span(0, attributes={**TOOL, name: shape, "gen_ai.tool.call.result": "low"}))
        assert arguments == {"hour": 9}


def test_f7_a_positional_argument_stays_wrapped() -> None:
    """It has no name and would be lost."""
    positional = {"args": [9], "kwargs": {"unit": "m"}}
    assert positional == called(span(0, attributes={**TOOL, "input.value": json.dumps(positional)}))[0][0]


def test_f5_an_output_of_blocks_is_its_text() -> None:
    """LlamaIndex writes the tool's raw result beside it."""
    output = {"blocks": [{"block_type": "text", "text": "low"}], "tool_name": "tide", "raw_output": "low", "is_error": False}
    assert called(span(0, attributes={**TOOL, "input.value": "{}", "output.value": json.dumps(output)}))[0][1] == "low"


@pytest.mark.parametrize(
    ("given", "gave"),
    [
        ({"task": QUESTION, "stream": False, "reset": True}, ANSWER),
        ({"input_args": {"question": QUESTION}}, json.dumps({"trajectory": {}, "reasoning": "Noon.", "answer": ANSWER})),
        (
            {
                "messages": [{"source": "user", "content": QUESTION, "type": "TextMessage"}],
                "cancellation_token": "<x object at 0x1>",
            },
            ANSWER,
        ),
        ({"messages": QUESTION, "response_format": None}, ANSWER),
        ({"args": [QUESTION], "kwargs": {}}, ANSWER),
    ],
    ids=["smolagents", "dspy", "autogen", "crewai", "decorated"],
)
def test_f6_the_question_is_the_input_of_the_root(given: Json, gave: str) -> None:
    """It is not the prompt that a framework builds from it."""
    root = {"openinference.span.kind": "AGENT", "input.value": json.dumps(given), "output.value": gave}
    prompt = {**CHAT, "gen_ai.input.messages": json.dumps([{"role": "user", "content": f"New task:\n{QUESTION}"}])}
    assert question_and_answer(span(0, attributes=root), span(1, 0, attributes=prompt)) == (QUESTION, ANSWER)


@pytest.mark.parametrize(("description", "question"), [(QUESTION, QUESTION), ("Describe the {sea}", "the prompt")])
def test_f6_the_only_task_of_a_crew_is_its_question(description: str, question: str) -> None:
    """A task with placeholders is a template; the prompt has them filled in."""
    root = {
        "openinference.span.kind": "CHAIN",
        "input.value": '{"sea": "North Sea"}',
        "crew_tasks": json.dumps([{"id": "1", "description": description}]),
        "output.value": ANSWER,
    }
    prompt = {**CHAT, "gen_ai.input.messages": json.dumps([{"role": "user", "content": "the prompt"}])}
    assert question_and_answer(span(0, attributes=root), span(1, 0, attributes=prompt)) == (question, ANSWER)


def test_f8_reprs_alone_are_no_content() -> None:
    """OpenInference writes Haystack's messages as reprs, so the texts are unknown."""
    printed = {"messages": ["ChatMessage(_role=<ChatRole.USER: 'user'>, _content=[TextContent(text='Hi')])"]}
    attrs = {"openinference.span.kind": "AGENT", "input.value": json.dumps(printed), "output.value": json.dumps(printed)}
    assert made_of(span(0, attributes=attrs))[::2] == ([], "no_content")


def log(number: int, name: str, content: Any) -> Json:
    """Return a log record with a text body, in span 0."""
    return {
        "traceId": TRACE,
        "spanId": span_id(0),
        "timeUnixNano": str(int(span(0)["startTimeUnixNano"]) + number),
        "attributes": attributes({"event.name": name}),
        "body": {"stringValue": json.dumps(content)},
    }


def test_f8_the_body_of_a_log_record_may_be_json() -> None:
    """Semantic Kernel logs messages with Python's logging."""
    choice = {"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop", "index": 0}
    records = [log(1, "gen_ai.user.message", SENT[0]), log(2, "gen_ai.choice", choice)]
    assert question_and_answer(span(0, attributes=CHAT), records=records) == (QUESTION, ANSWER)


def test_f9_an_empty_message_does_not_end_the_search() -> None:
    """LiteLLM writes calls elsewhere, and a message without parts."""
    attrs = {
        **CHAT,
        "gen_ai.input.messages": json.dumps(SENT),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [], "finish_reason": "tool_calls"}]),
        "gen_ai.completion.0.function_call.name": "tide",
        "gen_ai.completion.0.function_call.arguments": '{"hour": 9}',
    }
    assert called(span(0, attributes=attrs)) == [({"hour": 9}, None)]


@pytest.mark.parametrize("name", ["gen_ai.tool.call.result", "output.value", "mlflow.spanOutputs"])
def test_f12_a_json_string_output_loses_its_quotes(name: str) -> None:
    """Detectors search for the text; other JSON is unchanged."""
    assert called(span(0, attributes={**TOOL, "input.value": "{}", name: '"low"'}))[0][1] == "low"
    assert called(span(0, attributes={**TOOL, "input.value": "{}", name: '["low"]'}))[0][1] == '["low"]'


ITEMS = {"items": [{"type": "message", "role": "user", "content": [QUESTION]}]}
GENKIT = {"genkit:type": "action", "genkit:metadata:subtype": "model", "genkit:name": "vendor/m-1"}
FAMILIES: dict[str, tuple[Json, list[Json]]] = {
    "sentry": ({**CHAT, "gen_ai.request.messages": json.dumps(SENT), "gen_ai.response.text": json.dumps([ANSWER])}, []),
    "sentry's text": ({**CHAT, "gen_ai.request.messages": json.dumps(SENT), "gen_ai.response.text": ANSWER}, []),
    "mlflow": (
        {
            "mlflow.spanType": '"CHAT_MODEL"',
            "mlflow.llm.model": '"m-1"',
            "mlflow.spanInputs": json.dumps({"messages": SENT}),
            "mlflow.spanOutputs": json.dumps({"choices": [{"message": CAME[0]}]}),
        },
        [],
    ),
    "livekit": ({**CHAT, "lk.chat_ctx": json.dumps(ITEMS), "lk.response.text": ANSWER}, []),
    "livekit's newer": ({**CHAT, "lk.pii.chat_ctx": json.dumps(ITEMS), "lk.pii.response.text": ANSWER}, []),
    "genkit": (
        {
            **GENKIT,
            "genkit:input": json.dumps({"messages": [{"role": "user", "content": [{"text": QUESTION}]}]}),
            "genkit:output": json.dumps({"message": {"role": "model", "content": [{"text": ANSWER}]}, "finishReason": "stop"}),
        },
        [],
    ),
    "pipecat": ({**CHAT, "input": json.dumps(SENT), "output": ANSWER}, []),
    "azure": (
        CHAT,
        [
            event("gen_ai.user.message", gen_ai__event__content=json.dumps(SENT[0])),
            event("gen_ai.choice", gen_ai__event__content=json.dumps({"message": {"content": ANSWER}, "index": 0})),
        ],
    ),
    "openlit": (
        CHAT,
        [
            event("gen_ai.content.prompt", gen_ai__prompt=f"system: Be brief.\nuser: Hi.\nassistant: Hello.\nuser: {QUESTION}"),
            event("gen_ai.content.completion", gen_ai__completion=ANSWER),
        ],
    ),
    "content events": (
        CHAT,
        [
            event("gen_ai.content.prompt", gen_ai__prompt=json.dumps(SENT)),
            event("gen_ai.content.completion", gen_ai__completion=json.dumps(CAME)),
        ],
    ),
    "spring": (
        CHAT,
        [
            event("gen_ai.content.prompt", gen_ai__prompt=[QUESTION]),
            event("gen_ai.content.completion", gen_ai__completion=[ANSWER]),
        ],
    ),
    "haystack": (
        {
            "haystack.agent.step.llm.input": json.dumps({"messages": [{"role": "user", "content": [{"text": QUESTION}]}]}),
            "haystack.agent.step.llm.output": json.dumps({"replies": [{"role": "assistant", "content": [{"text": ANSWER}]}]}),
        },
        [],
    ),
    "haystack's agent": (
        {
            "haystack.agent.max_steps": 10,
            "haystack.agent.input": json.dumps({"messages": [{"role": "user", "content": [{"text": QUESTION}]}]}),
            "haystack.agent.output": json.dumps({"last_message": {"role": "assistant", "content": [{"text": ANSWER}]}}),
        },
        [],
    ),
    "structured": (
        {
            **CHAT,
            "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}],
            "gen_ai.output.messages": [json.dumps(CAME[0])],
        },
        [],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_attribute_family_gives_question_and_answer(family: str) -> None:
    """Each family uses its own names."""
    attrs, events = FAMILIES[family]
    assert question_and_answer(span(0, attributes=attrs, events=events)) == (QUESTION, ANSWER)


@pytest.mark.parametrize("family", ["mlflow", "genkit"])
def test_each_attribute_family_gives_its_model(family: str) -> None:
    """The model has its own name in each family."""
    [exchange], _, _ = made_of(span(0, attributes=FAMILIES[family][0]))
    assert "m-1" in str(exchange.agent_model)


TOOLS = {
    "sentry": {**TOOL, "gen_ai.tool.input": '{"hour": 9}', "gen_ai.tool.output": "low"},
    "livekit": {"lk.function_tool.name": "tide", "lk.function_tool.arguments": '{"hour": 9}', "lk.function_tool.output": "low"},
    "livekit's newer": {
        "lk.function_tool.name": "tide",
        "lk.pii.function_tool.arguments": '{"hour": 9}',
        "lk.pii.function_tool.output": "low",
    },
    "haystack": {
        "haystack.tool.name": "tide",
        "haystack.agent.step.tool.input": '{"hour": 9}',
        "haystack.agent.step.tool.output": "low",
    },
    "mlflow": {"mlflow.spanType": '"TOOL"', "mlflow.spanInputs": '{"hour": 9}', "mlflow.spanOutputs": '"low"'},
    "genkit": {"genkit:metadata:subtype": "tool", "genkit:name": "tide", "genkit:input": '{"hour": 9}', "genkit:output": "low"},
}


@pytest.mark.parametrize("family", TOOLS)
def test_each_attribute_family_gives_its_tools(family: str) -> None:
    """Arguments and outputs are read."""
    assert called(span(0, attributes=TOOLS[family])) == [({"hour": 9}, "low")]


def test_f1_an_answer_with_reasoning_settings_is_not_a_block() -> None:
    """A Responses API answer has a member that blocks have as well."""
    answer = {"id": "r-1", "reasoning": {"effort": "low"}, "output": [{"type": "message", **CAME[0]}]}
    attrs = {"openinference.span.kind": "LLM", "input.value": json.dumps(SENT), "output.value": json.dumps([answer])}
    assert question_and_answer(span(0, attributes=attrs)) == (QUESTION, ANSWER)


def test_f3_a_failed_call_without_output_has_the_error_of_its_span() -> None:
    """ADK writes `<not specified>` if a tool raised before it returned anything."""
    tool = {**TOOL, "gcp.vertex.agent.tool_response": json.dumps({"result": "<not specified>"})}
    chat = {"gen_ai.request.model": "g", "gcp.vertex.agent.llm_request": json.dumps(ADK_SENT)}
    failed = span(1, 0, attributes=tool, status={"code": 2, "message": "no tide here"})
    _, events, _ = made_of(span(0, attributes=chat), failed)
    [output] = [json.loads(event.payload) for event in events if event.event == "tool_output"]
    assert output["result"] == "no tide here"
    assert output["is_error"] is True


def test_f6_an_answer_given_by_a_tool_is_the_answer() -> None:
    """Smolagents' model can only answer by a tool, and a streamed run prints its steps in place of the answer."""
    root = {
        "openinference.span.kind": "AGENT",
        "input.value": json.dumps({"task": QUESTION}),
        "output.value": "ToolOutput(id='1', output=None)ActionOutput(output='x')",
    }
    final = {"openinference.span.kind": "TOOL", "tool.name": "final_answer", "output.value": ANSWER}
    assert question_and_answer(span(0, attributes=root), span(1, 0, attributes=final)) == (QUESTION, ANSWER)


def test_f8_the_question_comes_from_the_returned_state_if_a_repr_was_sent() -> None:
    """Haystack writes a repr of what it cannot encode as JSON, such as a callback."""
    request = "{'messages': [ChatMessage(_role=<ChatRole.USER: 'user'>, _content=[TextContent(text='Hi')])]}"
    state = {"messages": [{"role": one["role"], "content": [{"text": one["content"]}]} for one in (*SENT, *CAME)]}
    attrs = {"haystack.agent.max_steps": 9, "haystack.agent.input": request, "haystack.agent.output": json.dumps(state)}
    assert question_and_answer(span(0, name="haystack.agent.run", attributes=attrs)) == (QUESTION, ANSWER)


@pytest.mark.parametrize("session", [None, "s-1"])
def test_f9_a_request_that_waits_for_a_tool_is_not_an_exchange(session: str | None) -> None:
    """LiteLLM has a trace per request; without a session the answer cannot be found."""
    call = {"gen_ai.completion.0.function_call.name": "tide", "gen_ai.completion.0.function_call.arguments": "{}"}
    request = {"gen_ai.input.messages": json.dumps(SENT), **({"session.id": session} if session else {})}
    exchanges, events, _ = made_of(span(0, attributes={**CHAT, **request, **call}))
    assert len(exchanges) == (0 if session is None else 1)
    assert [event.event for event in events] == ["tool_call"]


def test_two_spans_of_one_call_are_merged() -> None:
    """AutoGen's span has the call's id, and OpenInference's around it the arguments and the output."""
    outer = {"openinference.span.kind": "TOOL", "tool.name": "tide", "input.value": '{"hour": 9}', "output.value": "low"}
    inner = {**TOOL, "gen_ai.tool.call.id": "c-1"}
    chat = {**CHAT, "gen_ai.input.messages": json.dumps(SENT), "gen_ai.output.messages": json.dumps(CAME)}
    _, events, _ = made_of(span(0, attributes=chat), span(1, attributes=outer), span(2, 1, attributes=inner))
    payloads = [json.loads(event.payload) for event in events]
    assert [(item["event"], item["tool_call_id"]) for item in payloads] == [("tool_call", "c-1"), ("tool_output", "c-1")]
    assert payloads[0]["arguments"] == {"hour": 9}
    assert payloads[1]["result"] == "low"


def test_the_body_of_an_event_may_be_an_attribute() -> None:
    """Koog's SDK has no event bodies."""
    events = [
        event("gen_ai.system.message", body=json.dumps({"role": "system", "content": "Be brief."})),
        event("gen_ai.user.message", body=json.dumps({"content": QUESTION})),
        event("gen_ai.choice", body=json.dumps({"index": 0, "message": {"role": "assistant", "content": ANSWER}})),
    ]
    assert question_and_answer(span(0, attributes=CHAT, events=events)) == (QUESTION, ANSWER)


def test_claude_code_spans_give_calls_and_tokens_without_an_answer() -> None:
    """Its spans follow no convention and have no answer: calls and tokens count, and the trace is reported without content."""
    counts = {"input_tokens": 8, "output_tokens": 21, "cache_read_tokens": 7_000, "cache_creation_tokens": 0}
    tool = {"span.type": "tool", "tool_name": "Bash", "tool_use_id": "toolu_1", "full_command": "tide --now"}
    exchanges, events, state = made_of(
        span(0, attributes={"span.type": "interaction", "user_prompt": QUESTION}),
        span(1, 0, attributes={"span.type": "llm_request", "gen_ai.request.model": "m-1", **counts}),
        span(2, 0, attributes=tool, events=[event("tool.output", output="in")]),
    )
    payloads = [json.loads(event.payload) for event in events]
    [usage] = [payload["usage"] for payload in payloads if payload["event"] == "token_usage"]
    [call] = [payload for payload in payloads if payload["event"] == "tool_call"]
    [output] = [payload for payload in payloads if payload["event"] == "tool_output"]
    assert exchanges == []
    assert state == "no_content"
    assert usage == {"input": 8, "output": 21, "cache_read": 7_000, "cache_write": 0, "total": 7_029}
    assert call["tool"] == "Bash"
    assert call["tool_call_id"] == "toolu_1"
    assert call["arguments"] == "tide --now"
    assert output["tool_call_id"] == "toolu_1"
    assert output["result"] == "in"
