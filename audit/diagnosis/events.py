"""Normalising what an agent reported: one raw event in, the few columns the detectors read and a clean payload out.

Rules of reading:

1. The type is `event`, else `type`, else `process_output`; an unknown type is kept under its own name.
2. The id is `event_id` when it is a non-empty string or a number, else `event_<index>`. Within one session a repeated id gets
   the suffix `#2`, `#3`, ... in order of arrival, so that ids stay unique (`normalise_session`, `unique_ids`).
3. The tool is `tool`, else `tool_name`, else `name`, on tool_call and tool_output only.
4. Arguments are `args`, else `arguments`, else `params`; missing, null and `{}` all mean none.
5. `source`, the program whose own records the event was read from, and `exchange_id` are taken if they are good names.
   Tokens read and read from a cache are those of `usage`: `input`, `cache_read` and `cache_write`.
6. In a transcript, a polling call has no key, so it repeats nothing.
7. A field of the wrong JSON type counts as missing: evidence is never guessed from it.
8. Text is hostile. NaN and infinities become null and lone surrogates become U+FFFD, because neither can be written as JSON. An event
   that nests deeper than MAX_DEPTH, or holds something that is not JSON, is refused with the name of its field. All of this
   takes bounded time and no recursion.

A call **duplicates** another when both are of the same exchange, name the same tool and have the same arguments. It is a **retry** when
the call before it failed, and progress when something changed in between; both count as duplicates all the same, since one retry is
ordinary and many are a loop. **Polling** is neither: the answer is expected to change by itself. `POLLING_TOOLS` has, by tool, the
actions that poll (a tool's arguments name the action); None is every call. Only these calls of OpenClaw 2026.9 are polling; `exec` with
`sleep` is not, which OpenClaw's own prompt forbids, and neither are its lists (`sessions_list`, `subagents list`), which it forbids to
poll. `process list` is, for without a session id it is how a process is found again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from audit.detectors.thresholds import TRANSCRIPT_SOURCES
from audit.fingerprints import digest_of_value
from audit.surrogates import mended_text
from schemas.bounds import MAX_DEPTH, MAX_ID, MAX_MADE_ID, has_surrogates
from schemas.errors import BoundsError, InputError, RecordError
from schemas.records import AgentEvent, Label

MAX_TOKENS = 2**53
"""Largest token count: the largest integer every JSON reader keeps exactly. Larger ones count as this."""
UNNAMED = "unnamed:"
"""Prefix of the call key of a call that names no tool: it equals no key of a named call."""
TOOL_EVENTS = frozenset({"tool_call", "tool_output"})
"""Types of events that name a tool."""
_ARGUMENTS = ("args", "arguments", "params")
_PROMPT = ("input", "cache_read", "cache_write")

MAX_DIGITS = 4000
"""Digits an integer may have: Python refuses to write integers of more than 4300."""
_MAX_INTEGER = 10**MAX_DIGITS
_NESTED = frozenset({dict, list, tuple})

POLLING_TOOLS: Mapping[str, frozenset[str] | None] = {
    "process": frozenset({"poll", "log", "list"}),
    "agents_wait": None,
    "subagents": frozenset({"status", "wait"}),
    "sessions_yield": None,
    "session_status": None,
    "automations": frozenset({"status", "runs"}),
    "cron": frozenset({"status", "runs"}),
    "gateway": frozenset({"status"}),
    "browser": frozenset({"status", "snapshot", "screenshot", "tabs"}),
    "mobile_ui": frozenset({"observe"}),
    "terminal": frozenset({"read"}),
    "nodes": frozenset({"status"}),
    "github_identity_status": None,
    "get_goal": None,
}
"""Tools that report on something that changes by itself, and the actions that do no more than that; None is every call."""


class NormalisedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event as the rules read it; the columns mean what they mean in the AgentEvent record.

    `timestamp` is as the source gave it (see `audit.times`), null when absent. `payload` is the raw event with `event`
    and `event_id` filled in, and can always be written as JSON.
    """

    event: str
    event_id: str
    timestamp: Any
    tool: str | None
    call_key: str | None
    action: str | None
    status: str | None
    used: bool | None
    referenced: bool | None
    invoked: bool | None
    saturation: float | None
    tokens: int | None
    payload: dict[str, Any]
    source: str | None = None
    exchange_id: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def normalise_event(raw: Mapping[str, Any], index: int) -> NormalisedEvent:
    """Read one raw event; `index` is its position in the session.

    Raises InputError when it is no JSON object, and BoundsError (an InputError) naming the field when a value is nested too
    deep or is no JSON value.
    """
    return normalise_payload(clean_payload(raw, index), index)


