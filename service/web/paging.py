"""The parameters of lists that come in pages: `service.text.cursors` says what a cursor is."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import PlainValidator, WithJsonSchema

from service.text.cursors import MAX_CURSOR, Place, decode_place

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
