"""Masking: passages of an exchange that may address the judge are removed, and the exchange is judged once more without them.

1. A passage is what the rules recognize (`audit.injection`) or what the judge quotes. It reaches from the start of its sentence to the
   end of its line, because an attempt goes on after the words by which it is recognized. Passages that are close together are one.
2. In a masked exchange the rules recognize nothing. If they still do, because an attempt is encoded or spread out, the whole text is
   removed.
3. Tool calls and earlier turns are shown as context only. What the rules recognize in them is in no question at all.
4. The positions are recorded with the judgement, so the masked question can be built again from the exchange and the judgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from audit.answers import find_quote
from audit.injection import Span, find_attempts, may_hold_attempt, merge_spans
from schemas.records import EarlierTurn, Exchange, MaskedPassage, ToolCall

TEXTS = {"user_message": "user message", "agent_thinking": "thinking", "agent_response": "response"}
"""The texts of an exchange that a judge reads, and how the rules name their source."""
_CONTEXT_FIELDS = ("arguments", "result", "user_message", "agent_response")
"""The texts of tool calls and earlier turns."""
RecordT = TypeVar("RecordT", ToolCall, EarlierTurn)
_SENTENCE_ENDS = (". ", "! ", "? ", "\u3002", "\uff01", "\uff1f")
_MAX_GAP = 300
"""Most characters between two passages that are removed as one."""
_MAX_REPETITIONS = 20
"""Most occurrences of a quote that are removed one by one."""


def mask(
    exchange: Exchange, earlier_turns: Sequence[EarlierTurn], passages: Sequence[MaskedPassage]
) -> tuple[Exchange, Sequence[EarlierTurn]]:
    """Return the exchange and the turns before it without these passages; a mark with its length replaces each.

    The passages of a text are in their order.
    """
    if not passages:
        return exchange, earlier_turns
    masked = {name: _mask_text(name, text, passages) for name, text in _list_texts(exchange, earlier_turns)}
    calls = tuple(_replace_texts(call, f"tool_calls.{index}", masked) for index, call in enumerate(exchange.tool_calls))
    turns = [_replace_texts(turn, f"earlier_turns.{index}", masked) for index, turn in enumerate(earlier_turns)]
    return replace(exchange, tool_calls=calls, **{name: masked[name] for name in TEXTS if name in masked}), turns


def _replace_texts(record: RecordT, path: str, masked: Mapping[str, str]) -> RecordT:
    texts = {field: masked[f"{path}.{field}"] for field in _CONTEXT_FIELDS if f"{path}.{field}" in masked}
    return replace(record, **texts)


def clean_context(exchange: Exchange, earlier_turns: Sequence[EarlierTurn]) -> tuple[Exchange, Sequence[EarlierTurn]]:
    """Return the exchange and the turns before it, without the attempts that the rules recognize in tool calls and turns.

    The context is not judged, so no question ever shows them, and no second judgement is needed.
    """
    context = list(_list_context(exchange, earlier_turns))
    if not context or not may_hold_attempt("\n".join(text for _, text in context)):
        return exchange, earlier_turns
    passages = [passage for name, text in context for passage in _find_passages(name, text, ())]
    return mask(exchange, earlier_turns, passages)


def _list_texts(exchange: Exchange, earlier_turns: Sequence[EarlierTurn]) -> Iterator[tuple[str, str]]:
    """Yield every text of a question by its name, such as `agent_response` or `tool_calls.0.result`."""
    yield from ((name, text) for name in TEXTS if (text := getattr(exchange, name)))
    yield from _list_context(exchange, earlier_turns)


def _list_context(exchange: Exchange, earlier_turns: Sequence[EarlierTurn]) -> Iterator[tuple[str, str]]:
    for path, records in (("tool_calls", exchange.tool_calls), ("earlier_turns", earlier_turns)):
        for index, record in enumerate(records):
            for field in _CONTEXT_FIELDS:
                if text := getattr(record, field, None):
                    yield f"{path}.{index}.{field}", text


def _mask_text(name: str, text: str, passages: Iterable[MaskedPassage], mark: str = "[PASSAGE REMOVED: {} characters]") -> str:
    parts = []
    position = 0
    for passage in passages:
        if passage.text == name:
            parts += [text[position : passage.start], mark.format(passage.end - passage.start)]
            position = passage.end
    return "".join([*parts, text[position:]])


def leaves_nothing(text: str, name: str, passages: Iterable[MaskedPassage]) -> bool:
    """Return whether the passages leave neither a letter nor a digit of a text that has some."""
    rest = _mask_text(name, text, passages, mark="")
    return rest != text and not any(map(str.isalnum, rest))


def find_passages(
    exchange: Exchange, earlier_turns: Sequence[EarlierTurn] = (), quotes: Sequence[str] = ()
) -> tuple[MaskedPassage, ...]:
    """Return the passages that the rules recognize and those that the judge quotes, in order of the texts and without overlap."""
    texts = _list_texts(*clean_context(exchange, earlier_turns))
    return tuple(passage for name, text in texts for passage in _find_passages(name, text, quotes))


def _find_passages(name: str, text: str, quotes: Sequence[str]) -> list[MaskedPassage]:
    source = TEXTS.get(name, "response")
    recognized = find_attempts(text, source)
    spans = (*recognized, *(span for quote in quotes for span in _find_quotes(quote, text)))
    extended = merge_spans((_extend(span, text) for span in spans), _MAX_GAP)
    passages = [MaskedPassage(text=name, start=start, end=end) for start, end in extended]
    if recognized and find_attempts(_mask_text(name, text, passages), source):
        return [MaskedPassage(text=name, start=0, end=len(text))]
    return passages


def _find_quotes(quote: str, text: str) -> Iterator[Span]:
    start = 0
    for _ in range(_MAX_REPETITIONS if quote else 0):
        span = find_quote(quote, text, start)
        if span is None:
            return
        yield span
        start = span[1]


def _extend(span: Span, text: str) -> Span:
    """Extend a span back to the start of its sentence and on to the end of its line."""
    start, end = span
    line_start = text.rfind("\n", 0, start) + 1
    sentence_starts = [
        text.rfind(mark, line_start, start) + len(mark) for mark in _SENTENCE_ENDS if mark in text[line_start:start]
    ]
    line_end = text.find("\n", end - 1)  # the span may end with its line break
    return max(sentence_starts, default=line_start), len(text) if line_end < 0 else line_end
