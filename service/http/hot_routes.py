"""Hot routes: endpoints that senders call all the time answer a sound call before the layers and the framework.

1. A hot route has a quick function beside its endpoint: from the bytes of a body to the bytes of an answer. It returns None where
   anything is out of the ordinary. Then nothing was done.
2. A call is answered here if its head is sound: a sender's POST with one valid token, one allowed host, a body of a known length
   within the limit, and nothing behind the path. Any other call, and any body that the quick function leaves, takes the way of all
   calls, as if it had not been here. So a fault is found and put into words in one place.
3. An error of a quick function is answered by the application's own handlers. The record of the request comes before all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import anyio.to_thread
from pydantic import ValidationError
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.access import Holder, prefix_of
from service.http.auth.authentication import bearer_token
from service.http.bounds import BODY_LIMITS
from service.http.context import ApiContext
from service.http.documents.bodies import rounded_json
from service.http.documents.response_models import Answer
from service.http.errors import ApiError, refuse
from service.http.request_limits import JSON, NDJSON, CallsInFlight, allowed_names, body_kind, host_name, read_body, replayed

READ_AT_ONCE = 16 * 1024
"""Bytes of a body that is read and redacted without a thread: about a millisecond."""
_ENCODED = frozenset({b"content-encoding", b"transfer-encoding"})
"""Headers of a body that has to be looked at more closely."""


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


class Route(NamedTuple):
    """The route of a call, for its record."""

    path: str


Read = TypeVar("Read")
Quick = Callable[[Call], Awaitable[Answered | None]]
_QUICK: dict[str, Quick] = {}
"""The quick functions by path."""


def quick(path: str) -> Callable[[Quick], Quick]:
    """Register the function that answers a sound call to a path without the framework."""

    def register(function: Quick) -> Quick:
        _QUICK[path] = function
        return function

    return register


class HotRoutes:
    """Answers sound calls to hot routes; passes everything else on."""

    def __init__(
        self, app: ASGIApp, context: ApiContext, in_flight: CallsInFlight, handlers: Mapping[Any, Callable[..., Any]]
    ) -> None:
        self._app = app
        self._context = context
        self._in_flight = in_flight
        self._handlers = handlers
        self._allowed = allowed_names(context.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or pass it on."""
        answer = _QUICK.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        caller = None if answer is None else self._sender(scope)
        if answer is None or caller is None or not self._in_flight.begin():
            await self._app(scope, receive, send)
            return
        try:
            body = await self._answered(answer, caller, scope, receive, send)
        finally:
            self._in_flight.end()
        if body is not None:
            await self._app(scope, replayed(body, receive), send)

    def _sender(self, scope: Scope) -> Holder | None:
        """Return the connection that calls; None unless the head of the call is sound."""
        heads = dict(scope["headers"])
        length = heads.get(b"content-length", b"")
        if scope["query_string"] or len(heads) != len(scope["headers"]) or not _ENCODED.isdisjoint(heads):
            return None
        if not length.isdigit() or int(length[:20]) > BODY_LIMITS[scope["path"]] or body_kind(scope) is None:
            return None
        if host_name(heads.get(b"host", b"")) not in self._allowed:
            return None
        token = bearer_token([heads[b"authorization"]] if b"authorization" in heads else [])
        caller = self._context.access.find(token) if token else None
        if caller is None or caller.kind != "connection":
            return None
        scope["state"].update(caller=caller, token=prefix_of(token))
        return caller

    async def _answered(self, answer: Quick, caller: Holder, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """Read and answer a call; return its body if the framework has to answer it."""
        try:
            body = await read_body(receive, BODY_LIMITS[scope["path"]], self._context.settings.read_timeout)
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return None
        try:
            answered = await answer(Call(body, body_kind(scope) == NDJSON, caller, self._context))
        except Exception as error:  # noqa: BLE001 - answered, or raised again
            scope["route"] = Route(scope["path"])
            await ExceptionMiddleware(_raising(error), self._handlers)(scope, receive, send)
            return None
        if answered is None:
            return body
        scope["route"] = Route(scope["path"])
        headers = [(b"content-length", b"%d" % len(answered.body)), (b"content-type", JSON)]
        await send({"type": "http.response.start", "status": answered.status, "headers": headers})
        await send({"type": "http.response.body", "body": answered.body})
        return None


async def read_whole(size: float, read: Callable[..., Read], *given: Any) -> Read:
    """Return what `read` makes of a body: in a thread, unless the body is so small that it is read sooner than a thread begins."""
    return read(*given) if size <= READ_AT_ONCE else await anyio.to_thread.run_sync(read, *given)


def answered_with(status: int, answer: Answer) -> Answered:
    """Return the bytes that the framework would make of an answer, with the set fields only."""
    return Answered(status, rounded_json(answer.model_dump(mode="json", exclude_unset=True)))


def sound(read: Callable[[], Any]) -> Any:
    """Return the parsed body; None if it has a fault, which the framework then reports."""
    try:
        return read()
    except (ApiError, ValidationError):
        return None


def _raising(error: Exception) -> ASGIApp:
    async def raises(_scope: Scope, _receive: Callable[[], Awaitable[Message]], _send: Send) -> None:
        raise error

    return raises
