"""The answer to a statement, as JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from service.text.answers import Answer, Moment


class QueryColumn(Answer, frozen=True):
    """A column of an answer."""

    name: str
    type: Annotated[str, Meta(description="Type, as DuckDB names it.", examples=["DOUBLE"])]


class QueryResult(Answer, frozen=True):
    """The answer to a statement, as JSON."""

    columns: list[QueryColumn]
    rows: Annotated[
        msgspec.Raw,
        Meta(description="One object per row.", extra_json_schema={"type": "array", "items": {"type": "object"}}),
    ]
    """Written by the process that answers."""
    row_count: int
    truncated: Annotated[bool, Meta(description="Whether there are more rows than the limit.")]
    as_of: Annotated[Moment, Meta(description="Time of the snapshot.")]
    elapsed_ms: int
