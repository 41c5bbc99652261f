"""The runtime events of a transcript's entries, and their records.

- toolCall → tool_call
- toolResult → tool_output; a result of memory_search or memory_get also → memory_event (a miss if it has no hits)
- usage → token_usage
- an assistant message that ended in an error or was aborted → error_event; the next one after an error → retry_event, before its other events
- compaction → context_event
- a change of the model or the thinking level, and a reset → state_transition

Calls without a result and results without a call are events, too. A transcript does not say whether an output was used, so no event does.

Since 2026.9 most tools are called through a wrapper, `tool_call {id, args}`, which keeps the model's prompt small. The call and its result are
reported under the inner tool, and `via` names the wrapper.

Records are redacted first, then cut, and numbered in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from audit.diagnosis.events import TOOL_EVENTS, normalise_event, to_record
from audit.fingerprints import canonical_json
from schemas.records import AgentEvent
from streams.sources.openclaw.entry import Entry
from streams.sources.openclaw.text import cut
from streams.sources.source import ReadingContext

MAX_RESULT_CHARACTERS = 16 * 1024
"""Characters kept of a tool's result."""
MAX_ARGUMENTS_CHARACTERS = 64 * 1024
"""Characters kept of a call's arguments, as canonical JSON."""
MAX_NAME = 256
"""Characters kept of the name of a tool or model."""
WRAPPER = "tool_call"
"""The tool through which other tools are called."""
Json = dict[str, Any]
FieldNames = tuple[tuple[str, str], ...]
"""Pairs of a field of the source and the event field that it is copied to."""
_SELECTORS = ("id", "name")
_ARGUMENTS = ("args", "arguments")
_NO_CALLS: Mapping[str, str] = {}
_MEMORY_TOOLS = frozenset({"memory_search", "memory_get"})
_MAX_PARSED = 1024 * 1024
_EMPTY_RECALLS = ("", "[]", "{}", "null", "no results", "no results.", "no matches", "no matches.")
_CALL_FIELDS: FieldNames = (("name", "tool"), ("id", "tool_call_id"))
_OUTPUT_FIELDS: FieldNames = (("toolName", "tool"), ("toolCallId", "tool_call_id"))
_STATUS_FIELDS: FieldNames = (("status", "tool_status"),)
_MEASURE_FIELDS: FieldNames = (("exitCode", "exit_code"), ("durationMs", "duration_ms"))
_MODEL_FIELDS: FieldNames = (("provider", "provider"), ("model", "model"))
_FAILURE_FIELDS: FieldNames = (("errorMessage", "message"), *_MODEL_FIELDS)
_USAGE_FIELDS: FieldNames = (
    ("input", "input"),
    ("output", "output"),
    ("cacheRead", "cache_read"),
    ("cacheWrite", "cache_write"),
)
_COMPACTION_FIELDS = {"tokensBefore": "tokens_before", "firstKeptEntryId": "first_kept_entry_id", "summary": "summary"}
_TRANSITIONS: dict[str, Json] = {
    "model_change": {"provider": "provider", "modelId": "model"},
    "thinking_level_change": {"thinkingLevel": "thinking_level"},
    "reset": {"firstKeptEntryId": "first_kept_entry_id"},
}
_COPIED_TYPES = frozenset({str, int, float})
_FAILURES = frozenset({"error", "aborted"})
"""Stop reasons of failed messages."""
_TEXT_LIMITS = {
    "result": MAX_RESULT_CHARACTERS,
    "summary": MAX_RESULT_CHARACTERS,
    "message": MAX_RESULT_CHARACTERS,
    "arguments": MAX_ARGUMENTS_CHARACTERS,
    "exchange_id": 4 * MAX_NAME,
}
_TRUSTED_FIELDS = frozenset(
    {
        *("event", "event_id", "entry_id", "exchange_id", "tool_call_id", "run_id", "first_kept_entry_id"),
        *("timestamp", "usage", "source", "told_by"),
    }
)
"""Fields that hold no secrets: ids, and values that the reader wrote itself."""


