"""Normalizing events: a raw event becomes the columns that detectors read and a clean payload.

Rules for reading:

1. The type is `event`, else `type`, else `process_output`; an unknown type keeps its own name.
2. The id is `event_id` if it is a non-empty string or a number, else `event_<index>`. A repeated id of a session gets the
   suffix `#2`, `#3`, ... in order of arrival, so that ids are unique (`normalise_session`, `unique_ids`).
3. The tool is `tool`, else `tool_name`, else `name`, on tool_call, tool_output and approval only.
4. Arguments are `args`, else `arguments`, else `params`; missing, null and `{}` all mean none.
5. `source`, the program whose records the event was read from, and `exchange_id` are used if they are valid names. Tokens read
   and tokens read from a cache are those of `usage`: `input`, `cache_read` and `cache_write`.
6. In a transcript, a polling call has no key, so it repeats nothing.
7. A field of the wrong JSON type counts as missing: evidence is never guessed.
8. Text is hostile. NaN and infinities become null and lone surrogates become U+FFFD, because neither can be written as JSON. An
   event that nests deeper than MAX_DEPTH or contains something other than JSON is refused, naming the field. All of this takes
   bounded time and no recursion.

A call **duplicates** another one if both are of the same exchange, name the same tool and have the same arguments. It is a
**retry** if the call before it failed, and progress if something changed in between; both count as duplicates, because one
retry is ordinary and many are a loop.

**Polling** is neither, because its answer is expected to change by itself. `POLLING_TOOLS` maps a tool to the actions that poll
(a tool's arguments name the action); None means every call. For OpenClaw 2026.9 only these calls are polling. `exec` with
`sleep` is not, and neither are the lists (`sessions_list`, `subagents list`): OpenClaw's own prompt forbids polling by them.
`process list` is, because without a session id it is the way to find a process again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from audit.detectors.thresholds import TRANSCRIPT_SOURCES
from audit.fingerprints import digest_of_value
from audit.surrogates import repair_text
from schemas.bounds import MAX_DEPTH, MAX_ID, MAX_MADE_ID, has_surrogates
from schemas.errors import BoundsError, InputError, RecordError
from schemas.records import AgentEvent, Label

MAX_TOKENS = 2**53
"""Largest token count, which every JSON reader keeps exactly; larger ones are capped."""
UNNAMED = "unnamed:"
"""Prefix of the key of a call that names no tool, so that it differs from every named call."""
TOOL_EVENTS = frozenset({"tool_call", "tool_output", "approval"})
"""Types of events that name a tool."""
_ARGUMENTS = ("args", "arguments", "params")
_PROMPT = ("input", "cache_read", "cache_write")

MAX_DIGITS = 4000
"""Maximum number of digits of an integer: Python refuses to write integers with more than 4300."""
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
"""Tools that report on something that changes by itself, with the actions that only report; None means every call."""


class NormalisedEvent(msgspec.Struct, frozen=True, gc=False):
    """A normalized event; its columns are those of the AgentEvent record.

    `timestamp` is as the source gave it (see `audit.times`), None if absent. `payload` is the raw event with `event` and
    `event_id` filled in, and can always be written as JSON.
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
    """Normalize one raw event; `index` is its position in the session.

    Raises InputError if it is not a JSON object, and BoundsError (an InputError) naming the field if a value is nested too deep
    or is not a JSON value.
    """
    return normalise_payload(clean_payload(raw, index), index)


def normalise_payload(payload: dict[str, Any], index: int) -> NormalisedEvent:
    """Normalize an event that can be written as JSON, in place; see `normalise_event`."""
    get = payload.get
    event = _read_name(get("event")) or _read_name(get("type")) or "process_output"
    payload["event"] = event
    payload["event_id"] = _read_event_id(get("event_id"), index)
    columns = columns_of(payload)
    return NormalisedEvent(event, payload["event_id"], get("timestamp"), *columns[:9], payload, *columns[9:])


def _read_name(value: Any) -> str | None:
    return value.strip() or None if type(value) is str else None


def _read_event_id(value: Any, index: int) -> str:
    kind = type(value)
    if kind is str and value.strip():
        return str(value)
    # Python refuses to write integers of thousands of digits; no id is that long.
    if kind is float or (kind is int and value.bit_length() <= 256):
        return str(value)
    return f"event_{index}"


