"""Requests to the Messages API: parameters of a call, the answer's format, and how an answer is sent back for repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json

_TOKEN_CHARACTERS = 4
"""Characters of English that make a token, about; decides only whether the cache is worth asking for."""
_MAX_PROBLEMS = 1000
"""Bytes of what is wrong with an answer."""
_CUT = " […]"


class Rung(Enum):
    """The ways to ask for the format of the answer, the most reliable first."""

    STRUCTURED = "structured output"
    IN_PROMPT = "schema in the prompt"


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that could not be used, and why; the judge may give another one."""

    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """The way to ask one model."""

    rung: Rung = Rung.STRUCTURED
    cache_minimum: int | None = None
    """Tokens of the shortest prefix that the model caches; None is unknown."""
    switch_off_thinking: bool = False


def parameters(question: Question, form: Format, boundary: str, repair: Repair | None = None) -> dict[str, Any]:
    """Parameters of `messages.create`: stable instructions first, so that they can be cached, then what is to be judged."""
    system: dict[str, Any] = {"type": "text", "text": _sendable(question.instructions)}
    if form.cache_minimum is None or len(question.instructions) // _TOKEN_CHARACTERS >= form.cache_minimum:
        system["cache_control"] = {"type": "ephemeral"}
    asked: dict[str, Any] = {
        "model": question.model,
        "max_tokens": question.max_tokens,
        "system": [system],
        "messages": _turns(question, form.rung, boundary, repair),
    }
    if form.rung is Rung.STRUCTURED:
        asked["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
    if form.switch_off_thinking:
        asked["thinking"] = {"type": "disabled"}
    return asked


def _turns(question: Question, rung: Rung, boundary: str, repair: Repair | None) -> list[dict[str, str]]:
    content = question.content(boundary)
    if rung is Rung.IN_PROMPT and not question.verbatim:
        schema = canonical_json(question.schema)
        content = f"{content}\n\nAnswer with one JSON object that keeps this JSON schema, and with nothing else:\n{schema}"
    turns = [("user", content)]
    if repair is not None:
        problems, text = _fitted(question, repair)
        request = f"That answer cannot be used:\n{problems}\nDo the task again. Answer with one complete JSON object and nothing else."
        turns += [("assistant", text), ("user", request)]
    return [{"role": role, "content": _sendable(text)} for role, text in turns]


def _fitted(question: Question, repair: Repair) -> tuple[str, str]:
    """Return the problems and the answer itself, cut to the room in the reservation of the call.

    A reservation counts a token for each byte. Instructions, task and schema are words, which take less than half of that: the
    other half pays for the repair.
    """
    own = (question.instructions, question.task, canonical_json(question.schema))
    room = sum(len(text.encode("utf-8", "surrogatepass")) for text in own) // 2
    problems = _cut("\n".join(f"- {problem}" for problem in repair.problems), min(_MAX_PROBLEMS, room // 2))
    return problems, _cut(repair.text.strip(), room - len(problems.encode("utf-8", "surrogatepass")))


def _cut(text: str, size: int) -> str:
    """The text in at most `size` bytes, and the mark of the cut where something is missing."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= size else data[: max(size, 0)].decode("utf-8", "ignore") + _CUT


def _sendable(text: str) -> str:
    """The text with what no UTF-8 can say (half a surrogate pair) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
