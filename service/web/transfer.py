"""Smaller answers: compressed pages and files, and 304 if the caller already has the answer.

The length of compressed data reveals repetitions in it. An attacker who observes lengths on the network and can place texts on a page
could guess a secret on it (BREACH). A page's only secret is its mark, which changes whenever the rest of the page does
(`service.setup.access.sign_ins`). JSON is not compressed: callers of the API send tokens, not cookies, and can compress in a proxy.

An ETag is the digest of the answer, so it changes exactly when the answer does: endpoints declare nothing, and no clock or counter can
be wrong. It saves the transfer and parsing of the answer, but not the database query.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from http import HTTPStatus

import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.web.request_layers import header_values

LEVEL = 5
"""A higher level takes twice as long and hardly makes a page smaller."""
SMALLEST = 1024
"""Minimum bytes to compress: smaller answers fit into one packet anyway."""
VARIES = "Accept-Encoding"
_PAGE = "text/html"


def takes_gzip(scope: Scope) -> bool:
    """Tell whether the caller accepts answers compressed with gzip."""
    given = b",".join(header_values(scope, b"accept-encoding")).decode("latin-1").lower()
    parts = (part.partition(";") for part in given.split(","))
    return any(
        name.strip() == "gzip" and weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
        for name, _, weight in parts
    )


def packed(body: bytes) -> bytes:
    """Compress a body, always to the same bytes."""
    return gzip.compress(body, LEVEL, mtime=0)


def is_packed(headers: MutableHeaders, body: bytes, *, takes: bool) -> bool:
    """Tell whether to compress a body: it is a page, and its caller `takes` compression.

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
        known = [tag for value in header_values(scope, b"if-none-match") for tag in _tags(value)]
        await self._app(scope, receive, _Held(send, known, takes_gzip=takes_gzip(scope)))


class _Held:
    """Buffers an answer with status 200 until it is complete, and compresses it if it is a page; passes other answers on."""

    def __init__(self, send: Send, known: list[bytes], *, takes_gzip: bool) -> None:
        self._send = send
        self._known = known
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


def _tags(value: bytes) -> list[bytes]:
    """Return the tags of an If-None-Match header, including weak ones, which are as good for reading."""
    return [b"*"] if value.strip() == b"*" else _TAG.findall(value)
