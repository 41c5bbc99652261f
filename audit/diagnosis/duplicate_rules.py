"""Duplicate rules: recognize one OpenClaw session that came in twice, as a transcript and from the plugin.

1. A transcript is read as a file: an exchange that was is known by its digest, which is of its texts and its time alone. What a
   sender tells has a digest of all that it sent.
2. Of two exchanges of one id, one read and one told, the same is said when session and texts are the same, and whatever else both
   state. What one of them leaves out is no contradiction: a sender may keep thinking back, and does not know every number.
3. The times may lie CLOCKS apart: a message is written down a while after it began.
4. Of two events of one entry, the fields that both state are the same. Where a text was cut, its beginning counts; the cut has to
   show as long a beginning as senders and imports leave, and as many characters as are missing.
5. An event from a hook, which knows no entry, and one of an entry are twins when they are about the same call, else about the
   same kind of step, at about the same time, and state no different outcome. Each has at most one twin. Where it is not sure
   that it happened once, both stay. The text of a result says nothing here: OpenClaw shortens what it shows to hooks.
6. What came in before something happened tells of something else.
7. Events that came in before events said where they come from (`source`) leave it out, and do not contradict others by that.
8. Everything else that differs under one identity contradicts: nothing is guessed about senders that merely say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from audit.fingerprints import canonical_json, digest_of_texts
from audit.times import parse_timestamp

CLOCKS = timedelta(minutes=10)
"""The most by which the times of two accounts of one moment may differ."""
MOMENT = timedelta(minutes=2)
"""The most by which the times of two accounts of a step may differ that has no id and nothing else to be told by."""
SKEW = timedelta(minutes=1)
"""The most by which the clock of a sender may be ahead of ours."""
MIN_CUT = 200
"""Characters that are left of a text that was cut, at least."""
MAX_NAMED = 10
"""Differing fields that are reported, at most."""
HOOK = "hook"
"""The value of `told_by` in an event that a hook reported."""
TRAJECTORY = "trajectory"
"""The value of `told_by` in an event from OpenClaw's second account of a run, which knows no entries."""
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
FILED_FIELDS = ("agent", "multi_user", "labels")
"""Further fields that the same sender does not change either."""

Fields = Mapping[str, Any]

_CUT = re.compile(r"\[cut: (\d{1,15}) more characters\]\Z")
_MARKER = "[SECRET:"
_WITHHELD = "[withheld]"
_ASIDE = frozenset({"timestamp", "exchange_id", "event_id", "told_by"})
_CALL = ("tool_call_id", "tool")
_SOURCE = "source"
_MAX_NAME = 64
_LOOKED_AT = 100


class _Twins(NamedTuple):
    """The rule for twins of a type: fields they share, fields that agree where both state them, and their largest distance."""

    same: tuple[str, ...]
    agreed: tuple[str, ...]
    reach: timedelta


_TWINS = {
    "tool_call": _Twins(_CALL, ("arguments",), CLOCKS),
    "tool_output": _Twins(_CALL, ("is_error", "exit_code"), CLOCKS),
    "memory_event": _Twins(_CALL, ("action",), CLOCKS),
    "token_usage": _Twins(("usage",), ("provider", "model"), CLOCKS),
    "error_event": _Twins(("action",), ("message", "provider", "model"), MOMENT),
    "retry_event": _Twins(("action",), (), MOMENT),
    "context_event": _Twins(("action",), (), MOMENT),
    "state_transition": _Twins(("action", "model"), ("provider",), CLOCKS),
}


class Told(NamedTuple):
    """An event as its twin is sought: which one it is to the caller, its session, when it was, when it came in, and its payload."""

    place: int
    session: tuple[str, str]
    at: datetime
    came: datetime
    payload: Fields


def read_digest(message: str, response: str, thinking: str | None, at: datetime) -> str:
    """The `content_digest` of an exchange that was read from a transcript; texts without secrets, `at` in UTC."""
    return digest_of_texts(message, response, thinking, at.isoformat())


def is_read(exchange: Fields) -> bool:
    """Tell whether an exchange was read from a transcript: then its digest is `read_digest`."""
    texts = (exchange["user_message"], exchange["agent_response"], exchange["agent_thinking"])
    return bool(read_digest(*texts, exchange["occurred_at"]) == exchange["content_digest"])


def exchange_differences(held: Fields, incoming: Fields) -> tuple[str, ...]:
    """The fields in which two Exchanges of one id contradict each other; none where both are accounts of the same one.

    Both have EXCHANGE_FIELDS, FILED_FIELDS and `content_digest`; times are in UTC.
    """
    if held["content_digest"] == incoming["content_digest"] and held["session_id"] == incoming["session_id"]:
        return ()
    if is_read(held) != is_read(incoming):
        return tuple(name for name in EXCHANGE_FIELDS if not _agree(name, held[name], incoming[name]))
    named = tuple(name for name in (*EXCHANGE_FIELDS, *FILED_FIELDS) if held[name] != incoming[name])
    return named or ("content_digest",)


def payload_differences(held: Fields, incoming: Fields) -> tuple[str, ...]:
    """The fields in which two payloads of one event contradict each other; none where both are accounts of the same entry."""
    if (_SOURCE in held) != (_SOURCE in incoming):
        # What was delivered before senders named their source is the same event.
        held, incoming = ({name: value for name, value in fields.items() if name != _SOURCE} for fields in (held, incoming))
    if held == incoming:
        return ()
    entry = held.get("entry_id")
    if not isinstance(entry, str) or entry != incoming.get("entry_id"):
        return tuple(sorted(name for name in {*held, *incoming} if held.get(name) != incoming.get(name))) or ("event",)
    both = sorted((held.keys() & incoming.keys()) - _ASIDE)
    differing = [name for name in both if not _agree_in(name, held[name], incoming[name])]
    return (*differing, *(() if _is_near(held.get("timestamp"), incoming.get("timestamp")) else ("timestamp",)))


