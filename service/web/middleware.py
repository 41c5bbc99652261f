"""Middleware around every request: request id and log, limits, ETags, compression, and the audit log.

1. The log line of a request has method, route, status, duration and caller, but no address, query, body or token. Ingest routes
   log one line per second, route, status and caller, with the number of calls.
2. A request must use an allowed host name. Otherwise a foreign page could reach this server under a name that resolves to it (DNS
   rebinding).
3. The number of concurrent requests is bounded.
4. A body is JSON, or an HTML form for pages that work without a script. It must not be compressed, and has to arrive within the
   limits of size and time. It is read completely before any endpoint runs.
5. An ETag is the digest of the answer, so it changes exactly when the answer does. Endpoints declare nothing for it. A matching
   ETag saves the transfer and parsing of the answer, but not the database query.
6. Only pages and files are compressed. The length of compressed data reveals repetitions in it, so an attacker who observes
   lengths on the network and can place texts on a page could guess a secret on it (BREACH). The only secret of a page is its mark,
   which changes whenever the page does (`service.setup.access`). JSON is not compressed: callers of the API send tokens, not
   cookies, and can compress in a proxy.
7. Each change over HTTP has a line in the audit log, which is written before the change and completed before the answer.
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
from service.web.context import Metrics, durable_or_refused
from service.web.errors import METHODS, ApiError, error_response, refuse

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that report the server's health. Probes call them by IP address, and need an answer even under load."""
HOST_NOT_ALLOWED = "Host: the server does not answer to this name; allow it with `driftline serve --name HOST`"
JSON, NDJSON, PROTOBUF = b"application/json", b"application/x-ndjson", b"application/x-protobuf"
FORM = b"application/x-www-form-urlencoded"
GZIP = b"gzip"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing: https://www.rfc-editor.org/rfc/rfc9110#name-safe-methods."""


class ClientGone(Exception):  # noqa: N818 - not an error of ours
    """The client disconnected before the request was complete."""


class HostCheck:
    """Answers only requests for allowed host names."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 400."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            hosts = list(header_values(scope, b"host"))
            if len(hosts) != 1 or parse_host(hosts[0]) not in self._allowed:
                await refuse(ApiError(400, "host_not_allowed", HOST_NOT_ALLOWED), scope, receive, send)
                return
        await self._app(scope, receive, send)


class ConcurrencyLimit:
    """Bounds the number of requests in progress."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 503."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._in_progress >= self._limit:
            message = f"{self._limit} calls are in progress; try again"
            await refuse(ApiError(503, "busy", message, {"Retry-After": "1"}), scope, receive, send)
            return
        self._in_progress += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_progress -= 1


class BodyLimits:
    """Reads the bodies of unsafe requests within limits. Bodies of safe requests are ignored."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._timeout = settings.read_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass the request on, or refuse it with 408, 413 or 415."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        limit = BODY_LIMITS.get(scope["path"], DEFAULT_BODY_LIMIT)
        try:
            _check_headers(scope, limit)
            body = await read_body(receive, limit, self._timeout)
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        await self._app(scope, replay_body(body, receive), send)


async def read_body(receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the complete body. Raises ApiError if it is too large or too slow, ClientGone if the client disconnects."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large_error(limit)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, "too_slow", f"the body did not arrive within {seconds:g} seconds") from None


def header_values(scope: Scope, name: bytes) -> Iterator[bytes]:
    """Return the values of a header, one per occurrence."""
    return (value for header, value in scope["headers"] if header == name)


def is_same_origin(scope: Scope) -> bool:
    """Return whether the browser names this server as the origin. Browsers send at least one of the two headers with writes."""
    sites = set(header_values(scope, b"sec-fetch-site"))
    origins = set(header_values(scope, b"origin"))
    own_origins = {scheme + host for scheme in (b"http://", b"https://") for host in header_values(scope, b"host")}
    return bool(sites or origins) and sites <= {b"same-origin"} and origins <= own_origins


@lru_cache
def parse_host(value: bytes) -> str:
    """Return the name in a Host header, without port and brackets; empty if it is invalid."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") or not port else "?"
    else:
        name, _, port = text.partition(":")
    return name.removesuffix(".") if not port or port.isdecimal() else ""


def _check_headers(scope: Scope, limit: int) -> None:
    """Raise an ApiError for a body of another type or encoding, or with a declared length beyond the limit."""
    accepts_gzip_body = scope["path"] in OTLP
    for value in header_values(scope, b"content-encoding"):
        encoding = value.strip().lower()
        if encoding not in (b"", b"identity") and not (accepts_gzip_body and encoding == GZIP):
            accepted = "identity and gzip are" if accepts_gzip_body else "identity is"
            raise ApiError(415, "content_encoding", f"Content-Encoding: only {accepted} accepted; send the body uncompressed")
    if body_kind(scope) is None and (_has_body(scope) or any(header_values(scope, b"content-type"))):
        accepted = " or ".join(kind.decode() for kind in _accepted_kinds(scope))
        raise ApiError(415, "not_json", f"Content-Type: only {accepted} (UTF-8) is accepted")
    for value in header_values(scope, b"content-length"):
        # Twenty digits suffice, and int() rejects numbers of thousands of digits.
        if value.isdigit() and int(value[:20]) > limit:
            raise _too_large_error(limit)


