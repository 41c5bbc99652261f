"""Polling without sending the same answer again: an ETag on each, and 304 if the caller has it already.

The ETag is the digest of the answer, so it changes exactly when the answer does: nothing has to be declared by an endpoint, and
no clock or counter can be wrong. It saves sending and reading the answer, and not the question to the database.
"""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus

import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.web.compression import is_packed, packed, takes_gzip
from service.web.request_limits import header_values

MAX_HELD = 8 * 1024 * 1024
"""Bytes of an answer that is held back until its digest is known; a larger one is sent as it comes, without an ETag."""
_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_OWN = ("/static/", "/docs", "/openapi.json", "/metrics", "/healthz", "/readyz")
"""Paths that handle it themselves, or that no client polls."""
REVALIDATED = "private, no-cache"
"""The caller's own cache may keep the answer, and asks each time whether it is still current."""


class Etags:
    """Middleware around the endpoints and the pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back: whole, or as a 304."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(_OWN):
            await self._app(scope, receive, send)
            return
        known = [tag for value in header_values(scope, b"if-none-match") for tag in _tags(value)]
        await self._app(scope, receive, _Held(send, known, takes_gzip=takes_gzip(scope)))


class _Held:
    """Holds an answer with status 200 back until it is whole, and compresses it if it is a page; passes other answers on."""

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
    """Return the tags of an If-None-Match header, weak ones as well: for reading they are as good."""
    return [b"*"] if value.strip() == b"*" else _TAG.findall(value)
