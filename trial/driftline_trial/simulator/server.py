"""The simulated judge as an ASGI application, served on loopback from a thread with its own event loop.

Messages, chat completions and responses, and batches of each, are answered by simple rules and spoiled by scripts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from audit.fingerprints import digest
from driftline_trial.simulator.answers import CHARACTERS_PER_TOKEN, MODEL, simulated_answer, simulated_evaluation
from driftline_trial.simulator.batches import MAX_BATCH_BODY, SimulatedBatches
from driftline_trial.simulator.behaviors import (
    REFUSED,
    Answering,
    Call,
    Receive,
    Scope,
    Send,
    altered,
    deliver,
    json_bytes,
    refusal_of,
)
from driftline_trial.simulator.caching import PrefixCache
from driftline_trial.simulator.openai_batches import SimulatedOpenAIBatches
from driftline_trial.simulator.openai_forms import (
    chat_completion,
    error_body,
    read_chat,
    read_responses,
    read_responses_countable,
    response,
)
from driftline_trial.simulator.requests import (
    MAX_BODY,
    Json,
    ParsedRequest,
    Problem,
    read_countable,
    read_of_cloud,
    read_request,
    unauthorized,
)
from driftline_trial.simulator.scripts import Arrivals, Play, Plays, Step
from schemas.errors import SettingsError

MAX_KEPT = 100
"""Newest request bodies that are kept for inspection."""
_LIMITS = {"requests": 4_000, "input-tokens": 4_000_000, "output-tokens": 800_000}
_NO_SCHEMA = "Simulated: the request holds no schema of an answer, so there is nothing to answer."
_BATCHES = "/v1/messages/batches"
_OPENAI_BATCHES = "/v1/batches"
_OPENAI_FILES = "/v1/files"
_log = logging.getLogger(__name__)
Reader = Callable[[Mapping[str, str], bytes], ParsedRequest | Problem]
"""Reads headers, by lower-case name, and the body of a request."""


class SimulatedJudge:
    """Answers calls. It rates by rules and understands nothing."""

    def __init__(
        self, play: Plays, *, latency: float = 0.0, batch_seconds: float = 0.0, model: str = MODEL, cut: Callable[[Scope], None]
    ) -> None:
        self.model = model
        self.play = play
        """The script for messages; may be replaced."""
        self.batch_play = Play("answer")
        """The script for calls of the batch API, whatever their requests are answered."""
        self.batches = SimulatedBatches(self._answer, seconds=batch_seconds)
        self.openai_batches = SimulatedOpenAIBatches(self._answer, seconds=batch_seconds)
        self.received: deque[bytes] = deque(maxlen=MAX_KEPT)
        """The newest bodies of requests for a message."""
        self.cache = PrefixCache()
        self.arrivals = Arrivals()
        """The number of answers to each question about a run."""
        self._latency = latency
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        call = Call(scope, receive, send, lambda: self._cut(scope))
        path = call.target.partition(" ")[2]
        batch_form = next((form for prefix, form in _BATCH_FORMS.items() if path.startswith(prefix)), None)
        form, counter = _find_form(call.target)
        limit = MAX_BODY if batch_form is None else MAX_BATCH_BODY
        body = await call.body(limit)
        if form is None and batch_form is None:
            known_targets = ", ".join([*_FORMS, *_COUNTERS, *_BATCH_FORMS])
            message = f"The simulated judge knows {known_targets}, and the paths of Bedrock and Vertex AI, only"
            await _refuse(call, Problem(404, "not_found_error", message), "none", _MESSAGES)
        elif body is None:
            problem = Problem(413, "request_too_large", f"Request exceeds {limit} bytes")
            await _refuse(call, problem, "none", batch_form or form or _MESSAGES)
        elif batch_form is not None or form is None:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            await self._batch(call, body, query, batch_form or _MESSAGES)
        elif counter is not None:
            await self._count(call, body, counter, form)
        else:
            await self._message(call, body, form)

    async def _message(self, call: Call, body: bytes, form: _Form) -> None:
        self.received.append(body)
        parsed = form.read(call.headers, body)
        step = self.play.next(lambda: parsed)
        number = self.play.requests
        if await call.pause(self._latency):
            await self._play(step, call, parsed, f"req_simulated_{number:06d}", form)
        _log.info("request %d: %s, status %d, %d bytes", number, step.kind, call.status, len(body))

    async def _count(self, call: Call, body: bytes, reader: Reader, form: _Form) -> None:
        """Count a prompt's tokens, whatever the scripts do to messages."""
        parsed = reader(call.headers, body)
        if isinstance(parsed, Problem):
            await _refuse(call, parsed, "req_simulated_count", form)
        else:
            count = json_bytes({"input_tokens": self.cache.tokens(parsed)})
            await call.answer(HTTPStatus.OK, {"request-id": "req_simulated_count"}, count)

    async def _batch(self, call: Call, body: bytes, query: Mapping[str, str], form: _Form) -> None:
        """Answer a call of the batch API. A script's fault affects only the answer, after the call was carried out."""
        step = self.batch_play.next()
        request_id = f"req_simulated_batch_{self.batch_play.requests:06d}"
        if await call.pause(self._latency):
            problem = REFUSED.get(step.kind) or (unauthorized(call.headers) if form is _MESSAGES else None)
            outcome = problem or self._carried_out(call, body, query)
            if isinstance(outcome, Problem):
                await _refuse(call, outcome, request_id, form, wait=int(step.argument))
            else:
                body_bytes = outcome if isinstance(outcome, bytes) else json_bytes(outcome)
                await deliver(step.kind, Answering(call, {"request-id": request_id}, body_bytes, step.argument))
        _log.info("batch call %s: %s, status %d, %d bytes", call.target, step.kind, call.status, len(body))

    def _carried_out(self, call: Call, body: bytes, query: Mapping[str, str]) -> Json | bytes | Problem:
        method, _, path = call.target.partition(" ")
        prefix = next(prefix for prefix in _BATCH_FORMS if path.startswith(prefix))
        _, _, batch_path = path.removeprefix(prefix).partition("/")
        batch_id, _, action = batch_path.partition("/")
        if prefix == _OPENAI_FILES:
            return self._carried_out_on_file(method, batch_id, action, call, body)
        batches = self.batches if prefix == _BATCHES else self.openai_batches
        operations: dict[tuple[str, bool, str], Callable[[], Json | bytes | Problem]] = {
            ("POST", False, ""): lambda: batches.create(call.headers, body, self.play),
            ("GET", False, ""): lambda: batches.page(query),
            ("GET", True, ""): lambda: batches.show(batch_id),
            ("POST", True, "cancel"): lambda: batches.cancel(batch_id),
        }
        if prefix == _BATCHES:
            operations["GET", True, "results"] = lambda: batches.results(batch_id)
        carry_out = operations.get((method, bool(batch_id), action))
        return Problem(404, "not_found_error", "Not found") if carry_out is None else carry_out()

    def _carried_out_on_file(self, method: str, file_id: str, action: str, call: Call, body: bytes) -> Json | bytes | Problem:
        batches = self.openai_batches
        match method, bool(file_id), action:
            case "POST", False, "":
                return batches.upload(call.headers, body)
            case "GET", True, "content":
                return batches.content(file_id)
            case "DELETE", True, "":
                return batches.delete(file_id)
        return Problem(404, "not_found_error", "Not found")

    async def _play(self, step: Step, call: Call, parsed: ParsedRequest | Problem, request_id: str, form: _Form) -> None:
        if isinstance(parsed, Problem):
            await _refuse(call, parsed, request_id, form)
        elif (problem := refusal_of(step.kind, parsed)) is not None:
            await _refuse(call, problem, request_id, form, wait=int(step.argument))
        else:
            answer = self._answer(parsed, request_id, step.strictness)
            head = {"request-id": request_id, **form.limits(self.play.requests % _LIMITS["requests"], answer["usage"], 60)}
            spoiled = json_bytes(form.encode(altered(step.kind, answer, parsed)))
            await deliver(step.kind, Answering(call, head, spoiled, step.argument))

    def _answer(self, parsed: ParsedRequest, request_id: str, strictness: float) -> Json:
        """Return the message for the request if no fault is scripted."""
        text = _NO_SCHEMA
        if parsed.subject is not None:
            arrival = self.arrivals.count(parsed.key)
            answer = simulated_evaluation(parsed.schema, parsed.subject, model=parsed.model, arrival=arrival)
            text = json.dumps(answer, ensure_ascii=False)
        elif parsed.schema is not None:
            rated = simulated_answer(parsed.schema, parsed.materials, model=parsed.model, strictness=strictness)
            text = json.dumps(rated, ensure_ascii=False)
        room = parsed.max_tokens * CHARACTERS_PER_TOKEN
        return {
            "id": f"msg_simulated_{digest(request_id)}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [{"type": "text", "text": text[:room]}],
            "stop_reason": "end_turn" if len(text) <= room else "max_tokens",
            "stop_sequence": None,
            "usage": self.cache.usage(parsed, text),
        }


