"""The HTTP client of every judge's API: one address, no redirects, no retries, and a limit on the size of responses."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx2

from schemas.errors import SettingsError

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size of a response after decompression; a normal answer has a few thousand bytes."""
CONNECT_SECONDS = 10.0
_TRANSFER_HEADERS = frozenset(["content-encoding", "content-length", "transfer-encoding"])
"""Headers that describe the encoded body; they do not apply to the decoded one."""
_PROBED_PATHS = {
    "/v1/messages": ("Messages", ""),
    "/v1/chat/completions": ("Chat Completions", "/v1"),
    "/v1/responses": ("Responses", "/v1"),
}
"""The path of each API, its name, and the end of its base URL."""
_UNKNOWN_PATH_STATUSES = frozenset([404, 405, 501])
_PROBE_SECONDS = 5.0
_PLACEHOLDER_KEY = "none"


class ResponseTooLargeError(httpx2.TransportError):
    """A response is larger than the limit; the client stopped reading it."""


class BoundedClient(httpx2.AsyncClient):
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


class ClientOptions(NamedTuple):
    """The options of an API's client."""

    call_seconds: float
    connections: int
    """Calls at a time."""
    max_body: int = MAX_BODY_BYTES
    transport: httpx2.AsyncBaseTransport | None = None
    setting: str | None = None
    """Where the address is set, for error messages; None is the environment."""
    region: str | None = None
    """Region of a cloud; None is the environment's."""
    cloud_project: str | None = None
    """Google Cloud project; None is the environment's."""


def open_http_client(url: httpx2.URL | None, options: ClientOptions) -> BoundedClient:
    """Return a client for an API at this address; None is a provider's own.

    It follows no redirects, so that each text is sent to the configured address only.
    """
    connection: dict[str, Any] = {} if options.transport is None else {"transport": options.transport}
    if url is not None and _is_loopback(url.host):
        # Bypass a proxy from the environment: it cannot reach this machine's loopback address.
        host = f"[{url.host}]" if ":" in url.host else url.host
        connection["mounts"] = {f"all://{host}": None}
    timeout = httpx2.Timeout(options.call_seconds, connect=min(CONNECT_SECONDS, options.call_seconds))
    limits = httpx2.Limits(max_connections=2 * options.connections, max_keepalive_connections=options.connections)
    return BoundedClient(max_body=options.max_body, follow_redirects=False, timeout=timeout, limits=limits, **connection)


def check_key(api_key: str | None) -> str:
    """Return the key, or a placeholder for a server that needs none. Raises SettingsError for one that no header can have."""
    if api_key is None:
        return _PLACEHOLDER_KEY
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise SettingsError(
            "the key for the judge's API may contain only printable ASCII characters and no spaces", hint="Copy the key again."
        )
    return api_key


def check_address(base_url: str, setting: str, endings: Sequence[str]) -> httpx2.URL:
    """Parse an address. Raises SettingsError if it is invalid; messages do not repeat it, because it may contain a password.

    `setting` is where the address is set. `endings` are paths that the client appends itself.
    """
    hint = f"Set {setting} to an address such as http://127.0.0.1:11434."
    try:
        url = httpx2.URL(base_url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError("the address of the judge's API is not a URL", hint=hint) from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise SettingsError("the address of the judge's API does not start with http:// or https://", hint=hint)
    if url.userinfo:
        hint = "Set the key in the environment instead, because addresses are written to logs."
        raise SettingsError("the address of the judge's API contains a password", hint=hint)
    if url.query or url.fragment:
        raise SettingsError("the address of the judge's API has a query or a fragment", hint=hint)
    path = url.path.rstrip("/")
    for ending in endings:
        if path.endswith(ending):
            corrected = url.copy_with(path=path.removesuffix(ending) or "/")
            hint = f"Driftline appends the rest of the path, so set {setting}={str(corrected).rstrip('/')}"
            raise SettingsError(f"the address of the judge's API ends in {ending}", hint=hint)
    return url


async def find_apis(base_url: str, transport: httpx2.AsyncBaseTransport | None = None) -> list[str]:
    """Return the APIs that a server seems to speak, with their addresses: those whose path it knows.

    The requests are empty and have no key, so they cost nothing.
    """
    url = httpx2.URL(base_url)
    parts = url.path.strip("/").split("/")
    # The configured path may be wrong, so its beginnings are tried, too.
    roots = [str(url.copy_with(path="/" + "/".join(parts[:length]))).rstrip("/") for length in range(len(parts), -1, -1)]
    apis = []
    async with open_http_client(url, ClientOptions(_PROBE_SECONDS, 1, transport=transport)) as client:
        for path, (name, suffix) in _PROBED_PATHS.items():
            for root in dict.fromkeys(roots):
                try:
                    response = await client.post(f"{root}{path}", json={})
                except httpx2.HTTPError:
                    continue
                if response.status_code not in _UNKNOWN_PATH_STATUSES:
                    apis.append(f"{name} at {root}{suffix}")
                    break
    return apis


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
