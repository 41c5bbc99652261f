"""The definition of an identity's current row, shared by views, snapshots, exports and queries; and the analysts' views (`views.sql`).

In a snapshot the views are part of the file. In a database that is opened for reading only, they are temporary.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from importlib import resources

from schemas.lazy import duckdb
from schemas.registry import RecordSchema

FINISHED_FIRST = "status = 'completed' DESC"
"""Orders finished evaluations before failed ones, so that a failed attempt hides no finished evaluation."""
_PREFERRED = {"evaluations": FINISHED_FIRST}
WITHDRAWN = "withdrawn"
"""The column that marks a record as withdrawn: then its identity has no current row."""
CURRENT_EXCHANGES = "log.current_exchanges"
"""The view of the current rows of exchanges, with the columns of the log's table."""
# Few exchanges are revised, so look these up: sorting all exchanges needs memory for all texts. If none is revised, DuckDB knows that
# from the column's statistics alone.
CURRENT_EXCHANGES_STATEMENT = f"""
CREATE OR REPLACE VIEW {CURRENT_EXCHANGES} AS
WITH newest AS (
    SELECT "connection", exchange_id, max(revision) AS revision FROM log.exchanges WHERE revision > 0 GROUP BY ALL
), superseded AS (
    SELECT e._partition, e._offset
    FROM log.exchanges AS e
    JOIN newest AS n ON e."connection" = n."connection" AND e.exchange_id = n.exchange_id AND e.revision < n.revision
)
SELECT e.* FROM log.exchanges AS e ANTI JOIN superseded USING (_partition, _offset) WHERE NOT {WITHDRAWN}"""  # noqa: S608 - names of ours

_STATEMENT = re.compile(r"^(?=CREATE VIEW |COMMENT ON )", re.MULTILINE)
_CREATE = "CREATE VIEW "


def current_first(schema: RecordSchema) -> str:
    """The order that puts the current row of an identity first, for a record type that can have several rows per identity."""
    if not schema.has_revisions:
        return "_topic, _offset DESC"
    order = "revision DESC, _offset DESC"
    return f"{_PREFERRED[schema.table]}, {order}" if schema.table in _PREFERRED else order


def has_withdrawn(schema: RecordSchema) -> bool:
    """Tell whether records of the type can be withdrawn."""
    return any(field["name"] == WITHDRAWN for field in schema.fields)


def current_source(schema: RecordSchema, alike: Sequence[str] = ()) -> tuple[str, str]:
    """The FROM clause and the QUALIFY clause that select each identity's current row; `alike` are columns that no revision changes."""
    if schema.table == "exchanges":
        return CURRENT_EXCHANGES, ""
    # A record on two topics is in the table twice.
    if not schema.has_revisions and len(schema.topics) <= 1:
        return f'log."{schema.table}"', ""
    identity = ", ".join(f'"{name}"' for name in (*alike, *schema.identity))
    order = current_first(schema)
    return f'log."{schema.table}"', f" QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY {order}) = 1"


def view_statements() -> Iterator[str]:
    """The statements that make the views, each followed by its comments."""
    return iter(_statements())


@functools.cache
def _statements() -> tuple[str, ...]:
    text = (resources.files("analytics") / "views.sql").read_text(encoding="utf-8")
    return tuple(part.strip() for part in _STATEMENT.split(text)[1:])


def add_temporary_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the views for this connection only. Views that need columns which an older file lacks are left out."""
    for statement in _statements():
        temporary = statement.replace(_CREATE, "CREATE TEMP VIEW ", 1) if statement.startswith(_CREATE) else statement
        with contextlib.suppress(duckdb.CatalogException, duckdb.BinderException):
            connection.execute(temporary)