class _Form(NamedTuple):
    """An API as it is spoken: its requests, answers, errors and headers. The rules are the same for all."""

    read: Reader
    encode: Callable[[Json], Json]
    """Encodes a message of the Messages API."""
    error: Callable[[Problem], Json]
    limits: Callable[[int, Mapping[str, Any], int], Mapping[str, str]]
    """Returns the headers with the remaining rate limits: for the number of the request, its usage, and the seconds to wait."""


async def _refuse(call: Call, problem: Problem, request_id: str, form: _Form, *, wait: int = 0) -> None:
    head = {"request-id": request_id}
    if problem.status == HTTPStatus.TOO_MANY_REQUESTS:
        head |= {"retry-after": str(wait), **form.limits(_LIMITS["requests"], {}, wait)}
    await call.answer(problem.status, head, json_bytes(form.error(problem) | {"request_id": request_id}))


def _remaining(number: int, usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the remaining rate limits, which this server counts but never enforces."""
    spent = {"requests": number, "input-tokens": usage.get("input_tokens", 0), "output-tokens": usage.get("output_tokens", 0)}
    return {kind: max(0, limit - spent[kind]) for kind, limit in _LIMITS.items()}


def _message_limits(number: int, usage: Mapping[str, Any], wait: int) -> dict[str, str]:
    reset = (datetime.now(UTC) + timedelta(seconds=wait)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        f"anthropic-ratelimit-{kind}-{part}": value
        for kind, remaining in _remaining(number, usage).items()
        for part, value in (("limit", str(_LIMITS[kind])), ("remaining", str(remaining)), ("reset", reset))
    }


def _openai_limits(number: int, usage: Mapping[str, Any], wait: int) -> dict[str, str]:
    remaining = _remaining(number, usage)
    return {
        f"x-ratelimit-{part}-{kind}": value
        for kind, counted in (("requests", "requests"), ("tokens", "input-tokens"))
        for part, value in (
            ("limit", str(_LIMITS[counted])),
            ("remaining", str(remaining[counted])),
            ("reset", f"{wait // 60}m{wait % 60}s"),
        )
    }


def _message_error(problem: Problem) -> Json:
    return {"type": "error", "error": {"type": problem.type, "message": problem.message}}


_MESSAGES = _Form(read_request, lambda message: message, _message_error, _message_limits)
_RESPONSES = _Form(read_responses, response, error_body, _openai_limits)
_FORMS = {
    "POST /v1/messages": _MESSAGES,
    "POST /v1/chat/completions": _Form(read_chat, chat_completion, error_body, _openai_limits),
    "POST /v1/responses": _RESPONSES,
}
_BATCH_FORMS = {_BATCHES: _MESSAGES, _OPENAI_BATCHES: _RESPONSES, _OPENAI_FILES: _RESPONSES}
"""The paths of batches and files, with the form of their errors."""
_COUNTERS: dict[str, tuple[Reader, _Form]] = {
    "POST /v1/messages/count_tokens": (read_countable, _MESSAGES),
    "POST /v1/responses/input_tokens": (read_responses_countable, _RESPONSES),
}

_BEDROCK_TARGET = re.compile(r"POST /model/([^/]+)/invoke")
_VERTEX_TARGET = re.compile(r"POST /v1/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/([^/]+):rawPredict")
_VERTEX_COUNTER = "count-tokens"


def _find_form(target: str) -> tuple[_Form | None, Reader | None]:
    """Return the API that is spoken at a path, and the reader if the path counts tokens; None for a path of none.

    Bedrock and Vertex AI carry messages at paths of their own.
    """
    match = _BEDROCK_TARGET.fullmatch(target) or _VERTEX_TARGET.fullmatch(target)
    if match is None:
        reader, form = _COUNTERS.get(target, (None, None))
        return form or _FORMS.get(target), reader
    model = None if match[1] == _VERTEX_COUNTER else match[1]
    form = _MESSAGES._replace(read=lambda headers, body: read_of_cloud(headers, body, model))
    return form, form.read if model is None else None


HOST = "127.0.0.1"
_PATIENCE = 10.0
_NO_LINGER = struct.pack("ii", 1, 0)


class RunningJudge:
    """A simulated judge that is being served."""

    def __init__(self, judge: SimulatedJudge, port: int, *, faults: float, seed: int) -> None:
        self.base_url = f"http://{HOST}:{port}"
        """The base URL for clients of the Messages API."""
        self._judge = judge
        self._faults, self._seed = faults, seed

    @property
    def requests(self) -> int:
        """Count the requests for a message since the start or the last reset."""
        return self._judge.play.requests

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return the newest request bodies, the oldest first: everything that a provider would see."""
        return tuple(self._judge.received)

    @property
    def batch_calls(self) -> int:
        """Count the calls of the batch API since the start or the last reset."""
        return self._judge.batch_play.requests

    def reset(
        self,
        script: str,
        *,
        batch_script: str = "answer",
        batch_seconds: float = 0.0,
        scripts_for: Mapping[str, str] | None = None,
    ) -> None:
        """Start over with other scripts, an empty cache, no requests and no batches.

        `batch_script` is for the calls of the batch API, `batch_seconds` how long a batch takes, `scripts_for` are scripts of requests
        whose prompt holds a text. SettingsError for a script that cannot be read.
        """
        self._judge.play = Plays(script, scripts_for or {}, faults=self._faults, seed=self._seed)
        self.script_batches(batch_script)
        self._judge.batches.forget(seconds=batch_seconds)
        self._judge.openai_batches.forget(seconds=batch_seconds)
        self._judge.cache = PrefixCache()
        self._judge.arrivals = Arrivals()
        self._judge.received.clear()

    @property
    def openai_batches(self) -> SimulatedOpenAIBatches:
        """The files and batches of OpenAI's API."""
        return self._judge.openai_batches

    def script_batches(self, script: str) -> None:
        """Answer calls of the batch API by this script from now on."""
        self._judge.batch_play = Play(script)


@contextmanager
def running(
    script: str = "answer",
    latency: float = 0.0,
    seed: int = 0,
    faults: float = 0.0,
    port: int = 0,
    *,
    batch_seconds: float = 0.0,
    scripts_for: Mapping[str, str] | None = None,
    model: str = MODEL,
) -> Iterator[RunningJudge]:
    """Serve the simulated judge while the context is open; connections that are still open at its end are cut.

    `latency` in seconds comes before each answer, `faults` is the share of requests that get a fault drawn by `seed`, port 0 is any
    free one, and a batch is processed for `batch_seconds`. Requests whose prompt holds a text of `scripts_for` go by its script instead,
    each question by itself. It calls itself `model`. SettingsError for a script that cannot be read or a port that cannot be had.
    """
    server = _Server(Plays(script, scripts_for or {}, faults=faults, seed=seed), latency, batch_seconds, model)
    listening = _listen(port)
    thread = threading.Thread(target=server.run, args=([listening],), name="simulated-judge", daemon=True)
    thread.start()  # the socket is already listening, so there is no need to wait for the thread
    try:
        yield RunningJudge(server.judge, listening.getsockname()[1], faults=faults, seed=seed)
    finally:
        server.should_exit = True
        thread.join(_PATIENCE)


class _Server(uvicorn.Server):
    """Stops at once, even with open connections."""

    def __init__(self, play: Plays, latency: float, batch_seconds: float, model: str) -> None:
        self.judge = SimulatedJudge(play, latency=latency, batch_seconds=batch_seconds, model=model, cut=self._reset)
        # Clients keep an idle connection for 5 s; one that we close at that very moment would lose their next call.
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "timeout_keep_alive": 75}
        super().__init__(uvicorn.Config(self.judge, loop="asyncio", http="h11", ws="none", lifespan="off", **options))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut the connections, then stop as usual."""
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _reset(self, scope: Scope) -> None:
        """Reset the connection of a call; it may already be closed."""
        for connection in self._connections():
            if connection.client == scope["client"]:
                own: socket.socket = connection.transport.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                connection.transport.abort()

    def _connections(self) -> list[H11Protocol]:
        return [protocol for protocol in self.server_state.connections if isinstance(protocol, H11Protocol)]


def _listen(port: int) -> socket.socket:
    # With another protocol number asyncio would not send small answers at once.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise SettingsError(f"port {port}: {error}", hint="Name another port, or 0 for any free one.") from error
    listening.listen(128)
    return listening
