"""Parameters of calls: the check for unknown ones, and the common parameters of paged lists.

1. A misspelt parameter is refused, because without its filter the call would return everything.
2. Bytes that are not UTF-8 are refused, because frameworks replace them, and the id of one session could become another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import PlainValidator, WithJsonSchema

from service.text.answers import MAX_CURSOR, Place, decode_place
from service.text.links import CALLS
from service.web.errors import ApiError


async def refuse_unknown(request: Request) -> None:
    """Check the parameters of a call: ApiError (400) names the unknown parameter and the known ones.

    Pages accept any parameters, because people share links, and chat programs add parameters to them.
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


Cursor = Annotated[
    Place | None,
    Query(description="Where to continue: the nextCursor of an earlier answer."),
    PlainValidator(lambda text: None if text is None else decode_place(text)),
    WithJsonSchema({"type": "string", "maxLength": MAX_CURSOR, "pattern": "^[A-Za-z0-9_-]+$"}),
]
"""The parameter `cursor` of a list: the place after which to continue, or None for its beginning."""
MAX_PAGE = 1000
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number.")]
"""The parameter `limit` of a list."""
