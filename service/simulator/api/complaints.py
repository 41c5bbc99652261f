"""Complaints of the Messages API about a request: each rule is one function, and the first complaint counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
_KNOWN = frozenset(
    {"model", "max_tokens", "messages", "system", "output_config", "thinking", "metadata", "stop_sequences"}
    | {"service_tier", "cache_control", "stream", "temperature", "top_p", "top_k", "inference_geo"}
)
_LEAST_BUDGET = 1024


def complaint_of(request: Json) -> str | None:
    """Return the fault of the request; None if it has none."""
    return next((found for check in _CHECKS if (found := check(request)) is not None), None)


def _check_names(request: Json) -> str | None:
    unknown = next((name for name in request if name not in _KNOWN), None)
    return None if unknown is None else f"{unknown[:80]}: Extra inputs are not permitted"


def _check_sampling(request: Json) -> str | None:
    given = next((name for name in ("temperature", "top_p", "top_k") if name in request), None)
    return None if given is None else f"{given}: sampling parameters are not supported by this model"


def _check_model(request: Json) -> str | None:
    return None if isinstance(request.get("model"), str) and request["model"] else "model: Field required"


def _check_max_tokens(request: Json) -> str | None:
    given = request.get("max_tokens")
    if given is None:
        return "max_tokens: Field required"
    return None if type(given) is int and given > 0 else "max_tokens: Input should be an integer greater than 0"


def _check_messages(request: Json) -> str | None:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            return f"messages.{place}.role: Input should be 'user' or 'assistant'"
        if (complaint := _content_complaint(message.get("content"))) is not None:
            return f"messages.{place}.content{complaint}"
    if messages[-1]["role"] == "assistant":
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    return None


def _check_system(request: Json) -> str | None:
    complaint = _content_complaint(request["system"]) if request.get("system") else None
    return None if complaint is None else f"system{complaint}"


def _check_cache_control(request: Json) -> str | None:
    return _mark_complaint(request.get("cache_control"))


def _check_output(request: Json) -> str | None:
    output = request.get("output_config") or {}
    wanted = output.get("format") if isinstance(output, dict) else output
    if isinstance(output, dict) and wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        return "output_config.format: Input should be a json_schema with its schema"
    return _open_object(wanted["schema"])


def _open_object(schema: Any) -> str | None:
    """Return the complaint about an object schema with open properties: the API requires `additionalProperties: false`."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if one.get("type") == "object" and one.get("additionalProperties") is not False:
                return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return None


def _check_thinking(request: Json) -> str | None:
    thinking = request.get("thinking")
    if thinking is None:
        return None
    if not isinstance(thinking, dict) or thinking.get("type") not in ("enabled", "disabled", "adaptive"):
        return "thinking.type: Input should be 'enabled', 'disabled' or 'adaptive'"
    if thinking["type"] != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or not _LEAST_BUDGET <= budget < request["max_tokens"]:
        return f"thinking.enabled.budget_tokens: Input should be at least {_LEAST_BUDGET} and less than max_tokens"
    return None


def _check_stream(request: Json) -> str | None:
    return "stream: the simulated judge does not stream" if request.get("stream") else None


def _content_complaint(content: Any) -> str | None:
    """Return the fault of a text or a list of text blocks."""
    if isinstance(content, str):
        return None if content.strip() else ": text content blocks must be non-empty"
    if not isinstance(content, list) or not content:
        return ": Input should be a text or a list of blocks"
    for place, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            return f".{place}: the simulated judge reads text blocks only"
        if not block["text"].strip():
            return f".{place}: text content blocks must be non-empty"
        if (complaint := _mark_complaint(block.get("cache_control"))) is not None:
            return f".{place}.{complaint}"
    return None


def _mark_complaint(mark: Any) -> str | None:
    if mark is None:
        return None
    good = isinstance(mark, dict) and mark.get("type") == "ephemeral" and mark.get("ttl", "5m") in ("5m", "1h")
    return None if good else "cache_control: Input should be of type 'ephemeral' with a ttl of 5m or 1h"


_CHECKS: tuple[Callable[[Json], str | None], ...] = (
    _check_names,
    _check_sampling,
    _check_model,
    _check_max_tokens,
    _check_messages,
    _check_system,
    _check_cache_control,
    _check_output,
    _check_thinking,
    _check_stream,
)
"""The checks in order; the first complaint is the answer."""
