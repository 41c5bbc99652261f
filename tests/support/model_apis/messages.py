"""A stand-in for the paid model: a server on loopback that speaks the Anthropic Messages API and plays a script.

Which play a request belongs to is told by the text of the user's message, and which step of it by how many answers of the model
follow that message, so that the stand-in keeps no state of a session. A step that fails does so as often as it says.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Json = dict[str, Any]

MODEL = "claude-sonnet-5-5"
CHARACTERS_PER_TOKEN = 4
"""What the stand-in counts as a token of a request, so that a session's usage grows as a real one's does."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model.

    Arguments that only a tool's output tells, as the name of a background process, are made from the request.
    """

    tool: str
    arguments: Mapping[str, Any] | Callable[[Json], Mapping[str, Any]]

    def given(self, request: Json) -> Json:
        """Return the arguments of the call in answer to a request."""
        return dict(self.arguments(request) if callable(self.arguments) else self.arguments)


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model.

    It answers `status` instead for the first `failures` times it is asked, and waits before it says anything: until a request
    of the play `after` was answered, and then `delay` seconds.
    """

    text: str = ""
    thinking: str = ""
    calls: Sequence[Call] = ()
    stop: str | None = None
    status: int = 529
    failures: int = 0
    delay: float = 0.0
    after: str = ""
    output_tokens: int | None = None
    input_tokens: int | None = None
    """Tokens of the whole request, those of the cache among them; counted from its length where nothing is said."""
    cached_tokens: int = 0


SUMMARY = Step(
    "## Goal\nAnswer the user's questions about the files.\n## Progress\nThe files named so far were read and their questions "
    "answered.\n## Next Steps\nGo on with the next question."
)
"""What a request without tools is answered with: OpenClaw makes such for itself, to sum up a conversation that it compacts."""


@dataclass(frozen=True, slots=True)
class Play:
    """The model's answers from one user message on; further requests repeat the last step."""

    steps: Sequence[Step]


@dataclass
class Provider:
    """A running stand-in: its address, the plays by the text of the user's message, and every request received."""

    url: str
    plays: dict[str, Play] = field(default_factory=dict)
    without_tools: Step | None = SUMMARY
    """What a request without tools is answered with; by default nothing is played for it."""
    histories: dict[str, list[Json]] = field(default_factory=dict)
    """Items up to the end of each response, where the API keeps them."""
    requests: list[Json] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Texts of users that no play was found for; they are answered with a plain sentence."""
    finished: set[str] = field(default_factory=set)
    """Plays whose last step was asked for."""
    released: threading.Event = field(default_factory=threading.Event)
    _failed: Counter[tuple[str, int]] = field(default_factory=Counter)
    _cached: set[str] = field(default_factory=set)
    _ids: Iterator[int] = field(default_factory=lambda: count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, plays: Mapping[str, Play]) -> None:
        """Add more plays."""
        self.plays.update(plays)

    def step_for(self, request: Json) -> tuple[Step, bool]:
        """Return the step that answers a request, and whether it fails this time."""
        text, answer_count = self._position(request["messages"])
        with self._lock:
            self.requests.append(request)
            if self.without_tools is not None and not request.get("tools"):
                return self.without_tools, False
            play = self.plays.get(text)
            if play is None:
                self.unknown.append(text)
                play = Play([Step("All right.")])
            index = min(answer_count, len(play.steps) - 1)
            step = play.steps[index]
            fails = self._failed[text, index] < step.failures
            self._failed[text, index] += fails
            if index == len(play.steps) - 1 and not fails:
                self.finished.add(text)
            return step, fails

    def pause(self, step: Step) -> None:
        """Wait as long as the step says, or until the stand-in ends."""
        while step.after and step.after not in self.finished and not self.released.wait(0.02):
            pass
        if step.delay:
            self.released.wait(step.delay)

    def next_id(self, kind: str) -> str:
        """Return a unique id."""
        with self._lock:
            return f"{kind}_{next(self._ids):08d}"

    def cached(self, request: Json) -> tuple[int, int, int]:
        """Return the characters of the prompt that were read from the cache, that are written to it, and that are neither.

        As at Anthropic: the longest prefix that an earlier request marked is read, what follows up to the last mark is written. A
        conversation begins without any of it, as one does that nobody talked to for longer than the cache lives.
        """
        fixed = len(json.dumps(request.get("system", ""))) + len(json.dumps(request.get("tools", [])))
        texts = [json.dumps(_unmarked(message)) for message in request["messages"]]
        marked = [index for index, message in enumerate(request["messages"]) if "cache_control" in json.dumps(message)]
        marked_end = marked[-1] + 1 if marked else 0
        digest, total, cache_read, cache_written = hashlib.sha256(), fixed, 0, 0
        with self._lock:
            for index, text in enumerate(texts[:marked_end]):
                digest.update(text.encode())
                total += len(text)
                if digest.hexdigest() in self._cached:
                    cache_read = total
                if index + 1 == marked_end:
                    self._cached.add(digest.hexdigest())
                    cache_written = total - cache_read
        return cache_read, cache_written, fixed + sum(map(len, texts)) - cache_read - cache_written

    def _position(self, messages: Sequence[Json]) -> tuple[str, int]:
        """Return the newest user text that starts a play, and the number of the model's answers after it."""
        answer_count, newest = 0, ""
        for message in reversed(messages):
            if message["role"] == "assistant":
                answer_count += 1
                continue
            for text in _texts(message):
                for play_text in self.plays:
                    if play_text in text:
                        return play_text, answer_count
                newest = newest or text
        return newest, answer_count


