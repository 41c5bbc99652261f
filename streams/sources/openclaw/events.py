"""The runtime events that one entry of a transcript stands for.

toolCall → tool_call; toolResult → tool_output; a result of memory_search or memory_get → memory_event too (no hits is a miss);
usage → token_usage; an assistant message that ended in error or was aborted → error_event; another one after an error →
retry_event, before the others; compaction → context_event; a change of model, thinking level or a reset → state_transition.
Calls without a result and results without a call are events like any other. Whether an output was used is not told by a
transcript, so no event says so.

Since 2026.9 most tools are hidden behind one, `tool_call {id, args}`, so that the model's prompt stays small: such a call and its
result are reported as those of the tool inside, with `via` naming the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from audit.fingerprints import canonical_json
from streams.sources.openclaw.entry import Entry
from streams.sources.openclaw.text import cut

MAX_RESULT = 16 * 1024
"""Characters of a tool's result that an event carries."""
MAX_ARGUMENTS = 64 * 1024
"""Characters of a call's arguments, as canonical JSON, that an event carries whole."""
MAX_NAME = 256
"""Characters of the longest name of a tool or model that an event carries."""

WRAPPER = "tool_call"
"""The tool through which the tools of the catalogue are called."""

Json = dict[str, Any]
Names = tuple[tuple[str, str], ...]
"""Names of fields and ours for them."""

_SELECTORS = ("id", "name")
_ARGUMENTS = ("args", "arguments")
_NO_CALLS: Mapping[str, str] = {}
_MEMORY_TOOLS = frozenset({"memory_search", "memory_get"})
_MAX_PARSED = 1024 * 1024
_NO_HITS = ("", "[]", "{}", "null", "no results", "no results.", "no matches", "no matches.")


def events_of(entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str] = _NO_CALLS) -> list[Json]:
    """The events of one entry in order, without ids; texts are whole.

    `wrapped` has the tool inside each wrapped call that was met before, by the id of the call.
    """
    if entry.kind == "message":
        reader = _BY_ROLE.get(entry.role or "")
        events = reader(entry, wrapped) if reader else []
        return [{"event": "retry_event", "action": "retry"}, *events] if is_retry else events
    transition = _TRANSITIONS.get(entry.kind)
    if transition is not None:
        return [{"event": "state_transition", "action": entry.kind, **_named(entry.body, transition)}]
    if entry.kind == "compaction":
        return [{"event": "context_event", "action": "compaction", **_named(entry.body, _COMPACTION)}]
    return []


def shortened(event: Json) -> Json:
    """The event with its long texts cut, the cut shown; to be done after secrets were taken out, which a cut could halve."""
    short = {name: shortened_text(name, value) if type(value) is str else value for name, value in event.items()}
    if event.get("arguments") is not None:
        short["arguments"] = shortened_arguments(event["arguments"])
    return short


def shortened_text(name: str, text: str) -> str:
    """The text of a field of an event, cut where it is long."""
    return text if len(text) <= MAX_NAME else cut(text, _LIMITS.get(name, MAX_NAME))


def shortened_arguments(arguments: Any) -> Any:
    """The arguments of a call; a text of them where they are long."""
    # The quick encoder has no fixed order of keys; it only tells which arguments are worth the slow one.
    if len(msgspec.json.encode(arguments)) <= MAX_ARGUMENTS:
        return arguments
    text = canonical_json(arguments)
    return arguments if len(text) <= MAX_ARGUMENTS else cut(text, MAX_ARGUMENTS)


def wrapped_calls(entry: Entry) -> dict[str, str]:
    """The tools inside the wrapped calls of an entry, by the ids of the calls."""
    wrappers = [block for block in entry.calls if block.get("name") == WRAPPER and isinstance(block.get("id"), str)]
    return {block["id"]: inner[0] for block in wrappers if (inner := _inside(block)) is not None} if wrappers else {}


def call_event(block: Json) -> Json:
    """The event of a call of a tool: a block with `id`, `name` and `arguments`."""
    call: Json = {"event": "tool_call"}
    _take_named(call, block, _CALL)
    inner = _inside(block) if block.get("name") == WRAPPER else None
    if inner is not None:
        call |= {"tool": inner[0], "arguments": inner[1], "via": WRAPPER}
    elif block.get("arguments") is not None:
        call["arguments"] = block["arguments"]
    return call


def _inside(block: Json) -> tuple[str, Any] | None:
    """The tool inside a wrapped call and its arguments; None for a call of any other kind.

    Small models put the arguments beside the selector instead of under `args`, which OpenClaw takes.
    """
    given = block.get("arguments")
    if block.get("name") != WRAPPER or not isinstance(given, dict):
        return None
    selector = next((name for name in _SELECTORS if isinstance(given.get(name), str) and given[name]), None)
    if selector is None:
        return None
    beside = {name: value for name, value in given.items() if name not in (selector, *_ARGUMENTS)}
    arguments = next((given[name] for name in _ARGUMENTS if isinstance(given.get(name), dict)), beside)
    return given[selector].rpartition(":")[2] or given[selector], arguments


