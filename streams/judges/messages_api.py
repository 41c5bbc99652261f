"""The Messages API of the judge: its address and client, requests, and responses read from their bytes.

1. The client reads no more of a response than its caller allows.
2. A request has the call's parameters, the format of the answer, and, for a repair, the problems of the previous answer.
3. A failure has an outcome, whether it was paid for, whether to retry, and a message without secrets. An HTTP error status is not billed.
   Anything that is not certainly free counts as billed: a time-out, a broken connection, an unreadable answer, and the error of a
   gateway, because the API behind it may have answered.
4. A response with status 200 may still be HTML, half a document or another shape.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpx2
import msgspec
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic, DefaultAsyncHttpxClient

from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.errors import SettingsError
from streams.judges.protocol import DEFAULT_BASE_URL, SIMULATED_HEADER, SIMULATED_MODEL
from streams.judges.rate_limits import retry_after

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Most bytes of a response that are read, counted after decompression; an answer has a few thousand."""
CONNECT_SECONDS = 10.0
_PLACEHOLDER = "none"
_ADDRESS = "Set ANTHROPIC_BASE_URL to the address before /v1/messages, such as http://127.0.0.1:11434."
_OF_THE_WIRE = frozenset(["content-encoding", "content-length", "transfer-encoding"])


class ResponseTooLargeError(httpx2.TransportError):
    """Raised for a response beyond the size limit; the rest is not read."""


