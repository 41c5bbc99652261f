# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Outlines of incidents: what lists and charts read of the evidence.

Evidence takes thirty kilobytes an incident, most of it queries, and is compressed by the thousand: to read the first number in it of
some incidents takes as long as to read all of it. An outline is made of a row of the log in the transaction that writes the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.store.inserting import BATCH, registered
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

_OUTLINE = """
INSERT INTO log.incident_outlines BY NAME
SELECT
    '' AS _topic, 0 AS _partition, 0 AS _offset, incident_id, version, log.incident_size(type, tier, evidence) AS size,
    coalesce(list_sort(list_distinct(
        flatten(list_transform([exchanges, runs, moved], lambda one: coalesce(json_extract_string(one, '$[*].agent'), [])))
    )), []) AS agents,
    evidence,
    list_sort(list_distinct([
        concat(one ->> '$.connection', '/', one ->> '$.sessionId')
        FOR one IN coalesce(list_concat(json_extract(exchanges, '$[*]'), json_extract(runs, '$[*]')), [])
        IF one ->> '$.sessionId' IS NOT NULL
    ])) AS sessions
FROM (
    SELECT
        incident_id, version, type, tier, parts[1] AS exchanges, parts[2] AS runs, parts[3] AS moved,
        '{{' || concat_ws(',', '"moved":' || parts[3]::VARCHAR, '"rules":' || parts[4]::VARCHAR) || '}}' AS evidence
    FROM (
        -- Once, because to read the evidence takes longer than all the rest.
        SELECT
            incident_id, revision AS version, type, tier,
            json_extract(TRY_CAST(metadata AS JSON), ['$.exchanges', '$.runs', '$.moved', '$.rules']) AS parts
        FROM {incidents} AS i
        WHERE NOT EXISTS (SELECT 1 FROM log.incident_outlines AS o WHERE o.incident_id = i.incident_id AND o.version = i.revision)
        QUALIFY row_number() OVER (PARTITION BY incident_id, revision ORDER BY _offset) = 1
    )
)
"""
_COLUMNS = ("incident_id", "revision", "type", "tier", "metadata", "_offset")
_FORGET = (
    "DELETE FROM log.incident_outlines AS o WHERE NOT EXISTS "
    "(SELECT 1 FROM log.incidents AS i WHERE i.incident_id = o.incident_id AND i.revision = o.version)"
)
_AT = "FROM log.incidents WHERE _topic = ? AND _partition = ? AND _offset = ?"
_FORGET_ONE = f"DELETE FROM log.incident_outlines WHERE (incident_id, version) IN (SELECT (incident_id, revision) {_AT})"


def outline(connection: duckdb.DuckDBPyConnection, incidents: pl.DataFrame) -> None:
    """Make the outlines of incidents that were written; `incidents` are rows of the log with `_offset`."""
    with registered(connection, incidents.select(_COLUMNS)):
        connection.execute(_OUTLINE.format(incidents=BATCH))


def outline_all(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the outlines of all incidents of a file from before they were kept, or from before they named sessions."""
    connection.execute("DELETE FROM log.incident_outlines")
    connection.execute(_OUTLINE.format(incidents="log.incidents"))


def outline_again(connection: duckdb.DuckDBPyConnection, place: Sequence[object]) -> None:
    """Make the outline of the incident at a place (topic, partition, offset) again, because its evidence was changed there."""
    connection.execute(_FORGET_ONE, place)
    connection.execute(_OUTLINE.format(incidents=f"(SELECT {', '.join(_COLUMNS)} {_AT})"), place)


def forget_outlines(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the outlines of incidents that were deleted."""
    connection.execute(_FORGET)
