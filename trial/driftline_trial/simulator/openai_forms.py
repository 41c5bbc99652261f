"""Chat Completions and Responses of the simulated judge: both are translated to and from the Messages API.

Rules, scripts and faults exist once, for messages. Requests are checked as strictly as the APIs check them, so that a request which
a real server would refuse fails here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from driftline_trial.simulator.requests import (
    Json,
    ParsedRequest,
    Problem,
    complaint_of,
    invalid,
    json_object,
    parse_request,
)

_CHAT_FIELDS = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "reasoning_effort",
        "store",
        "metadata",
        "seed",
    ]
)
_RESPONSES_FIELDS = frozenset(["model", "input", "instructions", "max_output_tokens", "text", "reasoning", "store", "metadata"])
_COUNT_FIELDS = _RESPONSES_FIELDS - {"max_output_tokens", "store", "metadata"}
_MIN_OUTPUT_TOKENS = 16
_ANY_ANSWER = 2**31
_EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh")


NO_KEY = Problem(401, "invalid_request_error", "You didn't provide an API key in an Authorization header using Bearer auth")


class _FaultyRequestError(Exception):
    """Carries the complaint about a request."""


def read_chat(headers: Mapping[str, str], body: bytes) -> ParsedRequest | Problem:
    """Return the request for a chat completion, or the API's complaint."""
    return _read(headers, body, _translate_chat)


def read_responses(headers: Mapping[str, str], body: bytes) -> ParsedRequest | Problem:
    """Return the request for a response, or the API's complaint."""
    return _read(headers, body, _translate_responses)


def read_responses_countable(headers: Mapping[str, str], body: bytes) -> ParsedRequest | Problem:
    """Read a request of the Responses API whose tokens are to be counted."""
    return _read(headers, body, _translate_countable)


