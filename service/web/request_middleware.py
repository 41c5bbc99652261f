"""Around every request: an id, one line in the log, headers that keep browsers from guessing, and an answer whatever happens.

The line says method, route, status, time and who called: no address of what was asked, no query, no body, no token.
Of records that are taken in, one line a second is written for each route and caller, with how many calls it stands for.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.text.paths import EVENTS, EVENTS_BULK, EXCHANGES, INGEST
from service.web.errors import METHODS, ApiError, error_response
from service.web.metrics import Metrics
from service.web.request_limits import ClientGone

log = logging.getLogger(__name__)
UNKNOWN_ROUTE = "-"
CLIENT_GONE = 499
SAMPLED = frozenset({INGEST, EXCHANGES, EVENTS, EVENTS_BULK})
"""Routes that senders call all the time: a line per call would cost a seventh of the event loop."""
SAMPLED_SECONDS = 1.0
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""The headers of every answer, unless it has its own."""
RAW_HEADERS = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
REQUEST_ID = b"x-request-id"


class RequestRecord:
    """The outermost middleware: counts every request, and writes its line. The clock is in seconds."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._ids = random.Random()  # noqa: S311 - no secret; the system's source lets go of the interpreter, which costs a turn of it
        self._sampled: dict[tuple[str, int, str], tuple[float, int]] = {}
        """The time of the last line, and the number of calls since, by route, status and caller."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and note that it was."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, request_id = self._clock(), f"{self._ids.getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        try:
            await self._app(scope, receive, answer)
        except ClientGone:
            answer.status = CLIENT_GONE
        except Exception:
            log.exception("a request failed", extra={"request_id": request_id, "route": _route(scope)})
            if answer.status:
                raise  # half an answer cannot be mended: the server ends the connection
            error = ApiError(500, "internal", f"internal error; see {request_id} in the server's log")
            await error_response(error)(scope, receive, answer)
        finally:
            self._note(scope, answer.status, request_id, started)

    def _note(self, scope: Scope, status: int, request_id: str, started: float) -> None:
        """Note that a request was answered."""
        now = self._clock()
        route, caller = _route(scope), scope.get("state", {}).get("caller")
        method = scope["method"] if scope["method"] in METHODS else UNKNOWN_ROUTE
        self._metrics.answered(method, route, status, now - started)
        calls: dict[str, Any] = {}
        if status < HTTPStatus.MULTIPLE_CHOICES and route in SAMPLED:
            key = (route, status, "" if caller is None else caller.name)
            written, left_out = self._sampled.get(key, (-SAMPLED_SECONDS, 0))
            if now - written < SAMPLED_SECONDS:
                self._sampled[key] = (written, left_out + 1)
                return
            self._sampled[key] = (now, 0)
            calls = {"calls": 1 + left_out}
        fields: dict[str, Any] = {"method": method, "route": route, "status": status, "ms": round((now - started) * 1000, 1)}
        if caller is not None:
            fields[caller.kind] = caller.name
        log.info("request", extra={**fields, **calls, "request_id": request_id})


class _Answer:
    """Passes an answer on, with the headers that all have; remembers its status, 0 before there is one."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 0
        self._send = send
        self._request_id = request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            given = {name for name, _ in headers}
            added = [pair for pair in RAW_HEADERS if pair[0] not in given]
            message = {**message, "headers": [*headers, *added, (REQUEST_ID, self._request_id.encode())]}
        await self._send(message)


def _route(scope: Scope) -> str:
    """Return the route's template, without the placeholders of its parameters; none for an unknown route."""
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))
