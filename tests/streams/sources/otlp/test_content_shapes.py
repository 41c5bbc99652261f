"""Content of any shape means the same as its plain form, however it is nested, encoded and named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.otlp_captures import Json, assembled, records_of
from support.otlp_spans import agent, request, span

from schemas.records import Exchange
from streams.sources.otlp.messages import Message, is_repr, output_text, read_messages, unflatten
from streams.sources.otlp.span_facts import ToolCall

QUESTION, ANSWER = "Which ferry sails at nine?", "The one to Lyme."
LONG = 50_000


def exchange_of(*spans: Json) -> Exchange:
    """Return the only exchange of the trace of some spans."""
    [assembly] = assembled(records_of([request(*spans)]))
    [exchange] = assembly.exchanges
    return exchange


def texts(value: Any, role: str = "user") -> list[tuple[str, str]]:
    """Return the role and text of each message of a value."""
    return [(message.role, message.text) for message in read_messages(value, role)]


def as_content(text: str) -> st.SearchStrategy[Any]:
    """Return message content with a text, in each provider's shape."""
    block = st.sampled_from(
        [
            {"type": "text", "text": text},
            {"type": "text", "content": text},
            {"type": "input_text", "text": text},
            {"block_type": "text", "text": text},
            {"text": text},
        ]
    )
    blocks = st.one_of(block, st.just(text)).map(lambda item: [item])
    return st.one_of(
        st.just(text), block, blocks, block.map(lambda item: json.dumps([item])), st.just({"parts": [{"text": text}]})
    )


@st.composite
def as_message(draw: st.DrawFn, role: str, text: str) -> Any:
    """Return a message with a text, as some library writes it."""
    name = draw(st.sampled_from({"user": ["user", "human", "User"], "assistant": ["assistant", "model", "ai"]}[role]))
    content = draw(as_content(text))
    shapes = [
        {"role": name, "content": content},
        {"message": {"role": name, "content": content}},
        {"type": name.lower(), "content": text},
    ]
    parts = [{"role": name, "parts": [{"type": "text", "content": text}]}, {"role": name, "parts": [{"text": text}]}]
    return draw(st.sampled_from([*shapes, *parts]))


@st.composite
def nested(draw: st.DrawFn, messages: list[Any], names: list[str]) -> Any:
    """Generate messages, directly or under a known name, as a value or as JSON, encoded up to three times."""
    value: Any = {name: messages} if (name := draw(st.sampled_from(["", *names]))) else messages
    if draw(st.booleans()) and len(messages) == 1 and not name:
        value = messages[0]
    for _ in range(draw(st.integers(0, 3))):
        value = json.dumps(value)
    return value


@settings(max_examples=examples(300))
@given(st.data())
def test_any_nesting_gives_the_question_and_answer_of_the_plain_form(data: st.DataObject) -> None:
    """An unrecognised shape loses the text of a turn, or gives JSON instead."""
    request = data.draw(nested([data.draw(as_message("user", QUESTION))], ["messages", "contents", "input", "history"]))
    response = data.draw(nested([data.draw(as_message("assistant", ANSWER))], ["messages", "output", "choices", "candidates"]))
    assert texts(request) == [("user", QUESTION)]
    assert texts(response, "assistant") == [("assistant", ANSWER)]


@settings(max_examples=examples(100))
@given(st.data())
def test_a_span_attribute_may_have_any_content_shape(data: st.DataObject) -> None:
    """The attribute may be a text, a list of texts or an object."""
    request = data.draw(nested([data.draw(as_message("user", QUESTION))], ["messages"]))
    response = data.draw(nested([data.draw(as_message("assistant", ANSWER))], ["messages"]))
    exchange = exchange_of(agent(attributes={"gen_ai.input.messages": request, "gen_ai.output.messages": response}))
    assert exchange.user_message == QUESTION
    assert exchange.agent_response == ANSWER


CALLS = [
    {"type": "tool_call", "id": "c1", "name": "book", "arguments": {"seats": 2}},
    {"type": "tool_use", "id": "c1", "name": "book", "input": {"seats": 2}},
    {"type": "tool-call", "toolCallId": "c1", "toolName": "book", "input": {"seats": 2}},
    {"type": "function_call", "call_id": "c1", "name": "book", "arguments": '{"seats": 2}'},
    {"type": "function_call", "call_id": "c1", "name": "book", "arguments": '"{\\"seats\\": 2}"'},
    {"toolUse": {"toolUseId": "c1", "name": "book", "input": {"seats": 2}}},
    {"function_call": {"id": "c1", "name": "book", "args": {"seats": 2}}},
    {"functionCall": {"id": "c1", "name": "book", "args": {"seats": 2}}},
    {"toolRequest": {"ref": "c1", "name": "book", "input": {"seats": 2}}},
    {"tool_call": {"id": "c1", "tool_name": "book", "arguments": {"seats": 2}}},
]
RESULTS = [
    {"type": "tool_call_response", "id": "c1", "response": "booked"},
    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "booked"}]},
    {"type": "function_call_output", "call_id": "c1", "output": '"booked"'},
    {"toolResult": {"toolUseId": "c1", "content": [{"text": "booked"}]}},
    {"function_response": {"id": "c1", "name": "book", "response": "booked"}},
    {"functionResponse": {"id": "c1", "name": "book", "response": "booked"}},
    {"toolResponse": {"ref": "c1", "name": "book", "output": "booked"}},
    {"tool_call_result": {"result": "booked", "origin": {"id": "c1", "tool_name": "book"}, "error": False}},
]


