"""The views that analysts read: `views.sql`, over the record types' views or tables of the same names.

In a snapshot they are part of the file. Where a database is opened for reading only, they are temporary.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from importlib import resources

from schemas.lazy.duckdb import duckdb

_STATEMENT = re.compile(r"^(?=CREATE VIEW |COMMENT ON )", re.MULTILINE)
_CREATE = "CREATE VIEW "


def view_statements() -> Iterator[str]:
    """The statements that make the views, each followed by its comments."""
    return iter(_statements())


def add_temporary_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the views for this connection alone. One that a file of an earlier version has not the columns for is left out."""
    for statement in _statements():
        temporary = statement.replace(_CREATE, "CREATE TEMP VIEW ", 1) if statement.startswith(_CREATE) else statement
        with contextlib.suppress(duckdb.CatalogException, duckdb.BinderException):
            connection.execute(temporary)


@functools.cache
def _statements() -> tuple[str, ...]:
    text = (resources.files("analytics") / "views.sql").read_text(encoding="utf-8")
    return tuple(part.strip() for part in _STATEMENT.split(text)[1:])
