# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Outlines of incidents and numbers of runs, which lists read instead of complete records.

They are written in the same transaction as the rows from which they are derived.

1. The evidence of an incident takes thirty kilobytes, mostly queries, and DuckDB compresses it in blocks of many incidents: reading
   one value takes as long as reading everything. An outline holds the values that lists and charts need.
2. Each project numbers its sessions in the order of their first diagnoses. A number is assigned once: no deletion, erasure or
   recomputation changes the number of another run or reuses one.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.store.positions import RUN_NUMBERS
from analytics.store.tables import BATCH, registered
from schemas.lazy import duckdb, pl

_INSERT_OUTLINES = """
INSERT INTO log.incident_outlines BY NAME
SELECT
    '' AS _topic, 0 AS _partition, 0 AS _offset, incident_id, version, log.incident_size(type, tier, evidence) AS size,
    coalesce(list_sort(list_distinct(
        flatten(list_transform([exchanges, runs, moved], lambda part: coalesce(json_extract_string(part, '$[*].agent'), [])))
    )), []) AS agents,
    evidence,
    list_sort(list_distinct([
        concat(item ->> '$.connection', '/', item ->> '$.sessionId')
        FOR item IN coalesce(list_concat(json_extract(exchanges, '$[*]'), json_extract(runs, '$[*]')), [])
        IF item ->> '$.sessionId' IS NOT NULL
    ])) AS sessions
FROM (
    SELECT
        incident_id, version, type, tier, parts[1] AS exchanges, parts[2] AS runs, parts[3] AS moved,
        '{{' || concat_ws(',', '"moved":' || parts[3]::VARCHAR, '"rules":' || parts[4]::VARCHAR) || '}}' AS evidence
    FROM (
        -- Parse the evidence only once, because that takes most of the time.
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
_DELETE_STALE_OUTLINES = (
    "DELETE FROM log.incident_outlines AS o WHERE NOT EXISTS "
    "(SELECT 1 FROM log.incidents AS i WHERE i.incident_id = o.incident_id AND i.revision = o.version)"
)
_AT_POSITION = "FROM log.incidents WHERE _topic = ? AND _partition = ? AND _offset = ?"
_DELETE_OUTLINE = (
    f"DELETE FROM log.incident_outlines WHERE (incident_id, version) IN (SELECT (incident_id, revision) {_AT_POSITION})"
)

_ASSIGN_NUMBERS = f"""
INSERT INTO log.run_numbers BY NAME
WITH fresh AS (
    SELECT connection, session_id, arg_min(project, _offset) AS project, min(_offset) AS first_offset
    FROM {{diagnoses}} ANTI JOIN log.run_numbers USING (connection, session_id)
    GROUP BY connection, session_id
), next_numbers AS (
    SELECT topic AS project, next_position FROM log.watermarks WHERE consumer = '{RUN_NUMBERS}'
)
SELECT
    '' AS _topic, 0 AS _partition, 0 AS _offset, project, connection, session_id,
    coalesce(next_position, 1) - 1 + row_number() OVER (PARTITION BY project ORDER BY first_offset, connection, session_id) AS number
FROM fresh LEFT JOIN next_numbers USING (project)
RETURNING project, number
"""
_DELETE_STALE_NUMBERS = (
    "DELETE FROM log.run_numbers WHERE (connection, session_id) NOT IN (SELECT (connection, session_id) FROM log.diagnoses)"
)


def write_outlines(connection: duckdb.DuckDBPyConnection, incidents: pl.DataFrame) -> None:
    """Write the outlines of new incidents; `incidents` are rows of the log with `_offset`."""
    with registered(connection, incidents.select(_COLUMNS)):
        connection.execute(_INSERT_OUTLINES.format(incidents=BATCH))


def rebuild_outlines(connection: duckdb.DuckDBPyConnection) -> None:
    """Rebuild the outlines of all incidents, for a file written before outlines existed or named sessions."""
    connection.execute("DELETE FROM log.incident_outlines")
    connection.execute(_INSERT_OUTLINES.format(incidents="log.incidents"))


def rebuild_outline(connection: duckdb.DuckDBPyConnection, position: Sequence[object]) -> None:
    """Rebuild the outline of the incident at a position (topic, partition, offset), after its evidence was redacted."""
    connection.execute(_DELETE_OUTLINE, position)
    connection.execute(_INSERT_OUTLINES.format(incidents=f"(SELECT {', '.join(_COLUMNS)} {_AT_POSITION})"), position)


def delete_stale_outlines(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the outlines of incidents that were deleted."""
    connection.execute(_DELETE_STALE_OUTLINES)


def number_runs(connection: duckdb.DuckDBPyConnection, diagnoses: pl.DataFrame) -> dict[str, int]:
    """Assign numbers to diagnosed sessions that have none; return the next number of each changed project.

    `diagnoses` are rows of the log with `_offset`; the caller stores the result as watermarks of RUN_NUMBERS.
    """
    with registered(connection, diagnoses.select("connection", "session_id", "project", "_offset")):
        return _assign_numbers(connection, BATCH)


def _assign_numbers(connection: duckdb.DuckDBPyConnection, diagnoses: str) -> dict[str, int]:
    numbers = connection.execute(_ASSIGN_NUMBERS.format(diagnoses=diagnoses)).fetchall()
    return {project: number + 1 for project, number in sorted(numbers)}


def number_all_runs(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Assign numbers to all diagnosed sessions, like `number_runs`, for a file written before numbers existed."""
    return _assign_numbers(connection, "log.diagnoses")


def delete_stale_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the numbers of deleted runs, which are never reused."""
    connection.execute(_DELETE_STALE_NUMBERS)
