"""Bodies as JSON values, parsed strictly, because differences between JSON parsers can be exploited.

1. UTF-8 without a byte order mark. NaN, infinities and numbers beyond a double are refused.
2. An escaped lone surrogate becomes U+FFFD in a text: gateways cut texts at a length, and an agent must not escape its audit that
   way. In an id it is refused, because two ids would become one (`service.web.models`).
3. At most MAX_DEPTH levels of nesting, unless an endpoint checks each part by itself (`BatchRoute`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgspec
from fastapi import Request, Response

from schemas.bounds import MAX_DEPTH, is_too_deep
from schemas.validation_messages import decoding_words
from service.web.answering import AnswerRoute
from service.web.errors import ApiError
from streams.sources.lines import decode_json


class _StrictJsonRequest(Request):
    """A request whose body is parsed by the rules above."""

    def __init__(self, request: Request, max_depth: int | None) -> None:
        super().__init__(request.scope, request.receive)
        self._max_depth = max_depth

    async def json(self) -> Any:
        """Return the value of the body; ApiError (400) if it is not JSON."""
        return decode_body(await self.body(), self._max_depth)


class JsonRoute(AnswerRoute):
    """An endpoint whose body is parsed by the rules above."""

    max_depth: int | None = MAX_DEPTH

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which gets strict requests."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictJsonRequest(request, self.max_depth))

        return strict


class BatchRoute(JsonRoute):
    """An endpoint for many records: one with too deep nesting does not stop the others."""

    max_depth = None


class FaultyLine(NamedTuple):
    """Stands for the value of a line that is not JSON: the code of the reason, and the reason in words."""

    code: str
    detail: str


def decode_lines(body: bytes) -> list[Any]:
    """Return the value of each line of a body, ignoring blank lines. A faulty line does not stop the others."""
    values: list[Any] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                values.append(decode_body(line, None, f"line {number}"))
            except ApiError as error:
                values.append(FaultyLine(error.code, error.detail))
    return values


def decode_body(body: bytes, max_depth: int | None = MAX_DEPTH, name: str = "the body") -> Any:
    """Parse the JSON value of a body, or of a part that errors call `name`; ApiError (400) describes the problem without repeating the content."""
    try:
        value = decode_json(body)
    except UnicodeDecodeError as error:
        raise ApiError(400, "not_utf8", f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ApiError(400, "too_deep", f"{name} nests far too deep") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, "not_json", f"{name} is not JSON: {decoding_words(error)}") from None
    # Counting brackets is cheap and rules out deep nesting for most bodies; walk only the rest.
    if max_depth is not None and body.count(b"{") + body.count(b"[") > max_depth and is_too_deep(value, max_depth):
        raise ApiError(400, "too_deep", f"{name} nests deeper than {max_depth} levels")
    return value
