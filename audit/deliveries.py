"""What OpenClaw's sessions say when they come in twice: as a transcript that is imported, and as told by a plugin while they go on.

1. A transcript is read as a file: an exchange that was is known by its digest, which is of its texts and its time alone. What a
   sender tells has a digest of all that it sent.
2. Of two exchanges of one id, one read and one told, the same is said when session and texts are the same, and whatever else both
   state. What one of them leaves out is no contradiction: a sender may keep thinking back, and does not know every number.
3. The times may lie CLOCKS apart: a message is written down a while after it began.
4. Of two events of one entry, the fields that both state are the same. Where a text was cut, its beginning counts.
5. An event that a hook told of, which knows no entry, and one of an entry are twins when they tell of the same call, else of the
   same kind of step, at about the same time. Each has at most one twin.
6. Everything else that differs under one identity contradicts: nothing is guessed about senders that merely say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from audit.fingerprints import canonical_json, digest
from audit.times import parse_timestamp

CLOCKS = timedelta(minutes=10)
"""How far apart two accounts of one moment may lie."""
HOOK = "hook"
"""What `told_by` says of an event that a hook told of."""
EXCHANGE_FIELDS = (
    "session_id",
    "user_message",
    "agent_response",
    "agent_thinking",
    "occurred_at",
    "turn_number",
    "agent_model",
    "input_tokens",
    "output_tokens",
    "stop_reason",
)
"""Fields of an Exchange that two accounts of it are compared by."""
FILED_FIELDS = ("agent", "multi_user")
"""Further fields that the same sender does not change either."""

Fields = Mapping[str, Any]

_CUT = re.compile(r"\[cut: \d+ more characters\]\Z")
_WITHHELD = "[withheld]"
_ASIDE = frozenset({"timestamp", "exchange_id", "event_id", "told_by"})
_CALL = ("tool_call_id", "tool")
_TWINS: dict[str, tuple[str, ...]] = {
    "tool_call": _CALL,
    "tool_output": _CALL,
    "memory_event": _CALL,
    "token_usage": ("usage",),
    "error_event": ("action",),
    "context_event": ("action",),
    "state_transition": ("action", "model"),
}


class Told(NamedTuple):
    """An event as its twin is sought: which one it is to the caller, its session, when it was, and its payload."""

    place: int
    session: tuple[str, str]
    at: datetime
    payload: Fields


def read_digest(message: str, response: str, thinking: str | None, at: datetime) -> str:
    """The `content_digest` of an exchange that was read from a transcript; texts without secrets, `at` in UTC."""
    return digest(canonical_json([message, response, thinking, at.isoformat()]))


def exchange_differences(held: Fields, given: Fields) -> tuple[str, ...]:
    """The fields in which two Exchanges of one id contradict each other; none where both are accounts of the same one.

    Both have EXCHANGE_FIELDS, FILED_FIELDS and `content_digest`; times are in UTC.
    """
    if held["content_digest"] == given["content_digest"] and held["session_id"] == given["session_id"]:
        return ()
    if _is_read(held) != _is_read(given):
        return tuple(name for name in EXCHANGE_FIELDS if not _agree(name, held[name], given[name]))
    named = tuple(name for name in (*EXCHANGE_FIELDS, *FILED_FIELDS) if held[name] != given[name])
    return named or ("content_digest",)


def payload_differences(held: Fields, given: Fields) -> tuple[str, ...]:
    """The fields in which two payloads of one event contradict each other; none where both are accounts of the same entry."""
    if held == given:
        return ()
    entry = held.get("entry_id")
    if not isinstance(entry, str) or entry != given.get("entry_id"):
        return tuple(sorted(name for name in {*held, *given} if held.get(name) != given.get(name))) or ("event",)
    both = sorted((held.keys() & given.keys()) - _ASIDE)
    differing = [name for name in both if not _agree(name, held[name], given[name])]
    return (*differing, *(() if _is_near(held.get("timestamp"), given.get("timestamp")) else ("timestamp",)))


def is_told_by_hook(payload: Fields) -> bool:
    """Whether a hook told of the event, without knowing its entry."""
    return payload.get("told_by") == HOOK and "entry_id" not in payload


def is_of_entry(payload: Fields) -> bool:
    """Whether the event is of an entry of a transcript."""
    return isinstance(payload.get("entry_id"), str)


def twins(held: Iterable[Told], given: Iterable[Told]) -> list[int]:
    """The places of the given events that are twins of held ones, each held one counting once; in the order of time."""
    waiting = _by_twin(held)
    found: list[int] = []
    for (is_hook, *key), ones in _by_twin(given).items():
        others = waiting.get((not is_hook, *key), [])
        next_of = 0
        for one in ones:
            while next_of < len(others) and others[next_of].at < one.at - CLOCKS:
                next_of += 1
            if next_of < len(others) and others[next_of].at <= one.at + CLOCKS:
                found.append(one.place)
                next_of += 1
    return sorted(found)


def _by_twin(events: Iterable[Told]) -> dict[tuple[Any, ...], list[Told]]:
    """Events that can have a twin, by whether a hook told of them and by what twins have in common; in the order of time."""
    found: dict[tuple[Any, ...], list[Told]] = {}
    for one in sorted(events, key=lambda one: (one.at, one.place)):
        fields = _TWINS.get(str(one.payload.get("event")), ())
        values = [one.payload.get(name) for name in fields]
        is_hook = is_told_by_hook(one.payload)
        if values and values[0] is not None and (is_hook or is_of_entry(one.payload)):
            found.setdefault((is_hook, one.session, one.payload["event"], canonical_json(values)), []).append(one)
    return found


def _is_read(exchange: Fields) -> bool:
    texts = (exchange["user_message"], exchange["agent_response"], exchange["agent_thinking"])
    return bool(read_digest(*texts, exchange["occurred_at"]) == exchange["content_digest"])


def _agree(name: str, one: Any, other: Any) -> bool:
    if name == "occurred_at":
        return bool(abs(one - other) <= CLOCKS)
    if one == other or _is_left_out(one) or _is_left_out(other):
        return True
    return isinstance(one, str) and isinstance(other, str) and _begin_alike(one, other)


def _is_left_out(value: Any) -> bool:
    return value in (None, _WITHHELD) or (isinstance(value, Mapping) and set(value) == {"withheld"})


def _begin_alike(one: str, other: str) -> bool:
    """Whether one text is the beginning of the other one, where it was cut."""
    (start, short), (longer, _) = sorted(((_CUT.sub("", text), text) for text in (one, other)), key=lambda pair: len(pair[0]))
    return start != short and longer.startswith(start)


def _is_near(one: Any, other: Any) -> bool:
    try:
        first, second = parse_timestamp(one), parse_timestamp(other)
    except ValueError:
        return False
    return first is None or second is None or abs(first - second) <= CLOCKS