def columns_of(payload: Mapping[str, Any]) -> Columns:
    """Normalize a payload that has its `event` as a valid name and can be written as JSON."""
    get = payload.get
    event = payload["event"]
    tool = None
    call_key = None
    tokens = None
    prompt = None
    cached = None
    if event in TOOL_EVENTS:
        tool, call_key = tool_facts(payload)
    elif event == "token_usage":
        tokens, prompt, cached = usage_facts(payload)
    action = get("action")
    status = get("status")
    used = get("used")
    referenced = get("referenced")
    invoked = get("invoked")
    return Columns(
        tool,
        call_key,
        _read_word(action) if action is not None else None,
        _read_word(status) if status is not None else None,
        used if used is True or used is False else None,
        referenced if referenced is True or referenced is False else None,
        invoked if invoked is True or invoked is False else None,
        _read_saturation(payload) if "saturation" in payload or "saturation_score" in payload else None,
        tokens,
        _read_identifier(get("source"), MAX_ID),
        _read_identifier(get("exchange_id"), MAX_MADE_ID),
        prompt,
        cached,
    )


def tool_facts(payload: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the tool that an event names, and the key if it is a call."""
    tool = tool_name(payload)
    if payload["event"] != "tool_call":
        return tool, None
    arguments = call_arguments(payload)
    if payload.get("source") in TRANSCRIPT_SOURCES and is_polling(tool, arguments):
        return tool, None
    return tool, _build_call_key(payload, tool, arguments)


def tool_name(payload: Mapping[str, Any]) -> str | None:
    """Return the named tool of a call or output: `tool`, else `tool_name`, else `name`; None without a valid one."""
    return _read_name(payload.get("tool")) or _read_name(payload.get("tool_name")) or _read_name(payload.get("name"))


def call_arguments(payload: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool_call: `args`, else `arguments`, else `params`; None without any."""
    for field in _ARGUMENTS:
        arguments = payload.get(field)
        if arguments is not None and arguments != {}:
            return arguments
    return None


def is_polling(tool: str | None, arguments: Any) -> bool:
    """Return whether a call with these arguments only polls."""
    if tool is None or tool not in POLLING_TOOLS:
        return False
    actions = POLLING_TOOLS[tool]
    if actions is None:
        return True
    action = arguments.get("action") if isinstance(arguments, dict) else None
    return isinstance(action, str) and action.strip().lower() in actions


def _build_call_key(payload: Mapping[str, Any], tool: str | None, arguments: Any) -> str:
    """Return the digest of the tool (else the skill, else the type) and its arguments; equal keys are repetitions."""
    if tool:
        return digest_of_value([tool, arguments])
    return UNNAMED + digest_of_value([_read_name(payload.get("skill")) or payload["event"], arguments])


def usage_facts(payload: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of a token_usage: the total, those read, and those read from a cache."""
    return token_total(payload), *_read_prompt_tokens(payload)


def token_total(payload: Mapping[str, Any]) -> int | None:
    """Return the first non-negative number: `usage.total`, `usage.total_tokens`, or the same two on the event."""
    usage = payload.get("usage")
    if type(usage) is dict:
        total = usage.get("total")
        if type(total) is int and 0 <= total <= MAX_TOKENS:  # the usual form
            return total
    for source in (usage, payload) if isinstance(usage, dict) else (payload,):
        for field in ("total", "total_tokens"):
            value = _read_number(source.get(field))
            if value is not None and value >= 0:
                return int(min(value, MAX_TOKENS))
    return None


def _read_number(value: Any) -> float | int | None:
    kind = type(value)
    return value if kind is int or kind is float else None


def _read_prompt_tokens(payload: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the tokens read, and those of them read from a cache; None if `usage` does not distinguish them."""
    usage = payload.get("usage")
    if type(usage) is dict:
        plain, cached, written = map(usage.get, _PROMPT)
        if type(plain) is int and type(cached) is int and type(written) is int and 0 <= plain | cached | written < MAX_TOKENS:
            return min(plain + cached + written, MAX_TOKENS), cached  # the usual form
    counts = [_read_count(usage.get(field)) for field in _PROMPT] if isinstance(usage, dict) else [None]
    if counts[0] is None:
        return None, None
    plain, cached, written = (count or 0 for count in counts)
    return min(plain + cached + written, MAX_TOKENS), cached


def _read_count(value: Any) -> int | None:
    number = _read_number(value)
    return None if number is None or not number >= 0 else int(min(number, MAX_TOKENS))


def _read_word(value: Any) -> str | None:
    return value.strip().lower() or None if type(value) is str else None


def _read_saturation(payload: Mapping[str, Any]) -> float | None:
    """Return `saturation`, else `saturation_score`, in percent: the first that is a number."""
    for field in ("saturation", "saturation_score"):
        value = _read_number(payload.get(field))
        if value is not None:
            # An integer of hundreds of digits does not fit into a float; the largest float has the same effect.
            return float(min(max(value, -MAX_TOKENS), MAX_TOKENS))
    return None


def _read_identifier(value: Any, max_length: int) -> str | None:
    """Return a text that is valid as an identifier."""
    return value if type(value) is str and value.strip() and len(value) <= max_length and value.isprintable() else None


def clean_payload(raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a copy of the raw event that can be written as JSON; nested values are shared unless they had to be repaired.

    Raises InputError if it is not an object, and BoundsError naming `events[index].field` if a value nests too deep or is not
    JSON.
    """
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise InputError(f"events[{index}]: is {type(raw).__name__}, not a JSON object", hint="Send one object per event.")
    payload = dict(raw)
    try:
        return _repair(payload) if _is_broken(payload) else payload
    except BoundsError as error:
        raise BoundsError(f"events[{index}]{_find_faulty_field(payload)}: {error}") from None


def _repair(value: Any) -> Any:
    """Return the value with its text and numbers repaired for JSON. The caller must have bounded its depth."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {repair_text(name): _repair(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_repair(item) for item in value]
    return value


def _is_broken(payload: dict[str, Any]) -> bool:
    """Return whether the event needs repair. Works level by level, so that no depth can exhaust the stack."""
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
    """Return whether a name of the object needs repair; raises BoundsError for a name that is not text."""
    try:
        names = "".join(container)
    except TypeError:
        raise BoundsError("holds a name that is not text") from None
    return has_surrogates(names)


def _find_faulty_field(payload: dict[Any, Any]) -> str:
    """Return `.field` for the first invalid field, for a message."""
    for field, value in payload.items():
        try:
            _is_broken({field: value})
        except BoundsError:
            return f".{repair_text(field[:80])}" if isinstance(field, str) else ""
    return ""


class Columns(NamedTuple):
    """The facts of a payload except its type, id and time, in the order of `NormalisedEvent`."""

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
    """Normalize a session's events in order and make their ids unique; raises as `normalise_event`."""
    events = [normalise_event(raw, index) for index, raw in enumerate(raw_events)]
    ids = [event.event_id for event in events]
    for index, unique_id in enumerate(unique_ids(ids, reserved=reserved)):
        if unique_id != ids[index]:
            event = events[index]
            payload = {**event.payload, "event_id": unique_id}
            events[index] = msgspec.structs.replace(event, event_id=unique_id, payload=payload)
    return events


def unique_ids(ids: list[str], *, reserved: Collection[str] = ()) -> list[str]:
    """Return the ids in order, with the suffix #2, #3, ... for each repetition and each reserved id; unique ids are unchanged.

    Linear in the number of ids: an id that already has a suffix can only collide with one other id.
    """
    distinct = set(ids)
    if len(distinct) == len(ids) and distinct.isdisjoint(reserved):
        return ids
    used = set(reserved)
    copies: dict[str, int] = {}
    unique = []
    for event_id in ids:
        candidate = event_id
        while candidate in used:
            copies[event_id] = copies.get(event_id, 1) + 1
            candidate = f"{event_id}#{copies[event_id]}"
        used.add(candidate)
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
    """Return the record of an event; `payload_json` is its payload as canonical JSON.

    `payload_json` and `labels` are already redacted.
    """
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
    """Return the payload of a record as an object; raises RecordError if it is not a JSON object."""
    try:
        payload = msgspec.json.decode(payload_json)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RecordError(f"payload: is not JSON ({error})", hint="The record was damaged or written by hand.") from error
    if not isinstance(payload, dict):
        raise RecordError(f"payload: is {type(payload).__name__}, not a JSON object", hint="Payloads are whole events.")
    return payload