def events_of(entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str] = _NO_CALLS) -> list[Json]:
    """Return the events of one entry in order, without ids and with uncut texts.

    `wrapped` has the inner tools of earlier wrapped calls, by call id.
    """
    if entry.kind == "message":
        reader = _EVENT_READERS.get(entry.role or "")
        events = reader(entry, wrapped) if reader else []
        return [{"event": "retry_event", "action": "retry"}, *events] if is_retry else events
    transition = _TRANSITIONS.get(entry.kind)
    if transition is not None:
        return [{"event": "state_transition", "action": entry.kind, **_select_fields(entry.body, transition)}]
    if entry.kind == "compaction":
        return [{"event": "context_event", "action": "compaction", **_select_fields(entry.body, _COMPACTION_FIELDS)}]
    return []


def _select_fields(source: Json, fields: Json) -> Json:
    """Return those of the fields that are texts or numbers, under their event names."""
    selected: Json = {}
    _copy_fields(selected, source, tuple(fields.items()))
    return selected


def _copy_fields(event: Json, source: Json, fields: FieldNames) -> None:
    """Copy those of the fields that are texts or numbers into an event, under their event names."""
    for source_name, event_name in fields:
        value = source.get(source_name)
        if type(value) in _COPIED_TYPES:
            event[event_name] = value


def shorten_event(event: Json) -> Json:
    """Return the event with its long texts cut and the cuts marked. Redact it first, because a cut could split a secret."""
    short = {name: _shorten_text(name, value) if type(value) is str else value for name, value in event.items()}
    if event.get("arguments") is not None:
        short["arguments"] = _shorten_arguments(event["arguments"])
    return short


def _shorten_text(name: str, text: str) -> str:
    """Return the text of an event's field, cut if it is long."""
    return text if len(text) <= MAX_NAME else cut(text, _TEXT_LIMITS.get(name, MAX_NAME))


def _shorten_arguments(arguments: Any) -> Any:
    """Return the arguments of a call, as cut JSON text if they are long."""
    # The fast encoder does not sort keys, so it only tells whether the slow one is needed.
    if len(msgspec.json.encode(arguments)) <= MAX_ARGUMENTS_CHARACTERS:
        return arguments
    text = canonical_json(arguments)
    return arguments if len(text) <= MAX_ARGUMENTS_CHARACTERS else cut(text, MAX_ARGUMENTS_CHARACTERS)


def wrapped_calls(entry: Entry) -> dict[str, str]:
    """Return the inner tools of the wrapped calls of an entry, by call id."""
    tools: dict[str, str] = {}
    for block in entry.calls:
        inner = _find_inner_call(block)
        if inner is not None and isinstance(block.get("id"), str):
            tools[block["id"]] = inner[0]
    return tools


def _find_inner_call(block: Json) -> tuple[str, Any] | None:
    """Return the inner tool of a wrapped call and its arguments; None if the call is not wrapped.

    Small models put the arguments beside the selector instead of under `args`. OpenClaw accepts both.
    """
    wrapper = block.get("arguments")
    if block.get("name") != WRAPPER or not isinstance(wrapper, dict):
        return None
    selector = next((name for name in _SELECTORS if isinstance(wrapper.get(name), str) and wrapper[name]), None)
    if selector is None:
        return None
    arguments = next((wrapper[name] for name in _ARGUMENTS if isinstance(wrapper.get(name), dict)), None)
    if arguments is None:
        arguments = {name: value for name, value in wrapper.items() if name not in (selector, *_ARGUMENTS)}
    tool = wrapper[selector].rpartition(":")[2]
    return tool or wrapper[selector], arguments


def call_event(block: Json) -> Json:
    """Return the event of a tool call, given its block with `id`, `name` and `arguments`."""
    call: Json = {"event": "tool_call"}
    _copy_fields(call, block, _CALL_FIELDS)
    inner = _find_inner_call(block) if block.get("name") == WRAPPER else None
    if inner is not None:
        call |= {"tool": inner[0], "arguments": inner[1], "via": WRAPPER}
    elif block.get("arguments") is not None:
        call["arguments"] = block["arguments"]
    return call