def normalise_payload(payload: dict[str, Any], index: int) -> NormalisedEvent:
    """Read an event that can be written as JSON, such as one that was read from it; it is changed. See `normalise_event`."""
    get = payload.get
    payload["event"] = event = _name(get("event")) or _name(get("type")) or "process_output"
    payload["event_id"] = _event_id(get("event_id"), index)
    columns = columns_of(payload)
    return NormalisedEvent(event, payload["event_id"], get("timestamp"), *columns[:9], payload, *columns[9:])


def _name(value: Any) -> str | None:
    return value.strip() or None if type(value) is str else None


def _event_id(value: Any, index: int) -> str:
    kind = type(value)
    if kind is str and value.strip():
        return str(value)
    # Python refuses to write integers of thousands of digits; no id is that long.
    if kind is float or (kind is int and value.bit_length() <= 256):
        return str(value)
    return f"event_{index}"


def columns_of(payload: Mapping[str, Any]) -> Columns:
    """Read a payload that has its `event`, as a name, and that can be written as JSON."""
    get, event = payload.get, payload["event"]
    tool = call_key = tokens = prompt = cached = None
    if event in TOOL_EVENTS:
        tool, call_key = tool_facts(payload)
    elif event == "token_usage":
        tokens, prompt, cached = usage_facts(payload)
    action, status = get("action"), get("status")
    used, referenced, invoked = get("used"), get("referenced"), get("invoked")
    return Columns(
        tool,
        call_key,
        _word(action) if action is not None else None,
        _word(status) if status is not None else None,
        used if used is True or used is False else None,
        referenced if referenced is True or referenced is False else None,
        invoked if invoked is True or invoked is False else None,
        _saturation(payload) if "saturation" in payload or "saturation_score" in payload else None,
        tokens,
        _identifier(get("source"), MAX_ID),
        _identifier(get("exchange_id"), MAX_MADE_ID),
        prompt,
        cached,
    )


