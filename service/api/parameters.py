"""Parameters of addresses: one that a call does not take is refused, because a filter that is misspelt would answer everything."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.api.errors import ApiError
from service.api.settings import API


async def refuse_unknown(request: Request) -> None:
    """Dependency of every endpoint: ApiError (400) that names what the call does not take, and what it does.

    Pages take whatever stands in their address: people share links, and chats add parameters to them.
    """
    route = request.scope["route"]
    if not request.query_params or not isinstance(route, APIRoute) or not route.path.startswith(API):
        return
    known = sorted(set(_names(route.dependant)))
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        takes = f"this call takes {', '.join(known)}" if known else "this call takes none"
        raise ApiError(400, "invalid", f"{unknown[:100]}: is no parameter here; {takes}")


def _names(dependant: Dependant) -> Iterator[str]:
    """The parameters that an endpoint and what it depends on read from the address."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
