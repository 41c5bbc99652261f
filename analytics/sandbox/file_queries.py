"""Answers read from a file that no process has open, as frames: statements of its owner, and named queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analytics.queries import Query
from analytics.sandbox.adhoc import open_read_only, refusals
from analytics.sandbox.bounded import limited_frame
from analytics.sandbox.result_formats import frame_of
from analytics.store.readable_views import add_temporary_views
from schemas.lazy.polars import pl


def frame_of_statement(path: Path, statement: str, limit: int) -> tuple[pl.DataFrame, bool]:
    """Up to `limit` rows of a statement that reads, and whether there are more. QueryError and StoreError as `read_only_rows`."""
    with open_read_only(path) as connection:
        add_temporary_views(connection)
        answer = limited_frame(connection, statement, {}, limit)
        return answer.frame, answer.more


def frame_of_query(path: Path, query: Query, values: Mapping[str, Any], limit: int) -> tuple[pl.DataFrame, bool]:
    """Up to `limit` rows of a named query with a value for each of its parameters, and whether there are more.

    QueryError when a value is not of its parameter's kind. StoreError when the file cannot be opened.
    """
    with open_read_only(path) as connection, refusals():
        frame = frame_of(connection.sql(query.text, params=dict(values)))
        return frame.head(limit), frame.height > limit