def _assistant(entry: Entry, _wrapped: Mapping[str, str]) -> list[Json]:
    events = [call_event(block) for block in entry.calls]
    usage, message = entry.usage, entry.message
    if usage is not None and not entry.is_mirror:
        told = {"event": "token_usage", "usage": _usage(message["usage"], sum(usage))}
        _take_named(told, message, _MODEL)
        events.append(told)
    if entry.stop == "error" or entry.stop == "aborted":  # noqa: PLR1714 - as most have ended otherwise, a tuple costs more
        failed: Json = {"event": "error_event", "action": entry.stop}
        _take_named(failed, message, _FAILURE)
        events.append(failed)
    return events


def _usage(given: Json, total: int) -> Json:
    counts: Json = {"total": total}
    for theirs, ours in _USAGE:
        value = given.get(theirs)
        if type(value) is int or type(value) is float:
            counts[ours] = value
    cost = given.get("cost")
    if isinstance(cost, dict) and _is_number(cost.get("total")):
        counts["cost_usd"] = cost["total"]
    return counts


def _tool_result(entry: Entry, wrapped: Mapping[str, str]) -> list[Json]:
    return output_events(entry.message, entry.text, wrapped)


def output_events(message: Json, text: str, wrapped: Mapping[str, str]) -> list[Json]:
    """The events of a tool's result: a message with `toolCallId`, `toolName`, `isError` and `details`, and its text."""
    details = message.get("details")
    details = details if isinstance(details, dict) else {}
    output: Json = {"event": "tool_output"}
    _take_named(output, message, _OUTPUT)
    inner = wrapped.get(output.get("tool_call_id", "")) if output.get("tool") == WRAPPER else None
    if inner is not None:
        output |= {"tool": inner, "via": WRAPPER}
        result = details.get("result")
        inside = result.get("details") if isinstance(result, dict) else None
        details = inside if isinstance(inside, dict) else details
    output["is_error"] = message.get("isError") is True
    if details:
        for theirs, ours in _MEASURED:
            value = details.get(theirs)
            if type(value) is int or type(value) is float:
                output[ours] = value
        # Not `status`: that field of an event says whether the agent used the output, and a tool does not get to say that.
        _take_named(output, details, _STATUS)
    output["result"] = text
    if output.get("tool") not in _MEMORY_TOOLS:
        return [output]
    recalled: Json = {"event": "memory_event", "action": _recall(text, details, is_error=output["is_error"])}
    recalled |= {name: output[name] for name in ("tool", "tool_call_id") if name in output}
    return [output, recalled]


def _recall(text: str, details: Json, *, is_error: bool) -> str:
    """recall_failed, miss or hit: what a memory tool came back with."""
    if is_error:
        return "recall_failed"
    found = details if "results" in details or "text" in details else _parsed(text)
    if isinstance(found, dict):
        found = found.get("results", found.get("text", found))
    if isinstance(found, list):
        return "hit" if found else "miss"
    words = found if isinstance(found, str) else text
    return "miss" if words.strip().lower() in _NO_HITS else "hit"


def _parsed(text: str) -> Any:
    if len(text) > _MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def _named(source: Json, fields: Json) -> Json:
    """The fields of `source` that hold text or numbers, under our names."""
    named: Json = {}
    _take_named(named, source, tuple(fields.items()))
    return named


def _take_named(event: Json, source: Json, fields: Names) -> None:
    """Give an event the fields of `source` that hold text or numbers, under our names."""
    for theirs, ours in fields:
        value = source.get(theirs)
        if type(value) in _PLAIN:
            event[ours] = value


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


_CALL: Names = (("name", "tool"), ("id", "tool_call_id"))
_OUTPUT: Names = (("toolName", "tool"), ("toolCallId", "tool_call_id"))
_STATUS: Names = (("status", "tool_status"),)
_MEASURED: Names = (("exitCode", "exit_code"), ("durationMs", "duration_ms"))
_MODEL: Names = (("provider", "provider"), ("model", "model"))
_FAILURE: Names = (("errorMessage", "message"), *_MODEL)
_USAGE: Names = (("input", "input"), ("output", "output"), ("cacheRead", "cache_read"), ("cacheWrite", "cache_write"))
_COMPACTION = {"tokensBefore": "tokens_before", "firstKeptEntryId": "first_kept_entry_id", "summary": "summary"}
_TRANSITIONS: dict[str, Json] = {
    "model_change": {"provider": "provider", "modelId": "model"},
    "thinking_level_change": {"thinkingLevel": "thinking_level"},
    "reset": {"firstKeptEntryId": "first_kept_entry_id"},
}
_PLAIN = frozenset({str, int, float})
_LIMITS = {
    "result": MAX_RESULT,
    "summary": MAX_RESULT,
    "message": MAX_RESULT,
    "arguments": MAX_ARGUMENTS,
    "exchange_id": 4 * MAX_NAME,
}
_BY_ROLE: dict[str, Callable[[Entry, Mapping[str, str]], list[Json]]] = {
    "assistant": _assistant,
    "toolResult": _tool_result,
}