def tool_facts(payload: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The tool that a tool_call or tool_output names, and the key of the call."""
    tool = tool_name(payload)
    if payload["event"] != "tool_call":
        return tool, None
    arguments = call_arguments(payload)
    if payload.get("source") in TRANSCRIPT_SOURCES and is_polling(tool, arguments):
        return tool, None
    return tool, _call_key(payload, tool, arguments)


def tool_name(payload: Mapping[str, Any]) -> str | None:
    """The tool a tool_call or tool_output names: `tool`, else `tool_name`, else `name`; null without a usable one."""
    return _name(payload.get("tool")) or _name(payload.get("tool_name")) or _name(payload.get("name"))


def call_arguments(payload: Mapping[str, Any]) -> Any:
    """The arguments of a tool_call: `args`, else `arguments`, else `params`; null where there are none."""
    for field in _ARGUMENTS:
        arguments = payload.get(field)
        if arguments is not None and arguments != {}:
            return arguments
    return None


def is_polling(tool: str | None, arguments: Any) -> bool:
    """Return whether a call with these arguments only asks about the progress of something."""
    if tool is None or tool not in POLLING_TOOLS:
        return False
    actions = POLLING_TOOLS[tool]
    if actions is None:
        return True
    action = arguments.get("action") if isinstance(arguments, dict) else None
    return isinstance(action, str) and action.strip().lower() in actions


def _call_key(payload: Mapping[str, Any], tool: str | None, arguments: Any) -> str:
    """Digest of the tool (else the skill, else the type) and its arguments; calls with equal keys are repetitions."""
    if tool:
        return digest_of_value([tool, arguments])
    return UNNAMED + digest_of_value([_name(payload.get("skill")) or payload["event"], arguments])


def usage_facts(payload: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """The tokens of a token_usage: all of them, those that the model read, and those of these that came from a cache."""
    return token_total(payload), *_prompt_tokens(payload)


def token_total(payload: Mapping[str, Any]) -> int | None:
    """`usage.total`, else `usage.total_tokens`, else the same two on the event: the first that is a number from 0."""
    usage = payload.get("usage")
    if type(usage) is dict:
        total = usage.get("total")
        if type(total) is int and 0 <= total <= MAX_TOKENS:  # as most
            return total
    for source in (usage, payload) if isinstance(usage, dict) else (payload,):
        for field in ("total", "total_tokens"):
            value = _number(source.get(field))
            if value is not None and value >= 0:
                return int(min(value, MAX_TOKENS))
    return None


def _number(value: Any) -> float | int | None:
    kind = type(value)
    return value if kind is int or kind is float else None


def _prompt_tokens(payload: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Tokens that the model read, and those of them that came from a cache; null where `usage` does not tell them apart."""
    usage = payload.get("usage")
    if type(usage) is dict:
        plain, cached, written = map(usage.get, _PROMPT)
        if type(plain) is int and type(cached) is int and type(written) is int and 0 <= plain | cached | written < MAX_TOKENS:
            return min(plain + cached + written, MAX_TOKENS), cached  # as most
    counts = [_count(usage.get(field)) for field in _PROMPT] if isinstance(usage, dict) else [None]
    if counts[0] is None:
        return None, None
    read, kept, added = (count or 0 for count in counts)
    return min(read + kept + added, MAX_TOKENS), kept


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or not number >= 0 else int(min(number, MAX_TOKENS))


def _word(value: Any) -> str | None:
    return value.strip().lower() or None if type(value) is str else None


def _saturation(payload: Mapping[str, Any]) -> float | None:
    """`saturation`, else `saturation_score`, in percent: the first that is a number."""
    for field in ("saturation", "saturation_score"):
        value = _number(payload.get(field))
        if value is not None:
            # An integer of hundreds of digits has no float; it is as good as the largest.
            return float(min(max(value, -MAX_TOKENS), MAX_TOKENS))
    return None


def _identifier(value: Any, longest: int) -> str | None:
    """A text that is fit to be an identifier."""
    return value if type(value) is str and value.strip() and len(value) <= longest and value.isprintable() else None


def clean_payload(raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A copy of the raw event that can be written as JSON; nested values are shared with it unless they had to be mended.

    InputError when it is no object; BoundsError naming `events[index].field` when a value nests too deep or is not JSON.
    """
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise InputError(f"events[{index}]: is {type(raw).__name__}, not a JSON object", hint="Send one object an event.")
    payload = dict(raw)
    try:
        return _mended(payload) if _is_broken(payload) else payload
    except BoundsError as error:
        raise BoundsError(f"events[{index}]{_faulty_field(payload)}: {error}") from None


def _mended(value: Any) -> Any:
    """The value with its text and numbers as JSON can carry them; its depth is known to be bounded."""
    if isinstance(value, str):
        return mended_text(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {mended_text(name): _mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value


def _is_broken(payload: dict[str, Any]) -> bool:
    """Return whether the event needs mending. Go down level by level, so that no depth can exhaust the stack."""
    broken = False
    level: list[Any] = [payload]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                broken = _has_broken_name(container) or broken
                items = container.values()
            for item in items:
                kind = type(item)
                if kind is str:
                    broken = broken or (not item.isascii() and has_surrogates(item))
                elif kind is bool or item is None or (kind is int and -_MAX_INTEGER < item < _MAX_INTEGER):
                    continue
                elif kind in _NESTED:
                    below.append(item)
                elif kind is float:
                    broken = broken or not isfinite(item)
                else:
                    raise BoundsError(f"holds a value that JSON cannot carry ({kind.__name__})")
        if not below:
            return broken
        level = below
    raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")


def _has_broken_name(container: dict[Any, Any]) -> bool:
    """Return whether a name of the object needs mending; BoundsError for one that is not text."""
    try:
        names = "".join(container)
    except TypeError:
        raise BoundsError("holds a name that is not text") from None
    return has_surrogates(names)


def _faulty_field(payload: dict[Any, Any]) -> str:
    """`.field` for the first field that cannot be taken, for a message."""
    for field, value in payload.items():
        try:
            _is_broken({field: value})
        except BoundsError:
            return f".{mended_text(field[:80])}" if isinstance(field, str) else ""
    return ""


class Columns(NamedTuple):
    """The facts that are read of a payload beside its type, id and time, in the order of `NormalisedEvent`, which has the payload after `tokens`."""

    tool: str | None
    call_key: str | None
    action: str | None
    status: str | None
    used: bool | None
    referenced: bool | None
    invoked: bool | None
    saturation: float | None
    tokens: int | None
    source: str | None
    exchange_id: str | None
    prompt_tokens: int | None
    cached_tokens: int | None


def normalise_session(raw_events: Iterable[Mapping[str, Any]], *, reserved: Collection[str] = ()) -> list[NormalisedEvent]:
    """Read a session's events in order and make their ids unique; errors as `normalise_event`."""
    events = [normalise_event(raw, index) for index, raw in enumerate(raw_events)]
    ids = [event.event_id for event in events]
    for position, unique in enumerate(unique_ids(ids, reserved=reserved)):
        if unique != ids[position]:
            event = events[position]
            events[position] = msgspec.structs.replace(event, event_id=unique, payload={**event.payload, "event_id": unique})
    return events


def unique_ids(ids: list[str], *, reserved: Collection[str] = ()) -> list[str]:
    """The ids in order, each repetition (and each reserved id) with the suffix #2, #3, ...; unique ids stay as they are.

    Linear in the number of ids, whatever they are: an id already carrying a suffix can only stand in the way of one other.
    """
    seen = set(ids)
    if len(seen) == len(ids) and seen.isdisjoint(reserved):
        return ids
    taken = set(reserved)
    copies: dict[str, int] = {}
    unique = []
    for event_id in ids:
        candidate = event_id
        while candidate in taken:
            copies[event_id] = copies.get(event_id, 1) + 1
            candidate = f"{event_id}#{copies[event_id]}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def to_record(
    event: NormalisedEvent,
    *,
    connection: str,
    project: str,
    agent: str | None,
    session_id: str,
    seq: int,
    occurred_at: datetime,
    ingested_at: datetime,
    payload_json: str,
    labels: tuple[Label, ...] = (),
) -> AgentEvent:
    """The record of an event; `payload_json` is its payload as canonical JSON; it and `labels` are redacted already."""
    return AgentEvent(
        connection=connection,
        project=project,
        agent=agent,
        session_id=session_id,
        event_id=event.event_id,
        seq=seq,
        event=event.event,
        occurred_at=occurred_at,
        ingested_at=ingested_at,
        tool=event.tool,
        call_key=event.call_key,
        action=event.action,
        status=event.status,
        used=event.used,
        referenced=event.referenced,
        invoked=event.invoked,
        saturation=event.saturation,
        tokens=event.tokens,
        payload=payload_json,
        source=event.source,
        exchange_id=event.exchange_id,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        labels=labels,
    )


def raw_event(payload_json: str) -> dict[str, Any]:
    """The payload of a record as the object it was; RecordError when it is no JSON object."""
    try:
        payload = msgspec.json.decode(payload_json)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RecordError(f"payload: is not JSON ({error})", hint="The record was damaged or written by hand.") from error
    if not isinstance(payload, dict):
        raise RecordError(f"payload: is {type(payload).__name__}, not a JSON object", hint="Payloads are whole events.")
    return payload
