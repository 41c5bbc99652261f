"""Responses of the Messages API: messages read from their bytes, and failures of calls.

A failure has an outcome, whether it was paid for, whether to retry, and a message without secrets. An HTTP error status is not billed.
What is not known to be free is taken to be billed: a time-out, a connection that broke, an answer that cannot be read, and the error of a
gateway, behind which the API may have answered. A response with status 200 may still be HTML, half a document or another shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
from anthropic import APIConnectionError, APIStatusError

from audit.cost import Usage
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from streams.judges.http_transport import ResponseTooLargeError
from streams.judges.protocol import SIMULATED_HEADER, SIMULATED_MODEL
from streams.judges.rate_limits import retry_after

PROVIDER_ERROR = "provider_error"
TIMEOUT = "timeout"
UNREADABLE = "unreadable answer"
"""Beginning of the words of a response that cannot be read; the query `unreadable_judges` knows its judgements by it."""
MAX_WORDS = 200
"""Characters of foreign words that are kept."""
_LOOKED_AT = 20_000
"""Characters of an error that are redacted; many more than are kept, so that a secret on the border is seen whole."""
_SHORTEST_SECRET = 8
"""Characters; what is shorter is a placeholder for servers without keys, and a word like any other."""
_REDACTOR = Redactor(RedactionSettings())
_NAMES = {
    401: "unauthorized",
    402: "payment required",
    403: "forbidden",
    404: "not found",
    413: "request too large",
    429: "rate limited",
    529: "overloaded",
}
_FINAL = frozenset([400, 401, 402, 403, 404])
"""The same request will be answered the same way, whatever the server says of trying again."""
_TRANSIENT = frozenset([408, 409, 429])
_GATEWAYS = frozenset([502, 504, 520, 521, 522, 523, 524])
_OVERLOADED = frozenset([429, 529])
_FORMAT_WORDS = ("output_config", "output_format", "json_schema", "structured output")
"""Words in the message of a server that refuses a request for its output format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one call."""

    words: str
    outcome: str = PROVIDER_ERROR
    billed: bool = True
    """True if it was, or may have been, paid for."""
    again: bool = False
    """True if the same call may go well later."""
    after: float | None = None
    """Seconds after which the server wants to be asked again."""
    overloaded: bool = False
    """True if the server says that it gets too many requests."""
    blames_format: bool = False
    """True if the server refuses the output format."""
    status: int | None = None
    """HTTP status, where the server answered."""
    unreadable: bool = False
    """True if the server answered with success and what came cannot be read."""


def unreadable(detail: str) -> Failure:
    """Return the failure of a call whose response cannot be read."""
    return Failure(words=f"{UNREADABLE}: {detail}", unreadable=True)


_BROKEN: tuple[tuple[type[Exception], Failure], ...] = (
    (ResponseTooLargeError, Failure(words="the response is too large", unreadable=True)),
    (httpx2.DecodingError, unreadable("it cannot be decompressed")),
    (httpx2.UnsupportedProtocol, Failure(words="the address cannot be used", billed=False)),
    (httpx2.ConnectTimeout, Failure(words="no connection in time", outcome=TIMEOUT, billed=False, again=True)),
    (httpx2.PoolTimeout, Failure(words="no free connection in time", outcome=TIMEOUT, billed=False, again=True)),
    (httpx2.ProxyError, Failure(words="no connection through the proxy", billed=False, again=True)),
    (httpx2.ConnectError, Failure(words="no connection", billed=False, again=True)),
    (httpx2.TimeoutException, Failure(words="no answer in time", outcome=TIMEOUT, again=True)),
    (TimeoutError, Failure(words="no answer in time", outcome=TIMEOUT, again=True)),
)
"""Errors without a status, the narrower type first."""


def one_line(text: str, secret: str = "") -> str:
    """Foreign words, short and fit for a log: no secret, no control or invisible characters, at most 200 characters."""
    shown = text[:_LOOKED_AT]
    if len(secret) >= _SHORTEST_SECRET:
        shown = shown.replace(secret, "[key]")
    shown = _REDACTOR.redact(shown)[0]
    shown = " ".join("".join(character if character.isprintable() else " " for character in shown).split())
    return shown if len(shown) <= MAX_WORDS else f"{shown[: MAX_WORDS - 1]}…"


def blames_format(said: str) -> bool:
    """Tell whether a server that refuses a request names the output format in its message."""
    lowered = said[:_LOOKED_AT].lower()
    return any(word in lowered for word in _FORMAT_WORDS)


def failure_of(error: Exception, *, secret: str, wall: Callable[[], float]) -> Failure:
    """Return the failure that an error of the client means.

    `secret` is the key, which a server may repeat in its message.
    """
    if isinstance(error, APIStatusError):
        return _of_status(error, secret, wall)
    cause = error.__cause__ if isinstance(error, APIConnectionError) and error.__cause__ else error
    for kind, failure in _BROKEN:
        if isinstance(cause, kind):
            return failure
    name = type(cause).__name__
    if isinstance(error, APIConnectionError):
        return Failure(words=f"the connection broke ({name})", again=True)
    # The client refused the request or tripped over the response; its words may hold either.
    return Failure(words=f"the call failed ({name})")


def _of_status(error: APIStatusError, secret: str, wall: Callable[[], float]) -> Failure:
    status, headers = error.status_code, error.response.headers
    said = error.api_message if isinstance(error.api_message, str) else error.response.text
    hint = headers.get("x-should-retry")
    transient = status in _TRANSIENT or status >= 500
    again = status not in _FINAL and hint != "false" and (transient or hint == "true")
    after = retry_after(headers, wall) if again else None
    detail = one_line(said, secret) if after is None else f"retry after {math.ceil(after)} s"
    return Failure(
        words=f"{_NAMES.get(status, f'HTTP {status}')}: {detail or 'no more is said'}",
        billed=status in _GATEWAYS and error.type is None,
        again=again,
        after=after,
        overloaded=status in _OVERLOADED,
        blames_format=status in {400, 422} and blames_format(said),
        status=status,
    )


MAX_NAME = 128
"""Characters of a model's name or a stop reason that are kept."""
_MAX_TOKENS = 2**31
"""Beyond this a number of tokens is no number of tokens."""


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    content: list[_Block]
    model: str | None = None
    stop_reason: str | None = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class Message:
    """The judge's answer to one call."""

    text: str | None
    """All blocks of text, joined: servers split an answer, or put an empty block or a remark before it. Thinking is left out, and the
    input of a tool call is text, as servers send it that imitate structured output with a tool. None when there is none of these."""
    model: str | None
    stop_reason: str | None
    usage: Usage | None
    """None when it is missing or cannot be."""


