"""Reading a request of the Messages API as strictly as the API does, with its wording and status for refusals.

A request that the simulator accepts but the API refuses would only be discovered with a real key. Each rule is one function, and the
first complaint counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from audit.cost import price_of
from audit.fingerprints import canonical_json, digest
from driftline_trial.simulator.prompts import Subject, read_prompt, read_subject

MAX_BODY = 32 * 1024 * 1024
"""Bytes a request may have; more is answered with 413."""

_ANY_ANSWER = 2**31
"""Tokens of an answer that is not requested."""
Json = dict[str, Any]


class Problem(NamedTuple):
    """The API's answer in place of a message."""

    status: int
    type: str
    message: str


class Block(NamedTuple):
    """A text of the request, in the order in which the model reads them."""

    text: str
    ttl: str | None
    """Cache lifetime of everything up to here, 5m or 1h; None without a mark."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that the API would accept."""

    model: str
    max_tokens: int
    blocks: tuple[Block, ...]
    structured: Json | None
    """Schema in output_config."""
    schema: Json | None
    """Schema of the answer: in output_config, else the one in the prompt."""
    materials: dict[str, str]
    subject: Subject | None
    """The run to be evaluated; None for another question."""
    opening: tuple[str, str]
    """The system prompt and the first message; a turn of repair begins with both."""
    thinks: bool
    """Whether a thinking block comes first."""

    @property
    def key(self) -> str:
        """Return the digest of the question: the same for repetitions, whatever the boundary and the turns of repair."""
        instructions, first = self.opening
        return digest(canonical_json([self.model, instructions, self.materials or first]))


def read_request(headers: Mapping[str, str], body: bytes) -> ParsedRequest | Problem:
    """Return the request, or the API's complaint. `headers` by lower-case name."""
    problem = unauthorized(headers)
    request = json_object(body) if problem is None else problem
    if isinstance(request, Problem):
        return request
    complaint = complaint_of(request)
    return invalid(complaint) if complaint is not None else parse_request(request)


def read_countable(headers: Mapping[str, str], body: bytes) -> ParsedRequest | Problem:
    """Read a request whose tokens are to be counted: as one for a message, without a limit on the answer."""
    problem = unauthorized(headers)
    request = json_object(body) if problem is None else problem
    if isinstance(request, Problem):
        return request
    if "max_tokens" in request:
        return invalid("max_tokens: Extra inputs are not permitted")
    with_limit = request | {"max_tokens": _ANY_ANSWER}
    complaint = complaint_of(with_limit)
    return invalid(complaint) if complaint is not None else parse_request(with_limit)


def read_of_cloud(headers: Mapping[str, str], body: bytes, model: str | None) -> ParsedRequest | Problem:
    """Read a request in the form of Bedrock and Vertex AI: the path names the model, and the body the version.

    Without a model in the path, Vertex AI counts the tokens of a request, which names it.
    """
    request = json_object(body)
    if isinstance(request, Problem):
        return request
    if not isinstance(request.pop("anthropic_version", None), str):
        return invalid("anthropic_version: Field required")
    headers = {**headers, "anthropic-version": ""}
    if model is None:
        return read_countable(headers, json.dumps(request).encode())
    if "model" in request:
        return invalid("model: Extra inputs are not permitted")
    return read_request(headers, json.dumps(request | {"model": model}).encode())


def unauthorized(headers: Mapping[str, str]) -> Problem | None:
    """Return the API's complaint about the headers, for any request."""
    if not (headers.get("authorization", "").partition(" ")[2].strip() or headers.get("x-api-key")):
        return Problem(401, "authentication_error", "x-api-key or Authorization header is required")
    return None if "anthropic-version" in headers else invalid("anthropic-version: header is required")


