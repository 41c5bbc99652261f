"""Messages in the form of OpenTelemetry's conventions: what reads them by their schema says what the general rules say."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.messages import messages_of
from streams.sources.otlp.part_messages import messages_of_parts

TEXT = st.sampled_from(["", "a", " b ", "é\n", '{"a": 1}', "[1"])
VALUE = st.one_of(TEXT, st.none(), st.integers(), st.dictionaries(TEXT, TEXT, max_size=2), st.lists(TEXT, max_size=2))
KIND = st.sampled_from(["text", "reasoning", "tool_call", "tool_call_response", "compaction", "blob"])
PART = st.fixed_dictionaries(
    {"type": KIND}, optional={"content": VALUE, "id": VALUE, "name": TEXT, "arguments": VALUE, "response": VALUE, "text": TEXT}
)
ROLE = st.sampled_from(["user", "assistant", "system", "tool", "developer", "User", "other"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE, "parts": st.lists(PART, max_size=3)}, optional={"finish_reason": st.one_of(TEXT, st.none()), "content": TEXT}
)


@settings(max_examples=examples(400))
@given(st.lists(MESSAGE, max_size=3), st.sampled_from(["user", "assistant"]))
def test_both_readers_say_the_same(messages: list[dict[str, Any]], role: str) -> None:
    """Which of them reads a text depends on its fields alone, and nobody may see which one it was."""
    text = json.dumps(messages)
    known = messages_of_parts(text)
    assert known is None or known == messages_of(parsed(text).value, role)


def test_the_form_of_the_conventions_is_read_by_its_schema() -> None:
    """Else every span would take three times as long, and nothing would tell."""
    part = {"type": "tool_call", "id": "c", "name": "run", "arguments": {"a": 1}}
    assert messages_of_parts(json.dumps([{"role": "assistant", "parts": [part], "finish_reason": "stop"}]))


def test_anything_else_is_left_to_the_general_rules() -> None:
    """A text that is cut, of other fields or no JSON has rules of its own."""
    for text in ('[{"role": "user", "parts": [', '[{"role": "user", "content": "a"}]', "hello", '[{"role": 1, "parts": []}]'):
        assert messages_of_parts(text) is None