@pytest.mark.parametrize("block", CALLS, ids=lambda block: next(iter(block)) + str(block.get("type", "")))
def test_a_call_is_recognised_by_its_fields(block: Json) -> None:
    """It may be in the content of a message, beside others, or alone in a list, as a value or as JSON."""
    expected = [ToolCall("book", "c1", {"seats": 2})]
    for value in ([{"role": "assistant", "content": [{"text": "Wait."}, block]}], [block], json.dumps([block])):
        messages = read_messages(value, "assistant")
        assert [call for message in messages for call in message.calls] == expected


@pytest.mark.parametrize("block", RESULTS, ids=lambda block: next(iter(block)) + str(block.get("type", "")))
def test_an_output_is_recognised_by_its_fields(block: Json) -> None:
    """Its text has no quotes or blocks, and the call's id is read."""
    for value in ([{"role": "user", "content": [block]}], [{"role": "user", "content": QUESTION}, block]):
        [result] = [result for message in read_messages(value) for result in message.results]
        assert result.output == "booked"
        assert result.call_id == "c1"


def test_null_keys_are_ignored() -> None:
    """Gemini's library writes every key that a part may have."""
    nothing = dict.fromkeys(
        ("function_call", "function_response", "inline_data", "file_data", "thought", "toolUse", "reasoning")
    )
    [message] = read_messages({"contents": [{"role": "user", "parts": [{**nothing, "text": QUESTION}]}]})
    assert message.texts == [QUESTION]
    assert message.calls == []
    assert message.results == []
    assert message.thoughts == []
    assert message.media == []


def test_items_of_a_list_keep_their_own_roles() -> None:
    """A Responses API sends calls and outputs between messages, without roles."""
    listed = [
        {"role": "user", "content": QUESTION},
        CALLS[3],
        RESULTS[2],
        {"type": "message", "role": "assistant", "content": ANSWER},
    ]
    assert [message.role for message in read_messages(listed)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    "text",
    [
        "StopEvent(result=AgentOutput(response=ChatMessage(role='assistant')))",
        "[ChatMessage(_role=<ChatRole.USER: 'user'>, _content=[TextContent(text='Hi')])]",
        "<crewai.agent.core.Agent object at 0x7f2a10c3d1f0>",
        "content='Hi' additional_kwargs={} response_metadata={}",
        "Prediction(\n    answer='Hi'\n)",
    ],
)
def test_a_python_repr_is_not_a_text(text: str) -> None:
    """A repr is recognised as a value, in a list and as a member; a text that only starts like one is a text."""
    assert is_repr(text)
    assert [] == read_messages(text) == read_messages({"messages": [text]}) == read_messages({"task": text})
    assert not is_repr(f"{text} is what it printed, why is that")


@pytest.mark.parametrize("text", ["Dense(units=3) or Dense(4), which one?", "x=1 y=2", "a = b", "(sic)", "Who is Ann (Lee)"])
def test_a_text_with_brackets_is_a_text(text: str) -> None:
    """People paste code into questions."""
    assert texts(text) == [("user", text)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"sunny"', "sunny"),
        ('{"sky": "clear"}', '{"sky": "clear"}'),
        ([{"type": "text", "text": "a"}, {"text": "b"}], "a\nb"),
        ([{"type": "text", "text": "a"}, {"type": "image", "data": "x" * 100, "mimeType": "image/png"}], "a\n[image]"),
        ({"content": [{"type": "text", "text": "a"}], "isError": False}, "a"),
        ({"blocks": [{"block_type": "text", "text": "a"}], "raw_output": 3, "is_error": False}, "a"),
        ('[{"text": "a"}]', "a"),
        ({"items": [1]}, '{"items":[1]}'),
    ],
)
def test_an_output_is_its_text(value: Any, text: str) -> None:
    """Content gives its texts, other values their JSON; JSON text is unchanged."""
    assert output_text(value) == text


@pytest.mark.parametrize(
    "value",
    [
        '[{"content":' * 5_000,
        json.dumps([{"role": "user", "content": "x" * LONG}]),
        [{"text": "x"}] * LONG,
        ["{" * 100] * 1_000,
    ],
    ids=["deep", "long", "wide", "broken"],
)
def test_hostile_values_are_read_within_bounds(value: Any) -> None:
    """They are read in part or not at all, without an error."""
    assert len(read_messages(value)) <= 1


def test_nested_values_are_read_to_a_limited_depth() -> None:
    """A sender can nest holders, contents and envelopes without end."""
    value: Any = {"role": "user", "content": "deep"}
    for _ in range(400):
        value = {"messages": [value]}
    content: Any = "deep"
    for _ in range(400):
        content = {"parts": [content]}
    assert read_messages(value) == []
    assert read_messages({"role": "user", "content": content})[0].text == ""