def _unmarked(message: Json) -> Json:
    """Return the message as the cache compares it: always as blocks, and without cache marks, which move between requests."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    unmarked = [{name: value for name, value in block.items() if name != "cache_control"} for block in blocks]
    return {"role": message["role"], "content": unmarked}


def _texts(message: Json) -> Iterator[str]:
    content = message["content"]
    if isinstance(content, str):
        yield content
        return
    yield from (block["text"] for block in content if block["type"] == "text")


@contextmanager
def stand_in(plays: Mapping[str, Play] | None = None) -> Iterator[Provider]:
    """Yield a stand-in."""
    with serving(Messages, plays) as provider:
        yield provider


@contextmanager
def serving(speaks: type[PlayedApi], plays: Mapping[str, Play] | None, path: str = "") -> Iterator[Provider]:
    """Yield a stand-in of one API; its base URL ends in `path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), speaks)
    server.daemon_threads = True
    provider = Provider(f"http://127.0.0.1:{server.server_port}{path}", dict(plays or {}))
    # A class of its own, so that two stand-ins do not share what they play.
    server.RequestHandlerClass = type(speaks.__name__, (speaks,), {"provider": provider})
    thread = threading.Thread(target=server.serve_forever, name=f"stand-in {speaks.__name__}", kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        provider.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class PlayedApi(BaseHTTPRequestHandler):
    """The common part of the stand-ins of all APIs."""

    provider: Provider
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer 404: programs have their own lists of models."""
        self.answer(404, {"error": {"message": "unknown"}})

    def do_POST(self) -> None:
        """Answer a request to the model."""
        self.play(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    @abstractmethod
    def play(self, request: Json) -> None:
        """Answer with the step of a play."""

    def answer(self, status: int, body: Json) -> None:
        """Answer with JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        """Begin a stream of events, which ends with the connection."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def stream(self, events: Iterator[tuple[str, Json]]) -> None:
        """Stream the events; each carries its type twice."""
        self.begin_stream()
        for kind, data in events:
            self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode())
        self.wfile.flush()


class Messages(PlayedApi):
    """The Anthropic Messages API."""

    def play(self, request: Json) -> None:
        """Answer a message request, as a stream if requested."""
        if not self.path.partition("?")[0].endswith("/messages"):
            self.answer(404, {"type": "error", "error": {"type": "not_found_error", "message": self.path}})
            return
        step, fails = self.provider.step_for(request)
        self.provider.pause(step)
        try:
            if fails:
                kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(step.status, "api_error")
                self.answer(step.status, {"type": "error", "error": {"type": kind, "message": "scripted"}})
            elif request.get("stream"):
                self.stream(_events(_message(self.provider, request, step)))
            else:
                self.answer(200, _message(self.provider, request, step))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the run was aborted or timed out: that is what the script is about


def _message(provider: Provider, request: Json, step: Step) -> Json:
    content: list[Json] = []
    if step.thinking:
        content.append({"type": "thinking", "thinking": step.thinking, "signature": "c2lnbmVk"})
    if step.text:
        content.append({"type": "text", "text": step.text})
    content += [
        {"type": "tool_use", "id": provider.next_id("toolu"), "name": call.tool, "input": call.given(request)}
        for call in step.calls
    ]
    content_length = sum(len(json.dumps(block)) for block in content)
    return {
        "id": provider.next_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": step.stop or ("tool_use" if step.calls else "end_turn"),
        "stop_sequence": None,
        "usage": _usage(provider, request, step, step.output_tokens or content_length // CHARACTERS_PER_TOKEN + 1),
    }


def _usage(provider: Provider, request: Json, step: Step, output: int) -> Json:
    """Return the usage of a cached conversation, unless the step sets it."""
    cache_read, cache_written, plain = provider.cached(request)
    if step.input_tokens is not None:
        plain_tokens = step.input_tokens - step.cached_tokens
        return {
            "input_tokens": plain_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": step.cached_tokens,
            "output_tokens": output,
        }
    return {
        "input_tokens": plain // CHARACTERS_PER_TOKEN + 1,
        "cache_creation_input_tokens": cache_written // CHARACTERS_PER_TOKEN,
        "cache_read_input_tokens": cache_read // CHARACTERS_PER_TOKEN,
        "output_tokens": output,
    }


_DELTAS = {
    "text": lambda block: {"type": "text_delta", "text": block["text"]},
    "thinking": lambda block: {"type": "thinking_delta", "thinking": block["thinking"]},
    "tool_use": lambda block: {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
}
_EMPTY: Mapping[str, Json] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}


def _events(message: Json) -> Iterator[tuple[str, Json]]:
    """Yield the events of a streamed message."""
    opened = message | {"content": [], "stop_reason": None, "usage": message["usage"] | {"output_tokens": 1}}
    yield "message_start", {"message": opened}
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        yield "content_block_start", {"index": index, "content_block": block | _EMPTY[kind]}
        yield "content_block_delta", {"index": index, "delta": _DELTAS[kind](block)}
        if kind == "thinking":
            yield "content_block_delta", {"index": index, "delta": {"type": "signature_delta", "signature": block["signature"]}}
        yield "content_block_stop", {"index": index}
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": stop, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    yield "message_stop", {}
