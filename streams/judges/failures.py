"""Failures of judge calls: what went wrong, whether the call was billed, and whether to retry it, for every API.

A call that the API answers with an HTTP error is not billed. Calls that may have been billed count as billed: a timeout, a broken
connection, an unreadable response, and the error of a gateway, because the API behind it may have answered. Messages have no secrets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from streams.judges.http_client import ResponseTooLargeError
from streams.judges.rate_limits import retry_after

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
_FORMAT_TERMS = ("output_config", "output_format", "response_format", "text.format", "json_schema", "structured output")
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
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of an HTTP error."""


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


class ClientErrors(NamedTuple):
    """The exceptions of an API's client."""

    status: type[Exception]
    """Raised for an HTTP error status; it has the `response`."""
    connection: type[Exception]
    """Raised if there is no response; its cause is an error of the transport."""


def classify_error(error: Exception, errors: ClientErrors, *, secret: str, wall: Callable[[], float]) -> Failure:
    """Return the failure for an error of the client.

    `secret` is the API key. It is redacted, because a server may repeat it in its message.
    """
    if isinstance(error, errors.status):
        response: httpx2.Response = error.response  # type: ignore[attr-defined]
        return _classify_status(response, secret, wall)
    is_connection_error = isinstance(error, errors.connection)
    cause = error.__cause__ if is_connection_error and error.__cause__ else error
    for error_type, failure in _TRANSPORT_FAILURES:
        if isinstance(cause, error_type):
            return failure
    name = type(cause).__name__
    if is_connection_error:
        return Failure(error=f"the connection was lost ({name})", is_retryable=True)
    # Leave the client's message out: it may quote the request or the response.
    return Failure(error=f"the call failed ({name})")


def _classify_status(response: httpx2.Response, secret: str, wall: Callable[[], float]) -> Failure:
    status = response.status_code
    headers = response.headers
    api_error = error_object(response)
    message = (api_error or {}).get("message")
    if not isinstance(message, str):
        message = response.text
    server_hint = headers.get("x-should-retry")
    is_transient = status in _TRANSIENT_STATUSES or status >= 500
    is_retryable = status not in _PERMANENT_STATUSES and server_hint != "false" and (is_transient or server_hint == "true")
    delay = retry_after(headers, wall) if is_retryable else None
    detail = one_line(message, secret) if delay is None else f"retry after {math.ceil(delay)} s"
    return Failure(
        error=f"{_STATUS_NAMES.get(status, f'HTTP {status}')}: {detail or 'no details'}",
        billed=status in _GATEWAY_STATUSES and api_error is None,
        is_retryable=is_retryable,
        retry_after=delay,
        overloaded=status in _OVERLOADED_STATUSES,
        rejects_format=status in {400, 422} and names_output_format(message),
        status=status,
        headers=headers,
    )


def error_object(response: httpx2.Response) -> dict[str, Any] | None:
    """Return the `error` in a response, which an API sends and a gateway before it does not; None without one."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else None
