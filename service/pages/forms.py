"""Forms of pages that work without a script: the fields of a body, after its mark has proved that one of our pages sent it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from service.pages.rendering import MARK_FIELD
from service.setup.access.sign_ins import is_mark
from service.web.errors import ApiError

MAX_FIELDS = 2000
"""Fields of a form."""
Fields = dict[str, list[str]]


async def _fields(request: Request) -> Fields:
    """Return the non-blank values of each field; ApiError 400 for a body that is not a form, 403 without the page's mark."""
    try:
        pairs = parse_qsl((await request.body()).decode(), errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:  # also raised for bytes that are not UTF-8
        raise ApiError(400, "invalid", f"the form is not readable, or has more than {MAX_FIELDS} fields") from None
    fields: Fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    marks = fields.pop(MARK_FIELD, [])
    cookie: bytes = getattr(request.state, "cookie", b"")
    if len(marks) != 1 or not cookie or not is_mark(marks[0].encode(), cookie):
        raise ApiError(403, "forged", "the form does not come from a page of this server; reload the page")
    return fields


Form = Annotated[Fields, Depends(_fields)]
"""The fields of the form that was sent."""
