"""Parameters of calls: unknown ones are refused.

1. A parameter that is misspelt: without that filter the call would answer everything.
2. Bytes that are not UTF-8: frameworks replace them, and the id of one session would then name another.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.text.paths import CALLS
from service.web.errors import ApiError


async def refuse_unknown(request: Request) -> None:
    """Check the parameters of a call of any endpoint: ApiError (400) that names the unknown parameter, and the known ones.

    Pages take whatever stands in their address: people share links, and chats add parameters to them.
    """
    route = request.scope["route"]
    if not isinstance(route, APIRoute) or not route.path.startswith(CALLS):
        return
    _refuse_other_bytes(request)
    if not request.query_params:
        return
    known = sorted(set(_names(route.dependant)))
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        takes = f"this call takes {', '.join(known)}" if known else "this call takes no parameters"
        raise ApiError(400, "invalid", f"{unknown[:100]}: unknown parameter; {takes}")


def _refuse_other_bytes(request: Request) -> None:
    for part, escaped in (("path", request.scope["raw_path"]), ("query", request.scope["query_string"])):
        try:
            unquote_to_bytes(escaped).decode()
        except UnicodeDecodeError:
            raise ApiError(400, "not_utf8", f"the {part} of the address is not UTF-8 once it is unescaped") from None


def _names(dependant: Dependant) -> Iterator[str]:
    """Return the parameters that an endpoint and its dependencies read from the address."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
