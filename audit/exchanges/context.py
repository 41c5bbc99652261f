"""The context of an exchange: the tool calls of its turn, and the turns before it, within bounds.

1. A source passes every tool call of a turn to `bound_calls`. Texts are cut to `MAX_TOOL_TEXT_BYTES`, and of many calls
   `MAX_TOOL_CALLS` are kept: those in trouble first, then the newest. The exchange has the number of the others.
2. A call is in trouble if it failed, if it has no answer, or if the turn has it `REPEATED` times with the same arguments.
3. The state of a session keeps excerpts of its last turns (`remember`, `turns_before`), and the task of an exchange has those before it.
4. `context_texts` writes both for the judge within `maxTokens` of the policy, counted as `BYTES_PER_TOKEN` bytes each, marks and
   sentences about cuts included. All texts are cut to the same length, the longest that fits. If none fits, calls and then turns are
   left out, and the judge is told how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from audit.exchanges.questions import Material, byte_tokens
from audit.policy import Context
from audit.prompt_quoting import literal
from schemas.bounds import MAX_ID, MAX_TOOL_CALLS, MAX_TOOL_TEXT_BYTES, TOOL_OUTCOMES
from schemas.records import EarlierTurn, Exchange, ToolCall

OK, ERROR, UNANSWERED = TOOL_OUTCOMES
REPEATED = 3
"""Calls of a tool with the same arguments from which they are in trouble; the detector of loops begins there, too."""
BYTES_PER_TOKEN = 3
"""Bytes that count as one token of the budget: fewer than in English, about as many as in JSON and code."""
MAX_TURN_TEXT_BYTES = 4_000
"""Maximum bytes of a text of an earlier turn in a session's state."""
MAX_STATE_BYTES = 64_000
"""Maximum bytes of the texts of earlier turns in a session's state."""
_LENGTHS = (2_400, 1_600, 1_000, 600, 400, 250, 150, 80)
"""Lengths to which the texts are cut, in characters; the first that fits the budget is used."""
_MARKS_BYTES = 100
"""Maximum bytes of the marks around a material."""
_OMISSION_BYTES = 48
"""Maximum bytes of the mark of an omission."""


class _Call(Protocol):
    """A tool call, as its source has it or in an exchange."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> str | None: ...

    @property
    def outcome(self) -> str: ...


CallT = TypeVar("CallT", bound=_Call)


class ContextText(NamedTuple):
    """A part of the context as the judge sees it, and a sentence about what was left out of it, which may be empty.

    There is no material if nothing of it fits the budget.
    """

    material: Material | None
    omission: str


class RememberedTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn in the state of its session."""

    exchange_id: str
    turn: EarlierTurn


def excerpt(text: str, max_bytes: int) -> str:
    """Return the head and the tail of a text, at most this many bytes; a short text is returned unchanged."""
    if len(text) * 4 <= max_bytes:  # UTF-8 takes at most four bytes per character
        return text
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    room = max_bytes - _OMISSION_BYTES
    tail_size = room // 3
    head = encoded[: room - tail_size].decode("utf-8", "ignore")
    tail = encoded[len(encoded) - tail_size :].decode("utf-8", "ignore")
    return f"{head} [… {len(text) - len(head) - len(tail)} characters left out …] {tail}"


def tool_call(name: str, arguments: str | None, result: str | None, outcome: str) -> ToolCall:
    """Return a tool call with a valid name and excerpts of its texts, which have no secrets any more."""
    printable = "".join(character if character.isprintable() else " " for character in name).strip()
    return ToolCall(
        name=printable[:MAX_ID] or "unnamed",
        arguments=None if arguments is None else excerpt(arguments, MAX_TOOL_TEXT_BYTES),
        result=None if result is None else excerpt(result, MAX_TOOL_TEXT_BYTES),
        outcome=outcome,
    )


def bound_calls(calls: Sequence[CallT]) -> tuple[tuple[CallT, ...], int]:
    """Return the calls that an exchange keeps, in order, and the number of the others."""
    kept = _select_calls(calls, MAX_TOOL_CALLS)
    return kept, len(calls) - len(kept)


def has_trouble(calls: Sequence[ToolCall]) -> bool:
    """Return whether a call of a turn is in trouble; see rule 2 of the module."""
    return bool(_find_troubled(calls))


def _find_troubled(calls: Sequence[_Call]) -> set[int]:
    # Calls whose arguments are not recorded may differ.
    counts = Counter[tuple[str, str | None]]((call.name, call.arguments) for call in calls if call.arguments is not None)
    return {index for index, call in enumerate(calls) if call.outcome != OK or counts[call.name, call.arguments] >= REPEATED}


def _select_calls(calls: Sequence[CallT], count: int) -> tuple[CallT, ...]:
    """Return at most `count` calls in their order: those in trouble first, then the newest."""
    if len(calls) <= count:
        return tuple(calls)
    troubled = _find_troubled(calls)
    by_importance = sorted(range(len(calls)), key=lambda index: (index in troubled, index), reverse=True)
    return tuple(calls[index] for index in sorted(by_importance[:count]))


