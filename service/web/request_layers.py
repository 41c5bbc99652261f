"""The layers around every request: an id and a log line, limits before the body is read, ETags, compression, and the audit trail.

The line has method, route, status, duration and caller, but no address, query, body or token. For ingest routes there is one
line per second, route and caller, with the number of calls it stands for.

1. A request must use an allowed host name, so that a foreign page whose name resolves to this server gets no answer (DNS
   rebinding).
2. The number of concurrent requests is bounded.
3. A body is JSON (or an HTML form, for pages that work without a script), not compressed, within the size limit, and arrives within
   the time limit. It is read whole before any endpoint runs.
4. An ETag is the digest of the answer, so it changes exactly when the answer does: endpoints declare nothing, and no clock or
   counter can be wrong. It saves the transfer and parsing of the answer, but not the database query.
5. Only pages and files are compressed. The length of compressed data reveals repetitions in it, so an attacker who observes
   lengths on the network and can place texts on a page could guess a secret on it (BREACH). A page's only secret is its mark,
   which changes whenever the rest of the page does (`service.setup.access`). JSON is not compressed: callers of the API send
   tokens, not cookies, and can compress in a proxy.
6. Each change over HTTP has a line in the audit log, written before the change and completed before the answer.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import anyio.to_thread
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schemas.errors import StoreError
from service.setup.access import AccessStore, Holder, Outcome, Write
from service.text.links import EVENTS, EVENTS_BULK, EXCHANGES, INGEST
from service.web.bounds import BODY_LIMITS, DEFAULT_BODY_LIMIT, DRY_RUNS, FORMS, LINES, OTLP, ApiSettings
from service.web.context import ApiContext, Metrics, durable_or_refused
from service.web.errors import METHODS, ApiError, error_response, refuse

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that only report the server's health: probes call them by IP address, and need an answer even under load."""
NOT_OUR_NAME = "Host: the server does not answer to this name; allow it with `driftline serve --name HOST`"
JSON, NDJSON, PROTOBUF = b"application/json", b"application/x-ndjson", b"application/x-protobuf"
FORM = b"application/x-www-form-urlencoded"
GZIP = b"gzip"
READS = frozenset({"GET", "HEAD", "OPTIONS"})


class ClientGone(Exception):  # noqa: N818 - not an error of ours
    """The client disconnected before it had sent its request."""


class HostCheck:
    """Answers only requests for allowed host names."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 400."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            hosts = list(header_values(scope, b"host"))
            if len(hosts) != 1 or host_name(hosts[0]) not in self._allowed:
                await refuse(ApiError(400, "host_not_allowed", NOT_OUR_NAME), scope, receive, send)
                return
        await self._app(scope, receive, send)


class InFlight:
    """Bounds the number of requests in progress."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 503."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._now >= self._limit:
            message = f"{self._limit} calls are in progress; try again"
            await refuse(ApiError(503, "busy", message, {"Retry-After": "1"}), scope, receive, send)
            return
        self._now += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now -= 1


class BodyLimits:
    """Reads the bodies of writing requests within limits; reading requests have no body."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._timeout = settings.read_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass the request on, or refuse it with 408, 413 or 415."""
        if scope["type"] != "http" or scope["method"] in READS:
            await self._app(scope, receive, send)
            return
        limit = BODY_LIMITS.get(scope["path"], DEFAULT_BODY_LIMIT)
        try:
            _check_head(scope, limit)
            body = await read_body(receive, limit, self._timeout)
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        await self._app(scope, replayed(body, receive), send)


