"""Reading a request of the Messages API as the API does: what it would refuse is refused here, with its words and status.

A request that the simulator takes and the API does not would be found out only with a key in hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from audit.prices import price_of
from service.simulator.prompts import read_prompt

MAX_BODY = 32 * 1024 * 1024
"""Bytes a request may have; more is answered with 413."""

Json = dict[str, Any]
_KNOWN = frozenset(
    {"model", "max_tokens", "messages", "system", "output_config", "thinking", "metadata", "stop_sequences"}
    | {"service_tier", "cache_control", "stream", "temperature", "top_p", "top_k", "inference_geo"}
)
_LEAST_BUDGET = 1024


class Problem(NamedTuple):
    """What the API answers instead of a message."""

    status: int
    type: str
    message: str


class Block(NamedTuple):
    """A text of the request, in the order in which the model reads them."""

    text: str
    ttl: str | None
    """How long everything up to here is cached, 5m or 1h; None where no mark stands."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the API would run."""

    model: str
    max_tokens: int
    blocks: tuple[Block, ...]
    structured: Json | None
    """Schema in output_config."""
    schema: Json | None
    """Schema of the answer: in output_config, else the one in the prompt."""
    materials: dict[str, str]
    thinks: bool
    """Whether a thinking block comes first."""


def read_request(headers: Mapping[str, str], body: bytes) -> Asked | Problem:
    """The request, or what the API has against it. `headers` by lower-case name."""
    problem = unauthorized(headers)
    request = json_object(body) if problem is None else problem
    if isinstance(request, Problem):
        return request
    complaint = next((found for check in _CHECKS if (found := check(request)) is not None), None)
    return invalid(complaint) if complaint is not None else _asked(request)


def unauthorized(headers: Mapping[str, str]) -> Problem | None:
    """What the API has against the headers, whatever is asked for."""
    if not (headers.get("authorization", "").partition(" ")[2].strip() or headers.get("x-api-key")):
        return Problem(401, "authentication_error", "x-api-key or Authorization header is required")
    return None if "anthropic-version" in headers else invalid("anthropic-version: header is required")


def json_object(body: bytes) -> Json | Problem:
    """The object in a body."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return invalid("The request body is not valid JSON")
    return request if isinstance(request, dict) else invalid("The request body must be a JSON object")


def invalid(message: str) -> Problem:
    """A request that is wrong."""
    return Problem(400, "invalid_request_error", message)


def _asked(request: Json) -> Asked:
    structured = (request.get("output_config") or {}).get("format", {}).get("schema")
    system = list(_blocks(request.get("system") or ""))
    spoken = [block for message in request["messages"] for block in _blocks(message["content"])]
    prompt = read_prompt("\n".join(block.text for block in system), "\n".join(block.text for block in spoken))
    blocks = [*system, *spoken]
    if "cache_control" in request:
        blocks[-1] = Block(blocks[-1].text, (request["cache_control"] or {}).get("ttl", "5m"))
    price = price_of(request["model"], {})
    thinking = request.get("thinking") or {"type": "enabled" if price and price.switch_off_thinking else "disabled"}
    return Asked(
        model=request["model"],
        max_tokens=request["max_tokens"],
        blocks=tuple(blocks),
        structured=structured,
        schema=structured or prompt.schema,
        materials=prompt.materials,
        thinks=thinking["type"] != "disabled",
    )


def _blocks(content: str | list[Json]) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block(content, None)
        return
    for block in content:
        mark = block.get("cache_control")
        yield Block(block["text"], mark.get("ttl", "5m") if mark else None)


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
        if (complaint := _complaint_of(message.get("content"))) is not None:
            return f"messages.{place}.content{complaint}"
    if messages[-1]["role"] == "assistant":
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    return None


def _check_system(request: Json) -> str | None:
    complaint = _complaint_of(request["system"]) if request.get("system") else None
    return None if complaint is None else f"system{complaint}"


def _check_cache_control(request: Json) -> str | None:
    return _complaint_of_mark(request.get("cache_control"))


def _check_output(request: Json) -> str | None:
    output = request.get("output_config") or {}
    wanted = output.get("format") if isinstance(output, dict) else output
    if isinstance(output, dict) and wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        return "output_config.format: Input should be a json_schema with its schema"
    return _open_object(wanted["schema"])


def _open_object(schema: Any) -> str | None:
    """The API takes only objects that name all of their properties."""
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


def _complaint_of(content: Any) -> str | None:
    """What is wrong with a text or a list of text blocks."""
    if isinstance(content, str):
        return None if content.strip() else ": text content blocks must be non-empty"
    if not isinstance(content, list) or not content:
        return ": Input should be a text or a list of blocks"
    for place, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            return f".{place}: the simulated judge reads text blocks only"
        if not block["text"].strip():
            return f".{place}: text content blocks must be non-empty"
        if (complaint := _complaint_of_mark(block.get("cache_control"))) is not None:
            return f".{place}.{complaint}"
    return None


def _complaint_of_mark(mark: Any) -> str | None:
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
"""What is looked at, in this order; the first complaint is the answer."""