def remember(
    turns: Sequence[RememberedTurn], exchange: Exchange, turn_number: int, *, kept: int, settings: Context
) -> tuple[RememberedTurn, ...]:
    """Return the remembered turns of a session with those of another exchange; at most `kept`, in the order of their numbers."""
    if not settings.turns:
        return ()
    newest = [*turns, _remember_turn(exchange, turn_number, settings)]
    newest.sort(key=lambda remembered: remembered.turn.turn_number)  # turns come in their order, but for odd sources
    del newest[:-kept]
    while sum(map(_count_bytes, newest)) > MAX_STATE_BYTES:
        del newest[0]
    return tuple(newest)


def replace_turn(turns: Sequence[RememberedTurn], exchange: Exchange, settings: Context) -> tuple[RememberedTurn, ...]:
    """Return the remembered turns of a session after a revision of an exchange."""
    return tuple(
        _remember_turn(exchange, old.turn.turn_number, settings) if old.exchange_id == exchange.exchange_id else old
        for old in turns
    )


def _remember_turn(exchange: Exchange, turn_number: int, settings: Context) -> RememberedTurn:
    max_bytes = min(MAX_TURN_TEXT_BYTES, settings.max_tokens * BYTES_PER_TOKEN // 2)
    turn = EarlierTurn(
        turn_number=turn_number,
        user_message=excerpt(exchange.user_message, max_bytes),
        agent_response=excerpt(exchange.agent_response, max_bytes),
    )
    return RememberedTurn(exchange.exchange_id, turn)


def _count_bytes(remembered: RememberedTurn) -> int:
    return len(remembered.turn.user_message.encode()) + len(remembered.turn.agent_response.encode())


def turns_before(turns: Sequence[RememberedTurn], exchange_id: str, count: int) -> tuple[EarlierTurn, ...]:
    """Return the `count` remembered turns before an exchange; empty if it is not remembered itself."""
    index = next((index for index, remembered in enumerate(turns) if remembered.exchange_id == exchange_id), 0)
    return tuple(remembered.turn for remembered in turns[max(0, index - count) : index])


def context_texts(
    exchange: Exchange, earlier_turns: Sequence[EarlierTurn], settings: Context
) -> tuple[ContextText | None, ContextText | None]:
    """Return the earlier turns and the tool calls as the judge sees them; None for what does not exist or is switched off."""
    turns = list(earlier_turns[-settings.turns :]) if settings.turns else []
    calls = exchange.tool_calls if settings.tool_calls else ()
    if not turns and not calls:
        return None, None
    budget = settings.max_tokens * BYTES_PER_TOKEN
    for length in _LENGTHS:
        texts = _write_turns(turns, 0, length), _write_calls(calls, exchange.omitted_tool_calls, length)
        if _size(texts) <= budget:
            return texts
    shown_calls, left_out_turns = calls, 0
    while turns or shown_calls:
        if len(shown_calls) > 1 or not turns:
            shown_calls = _select_calls(shown_calls, len(shown_calls) - 1)
        else:
            del turns[0]
            left_out_turns += 1
        left_out_calls = exchange.omitted_tool_calls + len(calls) - len(shown_calls)
        texts = _write_turns(turns, left_out_turns, _LENGTHS[-1]), _write_calls(shown_calls, left_out_calls, _LENGTHS[-1])
        if _size(texts) <= budget:
            break
    return texts


def _size(texts: Sequence[ContextText | None]) -> int:
    """Return an upper bound of the bytes that the texts add to a prompt."""
    return sum(
        len(text.omission) + (0 if text.material is None else _MARKS_BYTES + byte_tokens(text.material.literal))
        for text in texts
        if text is not None
    )


def _write_turns(turns: Sequence[EarlierTurn], left_out: int, length: int) -> ContextText | None:
    if not turns and not left_out:
        return None
    items = [
        {
            "turn": f"{turn.turn_number}",
            "user_message": literal(turn.user_message, length).text,
            "agent_response": literal(turn.agent_response, length).text,
        }
        for turn in turns
    ]
    omission = f"earlier_turns: {left_out} of {len(turns) + left_out} turns are left out." if left_out else ""
    return ContextText(_write_array("earlier_turns", items), omission)


def _write_calls(calls: Sequence[ToolCall], left_out: int, length: int) -> ContextText | None:
    if not calls and not left_out:
        return None
    items = [
        {
            "tool": literal(call.name, length).text,
            "arguments": "null" if call.arguments is None else literal(call.arguments, length).text,
            "result": "null" if call.result is None else literal(call.result, length).text,
            "outcome": f'"{call.outcome}"',
        }
        for call in calls
    ]
    omission = f"tool_calls: {left_out} of {len(calls) + left_out} calls are left out." if left_out else ""
    return ContextText(_write_array("tool_calls", items), omission)


def _write_array(name: str, items: Sequence[Mapping[str, str]]) -> Material | None:
    """Return a JSON array of objects on one line, from members that are JSON already."""
    objects = ("{" + ",".join(f'"{key}":{value}' for key, value in item.items()) + "}" for item in items)
    return Material(name, f"[{','.join(objects)}]") if items else None
