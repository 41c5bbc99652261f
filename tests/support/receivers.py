"""A receiver of alerts for tests: a real HTTP server on loopback that answers as it was told and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


@dataclass(frozen=True)
class Answer:
    """An answer: status, headers, body; `hangs` never answers."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False


@dataclass(frozen=True)
class Post:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """Return the parsed JSON body."""
        return msgspec.json.decode(self.body)  # type: ignore[no-any-return]


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request, with a declared length or in chunks."""
    length = request.headers["content-length"]
    if length is not None:
        return request.rfile.read(int(length))
    chunks = []
    while size := int(request.rfile.readline().partition(b";")[0], 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(chunks)


class Receiver:
    """Answers the posts in turn with `answers`, and repeats the last one; or as its `api` does."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.answers: list[Answer] = [Answer()]
        self.api: Callable[[Post], Answer] | None = None
        self._over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = _body(self)
                post = Post(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                receiver.posts.append(post)
                answer = receiver.answers[0] if receiver.api is None else receiver.api(post)
                if len(receiver.answers) > 1:
                    receiver.answers.pop(0)
                if answer.hangs:
                    receiver._over.wait(60)
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        """Return the address, with a credential in the path."""
        return f"http://127.0.0.1:{self._server.server_port}/services/T0/B0/hush-hush"

    @property
    def base_url(self) -> str:
        """Return the address without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the receiver."""
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Yield a listening receiver."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
