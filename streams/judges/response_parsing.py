"""Responses with status 200, read from their bytes: servers also answer with HTML, half a document or another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from audit.cost.prices import Usage
from streams.judges.failures import Failure, one_line, unreadable
from streams.judges.protocol import SIMULATED_HEADER, SIMULATED_MODEL

MAX_NAME = 128
"""Characters of a model's name or a stop reason that are kept."""
_MAX_TOKENS = 2**31
"""Beyond this a number of tokens is no number of tokens."""


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    content: list[_Block]
    model: str | None = None
    stop_reason: str | None = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class Message:
    """The judge's answer to one call."""

    text: str | None
    """All blocks of text, joined: servers split an answer, or put an empty block or a remark before it. Thinking is left out, and the
    input of a tool call is text, as servers send it that imitate structured output with a tool. None when there is none of these."""
    model: str | None
    stop_reason: str | None
    usage: Usage | None
    """None when it is missing or cannot be."""


_DECODER = msgspec.json.Decoder(_Body)


def read_message(content: bytes) -> Message | Failure:
    """The message in a response's body. One that cannot be read was paid for all the same, and is not asked for again."""
    try:
        body = _DECODER.decode(content)
        blocks = [_text_of(block) for block in body.content]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    texts = [text for text in blocks if text is not None]
    return Message("".join(texts) if texts else None, _name(body.model), _name(body.stop_reason), _usage(body.usage))


def _text_of(block: _Block) -> str | None:
    if block.type == "tool_use":
        return bytes(block.input).decode() or None
    return block.text if block.type == "text" else None


def is_simulated(headers: Mapping[str, str], model: str | None = None) -> bool:
    """Tell whether a simulated judge answered; it says so in a header and by its model."""
    return headers.get(SIMULATED_HEADER) == "1" or model == SIMULATED_MODEL


def _name(text: str | None) -> str | None:
    return None if text is None else one_line(text)[:MAX_NAME]


def _usage(value: Any) -> Usage | None:
    """The tokens; the cache's may be missing or null, the others may not."""
    if not isinstance(value, dict):
        return None
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    said = [value.get(name) for name in names[:2]] + [value.get(name) or 0 for name in names[2:]]
    counts = [count for count in said if type(count) is int and 0 <= count < _MAX_TOKENS]
    return Usage(*counts) if len(counts) == len(names) else None