_DECODER = msgspec.json.Decoder(_Body)


def read_message(content: bytes) -> Message | Failure:
    """The message in a response's body. One that cannot be read was paid for all the same, and is not asked for again."""
    try:
        body = _DECODER.decode(content)
        blocks = [_text_of(block) for block in body.content]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    texts = [text for text in blocks if text is not None]
    return Message("".join(texts) if texts else None, _name(body.model), _name(body.stop_reason), _usage(body.usage))


def _text_of(block: _Block) -> str | None:
    if block.type == "tool_use":
        return bytes(block.input).decode() or None
    return block.text if block.type == "text" else None


def is_simulated(headers: Mapping[str, str], model: str | None = None) -> bool:
    """Tell whether a simulated judge answered; it says so in a header and by its model."""
    return headers.get(SIMULATED_HEADER) == "1" or model == SIMULATED_MODEL


def _name(text: str | None) -> str | None:
    return None if text is None else one_line(text)[:MAX_NAME]


def _usage(value: Any) -> Usage | None:
    """The tokens; the cache's may be missing or null, the others may not."""
    if not isinstance(value, dict):
        return None
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    said = [value.get(name) for name in names[:2]] + [value.get(name) or 0 for name in names[2:]]
    counts = [count for count in said if type(count) is int and 0 <= count < _MAX_TOKENS]
    return Usage(*counts) if len(counts) == len(names) else None