def json_object(body: bytes) -> Json | Problem:
    """Return the object in a body."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return invalid("The request body is not valid JSON")
    return request if isinstance(request, dict) else invalid("The request body must be a JSON object")


def invalid(message: str) -> Problem:
    """Return the problem of a malformed request."""
    return Problem(400, "invalid_request_error", message)


def parse_request(request: Json) -> ParsedRequest:
    """Parse a request of the Messages API about which there is no complaint."""
    structured = (request.get("output_config") or {}).get("format", {}).get("schema")
    system = list(_blocks(request.get("system") or ""))
    turns = [list(_blocks(message["content"])) for message in request["messages"]]
    spoken = [block for turn in turns for block in turn]
    instructions, first = _text(system), _text(turns[0])
    subject = read_subject(first)
    prompt = read_prompt(instructions, _text(spoken) if subject is None else "")
    blocks = [*system, *spoken]
    if "cache_control" in request:
        blocks[-1] = Block(blocks[-1].text, (request["cache_control"] or {}).get("ttl", "5m"))
    price = price_of(request["model"], {})
    thinking = request.get("thinking") or {"type": "enabled" if price and price.switch_off_thinking else "disabled"}
    return ParsedRequest(
        model=request["model"],
        max_tokens=request["max_tokens"],
        blocks=tuple(blocks),
        structured=structured,
        schema=structured or prompt.schema,
        materials=prompt.materials,
        subject=subject,
        opening=(instructions, first),
        thinks=thinking["type"] != "disabled",
    )


def _blocks(content: str | list[Json]) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block(content, None)
        return
    for block in content:
        mark = block.get("cache_control")
        yield Block(block["text"], mark.get("ttl", "5m") if mark else None)


def _text(blocks: list[Block]) -> str:
    return "\n".join(block.text for block in blocks)


_KNOWN = frozenset(
    {"model", "max_tokens", "messages", "system", "output_config", "thinking", "metadata", "stop_sequences"}
    | {"service_tier", "cache_control", "stream", "temperature", "top_p", "top_k", "inference_geo"}
)
_LEAST_BUDGET = 1024


def complaint_of(request: Json) -> str | None:
    """Return the fault of the request; None if it has none."""
    return next((complaint for check in _CHECKS if (complaint := check(request)) is not None), None)


def _check_names(request: Json) -> str | None:
    unknown = next((name for name in request if name not in _KNOWN), None)
    return None if unknown is None else f"{unknown[:80]}: Extra inputs are not permitted"


def _check_sampling(request: Json) -> str | None:
    parameter = next((name for name in ("temperature", "top_p", "top_k") if name in request), None)
    return None if parameter is None else f"{parameter}: sampling parameters are not supported by this model"


def _check_model(request: Json) -> str | None:
    return None if isinstance(request.get("model"), str) and request["model"] else "model: Field required"


def _check_max_tokens(request: Json) -> str | None:
    limit = request.get("max_tokens")
    if limit is None:
        return "max_tokens: Field required"
    return None if type(limit) is int and limit > 0 else "max_tokens: Input should be an integer greater than 0"


def _check_messages(request: Json) -> str | None:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            return f"messages.{index}.role: Input should be 'user' or 'assistant'"
        if (complaint := _content_complaint(message.get("content"))) is not None:
            return f"messages.{index}.content{complaint}"
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
    output_format = output.get("format") if isinstance(output, dict) else output
    if isinstance(output, dict) and output_format is None:
        return None
    if (
        not isinstance(output_format, dict)
        or output_format.get("type") != "json_schema"
        or not isinstance(output_format.get("schema"), dict)
    ):
        return "output_config.format: Input should be a json_schema with its schema"
    return _open_object(output_format["schema"])


def _open_object(schema: Any) -> str | None:
    """Return the complaint about an object schema with open properties: the API requires `additionalProperties: false`."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if part.get("type") == "object" and part.get("additionalProperties") is not False:
                return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
            pending += part.values()
        elif isinstance(part, list):
            pending += part
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
    for index, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            return f".{index}: the simulated judge reads text blocks only"
        if not block["text"].strip():
            return f".{index}: text content blocks must be non-empty"
        if (complaint := _mark_complaint(block.get("cache_control"))) is not None:
            return f".{index}.{complaint}"
    return None


def _mark_complaint(mark: Any) -> str | None:
    if mark is None:
        return None
    is_valid = isinstance(mark, dict) and mark.get("type") == "ephemeral" and mark.get("ttl", "5m") in ("5m", "1h")
    return None if is_valid else "cache_control: Input should be of type 'ephemeral' with a ttl of 5m or 1h"


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
