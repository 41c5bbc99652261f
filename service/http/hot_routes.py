"""Hot routes: endpoints that senders call all the time answer a sound call without the framework's layers.

1. A hot route has a quick function beside its endpoint: from the bytes of a body to the bytes of an answer. It returns None where
   anything is out of the ordinary. Then nothing was done, and the framework takes the call as it takes any other.
2. So what is wrong with a call is found and put into words in one place, and the description of the API knows one endpoint.
3. All middleware comes before both: host, token, limits, request record, audit trail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from fastapi import Request
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from service.access.access import Holder
from service.http.context import ApiContext
from service.http.documents.bodies import JsonRoute, Lines, StrictJsonRequest, decode_body, decode_lines, rounded_json
from service.http.documents.response_models import Answer
from service.http.errors import ApiError
from service.http.request_limits import JSON, NDJSON, body_kind, replayed


class Answered(NamedTuple):
    """Status and JSON of an answer."""

    status: int
    body: bytes


class Call(NamedTuple):
    """A sender's call: its body, whose it is, and what it is made to."""

    body: bytes
    is_lines: bool
    caller: Holder
    services: ApiContext


Quick = Callable[[Call], Awaitable[Answered | None]]
_QUICK: dict[Any, Quick] = {}
"""The quick function of an endpoint."""


def quick(endpoint: Any) -> Callable[[Quick], Quick]:
    """Register the function that answers a sound call of an endpoint without the framework."""

    def register(function: Quick) -> Quick:
        _QUICK[endpoint] = function
        return function

    return register


class HotRoute(JsonRoute):
    """A route whose endpoint may have a quick function. It takes the token of a connection, and no parameters."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call quickly if possible, else by the framework."""
        answered, call = None, _QUICK.get(self.endpoint)
        caller: Holder | None = scope.get("state", {}).get("caller")
        if call is not None and caller is not None and _is_plain(scope, caller):
            # The middleware has read the body whole.
            body = (await receive())["body"]
            receive = replayed(body, receive)
            is_lines = body_kind(scope) == NDJSON
            answered = await call(Call(body, is_lines, caller, scope["app"].state.context))
        if answered is None:
            await super().handle(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(answered.body)), (b"content-type", JSON)]
        await send({"type": "http.response.start", "status": answered.status, "headers": headers})
        await send({"type": "http.response.body", "body": answered.body})


class BulkRoute(HotRoute):
    """A route that takes an array or lines; a value that nests too deep does not stop the others."""

    max_depth = None

    def read(self, request: Request) -> StrictJsonRequest:
        """Return the request; lines as the array that they stand for."""
        if body_kind(request.scope) != NDJSON:
            return super().read(request)
        headers = [(name, JSON if name == b"content-type" else value) for name, value in request.scope["headers"]]
        return Lines({**request.scope, "headers": headers}, request.receive)


def decode_bulk(call: Call) -> Any:
    """Return the values of a call in bulk: of an array, or of lines."""
    return decode_lines(call.body, None) if call.is_lines else decode_body(call.body, None)


def answered_with(status: int, answer: Answer) -> Answered:
    """Return the bytes that the framework would make of an answer, with the set fields only."""
    return Answered(status, rounded_json(answer.model_dump(mode="json", exclude_unset=True)))


def sound(read: Callable[[], Any]) -> Any:
    """Return the parsed body; None if it has a fault, which the framework then reports."""
    try:
        return read()
    except (ApiError, ValidationError):
        return None


def _is_plain(scope: Scope, caller: Holder) -> bool:
    """Tell whether a call is a sender's: a POST with a body, a connection's token and nothing behind the path."""
    is_sent = scope["method"] == "POST" and body_kind(scope) is not None
    return is_sent and caller.kind == "connection" and not scope["query_string"]