def has_key(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a key."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and bool(key.strip())


def _read(headers: Mapping[str, str], body: bytes, translate: Callable[[Json], Json]) -> ParsedRequest | Problem:
    request = json_object(body) if has_key(headers) else NO_KEY
    if isinstance(request, Problem):
        return request
    try:
        translated = translate(request)
    except _FaultyRequestError as error:
        return invalid(str(error))
    complaint = complaint_of(translated)
    return parse_request(translated) if complaint is None else invalid(complaint)


def _translate_chat(request: Json) -> Json:
    _check_fields(request, _CHAT_FIELDS)
    limits = [request[name] for name in ("max_tokens", "max_completion_tokens") if name in request]
    if len(limits) > 1:
        raise _FaultyRequestError("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
    _check_effort(request.get("reasoning_effort"), "reasoning_effort")
    response_format = request.get("response_format") or {"type": "text"}
    if not isinstance(response_format, dict) or response_format.get("type") not in ("text", "json_schema"):
        raise _FaultyRequestError("Invalid value: 'response_format'. Supported types are 'text' and 'json_schema'.")
    schema = (
        _checked_schema(response_format.get("json_schema"), "response_format.json_schema")
        if response_format["type"] == "json_schema"
        else None
    )
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _FaultyRequestError("Missing required parameter: 'messages'.")
    return _message_request(request, list(_turns(messages, "messages")), limits[0] if limits else _ANY_ANSWER, schema)


def _translate_responses(request: Json) -> Json:
    _check_fields(request, _RESPONSES_FIELDS)
    limit = request.get("max_output_tokens", _ANY_ANSWER)
    if type(limit) is not int or limit < _MIN_OUTPUT_TOKENS:
        raise _FaultyRequestError(f"Invalid 'max_output_tokens': integer below minimum value {_MIN_OUTPUT_TOKENS}.")
    return _translate_input(request, limit)


def _translate_countable(request: Json) -> Json:
    _check_fields(request, _COUNT_FIELDS)
    return _translate_input(request, _ANY_ANSWER)


def _translate_input(request: Json, limit: int) -> Json:
    reasoning = request.get("reasoning") or {}
    _check_effort(reasoning.get("effort"), "reasoning.effort")
    text_format = (request.get("text") or {}).get("format") or {"type": "text"}
    schema = _checked_schema(text_format, "text.format") if text_format.get("type") == "json_schema" else None
    items = request.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise _FaultyRequestError("Missing required parameter: 'input'.")
    instructions = request.get("instructions")
    opening = [("system", instructions)] if instructions else []
    return _message_request(request, [*opening, *_turns(items, "input")], limit, schema)


def _check_fields(request: Json, allowed: frozenset[str]) -> None:
    for name in request:
        if name not in allowed:
            raise _FaultyRequestError(f"Unknown parameter: '{name[:80]}'.")


def _check_effort(effort: Any, path: str) -> None:
    if effort not in _EFFORTS:
        raise _FaultyRequestError(f"Invalid value: '{effort}' for '{path}'.")


def _checked_schema(output_format: Any, path: str) -> Json:
    """Return the schema of a strict output format. In strict mode, every property is required and no other is allowed."""
    if (
        not isinstance(output_format, dict)
        or not isinstance(output_format.get("name"), str)
        or not isinstance(output_format.get("schema"), dict)
    ):
        raise _FaultyRequestError(f"Missing required parameter: '{path}.name' or '{path}.schema'.")
    schema: Json = output_format["schema"]
    pending: list[Any] = [schema] if output_format.get("strict") else []
    while pending:
        part = pending.pop()
        if part.get("type") != "object":
            continue
        properties = part.get("properties", {})
        if part.get("additionalProperties") is not False or sorted(part.get("required", [])) != sorted(properties):
            raise _FaultyRequestError(
                f"Invalid schema for '{path}': 'additionalProperties' must be false and 'required' must hold every property."
            )
        pending += properties.values()
    return schema


def _turns(messages: list[Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of each message."""
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant"):
            raise _FaultyRequestError(f"Invalid value for '{path}[{index}].role'.")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        if not isinstance(content, str):
            raise _FaultyRequestError(f"Invalid type for '{path}[{index}].content': expected a string.")
        yield role, content


def _message_request(request: Json, turns: list[tuple[str, str]], limit: Any, schema: Json | None) -> Json:
    """Return the request of the Messages API. These APIs cache prefixes without being asked, so the instructions are marked."""
    instructions = "\n".join(text for role, text in turns if role in ("system", "developer"))
    translated: Json = {
        "model": request.get("model"),
        "max_tokens": limit,
        "messages": [{"role": role, "content": text} for role, text in turns if role in ("user", "assistant")],
        "thinking": {"type": "disabled"},
    }
    if instructions:
        translated["system"] = [{"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}}]
    if schema is not None:
        translated["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return translated


class _Answer(NamedTuple):
    """The parts of a message that the other APIs have, too."""

    text: str | None
    is_refusal: bool
    is_cut_off: bool
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def _parts(message: Json) -> _Answer:
    texts = [block["text"] for block in message["content"] if block["type"] == "text"]
    usage = message.get("usage") or {}
    cached = usage.get("cache_read_input_tokens", 0)
    return _Answer(
        text="".join(texts) if texts else None,
        is_refusal=message["stop_reason"] == "refusal",
        is_cut_off=message["stop_reason"] == "max_tokens",
        prompt_tokens=usage.get("input_tokens", 0) + usage.get("cache_creation_input_tokens", 0) + cached,
        cached_tokens=cached,
        output_tokens=usage.get("output_tokens", 0),
    )


def chat_completion(message: Json) -> Json:
    """Return a message as a chat completion."""
    parts = _parts(message)
    content_fields = {"content": None, "refusal": parts.text} if parts.is_refusal else {"content": parts.text, "refusal": None}
    choice = {
        "index": 0,
        "message": {"role": "assistant", **content_fields},
        "logprobs": None,
        "finish_reason": "length" if parts.is_cut_off else "stop",
    }
    completion: Json = {
        "id": message["id"].replace("msg_", "chatcmpl-"),
        "object": "chat.completion",
        "created": 0,
        "model": message["model"],
        "choices": [choice] if isinstance(message["content"], list) else {},
    }
    if "usage" in message:
        completion["usage"] = {
            "prompt_tokens": parts.prompt_tokens,
            "completion_tokens": parts.output_tokens,
            "total_tokens": parts.prompt_tokens + parts.output_tokens,
            "prompt_tokens_details": {"cached_tokens": parts.cached_tokens},
        }
    return completion


def response(message: Json) -> Json:
    """Return a message as a response of the Responses API."""
    parts = _parts(message)
    part: Json = (
        {"type": "refusal", "refusal": parts.text}
        if parts.is_refusal
        else {"type": "output_text", "text": parts.text, "annotations": [], "logprobs": []}
    )
    item = {"id": "msg_simulated", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    reasoning = {"id": "rs_simulated", "type": "reasoning", "summary": []}
    output = [reasoning, item] if parts.text is not None else [reasoning]
    answered: Json = {
        "id": message["id"].replace("msg_", "resp_"),
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if parts.is_cut_off else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if parts.is_cut_off else None,
        "instructions": None,
        "metadata": {},
        "model": message["model"],
        "output": output if isinstance(message["content"], list) else {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    if "usage" in message:
        answered["usage"] = {
            "input_tokens": parts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": parts.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": parts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": parts.prompt_tokens + parts.output_tokens,
        }
    return answered


def error_body(problem: Problem) -> Json:
    """Return a problem as these APIs report it."""
    return {"error": {"message": problem.message, "type": problem.type, "param": None, "code": None}}
