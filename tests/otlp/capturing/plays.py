"""The model's part in the conversation of every program."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agents.plays import NEVER
from support.model_apis.messages import Call, Play, Step

from otlp.capturing.programs import numbers, scenario


def plays(prefix: str = "") -> dict[str, Play]:
    """What the model says to each question; `prefix` is what an SDK puts before the names of its tools."""
    towns = [Call(f"{prefix}get_weather", {"town": town}) for town in ("Bergen", "Lisbon")]
    boat = Call(f"{prefix}book_boat", {"destination": "Atlantis"})
    return {
        scenario.WEATHER: Play(
            [Step(thinking=scenario.THOUGHT, calls=towns, output_tokens=61), Step(scenario.WEATHER_ANSWER, output_tokens=17)]
        ),
        scenario.BOAT: Play([Step("Let me see.", calls=[boat], output_tokens=24), Step(scenario.BOAT_ANSWER, output_tokens=8)]),
        scenario.REFUSED: Play([Step("never", failures=NEVER, status=400)]),
    }


def of_numbers(tool_prefix: str = "", final_tool: str = "") -> dict[str, Play]:
    """What the model says to the questions of `numbers`; a framework may have the answer given by a tool, too.

    Each of the six requests reads 65 tokens, 8 of them from the cache; the two of a turn write 10 and 7.
    """
    questions = {
        question: Play([_call(Call(f"{tool_prefix}double", {"number": number})), _answer(answer, final_tool)])
        for question, number, answer in zip(numbers.QUESTIONS, numbers.NUMBERS, numbers.ANSWERS, strict=True)
    }
    # Some frameworks tell the model of a failure, but not of the call that failed, and may do so in the message with the question.
    return {numbers.ERROR: Play([_answer(numbers.ANSWERS[2], final_tool)])} | questions


def _call(call: Call) -> Step:
    return Step(calls=[call], input_tokens=65, cached_tokens=8, output_tokens=10)


def _answer(answer: str, final_tool: str) -> Step:
    calls = [Call(final_tool, {"answer": answer})] if final_tool else []
    return Step("" if calls else answer, calls=calls, input_tokens=65, cached_tokens=8, output_tokens=7)


def of_dspy() -> dict[str, Play]:
    """What the model says to the prompts of DSPy's ReAct, each of which is one message with all of the turn so far."""
    turns = list(zip(numbers.QUESTIONS, numbers.NUMBERS, _OBSERVATIONS, numbers.ANSWERS, strict=True))
    answers = {
        f"{seen}\n\n[[ ## thought_1 ## ]]": _fields(7, reasoning="It is done.", answer=said) for _, _, seen, said in turns
    }
    ends = {seen: _fields(10, **_action("finish", {})) for _, _, seen, _ in turns}
    calls = {question: _fields(10, **_action("double", {"number": number})) for question, number, _, _ in turns}
    return {text: Play([step]) for text, step in (answers | ends | calls).items()}


_OBSERVATIONS = ("12 doubled is 24", "30 doubled is 60", numbers.ERROR)


def _action(tool: str, arguments: Mapping[str, int]) -> dict[str, str]:
    return {"next_thought": "On.", "next_tool_name": tool, "next_tool_args": json.dumps(arguments)}


def _fields(output_tokens: int, **fields: str) -> Step:
    text = "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in fields.items())
    return Step(f"{text}[[ ## completed ## ]]", input_tokens=65, cached_tokens=8, output_tokens=output_tokens)
