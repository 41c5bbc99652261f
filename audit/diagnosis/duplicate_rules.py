"""Duplicate rules: recognize an OpenClaw session that is received twice, as a transcript and from the plugin.

1. The digest of an exchange that was read from a transcript covers its texts and its time only. The digest of an exchange that a sender
   reported covers everything that it sent. So the digest tells which of the two an exchange is.
2. An exchange read from a transcript and a reported one with the same id are the same if no field that both state differs. A field that
   one of them omits does not count: a sender may withhold thinking, and does not know every number.
3. Their times may differ by CLOCKS, because a message is written to the transcript some time after it began.
4. Two events of one transcript entry are the same if no field that both state differs. A text that was cut equals any text with the same
   beginning; the beginning must be at least MIN_CUT long, and the number of missing characters must match.
5. An event from a hook, which names no entry, and an event of an entry are duplicates if they are about the same call (or, without a
   call, the same kind of step), at about the same time, with no different outcome. Each event has at most one duplicate. If it is
   uncertain that something happened only once, both events stay. The text of a result is not compared: OpenClaw shortens it for hooks.
6. An event received before another one occurred cannot be its duplicate.
7. Old events lack the field `source`. Its absence is not a difference.
8. Any other difference between two records with one identity is a conflict: the rules do not guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from audit.fingerprints import canonical_json, digest_of_texts
from audit.times import parse_timestamp

CLOCKS = timedelta(minutes=10)
"""Maximum difference between the times that two sources report for one step."""
MOMENT = timedelta(minutes=2)
"""Maximum difference for a step without an id or any other distinctive field."""
SKEW = timedelta(minutes=1)
"""Maximum time by which a sender's clock may be ahead of the server's."""
MIN_CUT = 200
"""Shortest beginning of a cut text that is compared, in characters."""
MAX_NAMED = 10
"""Maximum number of differing fields that a message names."""
HOOK = "hook"
"""The value of `told_by` in an event that a hook reported."""
TRAJECTORY = "trajectory"
"""The value of `told_by` in an event from OpenClaw's trajectory of a run, which names no entries."""
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
"""Fields that are compared between a transcript's exchange and a reported one."""
FILED_FIELDS = ("agent", "multi_user", "labels")
"""Fields that are also compared between two exchanges from the same source."""

Fields = Mapping[str, Any]

_CUT = re.compile(r"\[cut: (\d{1,15}) more characters\]\Z")
_REDACTION_PREFIX = "[SECRET:"
_WITHHELD = "[withheld]"
_IGNORED_FIELDS = frozenset({"timestamp", "exchange_id", "event_id", "told_by"})
_CALL_FIELDS = ("tool_call_id", "tool")
_SOURCE = "source"
_MAX_NAME = 64
_MAX_CANDIDATES = 100
"""Maximum number of stored events that are compared with one incoming event."""


class _DuplicateRule(NamedTuple):
    """The rule for duplicates of one event type.

    `equal_fields` are the same in both. `compatible_fields` agree if both state them. `max_distance` is the largest difference in time.
    """

    equal_fields: tuple[str, ...]
    compatible_fields: tuple[str, ...]
    max_distance: timedelta


_DUPLICATE_RULES = {
    "tool_call": _DuplicateRule(_CALL_FIELDS, ("arguments",), CLOCKS),
    "tool_output": _DuplicateRule(_CALL_FIELDS, ("is_error", "exit_code"), CLOCKS),
    "memory_event": _DuplicateRule(_CALL_FIELDS, ("action",), CLOCKS),
    "token_usage": _DuplicateRule(("usage",), ("provider", "model"), CLOCKS),
    "error_event": _DuplicateRule(("action",), ("message", "provider", "model"), MOMENT),
    "retry_event": _DuplicateRule(("action",), (), MOMENT),
    "context_event": _DuplicateRule(("action",), (), MOMENT),
    "state_transition": _DuplicateRule(("action", "model"), ("provider",), CLOCKS),
}


class ReportedEvent(NamedTuple):
    """An event whose duplicates are searched for; `key` identifies it to the caller."""

    key: int
    session: tuple[str, str]
    occurred_at: datetime
    received_at: datetime
    payload: Fields


def read_digest(message: str, response: str, thinking: str | None, occurred_at: datetime) -> str:
    """Return the `content_digest` of an exchange that was read from a transcript; texts without secrets, time in UTC."""
    return digest_of_texts(message, response, thinking, occurred_at.isoformat())


