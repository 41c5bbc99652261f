"""What the live judge needs of a model's API: the request that each API encodes, the message that each returns, and the calls.

A request has the stable instructions first, so that they can be cached, then the texts to judge. A repair request also has the previous
answer and its problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from streams.judges.failures import Failure, one_line
from streams.judges.protocol import SIMULATED_HEADER, SIMULATED_MODEL, ModelTraits

_TOKEN_CHARACTERS = 4
"""Approximate characters per token of English; used only to decide whether caching is worthwhile."""
_MAX_PROBLEMS_BYTES = 1000
"""Maximum size of the list of problems in a repair request."""
_TRUNCATION_MARK = " […]"
_MAX_NAME_LENGTH = 128
"""Characters of a model's name or a stop reason that are kept."""
_MAX_TOKENS = 2**31
"""A token count of this size or more is invalid."""


class OutputMode(Enum):
    """The way in which a request asks for JSON, most reliable first."""

    STRUCTURED = "structured output"
    IN_PROMPT = "schema in the prompt"


@dataclass(frozen=True, slots=True)
class Repair:
    """An unusable answer and its problems, which the judge is asked to correct."""

    text: str
    problems: tuple[str, ...]


class Turn(NamedTuple):
    """A message of the conversation with the model."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """A request to a model, in the terms of no particular API."""

    model: str
    max_tokens: int
    instructions: str
    turns: tuple[Turn, ...]
    schema: Mapping[str, Any] | None
    """The JSON schema of structured output; None if the prompt has it."""
    marks_cache: bool
    """True if the instructions are to be cached, where an API caches on request."""
    traits: ModelTraits


def build_request(
    question: Question,
    traits: ModelTraits,
    boundary: str,
    repair: Repair | None = None,
    *,
    output_mode: OutputMode = OutputMode.STRUCTURED,
) -> JudgeRequest:
    """Return the request that asks a question. `boundary` is drawn for each request; see `Question.content`."""
    minimum = traits.cache_minimum
    return JudgeRequest(
        model=traits.model or question.model,
        max_tokens=question.max_tokens,
        instructions=_replace_surrogates(question.instructions),
        turns=_build_turns(question, output_mode, boundary, repair),
        schema=question.schema if output_mode is OutputMode.STRUCTURED else None,
        marks_cache=minimum is None or len(question.instructions) // _TOKEN_CHARACTERS >= minimum,
        traits=traits,
    )


def _build_turns(question: Question, output_mode: OutputMode, boundary: str, repair: Repair | None) -> tuple[Turn, ...]:
    content = question.content(boundary)
    if output_mode is OutputMode.IN_PROMPT and not question.verbatim:
        schema = canonical_json(question.schema)
        content = f"{content}\n\nAnswer with one JSON object that keeps this JSON schema, and with nothing else:\n{schema}"
    turns = [Turn("user", _replace_surrogates(content))]
    if repair is not None:
        problems, text = _fit_repair(question, repair)
        request = f"That answer cannot be used:\n{problems}\nDo the task again. Answer with one complete JSON object and nothing else."
        turns += [Turn("assistant", _replace_surrogates(text)), Turn("user", _replace_surrogates(request))]
    return tuple(turns)


def _fit_repair(question: Question, repair: Repair) -> tuple[str, str]:
    """Return the problems and the answer of a repair, truncated so that the request stays within the call's reservation.

    A reservation counts one token per byte. The trusted texts (instructions, task and schema) need at most half of the tokens that are
    reserved for them, so the other half pays for the repair.
    """
    trusted_texts = (question.instructions, question.task, canonical_json(question.schema))
    max_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in trusted_texts) // 2
    problem_list = "\n".join(f"- {problem}" for problem in repair.problems)
    problems = _truncate(problem_list, min(_MAX_PROBLEMS_BYTES, max_bytes // 2))
    return problems, _truncate(repair.text.strip(), max_bytes - len(problems.encode("utf-8", "surrogatepass")))


def _truncate(text: str, max_bytes: int) -> str:
    """Return the first `max_bytes` bytes of the text, with a mark if that is not all of it."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= max_bytes else data[: max(max_bytes, 0)].decode("utf-8", "ignore") + _TRUNCATION_MARK


def _replace_surrogates(text: str) -> str:
    """Replace the characters that UTF-8 cannot encode (lone surrogates)."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Message:
    """The judge's answer to one call. Stop reasons are those of the Messages API, whichever API answered."""

    text: str | None
    """All parts of the text, joined, because some servers split an answer; None without any text. Thinking is left out. The input of a
    tool call counts as text, because some servers implement structured output with a tool."""
    model: str | None
    stop_reason: str | None
    usage: Usage | None
    """None if it is missing or invalid."""


class RawResponse(NamedTuple):
    """A successful response before it is read."""

    headers: Mapping[str, str]
    content: bytes


class ModelApi(Protocol):
    """An API of a model. Belongs to one event loop."""

    base_url: str
    caches_unmarked: bool
    """True if any part of a prompt may be cached; False if only marked instructions are."""

    async def call(self, request: JudgeRequest, max_tokens: int) -> RawResponse:
        """Ask the model. Raises the errors of the API's client."""
        ...

    async def count_tokens(self, request: JudgeRequest) -> int | None:
        """Return the tokens of a request's prompt as the API counts them; None if it cannot. Raises the errors of the API's client."""
        ...

    def read(self, content: bytes) -> Message | Failure:
        """Return the message in a response, or a failure if it cannot be read. That call was billed, so it is not retried."""
        ...

    def classify(self, error: Exception, wall: Callable[[], float]) -> Failure:
        """Return the failure for an error of the client."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def is_simulated(headers: Mapping[str, str], model: str | None = None) -> bool:
    """Return whether a simulated judge answered: it identifies itself by a header and by its model name."""
    return headers.get(SIMULATED_HEADER) == "1" or model == SIMULATED_MODEL


def clean_name(text: str | None) -> str | None:
    """Return the name of a model or a stop reason in a form that is safe to store."""
    return None if text is None else one_line(text)[:_MAX_NAME_LENGTH]


def usage_of(*counts: Any) -> Usage | None:
    """Return the usage of a call from its counts, in the order of `Usage`; None if one is invalid."""
    valid_counts = [count for count in counts if type(count) is int and 0 <= count < _MAX_TOKENS]
    return Usage(*valid_counts) if len(valid_counts) == len(counts) else None
