"""Hot routes: endpoints that senders call all the time answer a sound call without the framework's layers.

1. A hot route has a quick function beside its endpoint: from the bytes of a body to the bytes of an answer. It returns None where
   anything is out of the ordinary. Then nothing was done, and the framework takes the call as it takes any other.
2. So what is wrong with a call is found and put into words in one place, and the description of the API knows one endpoint.
3. All middleware comes before both: host, token, limits, request record, audit trail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from service.access.access import Holder
from service.http.context import ApiContext
from service.http.documents.bodies import JsonRoute, rounded_json
from service.http.documents.response_models import Answer
from service.http.errors import ApiError
from service.http.request_limits import JSON, replayed


class Answered(NamedTuple):
    """Status and JSON of an answer."""

    status: int
    body: bytes


Quick = Callable[[bytes, Holder, ApiContext], Awaitable[Answered | None]]
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
            answered = await call(body, caller, scope["app"].state.context)
        if answered is None:
            await super().handle(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(answered.body)), (b"content-type", JSON)]
        await send({"type": "http.response.start", "status": answered.status, "headers": headers})
        await send({"type": "http.response.body", "body": answered.body})


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
    """Tell whether a call is a sender's: a POST of plain JSON, with a connection's token and nothing behind the path."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return scope["method"] == "POST" and caller.kind == "connection" and not scope["query_string"] and kinds == [JSON]
