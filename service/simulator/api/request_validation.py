"""Reading a request of the Messages API as strictly as the API does, with its words and status for refusals.

A request that the simulator accepts but the API refuses would only be discovered with a real key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from audit.cost import price_of
from audit.fingerprints import canonical_json, digest
from service.simulator.api.complaints import complaint_of
from service.simulator.prompts import read_prompt
from service.simulator.subjects import Subject, read_subject

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
class Asked:
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


def read_request(headers: Mapping[str, str], body: bytes) -> Asked | Problem:
    """Return the request, or the API's complaint. `headers` by lower-case name."""
    problem = unauthorized(headers)
    request = json_object(body) if problem is None else problem
    if isinstance(request, Problem):
        return request
    complaint = complaint_of(request)
    return invalid(complaint) if complaint is not None else _asked(request)


def read_countable(headers: Mapping[str, str], body: bytes) -> Asked | Problem:
    """Read a request whose tokens are to be counted: as one for a message, without a limit on the answer."""
    problem = unauthorized(headers)
    request = json_object(body) if problem is None else problem
    if isinstance(request, Problem):
        return request
    if "max_tokens" in request:
        return invalid("max_tokens: Extra inputs are not permitted")
    whole = request | {"max_tokens": _ANY_ANSWER}
    complaint = complaint_of(whole)
    return invalid(complaint) if complaint is not None else _asked(whole)


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


def _asked(request: Json) -> Asked:
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
    return Asked(
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
