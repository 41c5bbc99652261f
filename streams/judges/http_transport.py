"""The way to the judge's API: the address, and an HTTP client that reads no more than it was told to."""

from __future__ import annotations

import ipaddress
from typing import Any

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from schemas.errors import SettingsError
from streams.judges.protocol import DEFAULT_BASE_URL

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Most bytes of a response that are read, counted after decompression; an answer has a few thousand."""
CONNECT_SECONDS = 10.0
_PLACEHOLDER = "none"
_ADDRESS = "Set ANTHROPIC_BASE_URL to the address before /v1/messages, such as http://127.0.0.1:11434."
_OF_THE_WIRE = frozenset(["content-encoding", "content-length", "transfer-encoding"])


class ResponseTooLargeError(httpx2.TransportError):
    """The response has more bytes than are read; the rest was left unread."""


class BoundedClient(DefaultAsyncHttpxClient):
    """An HTTP client that reads each response as a whole unless it is to be streamed, and gives up on one that grows beyond a size."""

    def __init__(self, *, max_body: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_body = max_body

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send the request; the response's body has been read and decompressed. ResponseTooLargeError when it is too large.

        The caller of a stream without an error reads the body, and bounds what is kept of it.
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
    """A client of the Messages API that neither retries nor follows redirects: a text goes where it was sent, once.

    SettingsError where key or address cannot be used. A server that is not the API itself may do without a key.
    """
    url = _checked_url(base_url or DEFAULT_BASE_URL)
    options: dict[str, Any] = {} if transport is None else {"transport": transport}
    if _is_loopback(url.host):
        # A proxy of the environment cannot reach this machine's own loopback.
        host = f"[{url.host}]" if ":" in url.host else url.host
        options["mounts"] = {f"all://{host}": None}
    timeout = httpx2.Timeout(call_seconds, connect=min(CONNECT_SECONDS, call_seconds))
    limits = httpx2.Limits(max_connections=2 * connections, max_keepalive_connections=connections)
    http = BoundedClient(max_body=max_body, follow_redirects=False, timeout=timeout, limits=limits, **options)
    # The texts go to the judge and nowhere else, so no spans, whatever the environment says of tracing.
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
    """The address; the messages do not repeat it, because a password may stand in it."""
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
