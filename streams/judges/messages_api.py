"""The judge's Messages API: the client, the requests, and the parsing of responses and errors.

1. The client stops reading a response at a size limit.
2. A request contains the question and the output format. A repair request also contains the previous answer and its problems.
3. A failure says whether the call was billed, whether to retry it, and what went wrong, without secrets. A call that the API answers
   with an HTTP error is not billed. Calls that may have been billed count as billed: a timeout, a broken connection, an unreadable
   response, and the error of a gateway, because the API behind it may have answered.
4. A response with status 200 may still be HTML, truncated, or JSON of another shape.
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
"""Maximum size of a response after decompression; a normal answer has a few thousand bytes."""
CONNECT_SECONDS = 10.0
_PLACEHOLDER_KEY = "none"
_ADDRESS_HINT = "Set ANTHROPIC_BASE_URL to the address before /v1/messages, such as http://127.0.0.1:11434."
_TRANSFER_HEADERS = frozenset(["content-encoding", "content-length", "transfer-encoding"])
"""Headers that describe the encoded body; they do not apply to the decoded one."""


class ResponseTooLargeError(httpx2.TransportError):
    """A response is larger than the limit; the client stopped reading it."""


class BoundedClient(DefaultAsyncHttpxClient):
    """An HTTP client that limits the size of responses."""

    def __init__(self, *, max_body: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_body = max_body

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send the request, and read and decompress the response. Raises ResponseTooLargeError if it is too large.

        If a stream is requested and the request succeeds, the caller reads the body and limits it.
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
        headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _TRANSFER_HEADERS]
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
    """Return a client of the Messages API that neither retries nor follows redirects: each text is sent once, to the configured address.

    Raises SettingsError if the key or the address is invalid. Only the API itself needs a key.
    """
    url = _checked_url(base_url or DEFAULT_BASE_URL)
    options: dict[str, Any] = {} if transport is None else {"transport": transport}
    if _is_loopback(url.host):
        # Bypass a proxy from the environment: it cannot reach this machine's loopback address.
        host = f"[{url.host}]" if ":" in url.host else url.host
        options["mounts"] = {f"all://{host}": None}
    timeout = httpx2.Timeout(call_seconds, connect=min(CONNECT_SECONDS, call_seconds))
    limits = httpx2.Limits(max_connections=2 * connections, max_keepalive_connections=connections)
    http = BoundedClient(max_body=max_body, follow_redirects=False, timeout=timeout, limits=limits, **options)
    # The texts must go to the judge alone, so tracing stays off even if the environment enables it.
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
        return _PLACEHOLDER_KEY
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise SettingsError(
            "the key for the judge's API may contain only printable ASCII characters and no spaces", hint="Copy the key again."
        )
    return api_key


def _checked_url(base_url: str) -> httpx2.URL:
    """Parse the address. Error messages do not repeat it, because it may contain a password."""
    try:
        url = httpx2.URL(base_url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError("the address of the judge's API is not a URL", hint=_ADDRESS_HINT) from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise SettingsError("the address of the judge's API does not start with http:// or https://", hint=_ADDRESS_HINT)
    if url.userinfo:
        hint = "Set the key as ANTHROPIC_API_KEY instead, because addresses are written to logs."
        raise SettingsError("the address of the judge's API contains a password", hint=hint)
    if url.query or url.fragment:
        raise SettingsError("the address of the judge's API has a query or a fragment", hint=_ADDRESS_HINT)
    path = url.path.rstrip("/")
    if path.endswith(("/v1", "/v1/messages")):
        corrected = url.copy_with(path=path.removesuffix("/messages").removesuffix("/v1") or "/")
        hint = f"Driftline appends /v1/messages, so set ANTHROPIC_BASE_URL={str(corrected).rstrip('/')}"
        raise SettingsError(f"the address of the judge's API ends in {path[path.rindex('/v1') :]}", hint=hint)
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_TOKEN_CHARACTERS = 4
"""Approximate characters per token of English; used only to decide whether caching is worthwhile."""
_MAX_PROBLEMS_BYTES = 1000
"""Maximum size of the list of problems in a repair request."""
_TRUNCATION_MARK = " […]"


class OutputMode(Enum):
    """The way in which a request asks for JSON, most reliable first."""

    STRUCTURED = "structured output"
    IN_PROMPT = "schema in the prompt"


@dataclass(frozen=True, slots=True)
class Repair:
    """An unusable answer and its problems, which the judge is asked to correct."""

    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The parts of a request that depend on the model."""

    output_mode: OutputMode = OutputMode.STRUCTURED
    cache_minimum: int | None = None
    """Tokens of the shortest prefix that the model caches; None if unknown."""
    switch_off_thinking: bool = False