class BoundedClient(DefaultAsyncHttpxClient):
    """An HTTP client that reads each response completely unless it is streamed, and stops at a size limit."""

    def __init__(self, *, max_body: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_body = max_body

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send the request, and read and decompress the response. Raises ResponseTooLargeError if it is too large.

        The body of a successful stream is left to the caller, who limits what is kept of it.
        """
        response = await super().send(request, **(options | {"stream": True}))
        if options.get("stream") and response.is_success:
            return response
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._max_body:
                    raise ResponseTooLargeError(f"the response has more than {self._max_body} bytes", request=request)
        finally:
            await response.aclose()
        headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _OF_THE_WIRE]
        return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)


def open_client(
    api_key: str | None,
    base_url: str | None,
    *,
    call_seconds: float,
    connections: int,
    max_body: int = MAX_BODY_BYTES,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncAnthropic:
    """Return a client of the Messages API that neither retries nor follows redirects, so that a text is sent once, to one address.

    Raises SettingsError if key or address is invalid. A server that is not the API itself needs no key.
    """
    url = _checked_url(base_url or DEFAULT_BASE_URL)
    options: dict[str, Any] = {} if transport is None else {"transport": transport}
    if _is_loopback(url.host):
        # A proxy from the environment cannot reach this machine's loopback.
        host = f"[{url.host}]" if ":" in url.host else url.host
        options["mounts"] = {f"all://{host}": None}
    timeout = httpx2.Timeout(call_seconds, connect=min(CONNECT_SECONDS, call_seconds))
    limits = httpx2.Limits(max_connections=2 * connections, max_keepalive_connections=connections)
    http = BoundedClient(max_body=max_body, follow_redirects=False, timeout=timeout, limits=limits, **options)
    # Texts must go to the judge alone, so record no spans, whatever the environment says about tracing.
    return AsyncAnthropic(
        api_key=_checked_key(api_key, url),
        base_url=str(url),
        timeout=timeout,
        max_retries=0,
        http_client=http,
        open_telemetry=False,
    )


def _checked_key(api_key: str | None, url: httpx2.URL) -> str:
    if api_key is None:
        if url.host.endswith("anthropic.com"):
            hint = "Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or ANTHROPIC_BASE_URL for a server that imitates the API."
            raise SettingsError("there is no key for the judge's API", hint=hint)
        return _PLACEHOLDER
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise SettingsError("the key for the judge's API has characters that no key has", hint="Copy the key again.")
    return api_key


def _checked_url(base_url: str) -> httpx2.URL:
    """Parse the address. Error messages do not repeat it, because it may contain a password."""
    try:
        url = httpx2.URL(base_url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError("the address of the judge's API is no URL", hint=_ADDRESS) from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise SettingsError("the address of the judge's API does not start with http:// or https://", hint=_ADDRESS)
    if url.userinfo:
        hint = "Set the key as ANTHROPIC_API_KEY: an address is written to logs."
        raise SettingsError("the address of the judge's API has a password in it", hint=hint)
    if url.query or url.fragment:
        raise SettingsError("the address of the judge's API has a query or a fragment", hint=_ADDRESS)
    path = url.path.rstrip("/")
    if path.endswith(("/v1", "/v1/messages")):
        right = url.copy_with(path=path.removesuffix("/messages").removesuffix("/v1") or "/")
        hint = f"/v1/messages is added to it: set ANTHROPIC_BASE_URL={str(right).rstrip('/')}"
        raise SettingsError(f"the address of the judge's API ends in {path[path.rindex('/v1') :]}", hint=hint)
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_TOKEN_CHARACTERS = 4
"""Approximate characters per token of English; used only to decide whether caching is worthwhile."""
_MAX_PROBLEMS = 1000
"""Most bytes of the problems of an answer."""
_CUT = " […]"


class Rung(Enum):
    """The ways to request the format of the answer, most reliable first."""

    STRUCTURED = "structured output"
    IN_PROMPT = "schema in the prompt"


@dataclass(frozen=True, slots=True)
class Repair:
    """An unusable answer with its problems; the judge may give another one."""

    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """The output format for one model."""

    rung: Rung = Rung.STRUCTURED
    cache_minimum: int | None = None
    """Tokens of the shortest prefix that the model caches; None is unknown."""
    switch_off_thinking: bool = False


def parameters(question: Question, form: Format, boundary: str, repair: Repair | None = None) -> dict[str, Any]:
    """Return the parameters of `messages.create`: stable instructions first, so that they can be cached, then the text to judge."""
    system: dict[str, Any] = {"type": "text", "text": _sendable(question.instructions)}
    if form.cache_minimum is None or len(question.instructions) // _TOKEN_CHARACTERS >= form.cache_minimum:
        system["cache_control"] = {"type": "ephemeral"}
    asked: dict[str, Any] = {
        "model": question.model,
        "max_tokens": question.max_tokens,
        "system": [system],
        "messages": _turns(question, form.rung, boundary, repair),
    }
    if form.rung is Rung.STRUCTURED:
        asked["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
    if form.switch_off_thinking:
        asked["thinking"] = {"type": "disabled"}
    return asked


def _turns(question: Question, rung: Rung, boundary: str, repair: Repair | None) -> list[dict[str, str]]:
    content = question.content(boundary)
    if rung is Rung.IN_PROMPT and not question.verbatim:
        schema = canonical_json(question.schema)
        content = f"{content}\n\nAnswer with one JSON object that keeps this JSON schema, and with nothing else:\n{schema}"
    turns = [("user", content)]
    if repair is not None:
        problems, text = _fitted(question, repair)
        request = f"That answer cannot be used:\n{problems}\nDo the task again. Answer with one complete JSON object and nothing else."
        turns += [("assistant", text), ("user", request)]
    return [{"role": role, "content": _sendable(text)} for role, text in turns]


def _fitted(question: Question, repair: Repair) -> tuple[str, str]:
    """Return the problems and the answer itself, cut to the room in the reservation of the call.

    A reservation counts one token per byte. Instructions, task and schema need less than half of that; the other half pays for
    the repair.
    """
    own = (question.instructions, question.task, canonical_json(question.schema))
    room = sum(len(text.encode("utf-8", "surrogatepass")) for text in own) // 2
    problems = _cut("\n".join(f"- {problem}" for problem in repair.problems), min(_MAX_PROBLEMS, room // 2))
    return problems, _cut(repair.text.strip(), room - len(problems.encode("utf-8", "surrogatepass")))


def _cut(text: str, size: int) -> str:
    """Return the text in at most `size` bytes, with a mark if it was cut."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= size else data[: max(size, 0)].decode("utf-8", "ignore") + _CUT


def _sendable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode (lone surrogates) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


PROVIDER_ERROR = "provider_error"
TIMEOUT = "timeout"
UNREADABLE = "unreadable answer"
"""Prefix of the error of an unreadable response; the query `unreadable_judges` selects judgements by it."""
MAX_WORDS = 200
"""Characters of an error message from outside that are kept."""
_LOOKED_AT = 20_000
"""Characters of an error that are redacted; many more than are kept, so that a secret at the cut is recognised."""
_SHORTEST_SECRET = 8
"""Shortest key in characters that is redacted; shorter ones are placeholders for servers without keys."""
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
"""Statuses that a repetition does not change, whatever the server says about retrying."""
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
    """True if the call was, or may have been, paid for."""
    again: bool = False
    """True if the same call may succeed later."""
    after: float | None = None
    """Seconds after which the server allows a retry."""
    overloaded: bool = False
    """True if the server reports too many requests."""
    blames_format: bool = False
    """True if the server refuses the output format."""
    status: int | None = None
    """HTTP status, if the server answered."""
    unreadable: bool = False
    """True if the server answered with success, but the response cannot be read."""


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
    """Return a text from outside, fit for a log: no secret, no control or invisible characters, at most 200 characters."""
    shown = text[:_LOOKED_AT]
    if len(secret) >= _SHORTEST_SECRET:
        shown = shown.replace(secret, "[key]")
    shown = _REDACTOR.redact(shown)[0]
    shown = " ".join("".join(character if character.isprintable() else " " for character in shown).split())
    return shown if len(shown) <= MAX_WORDS else f"{shown[: MAX_WORDS - 1]}…"


def blames_format(said: str) -> bool:
    """Return whether a server that refuses a request names the output format in its message."""
    lowered = said[:_LOOKED_AT].lower()
    return any(word in lowered for word in _FORMAT_WORDS)


def failure_of(error: Exception, *, secret: str, wall: Callable[[], float]) -> Failure:
    """Return the failure for an error of the client.

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
        return Failure(words=f"the connection was lost ({name})", again=True)
    # The client rejected the request or failed on the response; its message may quote either.
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
        words=f"{_NAMES.get(status, f'HTTP {status}')}: {detail or 'no details'}",
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
"""Larger numbers of tokens are invalid."""


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
    """All text blocks, joined: some servers split an answer, or put an empty block or a remark before it. Thinking is left out. The input
    of a tool call counts as text, because some servers imitate structured output with a tool. None without any text."""
    model: str | None
    stop_reason: str | None
    usage: Usage | None
    """None if it is missing or impossible."""


_DECODER = msgspec.json.Decoder(_Body)


def read_message(content: bytes) -> Message | Failure:
    """Return the message in a response's body. An unreadable message was paid for too, and is not requested again."""
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
    """Return whether a simulated judge answered; it says so in a header and by its model."""
    return headers.get(SIMULATED_HEADER) == "1" or model == SIMULATED_MODEL


def _name(text: str | None) -> str | None:
    return None if text is None else one_line(text)[:MAX_NAME]


def _usage(value: Any) -> Usage | None:
    """Return the token counts; the counts of the cache may be missing or null, the others may not."""
    if not isinstance(value, dict):
        return None
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    said = [value.get(name) for name in names[:2]] + [value.get(name) or 0 for name in names[2:]]
    counts = [count for count in said if type(count) is int and 0 <= count < _MAX_TOKENS]
    return Usage(*counts) if len(counts) == len(names) else None