def _has_body(scope: Scope) -> bool:
    """Return whether the headers announce a body, by a length or by chunked encoding."""
    lengths = header_values(scope, b"content-length")
    return any(value.strip() != b"0" for value in lengths) or any(header_values(scope, b"transfer-encoding"))


def body_kind(scope: Scope) -> bytes | None:
    """Return the media type of a body, for example JSON or JSON lines.

    Return None if the header is missing or repeated, or if the path does not accept the type.
    """
    values = list(header_values(scope, b"content-type"))
    kind = _parse_media_type(values[0]) if len(values) == 1 else None
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


def _too_large_error(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"the body is larger than {limit} bytes")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body first and then passes on further messages."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


log = logging.getLogger(__name__)
UNKNOWN_ROUTE = "-"
CLIENT_GONE = 499
INGEST_ROUTES = frozenset({INGEST, EXCHANGES, EVENTS, EVENTS_BULK})
"""Routes that senders call constantly. One log line per call would take a seventh of the event loop's time."""
INGEST_LOG_INTERVAL = 1.0
"""Seconds between log lines of calls to an ingest route with equal status and caller."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Default headers of every answer."""
RAW_HEADERS = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
REQUEST_ID = b"x-request-id"


class RequestLog:
    """The outermost middleware: counts every request and writes its log line. The clock is in seconds."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._ids = random.Random()  # noqa: S311 - not a secret; os.urandom releases the interpreter lock, which costs a thread switch
        self._ingest_calls: dict[tuple[str, int, str], tuple[float, int]] = {}
        """The time of the last log line and the number of calls since then, by route, status and caller."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and record it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock()
        request_id = f"{self._ids.getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _AnswerSender(send, request_id)
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
            self._record(scope, answer.status, request_id, started)

    def _record(self, scope: Scope, status: int, request_id: str, started: float) -> None:
        """Count an answered request and log it."""
        now = self._clock()
        route = _name_route(scope)
        caller = scope.get("state", {}).get("caller")
        method = scope["method"] if scope["method"] in METHODS else UNKNOWN_ROUTE
        self._metrics.answered(method, route, status, now - started)
        fields: dict[str, Any] = {"method": method, "route": route, "status": status, "ms": round((now - started) * 1000, 1)}
        if caller is not None:
            fields[caller.kind] = caller.name
        if status < HTTPStatus.MULTIPLE_CHOICES and route in INGEST_ROUTES:
            calls = self._count_ingest_call((route, status, "" if caller is None else caller.name), now)
            if not calls:
                return
            fields["calls"] = calls
        log.info("request", extra={**fields, "request_id": request_id})

    def _count_ingest_call(self, key: tuple[str, int, str], now: float) -> int:
        """Count a call. Return the number of calls since the last log line if another line is due, otherwise 0."""
        last_logged, unlogged = self._ingest_calls.get(key, (-INGEST_LOG_INTERVAL, 0))
        if now - last_logged < INGEST_LOG_INTERVAL:
            self._ingest_calls[key] = (last_logged, unlogged + 1)
            return 0
        self._ingest_calls[key] = (now, 0)
        return unlogged + 1


class _AnswerSender:
    """Passes an answer on with the common headers and remembers its status, which is 0 before the answer starts."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 0
        self._send = send
        self._request_id = request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            names = {name for name, _ in headers}
            defaults = [(name, value) for name, value in RAW_HEADERS if name not in names]
            message = {**message, "headers": [*headers, *defaults, (REQUEST_ID, self._request_id.encode())]}
        await self._send(message)


def _name_route(scope: Scope) -> str:
    """Return the route's template; `UNKNOWN_ROUTE` if no route matched."""
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))


COMPRESSION_LEVEL = 5
"""A higher level takes twice as long and hardly makes a page smaller."""
MIN_COMPRESSED_BYTES = 1024
"""Minimum bytes to compress: smaller answers fit into one packet anyway."""
ENCODING_VARIES = "Accept-Encoding"
_PAGE = "text/html"


def accepts_gzip(scope: Scope) -> bool:
    """Return whether the caller accepts answers compressed with gzip."""
    accepted = b",".join(header_values(scope, b"accept-encoding")).decode("latin-1").lower()
    for item in accepted.split(","):
        name, _, weight = item.partition(";")
        if name.strip() == "gzip" and weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            return True
    return False


def compress(body: bytes) -> bytes:
    """Compress a body. Equal bodies give equal bytes."""
    return gzip.compress(body, COMPRESSION_LEVEL, mtime=0)


