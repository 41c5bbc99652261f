"""Behaviors of the simulated judge: every kind of the scripts in one table, and the HTTP call that they answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from driftline_trial.simulator.answers import obedient_answer
from driftline_trial.simulator.requests import Json, ParsedRequest, Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SIMULATED = "x-driftline-simulated"
"""Header of every answer, so that it is not taken for a provider's."""


class Call:
    """A call in progress."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, cut: Callable[[], None]) -> None:
        self.target = f"{scope['method']} {scope['path']}"
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.status = 0
        """Status of the answer; 0 before."""
        self._receive, self._send, self._cut = receive, send, cut

    async def body(self, limit: int) -> bytes | None:
        """Return the whole body; None if it is longer than the limit or the client went away."""
        body = bytearray()
        has_more = True
        while has_more:
            message = await self._receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
            if message["type"] == "http.disconnect" or len(body) > limit:
                return None
        return bytes(body)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of the answer."""
        self.status = status
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {SIMULATED: "1", **headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; wait until the client has read most of the earlier ones."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes, kind: str = "application/json") -> None:
        """Answer in one piece."""
        await self.start(status, {"content-type": kind, "content-length": str(len(body)), **headers})
        await self.write(body, more=False)

    async def pause(self, seconds: float | None) -> bool:
        """Wait some seconds, or for good; return whether the client is still there. Ends at once when it goes away."""
        if seconds == 0:
            return True
        try:
            async with asyncio.timeout(seconds):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return True
        return False

    async def reset(self) -> None:
        """Reset the connection, so that the client sees it break."""
        self._cut()
        await self.pause(None)


def json_bytes(value: Any) -> bytes:
    """Return the value as JSON in ASCII, in which lone surrogates survive."""
    return json.dumps(value).encode()


MEGABYTE = 1_000_000
_PIECE = b" " * 65_536
PAGE = b"<!doctype html><html><head><title>502</title></head><body><h1>Bad gateway</h1></body></html>"
"""A gateway's answer in place of the API's."""

REFUSED: dict[str, Problem] = {
    "rate_limited": Problem(429, "rate_limit_error", "This request would exceed the rate limit"),
    "overloaded": Problem(529, "overloaded_error", "Overloaded"),
    "error500": Problem(500, "api_error", "Internal server error"),
    "bad_request": Problem(400, "invalid_request_error", "messages: this request is refused by the script"),
    "unauthorized": Problem(401, "authentication_error", "invalid x-api-key"),
}
"""Kinds that the API answers with an error."""
NO_STRUCTURED = Problem(
    400, "invalid_request_error", "output_config.format: structured outputs are not supported by this model"
)


@dataclass(frozen=True, slots=True)
class Answering:
    """An answer about to be delivered."""

    call: Call
    head: Mapping[str, str]
    body: bytes
    argument: float


def refusal_of(kind: str, parsed: ParsedRequest) -> Problem | None:
    """Return the error with which this kind answers the request; None if it does not refuse it."""
    return NO_STRUCTURED if kind == "no_structured" and parsed.structured is not None else REFUSED.get(kind)


def altered(kind: str, message: Json, parsed: ParsedRequest) -> Json:
    """Return the message with the fault of this kind."""
    if kind == "obedient":
        return _obey(message, parsed)
    alter = _ALTERED.get(kind)
    return alter(message) if alter is not None else message | {"content": _content(kind, message, parsed)}


async def deliver(kind: str, answering: Answering) -> None:
    """Send the answer the way this kind does."""
    await _DELIVERED.get(kind, _whole)(answering)


def _content(kind: str, message: Json, parsed: ParsedRequest) -> list[Json]:
    thought = {"type": "thinking", "thinking": "Simulated: the rules are applied one by one.", "signature": "c2ltdWxhdGVk"}
    return [thought, *message["content"]] if parsed.thinks or kind == "thinking_first" else message["content"]


def _with_text(message: Json, change: Callable[[str], str], **fields: Any) -> Json:
    content = [block | {"text": change(block["text"])} if block["type"] == "text" else block for block in message["content"]]
    return message | {"content": content} | fields


def _obey(message: Json, parsed: ParsedRequest) -> Json:
    """Return the message a judge sends that obeys the texts of an exchange."""
    answer = obedient_answer(parsed.schema or {}, parsed.materials)
    return message if answer is None else _with_text(message, lambda _text: json.dumps(answer))


def _without_usage(message: Json) -> Json:
    return {name: value for name, value in message.items() if name != "usage"}


def _with_usage(tokens: int) -> Callable[[Json], Json]:
    return lambda message: message | {"usage": {"input_tokens": tokens, "output_tokens": tokens}}


def _refused(message: Json) -> Json:
    return _with_text(message, lambda _text: "I cannot help with this request.", stop_reason="refusal")


def _cut_off(message: Json) -> Json:
    return _with_text(message, lambda text: text[: len(text) // 2], stop_reason="max_tokens")


def _out_of_range(message: Json) -> Json:
    """Move every number of the answer far outside its scale."""
    return _with_text(message, lambda text: json.dumps(_raise_numbers(json.loads(text))))


def _raise_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _raise_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_raise_numbers(item) for item in value]
    return value + 100 if isinstance(value, int | float) and not isinstance(value, bool) else value


_ALTERED: dict[str, Callable[[Json], Json]] = {
    "wrong_shape": lambda message: message | {"content": {}},
    "no_text": lambda message: message | {"content": [{"type": "thinking", "thinking": "…", "signature": "c2ltdWxhdGVk"}]},
    "no_usage": _without_usage,
    "zero_usage": _with_usage(0),
    "lying_usage": _with_usage(10**9),
    "refusal": _refused,
    "cut_off": _cut_off,
    "garbage": lambda message: _with_text(message, lambda _text: "%%% no verdict today %%%"),
    "out_of_range": _out_of_range,
    "ignores_structured": lambda message: _with_text(
        message, lambda text: f"Here is what I make of it:\n```json\n{text}\n```\nI hope that helps."
    ),
}


async def _whole(answering: Answering) -> None:
    await answering.call.answer(200, answering.head, answering.body)


async def _slow(answering: Answering) -> None:
    if await answering.call.pause(answering.argument):
        await _whole(answering)


async def _drip(answering: Answering) -> None:
    call, body = answering.call, answering.body
    await call.start(200, {"content-type": "application/json", "content-length": str(len(body)), **answering.head})
    for index in range(len(body)):
        if not await call.pause(answering.argument):
            return
        await call.write(body[index : index + 1], more=index < len(body) - 1)


async def _hang(answering: Answering) -> None:
    await answering.call.pause(None)


async def _reset(answering: Answering) -> None:
    call, body = answering.call, answering.body
    await call.start(200, {"content-type": "application/json", "content-length": str(len(body)), **answering.head})
    await call.write(body[: len(body) // 2])
    await call.reset()


async def _huge(answering: Answering) -> None:
    """JSON may be padded with space, so it is the size alone that is wrong."""
    call = answering.call
    await call.start(200, {"content-type": "application/json", **answering.head})
    for _ in range(int(answering.argument * MEGABYTE) // len(_PIECE)):
        await call.write(_PIECE)
    await call.write(answering.body, more=False)


async def _page(answering: Answering) -> None:
    await answering.call.answer(200, answering.head, PAGE, "text/html; charset=utf-8")


async def _truncated(answering: Answering) -> None:
    await answering.call.answer(200, answering.head, answering.body[: len(answering.body) // 2])


_DELIVERED: dict[str, Callable[[Answering], Awaitable[None]]] = {
    "slow": _slow,
    "drip": _drip,
    "hang": _hang,
    "reset": _reset,
    "huge": _huge,
    "html": _page,
    "truncated_json": _truncated,
}