async def read_body(receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the whole body. Raises ApiError if it is too large or too slow, ClientGone if the client disconnects."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _refuse_too_large(limit)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, "too_slow", f"the body did not arrive within {seconds:g} seconds") from None


def header_values(scope: Scope, name: bytes) -> Iterator[bytes]:
    """Return the values of a header, one for each occurrence."""
    return (value for sent, value in scope["headers"] if sent == name)


def is_same_origin(scope: Scope) -> bool:
    """Return whether the browser names no other origin. Browsers send at least one of the two headers with writes."""
    sites = set(header_values(scope, b"sec-fetch-site"))
    origins = set(header_values(scope, b"origin"))
    own = {scheme + host for scheme in (b"http://", b"https://") for host in header_values(scope, b"host")}
    return bool(sites or origins) and sites <= {b"same-origin"} and origins <= own


@lru_cache
def host_name(value: bytes) -> str:
    """Return the name in a Host header, without port and brackets; empty if it is invalid."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") or not port else "?"
    else:
        name, _, port = text.partition(":")
    return name.removesuffix(".") if not port or port.isdecimal() else ""


def _check_head(scope: Scope, limit: int) -> None:
    """Raise an ApiError for a body of another type or encoding, or with a declared length beyond the limit."""
    for value in header_values(scope, b"content-encoding"):
        if value.strip().lower() not in (b"", b"identity", *((GZIP,) if scope["path"] in OTLP else ())):
            more = "identity and gzip are" if scope["path"] in OTLP else "identity is"
            raise ApiError(415, "content_encoding", f"Content-Encoding: only {more} accepted; send the body uncompressed")
    if body_kind(scope) is None and (_has_body(scope) or any(header_values(scope, b"content-type"))):
        accepted = " or ".join(kind.decode() for kind in _accepted_kinds(scope))
        raise ApiError(415, "not_json", f"Content-Type: only {accepted} (UTF-8) is accepted")
    for value in header_values(scope, b"content-length"):
        if value.isdigit() and int(value[:20]) > limit:
            raise _refuse_too_large(limit)


def _has_body(scope: Scope) -> bool:
    """Return whether the head announces a body, by a length or by chunked encoding."""
    lengths = header_values(scope, b"content-length")
    return any(value.strip() != b"0" for value in lengths) or any(header_values(scope, b"transfer-encoding"))


def body_kind(scope: Scope) -> bytes | None:
    """Return the media type of a body, such as JSON or JSON lines; None if it is missing, given twice, or not accepted by the path."""
    sent = list(header_values(scope, b"content-type"))
    kind = _parse_media_type(sent[0]) if len(sent) == 1 else None
    return kind if kind in _accepted_kinds(scope) else None


def _accepted_kinds(scope: Scope) -> tuple[bytes, ...]:
    """Return the media types that a path accepts."""
    if scope["path"] in OTLP:
        return PROTOBUF, JSON
    if scope["path"] in FORMS:
        return (FORM,)
    return (JSON, NDJSON) if scope["path"] in LINES else (JSON,)


@lru_cache
def _parse_media_type(value: bytes) -> bytes | None:
    """Return the media type of a Content-Type header; None if it names an encoding other than UTF-8."""
    kind, *parameters = (part.strip().lower() for part in value.split(b";"))
    return kind if all(part in (b"", b"charset=utf-8", b'charset="utf-8"') for part in parameters) else None


def _refuse_too_large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"the body is larger than {limit} bytes")


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays the body, then passes on further messages."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


log = logging.getLogger(__name__)
UNKNOWN_ROUTE = "-"
CLIENT_GONE = 499
SAMPLED = frozenset({INGEST, EXCHANGES, EVENTS, EVENTS_BULK})
"""Routes that senders call constantly: one log line per call would take a seventh of the event loop's time."""
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
    """The outermost middleware: counts every request and writes its log line. The clock is in seconds."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._ids = random.Random()  # noqa: S311 - not a secret; os.urandom releases the interpreter lock, which costs a thread switch
        self._sampled: dict[tuple[str, int, str], tuple[float, int]] = {}
        """The time of the last line, and the number of calls since, by route, status and caller."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and record it."""
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
            log.exception("a request failed", extra={"request_id": request_id, "route": _name_route(scope)})
            if answer.status:
                raise  # a partly sent answer cannot be replaced, so the server closes the connection
            error = ApiError(500, "internal", f"internal error; see {request_id} in the server's log")
            await error_response(error)(scope, receive, answer)
        finally:
            self._note(scope, answer.status, request_id, started)

    def _note(self, scope: Scope, status: int, request_id: str, started: float) -> None:
        """Count an answered request and log it."""
        now = self._clock()
        route, caller = _name_route(scope), scope.get("state", {}).get("caller")
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
    """Passes an answer on with the common headers and remembers its status, which is 0 before the answer starts."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 0
        self._send = send
        self._request_id = request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            sent = {name for name, _ in headers}
            added = [pair for pair in RAW_HEADERS if pair[0] not in sent]
            message = {**message, "headers": [*headers, *added, (REQUEST_ID, self._request_id.encode())]}
        await self._send(message)


def _name_route(scope: Scope) -> str:
    """Return the route's template; `UNKNOWN_ROUTE` if no route matched."""
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))


LEVEL = 5
"""A higher level takes twice as long and hardly makes a page smaller."""
SMALLEST = 1024
"""Minimum bytes to compress: smaller answers fit into one packet anyway."""
VARIES = "Accept-Encoding"
_PAGE = "text/html"


def takes_gzip(scope: Scope) -> bool:
    """Return whether the caller accepts answers compressed with gzip."""
    sent = b",".join(header_values(scope, b"accept-encoding")).decode("latin-1").lower()
    parts = (part.partition(";") for part in sent.split(","))
    return any(
        name.strip() == "gzip" and weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
        for name, _, weight in parts
    )


def packed(body: bytes) -> bytes:
    """Compress a body, always to the same bytes."""
    return gzip.compress(body, LEVEL, mtime=0)