def _prepare_compression(headers: MutableHeaders, body: bytes, *, accepts_gzip: bool) -> bool:
    """Set the headers for compression, and return whether to compress the body. Only pages are compressed, if the caller accepts it."""
    if not headers.get("content-type", "").startswith(_PAGE):
        return False
    headers.add_vary_header(ENCODING_VARIES)
    if not accepts_gzip or len(body) < MIN_COMPRESSED_BYTES:
        return False
    headers["Content-Encoding"] = "gzip"
    # The tag identifies the uncompressed page, so it is a weak one.
    headers["ETag"] = f"W/{headers['ETag']}"
    return True


MAX_BUFFERED_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a buffered answer; a larger one is streamed without an ETag."""
_ETAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_PATHS_WITHOUT_ETAG = ("/static/", "/docs", "/openapi.json", "/metrics", "/healthz", "/readyz")
"""Paths that handle caching themselves, or that no client polls."""
CACHE_CONTROL = "private, no-cache"
"""The caller's private cache may keep the answer but has to revalidate it each time."""


class Etags:
    """Adds ETags to answers, and answers 304 if the client has the current one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and send its complete answer or a 304."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(_PATHS_WITHOUT_ETAG):
            await self._app(scope, receive, send)
            return
        client_tags = [tag for value in header_values(scope, b"if-none-match") for tag in _parse_entity_tags(value)]
        await self._app(scope, receive, _AnswerBuffer(send, client_tags, accepts_gzip=accepts_gzip(scope)))


class _AnswerBuffer:
    """Buffers an answer with status 200 until it is complete, and compresses a page. Other answers are passed on."""

    def __init__(self, send: Send, client_tags: list[bytes], *, accepts_gzip: bool) -> None:
        self._send = send
        self._client_tags = client_tags
        self._accepts_gzip = accepts_gzip
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            has_more = message.get("more_body", False)
            if not has_more:
                await self._send_complete(self._start)
            elif len(self._body) > MAX_BUFFERED_BYTES:
                await self._flush(self._start, bytes(self._body), has_more=True)

    async def _send_complete(self, start: Message) -> None:
        tag = b'"%s"' % hashlib.sha256(self._body).hexdigest()[:32].encode()
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["ETag"] = tag.decode()
        headers.setdefault("Cache-Control", CACHE_CONTROL)
        headers.setdefault("Vary", "Authorization, Cookie")
        body = bytes(self._body)
        is_compressed = _prepare_compression(headers, body, accepts_gzip=self._accepts_gzip)
        status = HTTPStatus.OK
        if tag in self._client_tags or b"*" in self._client_tags:
            status = HTTPStatus.NOT_MODIFIED
            body = b""
            for name in ("content-length", "content-type", "content-encoding"):
                if name in headers:
                    del headers[name]
        elif is_compressed:
            body = await anyio.to_thread.run_sync(compress, body)
            headers["Content-Length"] = str(len(body))
        await self._flush({**start, "status": int(status), "headers": headers.raw}, body, has_more=False)

    async def _flush(self, start: Message, body: bytes, *, has_more: bool) -> None:
        """Send the buffered answer. Later messages are passed on."""
        self._start = None
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": has_more})


def _parse_entity_tags(value: bytes) -> list[bytes]:
    """Return the tags of an If-None-Match header. Weak tags count as equal to strong ones, as RFC 9110 requires here."""
    return [b"*"] if value.strip() == b"*" else _ETAG.findall(value)


MAX_SUBJECT_LENGTH = 256
"""Maximum length of a stored id."""


async def begin_audit_line(request: Request) -> None:
    """Begin the audit log's line of an operator's change. Answers 503 if it cannot be written.

    Deliveries of connections have no line, because records name their connection.
    """
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None or caller.kind != "operator":
        return
    if request.method in SAFE_METHODS or request.scope["route"].path in DRY_RUNS:
        return
    access: AccessStore = request.app.state.access
    subjects = [str(value) for name, value in request.path_params.items() if name != "project"]
    write = Write(
        kind="operator",
        name=caller.name,
        token=request.state.token,
        method=request.method,
        route=request.scope["route"].path,
        project=request.path_params.get("project", caller.project),
        subject="/".join(subjects)[:MAX_SUBJECT_LENGTH] or None,
        request_id=request.state.request_id,
    )
    with durable_or_refused():
        request.state.line = await anyio.to_thread.run_sync(access.audit_log.begin, write)


def set_subject(request: Request, subject: str) -> None:
    """Set the subject of a change in the audit log, if the address does not name it."""
    request.state.subject = subject[:MAX_SUBJECT_LENGTH]


class AuditTrail:
    """Completes the line in the audit log of each change."""

    def __init__(self, app: ASGIApp, access: AccessStore) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then record its outcome."""
        state = scope.setdefault("state", {}) if scope["type"] == "http" else {}

        async def complete_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._complete_line(state, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, complete_and_send)
        except Exception:
            await self._complete_line(state, int(HTTPStatus.INTERNAL_SERVER_ERROR))
            raise

    async def _complete_line(self, state: dict[str, Any], status: int) -> None:
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
