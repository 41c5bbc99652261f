"""The sign-in cookie: its name, and whether it may travel unencrypted.

1. Browsers keep the cookies of a host together, whatever the port: the name has the port, so that two servers on one machine do not
   sign out each other's people.
2. A proxy that speaks TLS hands on plain HTTP. So the server knows from its public address that a call came encrypted; what is set
   in an answer to it is for encrypted calls to this very host alone (`__Host-`: https://httpwg.org/specs/rfc6265.html).
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from service.http.request_limits import header_values


def is_encrypted(scope: Scope, encrypted_hosts: Collection[str]) -> bool:
    """Tell whether a call was encrypted: up to the server itself, or up to the proxy of its host."""
    hosts = [value.decode("latin-1").lower() for value in header_values(scope, b"host")]
    return scope["scheme"] == "https" or (len(hosts) == 1 and hosts[0] in encrypted_hosts)


def cookie_name(port: int | None, *, encrypted: bool) -> str:
    """Return the name of the cookie of the server at this port."""
    return f"{'__Host-' if encrypted else ''}driftline-{port or 0}"


def name_in(scope: Scope, encrypted_hosts: Collection[str]) -> str:
    """Return the name of the cookie in a call and its answer."""
    return cookie_name((scope.get("server") or ("", 0))[1], encrypted=is_encrypted(scope, encrypted_hosts))


def cookie_of(scope: Scope, encrypted_hosts: Collection[str]) -> bytes:
    """Return the cookie of a sign-in; nothing if there is none, or several."""
    wanted = name_in(scope, encrypted_hosts).encode()
    pairs = (pair.strip().partition(b"=") for value in header_values(scope, b"cookie") for pair in value.split(b";"))
    found = [value for name, _, value in pairs if name == wanted]
    return found[0] if len(found) == 1 else b""