def is_read(exchange: Fields) -> bool:
    """Return whether an exchange was read from a transcript, so that its digest is `read_digest`."""
    texts = (exchange["user_message"], exchange["agent_response"], exchange["agent_thinking"])
    return bool(read_digest(*texts, exchange["occurred_at"]) == exchange["content_digest"])


def exchange_differences(stored: Fields, incoming: Fields) -> tuple[str, ...]:
    """Return the fields in which two exchanges with one id conflict; empty if they are the same exchange.

    Both have EXCHANGE_FIELDS, FILED_FIELDS and `content_digest`; times are in UTC.
    """
    if stored["content_digest"] == incoming["content_digest"] and stored["session_id"] == incoming["session_id"]:
        return ()
    if is_read(stored) != is_read(incoming):
        return tuple(name for name in EXCHANGE_FIELDS if not _exchange_fields_agree(name, stored[name], incoming[name]))
    differing = tuple(name for name in (*EXCHANGE_FIELDS, *FILED_FIELDS) if stored[name] != incoming[name])
    return differing or ("content_digest",)


def payload_differences(stored: Fields, incoming: Fields) -> tuple[str, ...]:
    """Return the fields in which two payloads of one event conflict; empty if they are the same event."""
    if (_SOURCE in stored) != (_SOURCE in incoming):
        stored = _without_source(stored)
        incoming = _without_source(incoming)
    if stored == incoming:
        return ()
    entry_id = stored.get("entry_id")
    if not isinstance(entry_id, str) or entry_id != incoming.get("entry_id"):
        differing = sorted(name for name in {*stored, *incoming} if stored.get(name) != incoming.get(name))
        return tuple(differing) or ("event",)

    shared_names = sorted((stored.keys() & incoming.keys()) - _IGNORED_FIELDS)
    differing = [name for name in shared_names if not _payload_fields_agree(name, stored[name], incoming[name])]
    if not _is_near(stored.get("timestamp"), incoming.get("timestamp")):
        differing.append("timestamp")
    return tuple(differing)


def _without_source(payload: Fields) -> Fields:
    return {name: value for name, value in payload.items() if name != _SOURCE}


def is_told_by_hook(payload: Fields) -> bool:
    """Return whether a hook reported the event; hooks do not know its entry."""
    return payload.get("told_by") == HOOK and "entry_id" not in payload


def is_of_entry(payload: Fields) -> bool:
    """Return whether the event was read from a transcript: from an entry, or from the trajectory of a run."""
    return isinstance(payload.get("entry_id"), str) or payload.get("told_by") == TRAJECTORY


def find_duplicates(stored: Iterable[ReportedEvent], incoming: Iterable[ReportedEvent]) -> dict[int, int]:
    """Match each incoming event with at most one stored event, and each stored event with at most one incoming.

    Returns the key of the stored event for the key of each incoming one that has a duplicate.
    """
    stored_groups = _group_candidates(stored)
    pairs: dict[int, int] = {}
    for group, new_events in _group_candidates(incoming).items():
        opposite = group._replace(is_hook=not group.is_hook)
        pairs |= _match_in_order(stored_groups.get(opposite, []), new_events)
    return pairs


