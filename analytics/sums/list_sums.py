# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Outlines of incidents and numbers of runs, which lists read instead of whole records. Written with the rows they are derived from.

1. Evidence takes thirty kilobytes per incident, most of it queries, and is compressed by the thousand: reading the first number in some
   incidents' evidence takes as long as reading all of it. An outline holds what lists and charts need.
2. Each project numbers its sessions by their first diagnoses, in the order of the log. A number is assigned once: no deletion, erasure or
   recomputation changes another run's number, and none is reused.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.store.positions import RUN_NUMBERS
from analytics.store.tables import BATCH, registered
from schemas.lazy import duckdb, pl

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
_FORGET_OUTLINES = (
    "DELETE FROM log.incident_outlines AS o WHERE NOT EXISTS "
    "(SELECT 1 FROM log.incidents AS i WHERE i.incident_id = o.incident_id AND i.revision = o.version)"
)
_AT = "FROM log.incidents WHERE _topic = ? AND _partition = ? AND _offset = ?"
_FORGET_ONE = f"DELETE FROM log.incident_outlines WHERE (incident_id, version) IN (SELECT (incident_id, revision) {_AT})"

_GIVE = f"""
INSERT INTO log.run_numbers BY NAME
WITH fresh AS (
    SELECT connection, session_id, arg_min(project, _offset) AS project, min(_offset) AS place
    FROM {{diagnoses}} ANTI JOIN log.run_numbers USING (connection, session_id)
    GROUP BY connection, session_id
), given AS (
    SELECT topic AS project, next_position FROM log.watermarks WHERE consumer = '{RUN_NUMBERS}'
)
SELECT
    '' AS _topic, 0 AS _partition, 0 AS _offset, project, connection, session_id,
    coalesce(next_position, 1) - 1 + row_number() OVER (PARTITION BY project ORDER BY place, connection, session_id) AS number
FROM fresh LEFT JOIN given USING (project)
RETURNING project, number
"""
_FORGET_RUN_NUMBERS = (
    "DELETE FROM log.run_numbers WHERE (connection, session_id) NOT IN (SELECT (connection, session_id) FROM log.diagnoses)"
)


def outline(connection: duckdb.DuckDBPyConnection, incidents: pl.DataFrame) -> None:
    """Write the outlines of new incidents; `incidents` are rows of the log with `_offset`."""
    with registered(connection, incidents.select(_COLUMNS)):
        connection.execute(_OUTLINE.format(incidents=BATCH))


def outline_all(connection: duckdb.DuckDBPyConnection) -> None:
    """Rebuild the outlines of all incidents, for a file written before outlines existed or before they named sessions."""
    connection.execute("DELETE FROM log.incident_outlines")
    connection.execute(_OUTLINE.format(incidents="log.incidents"))


def outline_again(connection: duckdb.DuckDBPyConnection, position: Sequence[object]) -> None:
    """Rebuild the outline of the incident at a place (topic, partition, offset) whose evidence was redacted."""
    connection.execute(_FORGET_ONE, position)
    connection.execute(_OUTLINE.format(incidents=f"(SELECT {', '.join(_COLUMNS)} {_AT})"), position)


def forget_outlines(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the outlines of incidents that were deleted."""
    connection.execute(_FORGET_OUTLINES)


def number_runs(connection: duckdb.DuckDBPyConnection, diagnoses: pl.DataFrame) -> dict[str, int]:
    """Number the diagnosed sessions that have no number yet; return the next number of each project concerned.

    `diagnoses` are rows of the log with `_offset`; the caller stores the result as watermarks of RUN_NUMBERS.
    """
    with registered(connection, diagnoses.select("connection", "session_id", "project", "_offset")):
        return _give(connection, BATCH)


def _give(connection: duckdb.DuckDBPyConnection, diagnoses: str) -> dict[str, int]:
    numbers = connection.execute(_GIVE.format(diagnoses=diagnoses)).fetchall()
    return {project: number + 1 for project, number in sorted(numbers)}


def number_all(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Number the runs of every diagnosis, as `number_runs`, for a log written before numbers were stored."""
    return _give(connection, "log.diagnoses")


def forget_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the number rows of runs that are gone; their numbers are not reused."""
    connection.execute(_FORGET_RUN_NUMBERS)
