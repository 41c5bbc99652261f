"""The definition of an identity's current row, for views, snapshots, exports and queries, and the analysts' views (`views.sql`).

A snapshot contains the analysts' views. In a database opened read-only they are temporary.
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
"""Orders finished evaluations before failed ones, so that a failed attempt never hides a finished one."""
_ORDER_PREFIXES = {"evaluations": FINISHED_FIRST}
WITHDRAWN = "withdrawn"
"""Column that marks a record as withdrawn. Its identity then has no current row."""
SUMMED_TABLE = "daily_failures"
"""The only table of sums that analysts see: the view of groups of failures reads it, and no statement could compute it again."""
SUMMED_VIEW = "failure_groups"
"""The view of this table."""
CURRENT_EXCHANGES = "log.current_exchanges"
"""View of the current rows of exchanges, with the columns of the log's table."""
# Few exchanges are revised, so find the superseded rows instead of sorting all exchanges, which would need memory for all texts. If
# none is revised, DuckDB knows it from the column statistics.
CURRENT_EXCHANGES_STATEMENT = f"""
CREATE OR REPLACE VIEW {CURRENT_EXCHANGES} AS
WITH newest AS (
    SELECT "connection", exchange_id, max(revision) AS revision FROM log.exchanges WHERE revision > 0 GROUP BY ALL
), superseded AS (
    SELECT e._partition, e._offset
    FROM log.exchanges AS e
    JOIN newest AS n ON e."connection" = n."connection" AND e.exchange_id = n.exchange_id AND e.revision < n.revision
)
SELECT e.* FROM log.exchanges AS e ANTI JOIN superseded USING (_partition, _offset) WHERE NOT {WITHDRAWN}"""  # noqa: S608 - constant names

_STATEMENT = re.compile(r"^(?=CREATE VIEW |COMMENT ON )", re.MULTILINE)
_CREATE = "CREATE VIEW "


def current_order(schema: RecordSchema, position: str = "_offset DESC") -> str:
    """Return the sort order that puts the current row of an identity first; `position` decides between rows of the same revision."""
    if not schema.has_revisions:
        return f"_topic, {position}"
    order = f"revision DESC, {position}"
    return f"{_ORDER_PREFIXES[schema.table]}, {order}" if schema.table in _ORDER_PREFIXES else order


def can_be_withdrawn(schema: RecordSchema) -> bool:
    """Tell whether records of the type can be withdrawn."""
    return any(field["name"] == WITHDRAWN for field in schema.fields)


def current_rows_sql(schema: RecordSchema, constant: Sequence[str] = ()) -> tuple[str, str]:
    """Return the FROM and QUALIFY clauses that select each identity's current row. No revision changes the `constant` columns."""
    if schema.table == "exchanges":
        return CURRENT_EXCHANGES, ""
    # A record on two topics has two rows in the table.
    if not schema.has_revisions and len(schema.topics) <= 1:
        return f'log."{schema.table}"', ""
    identity = ", ".join(f'"{name}"' for name in (*constant, *schema.identity))
    order = current_order(schema)
    return f'log."{schema.table}"', f" QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY {order}) = 1"


def view_statements() -> Iterator[str]:
    """Return the statements that create the analysts' views, each followed by its comments."""
    return iter(_load_statements())


@functools.cache
def _load_statements() -> tuple[str, ...]:
    text = (resources.files("analytics") / "views.sql").read_text(encoding="utf-8")
    return tuple(part.strip() for part in _STATEMENT.split(text)[1:])


def add_temporary_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the views for this connection only, except views of columns that an older file lacks."""
    for statement in _load_statements():
        temporary = statement.replace(_CREATE, "CREATE TEMP VIEW ", 1) if statement.startswith(_CREATE) else statement
        with contextlib.suppress(duckdb.CatalogException, duckdb.BinderException):
            connection.execute(temporary)