def output_events(message: Json, text: str, wrapped: Mapping[str, str]) -> list[Json]:
    """Return the events of a tool's result, given its message with `toolCallId`, `toolName`, `isError` and `details`, and its text."""
    details: Any = message.get("details")
    if not isinstance(details, dict):
        details = {}
    output: Json = {"event": "tool_output"}
    _copy_fields(output, message, _OUTPUT_FIELDS)
    inner = wrapped.get(output.get("tool_call_id", "")) if output.get("tool") == WRAPPER else None
    if inner is not None:
        output |= {"tool": inner, "via": WRAPPER}
        result = details.get("result")
        inner_details = result.get("details") if isinstance(result, dict) else None
        if isinstance(inner_details, dict):
            details = inner_details
    output["is_error"] = message.get("isError") is True
    if details:
        for source_name, event_name in _MEASURE_FIELDS:
            if _is_number(details.get(source_name)):
                output[event_name] = details[source_name]
        # The event field `status` tells whether the agent used the output. A tool must not set it.
        _copy_fields(output, details, _STATUS_FIELDS)
    output["result"] = text
    if output.get("tool") not in _MEMORY_TOOLS:
        return [output]
    recalled: Json = {"event": "memory_event", "action": _find_recall_action(text, details, is_error=output["is_error"])}
    recalled |= {name: output[name] for name in ("tool", "tool_call_id") if name in output}
    return [output, recalled]


def _find_recall_action(text: str, details: Json, *, is_error: bool) -> str:
    """Return the outcome of a memory tool: `recall_failed`, `miss` or `hit`."""
    if is_error:
        return "recall_failed"
    content = details if "results" in details or "text" in details else _parse_json(text)
    if isinstance(content, dict):
        content = content.get("results", content.get("text", content))
    if isinstance(content, list):
        return "hit" if content else "miss"
    recalled = content if isinstance(content, str) else text
    return "miss" if recalled.strip().lower() in _EMPTY_RECALLS else "hit"


def _parse_json(text: str) -> Any:
    if len(text) > _MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


class SessionEvents:
    """The raw events of one session in order, with uncut texts."""

    def __init__(self, context: ReadingContext, agent: str | None) -> None:
        self._context = context
        self._agent = agent
        self._events: list[tuple[Json, datetime]] = []

    def add(self, raw: Json, at: datetime) -> None:
        """Add one event."""
        self._events.append((raw, at))

    def calls_by_exchange(self) -> Mapping[str, Sequence[Json]]:
        """Return the raw events of tool calls and their outputs, by the id of their exchange."""
        by_exchange = defaultdict[str, list[Json]](list)
        for raw, _ in self._events:
            if raw["event"] in TOOL_EVENTS and "exchange_id" in raw:
                by_exchange[raw["exchange_id"]].append(raw)
        return by_exchange

    def records(self, session_id: str) -> list[AgentEvent]:
        """Return the records of the events."""
        return [self._build_record(raw, seq, at, session_id) for seq, (raw, at) in enumerate(self._events)]

    def _build_record(self, raw: Json, seq: int, at: datetime, session_id: str) -> AgentEvent:
        redact = self._context.redactor.redact_json
        clean = {name: value if name in _TRUSTED_FIELDS else redact(value)[0] for name, value in raw.items()}
        event = normalise_event(shorten_event(clean), seq)
        return to_record(
            event,
            connection=self._context.connection,
            project=self._context.project,
            agent=self._agent,
            session_id=session_id,
            seq=seq,
            occurred_at=at,
            ingested_at=self._context.ingested_at,
            payload_json=canonical_json(event.payload),
        )


def _build_assistant_events(entry: Entry, _wrapped: Mapping[str, str]) -> list[Json]:
    events = [call_event(block) for block in entry.calls]
    message = entry.message
    if entry.usage is not None and not entry.is_mirror:
        usage_event = {"event": "token_usage", "usage": _build_usage_counts(message["usage"], entry.usage.total)}
        _copy_fields(usage_event, message, _MODEL_FIELDS)
        events.append(usage_event)
    if entry.stop in _FAILURES:
        error_event: Json = {"event": "error_event", "action": entry.stop}
        _copy_fields(error_event, message, _FAILURE_FIELDS)
        events.append(error_event)
    return events


def _build_usage_counts(usage: Json, total: int) -> Json:
    """Return the token counts and the cost of a usage, under their event names."""
    counts: Json = {"total": total}
    for source_name, event_name in _USAGE_FIELDS:
        if _is_number(usage.get(source_name)):
            counts[event_name] = usage[source_name]
    cost = usage.get("cost")
    if isinstance(cost, dict) and _is_number(cost.get("total")):
        counts["cost_usd"] = cost["total"]
    return counts


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _build_result_events(entry: Entry, wrapped: Mapping[str, str]) -> list[Json]:
    return output_events(entry.message, entry.text, wrapped)


_EVENT_READERS: dict[str, Callable[[Entry, Mapping[str, str]], list[Json]]] = {
    "assistant": _build_assistant_events,
    "toolResult": _build_result_events,
}
