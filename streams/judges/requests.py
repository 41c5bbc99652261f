"""Requests to the Messages API: parameters of a call, the answer's format, repair of an answer, and the most tokens a prompt can have.

Prompts are counted by the API with a margin, otherwise one token per byte:

1. Instructions, schema and settings are the same for thousands of questions: the API counts them once (`POST /v1/messages/count_tokens`,
   which is free). Everything else in the prompt counts a token for each byte, which no text exceeds.
2. If a call would not fit under the cap by that, the API counts the whole prompt.
3. A server that does not count is asked again after an hour, one that is in trouble after a minute; until then each byte counts.
4. A count that cannot be true is ignored, and once a call has used more than was counted, so are all counts for that model.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic

from audit.cost import BYTES_A_TOKEN, OVERHEAD_TOKENS, PromptBound
from audit.exchanges.questions import Question, byte_tokens
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


COUNT_SECONDS = 10.0
"""Seconds to wait for a count."""
MARGIN, MARGIN_SHARE = 64, 20
"""A call may have so many tokens more than were counted, and one for so many: the API calls its count an estimate."""
_IN_TROUBLE, _UNABLE = 60.0, 3600.0
"""Seconds until a server is asked again that failed, or that does not count."""
_MAX_HEADS = 1000
_TROUBLE = frozenset([408, 409, 429])
_SERVERS_FAULT = 500
_log = logging.getLogger(__name__)


class PromptBounds:
    """See the module. Belongs to one event loop; `now` is a monotonic clock, in seconds."""

    def __init__(self, client: AsyncAnthropic, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._heads: dict[bytes, int] = {}
        self._again_at: dict[str, float] = {}
        self._counting = asyncio.Lock()

    async def bounds(self, question: Question, asked: Mapping[str, Any]) -> AsyncGenerator[PromptBound]:
        """Bounds of the prompt of a request (see `streams.judges.requests.parameters`), each nearer than the one before."""
        marked = any("cache_control" in block for block in asked["system"])
        by_bytes = question.texts_size + OVERHEAD_TOKENS
        head = await self._head(asked)
        said = sum(byte_tokens(turn["content"]) for turn in asked["messages"])
        most = by_bytes if head is None else min(by_bytes, head + said)
        # A server that does not count may cache as it likes; the API writes nothing that is not marked.
        written = most if head is None else min(most, head) * marked
        yield PromptBound(most, written)
        whole = None if head is None else await self._count(asked)
        if whole is not None and whole < most:
            yield PromptBound(whole, min(written, whole))

    def distrust(self, model: str) -> None:
        """A call had more tokens than were counted: no count of this model is believed any more."""
        if self._again_at.get(model) != math.inf:
            _log.error("%s used more tokens than the API counted: from now on each byte counts as one", model)
        self._again_at[model] = math.inf

    async def _head(self, asked: Mapping[str, Any]) -> int | None:
        """Tokens at most of all but what is said; None where they are not counted."""
        if self._again_at.get(asked["model"]) == math.inf:
            return None
        alone = {name: value for name, value in asked.items() if name not in {"messages", "max_tokens"}}
        key = hashlib.sha256(canonical_json(alone).encode("utf-8", "surrogatepass")).digest()
        if key not in self._heads:
            async with self._counting:
                await self._count_head(key, alone)
        return self._heads.get(key)

    async def _count_head(self, key: bytes, alone: Mapping[str, Any]) -> None:
        if key in self._heads:
            return  # by whoever had its turn before
        tokens = await self._count(dict(alone) | {"messages": [{"role": "user", "content": "."}]})
        if tokens is not None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[key] = tokens

    async def _count(self, asked: Mapping[str, Any]) -> int | None:
        """Tokens at most of a request, by the API's count; None where there is none to be believed."""
        model = asked["model"]
        if self._now() < self._again_at.get(model, -math.inf):
            return None
        request: dict[str, Any] = {name: value for name, value in asked.items() if name != "max_tokens"}
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                tokens = (await self._client.messages.count_tokens(**request)).input_tokens
        except Exception as error:  # noqa: BLE001 - whatever the client trips over: without a count each byte counts
            self._failed(model, error)
            return None
        instructions = sum(len(block["text"].encode()) for block in asked["system"])
        if type(tokens) is not int or tokens < instructions // BYTES_A_TOKEN:
            self._failed(model, ValueError(f"{tokens!r} tokens for {instructions} bytes of instructions"))
            return None
        return tokens + tokens // MARGIN_SHARE + MARGIN

    def _failed(self, model: str, error: Exception) -> None:
        status = error.status_code if isinstance(error, APIStatusError) else 0
        passes = isinstance(error, APIConnectionError | TimeoutError) or status in _TROUBLE or status >= _SERVERS_FAULT
        self._again_at[model] = self._now() + (_IN_TROUBLE if passes else _UNABLE)
        _log.info("%s: tokens are not counted, so each byte counts as one: %s", model, type(error).__name__)