def test_flat_names_with_thousands_of_parts_use_no_stack() -> None:
    """Names are chosen by the sender."""
    assert unflatten({"p.0." + "a." * 20_000 + "z": 1, "p.0.role": "user"}, "p")[0]["role"] == "user"


def test_a_pair_of_role_and_text_is_a_message() -> None:
    """LangGraph is called with such pairs; two texts without a role are two texts."""
    assert texts({"inputs": {"messages": [["system", "Be brief."], ["human", QUESTION]]}}) == [
        ("system", "Be brief."),
        ("user", QUESTION),
    ]
    assert texts([["first", "second"]]) == [("user", "first\nsecond")]


@pytest.mark.parametrize(
    "text", ['"{where} is it?"', '"[1] says no"', '"quoted"', "[sic] or not", "{a}", "[1] says no", '{"a": 1} fails']
)
def test_a_text_in_quotes_or_brackets_is_unchanged(text: str) -> None:
    """Not everything that starts like JSON is JSON."""
    assert texts(text) == texts([{"role": "user", "content": text}]) == [("user", text)]


def test_a_pasted_json_object_stays_json() -> None:
    """A user may paste JSON as a question."""
    pasted = '{"order": 12, "note": "late"}'
    assert texts([{"role": "user", "content": pasted}]) == [("user", pasted)]
    assert pasted == exchange_of(agent(question=pasted)).user_message


MEDIA = [
    ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "[image]"),
    ({"type": "input_image", "image_url": "data:image/png;base64,eA=="}, "[image]"),
    ({"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}, "[audio]"),
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,eA=="}}, "[file]"),
    ({"type": "input_file", "file_id": "f-1"}, "[file]"),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}, "[image]"),
    ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}, "[file]"),
    ({"inline_data": {"mime_type": "video/mp4", "data": "eA=="}}, "[video]"),
    ({"fileData": {"mimeType": "audio/ogg", "fileUri": "gs://a/b"}}, "[audio]"),
    ({"type": "blob", "modality": "image", "mime_type": "image/png", "content": "eA=="}, "[image]"),
    ({"type": "uri", "modality": "video", "uri": "https://example.org/a.mp4"}, "[video]"),
    ({"type": "file", "modality": "audio", "file_id": "f-1"}, "[audio]"),
    ({"type": "file", "mediaType": "image/jpeg", "data": "eA=="}, "[image]"),
    ({"type": "image", "image": "data:image/png;base64,eA=="}, "[image]"),
    ({"image": {"format": "png", "source": {"bytes": "eA=="}}}, "[image]"),
    ({"document": {"format": "pdf", "name": "a", "source": {"bytes": "eA=="}}}, "[file]"),
    ({"media": {"contentType": "audio/mpeg", "url": "https://example.org/a.mp3"}}, "[audio]"),
]


@pytest.mark.parametrize(("block", "placeholder"), MEDIA)
def test_a_turn_without_text_has_a_placeholder(block: Json, placeholder: str) -> None:
    """Otherwise an earlier question would precede the new answer. If there is a text, only the text is the question."""
    history = [{"role": "user", "content": "What does it cost?"}, {"role": "assistant", "content": "Four euros."}]
    for name in ("content", "parts"):
        request = json.dumps([*history, {"role": "user", name: [block]}])
        assert exchange_of(agent(attributes={"gen_ai.input.messages": request})).user_message == placeholder
        request = json.dumps([*history, {"role": "user", name: [block, {"type": "text", "text": "And this?"}]}])
        assert exchange_of(agent(attributes={"gen_ai.input.messages": request})).user_message == "And this?"


def test_an_image_of_openinference_is_a_placeholder() -> None:
    """Its blocks are flat, each over several attributes."""
    start = "llm.input_messages.0.message"
    attributes = {
        "openinference.span.kind": "LLM",
        f"{start}.role": "user",
        f"{start}.contents.0.message_content.type": "image",
        f"{start}.contents.0.message_content.image.image.url": "https://example.org/a.png",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": ANSWER,
    }
    assert exchange_of(span(0, attributes=attributes)).user_message == "[image]"


def test_each_kind_of_media_is_named_once() -> None:
    """A hundred images need no longer placeholder than one."""
    blocks = [MEDIA[0][0]] * 100 + [MEDIA[2][0]]
    assert read_messages([{"role": "user", "content": blocks}])[0].text == "[image] [audio]"


def test_a_voice_transcript_is_a_text() -> None:
    """LiveKit and realtime models send a transcript beside the audio."""
    block = {"type": "audio_content", "frame": [], "transcript": QUESTION}
    assert texts([{"role": "user", "content": [block]}]) == [("user", QUESTION)]


def test_an_image_from_a_tool_is_not_a_user_turn() -> None:
    """A message in the user's role with a tool's output is not the user's."""
    carried = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}, MEDIA[5][0]]}
    request = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": [CALLS[1]]}, carried]
    assert [message.is_user_turn and message.role == "user" for message in read_messages(request)] == [True, False, False]
    assert not Message("user").is_user_turn