def build_request(question: Question, options: RequestOptions, boundary: str, repair: Repair | None = None) -> dict[str, Any]:
    """Return the parameters of `messages.create`. The instructions come before the text to judge, so that they can be cached."""
    system: dict[str, Any] = {"type": "text", "text": _replace_surrogates(question.instructions)}
    if options.cache_minimum is None or len(question.instructions) // _TOKEN_CHARACTERS >= options.cache_minimum:
        system["cache_control"] = {"type": "ephemeral"}
    request: dict[str, Any] = {
        "model": question.model,
        "max_tokens": question.max_tokens,
        "system": [system],
        "messages": _build_messages(question, options.output_mode, boundary, repair),
    }
    if options.output_mode is OutputMode.STRUCTURED:
        request["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
    if options.switch_off_thinking:
        request["thinking"] = {"type": "disabled"}
    return request


def _build_messages(question: Question, output_mode: OutputMode, boundary: str, repair: Repair | None) -> list[dict[str, str]]:
    content = question.content(boundary)
    if output_mode is OutputMode.IN_PROMPT and not question.verbatim:
        schema = canonical_json(question.schema)
        content = f"{content}\n\nAnswer with one JSON object that keeps this JSON schema, and with nothing else:\n{schema}"
    turns = [("user", content)]
    if repair is not None:
        problems, text = _fit_repair(question, repair)
        request = f"That answer cannot be used:\n{problems}\nDo the task again. Answer with one complete JSON object and nothing else."
        turns += [("assistant", text), ("user", request)]
    return [{"role": role, "content": _replace_surrogates(text)} for role, text in turns]


def _fit_repair(question: Question, repair: Repair) -> tuple[str, str]:
    """Return the problems and the answer of a repair, truncated so that the request stays within the call's reservation.

    A reservation counts one token per byte. The trusted texts (instructions, task and schema) need at most half of the tokens that are
    reserved for them, so the other half pays for the repair.
    """
    trusted_texts = (question.instructions, question.task, canonical_json(question.schema))
    max_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in trusted_texts) // 2
    problem_list = "\n".join(f"- {problem}" for problem in repair.problems)
    problems = _truncate(problem_list, min(_MAX_PROBLEMS_BYTES, max_bytes // 2))
    return problems, _truncate(repair.text.strip(), max_bytes - len(problems.encode("utf-8", "surrogatepass")))


def _truncate(text: str, max_bytes: int) -> str:
    """Return the first `max_bytes` bytes of the text, with a mark if that is not all of it."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= max_bytes else data[: max(max_bytes, 0)].decode("utf-8", "ignore") + _TRUNCATION_MARK


def _replace_surrogates(text: str) -> str:
    """Replace the characters that UTF-8 cannot encode (lone surrogates)."""
    return text.encode("utf-8", "replace").decode("utf-8")


PROVIDER_ERROR = "provider_error"
TIMEOUT = "timeout"
UNREADABLE = "unreadable answer"
"""Prefix of the error of an unreadable response; the query `unreadable_judges` selects judgements by it."""
MAX_ERROR_LENGTH = 200
"""Characters of a foreign error message that are kept."""
_MAX_REDACTED_LENGTH = 20_000
"""Characters of an error message that are redacted. It is redacted before it is truncated, so no half of a secret remains."""
_MIN_SECRET_LENGTH = 8
"""Shorter keys are not redacted: they are placeholders for servers that need no key."""
_REDACTOR = Redactor(RedactionSettings())
_STATUS_NAMES = {
    401: "unauthorized",
    402: "payment required",
    403: "forbidden",
    404: "not found",
    413: "request too large",
    429: "rate limited",
    529: "overloaded",
}
_PERMANENT_STATUSES = frozenset([400, 401, 402, 403, 404])
"""Statuses that are never retried, even if the server asks for a retry."""
_TRANSIENT_STATUSES = frozenset([408, 409, 429])
_GATEWAY_STATUSES = frozenset([502, 504, 520, 521, 522, 523, 524])
_OVERLOADED_STATUSES = frozenset([429, 529])
_FORMAT_TERMS = ("output_config", "output_format", "json_schema", "structured output")
"""Terms by which an error message names the output format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one call."""

    error: str
    """A description on one line, without secrets."""
    outcome: str = PROVIDER_ERROR
    billed: bool = True
    """True if the call was billed, or may have been."""
    is_retryable: bool = False
    """True if the same call may succeed later."""
    retry_after: float | None = None
    """Seconds after which the server allows a retry."""
    overloaded: bool = False
    """True if the server reports too many requests."""
    rejects_format: bool = False
    """True if the server rejects the output format."""
    status: int | None = None
    """HTTP status; None if the server did not answer."""
    unreadable: bool = False
    """True if the server reports success, but its response cannot be read."""


def unreadable(detail: str) -> Failure:
    """Return the failure of a call whose response cannot be read."""
    return Failure(error=f"{UNREADABLE}: {detail}", unreadable=True)


_TRANSPORT_FAILURES: tuple[tuple[type[Exception], Failure], ...] = (
    (ResponseTooLargeError, Failure(error="the response is too large", unreadable=True)),
    (httpx2.DecodingError, unreadable("it cannot be decompressed")),
    (httpx2.UnsupportedProtocol, Failure(error="the address cannot be used", billed=False)),
    (httpx2.ConnectTimeout, Failure(error="no connection in time", outcome=TIMEOUT, billed=False, is_retryable=True)),
    (httpx2.PoolTimeout, Failure(error="no free connection in time", outcome=TIMEOUT, billed=False, is_retryable=True)),
    (httpx2.ProxyError, Failure(error="no connection through the proxy", billed=False, is_retryable=True)),
    (httpx2.ConnectError, Failure(error="no connection", billed=False, is_retryable=True)),
    (httpx2.TimeoutException, Failure(error="no answer in time", outcome=TIMEOUT, is_retryable=True)),
    (TimeoutError, Failure(error="no answer in time", outcome=TIMEOUT, is_retryable=True)),
)
"""Errors without a status, the narrower type first."""


def one_line(text: str, secret: str = "") -> str:
    """Return a foreign text in a form that is safe to log: redacted, printable, on one line of at most 200 characters."""
    safe = text[:_MAX_REDACTED_LENGTH]
    if len(secret) >= _MIN_SECRET_LENGTH:
        safe = safe.replace(secret, "[key]")
    safe = _REDACTOR.redact(safe)[0]
    printable = "".join(character if character.isprintable() else " " for character in safe)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_ERROR_LENGTH else f"{line[: MAX_ERROR_LENGTH - 1]}…"


def names_output_format(error_message: str) -> bool:
    """Return whether the error message of a server names the output format."""
    lowered = error_message[:_MAX_REDACTED_LENGTH].lower()
    return any(term in lowered for term in _FORMAT_TERMS)


def classify_error(error: Exception, *, secret: str, wall: Callable[[], float]) -> Failure:
    """Return the failure for an error of the client.

    `secret` is the API key. It is redacted, because a server may repeat it in its message.
    """
    if isinstance(error, APIStatusError):
        return _classify_status_error(error, secret, wall)
    cause = error.__cause__ if isinstance(error, APIConnectionError) and error.__cause__ else error
    for error_type, failure in _TRANSPORT_FAILURES:
        if isinstance(cause, error_type):
            return failure
    name = type(cause).__name__
    if isinstance(error, APIConnectionError):
        return Failure(error=f"the connection was lost ({name})", is_retryable=True)
    # Leave the client's message out: it may quote the request or the response.
    return Failure(error=f"the call failed ({name})")


def _classify_status_error(error: APIStatusError, secret: str, wall: Callable[[], float]) -> Failure:
    status = error.status_code
    headers = error.response.headers
    message = error.api_message if isinstance(error.api_message, str) else error.response.text
    server_hint = headers.get("x-should-retry")
    is_transient = status in _TRANSIENT_STATUSES or status >= 500
    is_retryable = status not in _PERMANENT_STATUSES and server_hint != "false" and (is_transient or server_hint == "true")
    delay = retry_after(headers, wall) if is_retryable else None
    detail = one_line(message, secret) if delay is None else f"retry after {math.ceil(delay)} s"
    return Failure(
        error=f"{_STATUS_NAMES.get(status, f'HTTP {status}')}: {detail or 'no details'}",
        billed=status in _GATEWAY_STATUSES and error.type is None,
        is_retryable=is_retryable,
        retry_after=delay,
        overloaded=status in _OVERLOADED_STATUSES,
        rejects_format=status in {400, 422} and names_output_format(message),
        status=status,
    )


MAX_NAME_LENGTH = 128
"""Characters of a model's name or a stop reason that are kept."""
_MAX_TOKENS = 2**31
"""A token count of this size or more is invalid."""


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
    """All text blocks, joined, because some servers split an answer; None without any text. Thinking is left out. The input of a tool call
    counts as text, because some servers implement structured output with a tool."""
    model: str | None
    stop_reason: str | None
    usage: Usage | None
    """None if it is missing or invalid."""


_DECODER = msgspec.json.Decoder(_Body)


def read_message(content: bytes) -> Message | Failure:
    """Return the message in a response's body, or a failure if it cannot be read. That call was billed, so it is not retried."""
    try:
        body = _DECODER.decode(content)
        blocks = [_read_block(block) for block in body.content]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    texts = [text for text in blocks if text is not None]
    return Message(
        "".join(texts) if texts else None, _clean_name(body.model), _clean_name(body.stop_reason), _read_usage(body.usage)
    )


def _read_block(block: _Block) -> str | None:
    if block.type == "tool_use":
        return bytes(block.input).decode() or None
    return block.text if block.type == "text" else None


def is_simulated(headers: Mapping[str, str], model: str | None = None) -> bool:
    """Return whether a simulated judge answered: it identifies itself by a header and by its model name."""
    return headers.get(SIMULATED_HEADER) == "1" or model == SIMULATED_MODEL


def _clean_name(text: str | None) -> str | None:
    return None if text is None else one_line(text)[:MAX_NAME_LENGTH]


def _read_usage(value: Any) -> Usage | None:
    """Return the token counts, or None if one is invalid. Only the counts of the cache may be missing or null."""
    if not isinstance(value, dict):
        return None
    counts = (
        value.get("input_tokens"),
        value.get("output_tokens"),
        value.get("cache_creation_input_tokens") or 0,
        value.get("cache_read_input_tokens") or 0,
    )
    valid_counts = [count for count in counts if type(count) is int and 0 <= count < _MAX_TOKENS]
    return Usage(*valid_counts) if len(valid_counts) == len(counts) else None