def describe_differences(differing: Sequence[str]) -> str:
    """Return the names of differing fields as a suffix of a message; empty without any. Long names are cut, because senders choose them."""
    if not differing:
        return ""
    names = ", ".join(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…" for name in differing[:MAX_NAMED])
    if len(differing) > MAX_NAMED:
        names += f" and {len(differing) - MAX_NAMED} more"
    return f" (it differs in {names})"


def _match_in_order(stored: Sequence[ReportedEvent], incoming: Sequence[ReportedEvent]) -> dict[int, int]:
    """Match each incoming event with the first stored one that may be its duplicate; both lists are of one group, in order of time."""
    if not stored:
        return {}
    rule = _DUPLICATE_RULES[stored[0].payload["event"]]
    # If each side has the call once, it is the same call, however late the transcript was written.
    max_ahead = CLOCKS if rule.equal_fields == _CALL_FIELDS and len(stored) == len(incoming) == 1 else SKEW
    pairs: dict[int, int] = {}
    matched: set[int] = set()
    start = 0
    for event in incoming:
        while start < len(stored) and (
            start in matched or event.occurred_at > _latest_duplicate_time(stored[start], rule, max_ahead)
        ):
            start += 1  # a stored event that is too old for this event is too old for all later ones
        for index in range(start, min(start + _MAX_CANDIDATES, len(stored))):
            if index not in matched and _are_duplicates(stored[index], event, rule, max_ahead):
                matched.add(index)
                pairs[event.key] = stored[index].key
                break
    return pairs


def _latest_duplicate_time(stored: ReportedEvent, rule: _DuplicateRule, max_ahead: timedelta) -> datetime:
    """Return the latest time at which a duplicate of a stored event may have occurred."""
    return min(stored.occurred_at + rule.max_distance, stored.received_at + max_ahead)


def _are_duplicates(stored: ReportedEvent, incoming: ReportedEvent, rule: _DuplicateRule, max_ahead: timedelta) -> bool:
    if abs(stored.occurred_at - incoming.occurred_at) > rule.max_distance:
        return False
    if incoming.occurred_at > stored.received_at + max_ahead:
        return False
    return all(
        _payload_fields_agree(name, stored.payload.get(name), incoming.payload.get(name)) for name in rule.compatible_fields
    )


class _Group(NamedTuple):
    """The properties that duplicates share, and the source of the events."""

    is_hook: bool
    session: tuple[str, str]
    event_type: str
    equal_values: str


def _group_candidates(events: Iterable[ReportedEvent]) -> dict[_Group, list[ReportedEvent]]:
    """Group the events that can have a duplicate; each group is in order of time."""
    groups: dict[_Group, list[ReportedEvent]] = {}
    for event in sorted(events, key=lambda event: (event.occurred_at, event.key)):
        rule = _DUPLICATE_RULES.get(str(event.payload.get("event")))
        is_hook = is_told_by_hook(event.payload)
        if rule is None or not (is_hook or is_of_entry(event.payload)):
            continue
        values = [event.payload.get(name) for name in rule.equal_fields]
        if _is_distinctive(values[0]):
            group = _Group(is_hook, event.session, event.payload["event"], canonical_json(values))
            groups.setdefault(group, []).append(event)
    return groups


def _is_distinctive(value: Any) -> bool:
    """Return whether the value distinguishes an event: an id, a name, or a usage of at least one token."""
    if isinstance(value, Mapping):
        return bool(value.get("total"))
    return bool(value)


def _exchange_fields_agree(name: str, first: Any, second: Any) -> bool:
    """Return whether two exchanges agree in a field, or one of them omits it."""
    if name == "occurred_at":
        return bool(abs(first - second) <= CLOCKS)
    return first is None or second is None or first == second or _is_cut_version(first, second)


def _payload_fields_agree(name: str, first: Any, second: Any) -> bool:
    """Return whether two payloads agree in a field, or one of them omits it."""
    return _is_omitted(name, first) or _is_omitted(name, second) or first == second or _is_cut_version(first, second)


def _is_omitted(name: str, value: Any) -> bool:
    """Return whether a payload omits or withholds a field; plugins withhold only arguments and results."""
    if name == "arguments":
        return value is None or (isinstance(value, Mapping) and set(value) == {"withheld"})
    return value is None or (name == "result" and value == _WITHHELD)


def _is_cut_version(first: Any, second: Any) -> bool:
    """Return whether one text is a cut version of the other that states the right number of missing characters."""
    if not (isinstance(first, str) and isinstance(second, str)):
        return False
    shorter, longer = sorted((_split_cut(first), _split_cut(second)), key=lambda cut: (len(cut.start), not cut.is_cut))
    if not shorter.is_cut or len(shorter.start) < MIN_CUT or not longer.start.startswith(shorter.start):
        return False
    # Secrets that were replaced after the cut change the length.
    has_secret = _REDACTION_PREFIX in first or _REDACTION_PREFIX in second
    return has_secret or shorter.full_length == longer.full_length


class _Cut(NamedTuple):
    """A text that may have been cut, without the mark of the cut."""

    start: str
    is_cut: bool
    full_length: int


def _split_cut(text: str) -> _Cut:
    mark = _CUT.search(text)
    if mark is None:
        return _Cut(text, is_cut=False, full_length=len(text))
    start = text[: mark.start()]
    return _Cut(start, is_cut=True, full_length=len(start) + int(mark[1]))


def _is_near(value: Any, other_value: Any) -> bool:
    try:
        first = parse_timestamp(value)
        second = parse_timestamp(other_value)
    except ValueError:
        return False
    return first is None or second is None or abs(first - second) <= CLOCKS
