"""Tools that failed: what a result and its span say of it, whatever the span's status is.

A tool that catches its exception answers in its protocol that it failed, and its span's status stays unset. Only the envelope of a result
counts: a result whose content talks of errors, or has an `error` that is null, is a success.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.sources.otlp.attributes import parsed

FLAGS = ("gen_ai.tool.is_error", "tool.is_error", "mcp.tool.is_error", "lk.function_tool.is_error", "is_error")
"""Attributes of a tool's span that are true where it failed."""
STATUSES = ("gen_ai.tool.status", "gen_ai.tool.call.status", "tool.status", "mcp.tool.status")
"""Attributes of a tool's span that say how it ended."""
_FAILED = frozenset({"error", "failed", "failure", "timeout"})
_FLAG_NAMES = ("isError", "is_error")
_FAILED_TYPES = frozenset({"error-text", "error-json", "tool-error", "tool_error", "tool_result_error"})
"""Types of results of Vercel's AI SDK and of Anthropic's server tools that are failures."""
_AROUND_STATUS = frozenset({"content", "message", "error", "toolUseId", "tool_use_id", "tool_call_id", "toolCallId"})
"""Members beside a `status` by which it is that of the call: a ticket has a status, too."""
_HOLDERS = ("result", "output", "response", "kwargs")
_ABOUT = frozenset(
    {"jsonrpc", "id", "lc", "type", "name", "toolName", "toolCallId", "tool_call_id", "tool_use_id", "toolUseId", "call_id"}
)
"""Members of an envelope that only say which call it answers."""
_TELLING = frozenset({*_FLAG_NAMES, *_HOLDERS, "type", "status", "jsonrpc"})
"""Members without one of which a result is no envelope."""
_MAX_DEPTH = 4


def failed_by_attributes(values: Mapping[str, Any]) -> bool:
    """Tell whether the attributes of a tool's span say that it failed."""
    return any(_flag(values.get(name)) for name in FLAGS) or any(
        str(values.get(name, "")).casefold() in _FAILED for name in STATUSES
    )


def failed_by_result(value: Any, depth: int = _MAX_DEPTH) -> bool | None:
    """Tell whether a result, or a text of JSON that it is, says that the tool failed; None where it does not say."""
    result = parsed(value).value
    if isinstance(result, list):
        told = [failed_by_result(item, depth - 1) for item in result if isinstance(item, dict)] if depth else []
        return True if True in told else False if False in told else None
    return _failed_by_envelope(result, depth) if isinstance(result, dict) else None


def _failed_by_envelope(result: Mapping[str, Any], depth: int) -> bool | None:
    if _TELLING.isdisjoint(result):
        return None
    flag = next((flag for name in _FLAG_NAMES if (flag := _flag(result.get(name))) is not None), None)
    if flag is not None:
        return flag
    kind = str(result.get("type"))
    is_failed_call = result.get("status") == "error" and (len(result) == 1 or not _AROUND_STATUS.isdisjoint(result))
    is_failed_request = "jsonrpc" in result and isinstance(result.get("error"), dict)
    if is_failed_call or is_failed_request or kind in _FAILED_TYPES or kind.endswith("_tool_result_error"):
        return True
    for name in _HOLDERS:
        if depth and isinstance(result.get(name), dict) and result.keys() - _ABOUT == {name}:
            return failed_by_result(result[name], depth - 1)
    return None


def _flag(value: Any) -> bool | None:
    """A flag, which some write as a text."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.casefold()) if isinstance(value, str) else None