def is_told_by_hook(payload: Fields) -> bool:
    """Tell whether a hook reported the event, without knowing its entry."""
    return payload.get("told_by") == HOOK and "entry_id" not in payload


def is_of_entry(payload: Fields) -> bool:
    """Tell whether the event was read from a transcript: from an entry, or from the trajectory of a run."""
    return isinstance(payload.get("entry_id"), str) or payload.get("told_by") == TRAJECTORY


def twins(held: Iterable[Told], incoming: Iterable[Told]) -> dict[int, int]:
    """The given events that are twins of held ones, by their places, each with the place of the held one; each has one at most."""
    waiting = _by_twin(held)
    pairs: dict[int, int] = {}
    for (is_hook, *key), ones in _by_twin(incoming).items():
        pairs |= _paired(waiting.get((not is_hook, *key), []), ones)
    return pairs


def named_differences(differing: Sequence[str]) -> str:
    """The words for fields that differ, to be set behind what they differ in; nothing for none. Senders choose names of fields."""
    if not differing:
        return ""
    names = ", ".join(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…" for name in differing[:MAX_NAMED])
    more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
    return f" (it differs in {names}{more})"


def _paired(held: Sequence[Told], incoming: Sequence[Told]) -> dict[int, int]:
    """Given events, each with the next held one that may be its twin; both come in the order of time and have all in common."""
    if not held:
        return {}
    rule = _TWINS[held[0].payload["event"]]
    # A call that is told of once on either side is the same one, however late the transcript was written.
    ahead = CLOCKS if rule.same == _CALL and len(held) == len(incoming) == 1 else SKEW
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    start = 0
    for event in incoming:
        # What is too old for one is too old for all that follow.
        while start < len(held) and (start in taken or event.at > min(held[start].at + rule.reach, held[start].came + ahead)):
            start += 1
        for index in range(start, min(start + _LOOKED_AT, len(held))):
            if index not in taken and _are_twins(held[index], event, rule, ahead):
                taken.add(index)
                pairs[event.place] = held[index].place
                break
    return pairs


def _are_twins(held: Told, incoming: Told, rule: _Twins, ahead: timedelta) -> bool:
    return (
        abs(held.at - incoming.at) <= rule.reach
        and incoming.at <= held.came + ahead
        and all(_agree_in(name, held.payload.get(name), incoming.payload.get(name)) for name in rule.agreed)
    )


def _by_twin(events: Iterable[Told]) -> dict[tuple[Any, ...], list[Told]]:
    """Events that can have a twin, by whether a hook reported them and by what twins have in common; in the order of time."""
    groups: dict[tuple[Any, ...], list[Told]] = {}
    for event in sorted(events, key=lambda event: (event.at, event.place)):
        rule = _TWINS.get(str(event.payload.get("event")))
        is_hook = is_told_by_hook(event.payload)
        if rule is None or not (is_hook or is_of_entry(event.payload)):
            continue
        values = [event.payload.get(name) for name in rule.same]
        if _tells(values[0]):
            groups.setdefault((is_hook, event.session, event.payload["event"], canonical_json(values)), []).append(event)
    return groups


def _tells(value: Any) -> bool:
    """Tell whether the value tells one thing from another: an id or a name, or a usage of some tokens."""
    return bool(value.get("total")) if isinstance(value, Mapping) else bool(value)


def _agree(name: str, first: Any, second: Any) -> bool:
    """Tell whether two accounts of an exchange agree in a field."""
    if name == "occurred_at":
        return bool(abs(first - second) <= CLOCKS)
    return first is None or second is None or first == second or _begin_alike(first, second)


def _agree_in(name: str, first: Any, second: Any) -> bool:
    """Tell whether two accounts of an event agree in a field of its payload."""
    return _is_left_out(name, first) or _is_left_out(name, second) or first == second or _begin_alike(first, second)


def _is_left_out(name: str, value: Any) -> bool:
    """Tell whether a payload has nothing in a field, or withholds it: plugins withhold arguments and results alone."""
    if name == "arguments":
        return value is None or (isinstance(value, Mapping) and set(value) == {"withheld"})
    return value is None or (name == "result" and value == _WITHHELD)


def _begin_alike(first: Any, second: Any) -> bool:
    """Tell whether one text is the beginning of the other: it was cut, and says how many characters are missing."""
    if not (isinstance(first, str) and isinstance(second, str)):
        return False
    (start, missing), (longer, beyond) = sorted((_uncut(first), _uncut(second)), key=lambda cut: (len(cut[0]), cut[1] is None))
    if missing is None or len(start) < MIN_CUT or not longer.startswith(start):
        return False
    # A secret that is taken out after the cut changes how much there is.
    return _MARKER in first + second or len(start) + missing == len(longer) + (beyond or 0)


def _uncut(text: str) -> tuple[str, int | None]:
    """The text without the words for a cut, and how many characters these say are missing; none where there are no such words."""
    cut = _CUT.search(text)
    return (text, None) if cut is None else (text[: cut.start()], int(cut[1]))


def _is_near(value: Any, other_value: Any) -> bool:
    try:
        first, second = parse_timestamp(value), parse_timestamp(other_value)
    except ValueError:
        return False
    return first is None or second is None or abs(first - second) <= CLOCKS
