"""Hot routes: endpoints that senders call all the time answer a sound call before the layers and the framework.

1. A hot route has a quick function beside its endpoint: from the bytes of a body to the bytes of an answer. It returns None where
   anything is out of the ordinary. Then nothing was done.
2. A call is answered here if its head is sound: a sender's POST with one valid token, one allowed host, a body of a known length
   within the limit, and nothing behind the path. Any other call, and any body that the quick function leaves, takes the way of all
   calls, as if it had not been here. So a fault is found and put into words in one place.
3. An error of a quick function is answered by the application's own handlers, with the record that every request has.
4. A call stands before the framework, too: what it costs is read, decided and written here, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio.to_thread
from pydantic import ValidationError
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.access import AccessStore, Holder
from service.http.auth.authentication import bearer_token
from service.http.bounds import BODY_LIMITS
from service.http.context import ApiContext
from service.http.documents.bodies import rounded_json
from service.http.documents.response_models import Answer
from service.http.errors import ApiError, refuse
from service.http.request_limits import JSON, NDJSON, CallsInFlight, allowed_names, body_kind, host_name, read_body, replayed
from service.http.request_middleware import RAW_HEADERS, REQUEST_ID, RequestLog, RequestRecord

WHOLE = "driftline.whole"
"""The name of the extension by which a server offers a `WholeCall`."""
READ_AT_ONCE = 16 * 1024
"""Bytes of a body that is read and redacted without a thread: about a millisecond."""
_ENCODED = frozenset({b"content-encoding", b"transfer-encoding"})
"""Headers of a body that has to be looked at more closely."""
_HEADER_LINES = b"".join(
    b"%s: %s\r\n" % pair for pair in ((b"content-length", b"%d"), (b"content-type", JSON), *RAW_HEADERS, (REQUEST_ID, b"%s"))
)
"""The headers of an answer, as `_send` has them."""


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


class WholeCall(Protocol):
    """A call over its connection, for what need not wait. A server may offer it as the extension `WHOLE` of a call."""

    def body(self) -> bytes | None:
        """Return the body and count it as received; None unless it has come whole."""
        ...

    def answer(self, status: int, headers: bytes, body: bytes) -> bool:
        """Answer in one write; `headers` are lines. False, and nothing is written, where the client does not keep up."""
        ...


class HotRoutes:
    """Answers sound calls to hot routes; passes everything else on."""

    def __init__(
        self,
        app: ASGIApp,
        context: ApiContext,
        in_flight: CallsInFlight,
        handlers: Mapping[Any, Callable[..., Any]],
        requests: RequestLog,
    ) -> None:
        self._app = app
        self._context = context
        self._in_flight = in_flight
        self._handlers = handlers
        self._requests = requests
        self._allowed = allowed_names(context.settings)
        self._senders = _Senders(context.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or pass it on."""
        answer = _QUICK.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        head = None if answer is None else self._sound_head(scope)
        if answer is None or head is None or not self._in_flight.begin():
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["started"], state["caller"] = self._requests.clock(), head.caller
        try:
            body = await self._answered(answer, head, scope, receive, send)
        finally:
            self._in_flight.end()
        if body is not None:
            await self._app(scope, replayed(body, receive), send)

    def _sound_head(self, scope: Scope) -> _Head | None:
        """Return what a sound head says; None for any other."""
        heads, kind = dict(scope["headers"]), body_kind(scope)
        length = heads.get(b"content-length", b"")
        if kind is None or scope["query_string"] or len(heads) != len(scope["headers"]) or not _ENCODED.isdisjoint(heads):
            return None
        if not length.isdigit() or int(length[:20]) > BODY_LIMITS[scope["path"]]:
            return None
        if host_name(heads.get(b"host", b"")) not in self._allowed:
            return None
        token = bearer_token([heads[b"authorization"]] if b"authorization" in heads else [])
        caller = self._senders.find(token) if token else None
        return None if caller is None or caller.kind != "connection" else _Head(caller, kind)

    async def _answered(self, answer: Quick, head: _Head, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """Read and answer a call; return its body if the framework has to answer it."""
        whole: WholeCall | None = scope.get("extensions", {}).get(WHOLE)
        body = None if whole is None else whole.body()
        if body is None:
            try:
                body = await read_body(receive, BODY_LIMITS[scope["path"]], self._context.settings.read_timeout)
            except Exception as error:  # noqa: BLE001 - answered, or raised again
                await self._failed(_refusing(error), scope, receive, send)
                return None
        try:
            answered = await answer(Call(body, head.kind == NDJSON, head.caller, self._context))
        except Exception as error:  # noqa: BLE001 - as above
            scope["route"] = Route(scope["path"])
            await self._failed(ExceptionMiddleware(_raising(error), self._handlers), scope, receive, send)
            return None
        if answered is None:
            return body
        scope["route"] = Route(scope["path"])
        request_id = self._requests.new_id()
        if whole is None or not whole.answer(
            answered.status, _HEADER_LINES % (len(answered.body), request_id.encode()), answered.body
        ):
            await _send(answered, request_id, send)
        self._requests.note(scope, answered.status, request_id, scope["state"]["started"])
        return None

    async def _failed(self, answering: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a failure answered, with the record that every request has."""
        await RequestRecord(answering, self._requests)(scope, receive, send)


class _Head(NamedTuple):
    """The head of a sound call: whose it is, and the media type of its body."""

    caller: Holder
    kind: bytes


class _Senders:
    """Finds the holders of tokens. Whether any token has changed is asked once per turn of the event loop.

    A call that was sent after a token was revoked is read in a later turn, so it is refused.
    """

    def __init__(self, access: AccessStore) -> None:
        self._access = access
        self._version: int | None = None

    def find(self, token: bytes) -> Holder | None:
        """Return the holder of a token; None if it is not valid."""
        if self._version is None:
            self._version = self._access.version()
            asyncio.get_running_loop().call_soon(self._end_turn)
        return self._access.find(token, self._version)

    def _end_turn(self) -> None:
        self._version = None


async def read_whole(size: float, read: Callable[..., Read], *given: Any) -> Read:
    """Return what `read` makes of a body: in a thread, unless the body is so small that it is read sooner than a thread begins."""
    return read(*given) if size <= READ_AT_ONCE else await anyio.to_thread.run_sync(read, *given)


def answered_with(status: int, answer: Answer) -> Answered:
    """Return the answer with this status."""
    return Answered(status, answer_json(answer))


def answer_json(answer: Answer) -> bytes:
    """Return the bytes that the framework would make of an answer, with the set fields only."""
    return rounded_json(answer.model_dump(mode="json", exclude_unset=True))


def sound(read: Callable[[], Any]) -> Any:
    """Return the parsed body; None if it has a fault, which the framework then reports."""
    try:
        return read()
    except (ApiError, ValidationError):
        return None


async def _send(answered: Answered, request_id: str, send: Send) -> None:
    """Answer in the messages of ASGI."""
    headers = [
        (b"content-length", b"%d" % len(answered.body)),
        (b"content-type", JSON),
        *RAW_HEADERS,
        (REQUEST_ID, request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    await send({"type": "http.response.body", "body": answered.body})


def _refusing(error: Exception) -> ASGIApp:
    """Answer what is wrong with a body that was not read to its end."""

    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        if not isinstance(error, ApiError):
            raise error
        await refuse(error, scope, receive, send)

    return refuses


def _raising(error: Exception) -> ASGIApp:
    async def raises(_scope: Scope, _receive: Callable[[], Awaitable[Message]], _send: Send) -> None:
        raise error

    return raises
