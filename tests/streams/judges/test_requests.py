"""Verbatim questions: the recorded bytes are the sent bytes, in every output format and in a repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.evaluation_builders import make_request

from audit.cost import OVERHEAD_TOKENS
from audit.evaluation.evaluating import questions_of
from audit.exchanges.questions import Question
from streams.judges.messages_api import message_parameters
from streams.judges.model_api import OutputMode, Repair, build_request
from streams.judges.protocol import ModelTraits

BROKEN = Repair('{"overall": 7}', ("the field dimensions is missing",))
VIEW = '{"evaluation_target":{"a":"ä\\u003c"},"subject_response":{},"execution_evidence":{}}'


def question(**fields: Any) -> Question:
    """Return the first question of a request."""
    return questions_of(make_request(**fields))[0]


@pytest.mark.parametrize("output_mode", OutputMode)
@pytest.mark.parametrize("repair", [None, BROKEN])
def test_a_verbatim_question_is_sent_byte_for_byte(output_mode: OutputMode, repair: Repair | None) -> None:
    """The prompt files show exactly what was sent, so nothing may be added."""
    request = message_parameters(
        build_request(
            question(user_prompt=VIEW, system_prompt="Judge."), ModelTraits(), "boundary", repair, output_mode=output_mode
        )
    )
    assert request["messages"][0] == {"role": "user", "content": VIEW}
    assert request["system"][0]["text"] == "Judge."
    assert ("output_config" in request) == (output_mode is OutputMode.STRUCTURED)


def test_a_repair_follows_the_unchanged_message() -> None:
    """The problems are sent in separate turns."""
    turns = message_parameters(build_request(question(), ModelTraits(), "boundary", BROKEN))["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == BROKEN.text
    assert "- the field dimensions is missing" in turns[2]["content"]


@given(answer=st.text(min_size=1, max_size=3_000), problems=st.lists(st.text(max_size=200), min_size=1, max_size=12))
def test_a_verbatim_question_and_its_repair_stay_within_the_reservation(answer: str, problems: list[str]) -> None:
    """The worst case counts one token per byte of system prompt, message and schema; half of our own text pays for a repair."""
    verbatim = question(system_prompt="Judge the run. " * 200)
    turns = message_parameters(
        build_request(verbatim, ModelTraits(), "b", Repair(answer, tuple(problems)), output_mode=OutputMode.IN_PROMPT)
    )["messages"]
    answer_json = sum(len(turn["content"].encode()) for turn in turns[1:])
    added_bytes = verbatim.texts_size - len(verbatim.content("b").encode())
    assert answer_json <= added_bytes // 2 + 200
    assert len(verbatim.instructions.encode()) + len(turns[0]["content"].encode()) < verbatim.texts_size + OVERHEAD_TOKENS


def test_any_other_question_has_fences_and_a_schema(build_question: Callable[..., Question]) -> None:
    """Only questions marked as verbatim are sent that way."""
    built = build_question()
    plain = message_parameters(build_request(built, ModelTraits(), "b0", output_mode=OutputMode.IN_PROMPT))["messages"][0][
        "content"
    ]
    assert plain.startswith("<agent_response b0>")
    assert "keeps this JSON schema" in plain
    verbatim = message_parameters(
        build_request(replace(built, verbatim=True), ModelTraits(), "b0", output_mode=OutputMode.IN_PROMPT)
    )["messages"][0]["content"]
    assert built.materials[0].literal == verbatim
