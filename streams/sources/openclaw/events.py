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

from collections.abc import Callable, Iterator, Mapping
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
        events = list(reader(entry, wrapped)) if reader else []
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
    blocks = (block for block in entry.calls if isinstance(block.get("id"), str))
    return {block["id"]: inner[0] for block in blocks if (inner := _inside(block)) is not None}


def call_event(block: Json) -> Json:
    """The event of a call of a tool: a block with `id`, `name` and `arguments`."""
    call = {"event": "tool_call", **_named(block, {"name": "tool", "id": "tool_call_id"})}
    inner = _inside(block)
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


def _assistant(entry: Entry, _wrapped: Mapping[str, str]) -> Iterator[Json]:
    yield from map(call_event, entry.calls)
    if entry.usage is not None and not entry.is_mirror:
        yield {"event": "token_usage", "usage": _usage(entry, entry.usage.total), **_named(entry.message, _MODEL)}
    if entry.stop in ("error", "aborted"):
        yield {"event": "error_event", "action": entry.stop, **_named(entry.message, {"errorMessage": "message", **_MODEL})}


def _usage(entry: Entry, total: int) -> Json:
    given: Json = entry.message["usage"]
    counts = {ours: given[theirs] for theirs, ours in _USAGE.items() if _is_number(given.get(theirs))}
    cost = given.get("cost")
    if isinstance(cost, dict) and _is_number(cost.get("total")):
        counts["cost_usd"] = cost["total"]
    return {"total": total, **counts}


def _tool_result(entry: Entry, wrapped: Mapping[str, str]) -> Iterator[Json]:
    return output_events(entry.message, entry.text, wrapped)


def output_events(message: Json, text: str, wrapped: Mapping[str, str]) -> Iterator[Json]:
    """The events of a tool's result: a message with `toolCallId`, `toolName`, `isError` and `details`, and its text."""
    details = message.get("details")
    details = details if isinstance(details, dict) else {}
    output: Json = {"event": "tool_output", **_named(message, {"toolName": "tool", "toolCallId": "tool_call_id"})}
    inner = wrapped.get(output.get("tool_call_id", "")) if output.get("tool") == WRAPPER else None
    if inner is not None:
        output |= {"tool": inner, "via": WRAPPER}
        result = details.get("result")
        inside = result.get("details") if isinstance(result, dict) else None
        details = inside if isinstance(inside, dict) else details
    output["is_error"] = message.get("isError") is True
    for theirs, ours in (("exitCode", "exit_code"), ("durationMs", "duration_ms")):
        if _is_number(details.get(theirs)):
            output[ours] = details[theirs]
    # Not `status`: that field of an event says whether the agent used the output, and a tool does not get to say that.
    output.update(_named(details, {"status": "tool_status"}))
    output["result"] = text
    yield output
    if output.get("tool") in _MEMORY_TOOLS:
        yield {
            "event": "memory_event",
            "action": _recall(text, details, is_error=output["is_error"]),
            **{name: output[name] for name in ("tool", "tool_call_id") if name in output},
        }


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
    return {ours: source[theirs] for theirs, ours in fields.items() if type(source.get(theirs)) in _PLAIN}


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


_MODEL = {"provider": "provider", "model": "model"}
_USAGE = {"input": "input", "output": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}
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
_BY_ROLE: dict[str, Callable[[Entry, Mapping[str, str]], Iterator[Json]]] = {
    "assistant": _assistant,
    "toolResult": _tool_result,
}