def is_packed(headers: MutableHeaders, body: bytes, *, takes: bool) -> bool:
    """Return whether to compress a body: it must be a page, and its caller must accept compression (`takes`).

    The ETag is of the uncompressed page, so it becomes a weak one.
    """
    if not headers.get("content-type", "").startswith(_PAGE):
        return False
    headers.add_vary_header(VARIES)
    if not takes or len(body) < SMALLEST:
        return False
    headers["Content-Encoding"] = "gzip"
    headers["ETag"] = f"W/{headers['ETag']}"
    return True


MAX_HELD = 8 * 1024 * 1024
"""Maximum bytes of a buffered answer; a larger one is streamed without an ETag."""
_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_OWN = ("/static/", "/docs", "/openapi.json", "/metrics", "/healthz", "/readyz")
"""Paths that handle caching themselves, or that no client polls."""
REVALIDATED = "private, no-cache"
"""The caller's private cache may keep the answer but has to revalidate it each time."""


class Etags:
    """Middleware around the endpoints and the pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and return its answer whole, or as a 304."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(_OWN):
            await self._app(scope, receive, send)
            return
        tags = [tag for value in header_values(scope, b"if-none-match") for tag in _parse_tags(value)]
        await self._app(scope, receive, _Held(send, tags, takes_gzip=takes_gzip(scope)))


class _Held:
    """Buffers an answer with status 200 until it is complete, and compresses it if it is a page; passes other answers on."""

    def __init__(self, send: Send, tags: list[bytes], *, takes_gzip: bool) -> None:
        self._send = send
        self._known = tags
        self._takes_gzip = takes_gzip
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            more = message.get("more_body", False)
            if not more:
                await self._send_whole(self._start)
            elif len(self._body) > MAX_HELD:
                await self._send_held(self._start, bytes(self._body), more=True)

    async def _send_whole(self, start: Message) -> None:
        tag = b'"%s"' % hashlib.sha256(self._body).hexdigest()[:32].encode()
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["ETag"] = tag.decode()
        headers.setdefault("Cache-Control", REVALIDATED)
        headers.setdefault("Vary", "Authorization, Cookie")
        body = bytes(self._body)
        to_pack = is_packed(headers, body, takes=self._takes_gzip)
        status = HTTPStatus.OK
        if tag in self._known or b"*" in self._known:
            status = HTTPStatus.NOT_MODIFIED
            body = b""
            for name in ("content-length", "content-type", "content-encoding"):
                if name in headers:
                    del headers[name]
        elif to_pack:
            body = await anyio.to_thread.run_sync(packed, body)
            headers["Content-Length"] = str(len(body))
        await self._send_held({**start, "status": int(status), "headers": headers.raw}, body, more=False)

    async def _send_held(self, start: Message, body: bytes, *, more: bool) -> None:
        self._start = None
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _parse_tags(value: bytes) -> list[bytes]:
    """Return the tags of an If-None-Match header, including weak ones, which are as good for reading."""
    return [b"*"] if value.strip() == b"*" else _TAG.findall(value)


MAX_SUBJECT = 256
"""Maximum length of a stored id."""


async def keep_write(request: Request) -> None:
    """Begin a line for an operator's change; 503 if it cannot be written.

    Deliveries of connections have no line: records name their connection themselves.
    """
    caller: Holder | None = getattr(request.state, "caller", None)
    if request.method in READS or caller is None or caller.kind != "operator" or request.scope["route"].path in DRY_RUNS:
        return
    context: ApiContext = request.app.state.context
    subjects = [str(value) for name, value in request.path_params.items() if name != "project"]
    write = Write(
        kind="operator",
        name=caller.name,
        token=request.state.token,
        method=request.method,
        route=request.scope["route"].path,
        project=request.path_params.get("project", caller.project),
        subject="/".join(subjects)[:MAX_SUBJECT] or None,
        request_id=request.state.request_id,
    )
    with durable_or_refused():
        request.state.line = await anyio.to_thread.run_sync(context.access.audit_log.begin, write)


def name_subject(request: Request, subject: str) -> None:
    """Set the subject of a change that its address does not name."""
    request.state.subject = subject[:MAX_SUBJECT]


class AuditTrail:
    """Middleware that completes the line of a request that has one."""

    def __init__(self, app: ASGIApp, access: AccessStore) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then record its outcome."""
        state = scope.setdefault("state", {}) if scope["type"] == "http" else {}

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._end(state, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            await self._end(state, int(HTTPStatus.INTERNAL_SERVER_ERROR))
            raise

    async def _end(self, state: dict[str, Any], status: int) -> None:
        line = state.pop("line", None)
        if line is None:
            return
        try:
            await anyio.to_thread.run_sync(self._access.audit_log.end, line, _outcome_of(status), status, state.get("subject"))
        except StoreError:
            # The change was made, so the answer reports success. The line has no outcome, as if the request had been interrupted.
            log.exception("the audit log could not record how a change ended")


def _outcome_of(status: int) -> Outcome:
    if status < HTTPStatus.BAD_REQUEST:
        return "done"
    return "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
