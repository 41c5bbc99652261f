# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Numbers of runs: each project counts the first diagnoses of its sessions, in the order of the log.

A number is given once. Nothing that is deleted, erased or made again moves another run's number, and none is given twice.
"""

from __future__ import annotations

from analytics.store.inserting import BATCH, registered
from analytics.store.positions import RUN_NUMBERS
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

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
_FORGET = (
    "DELETE FROM log.run_numbers WHERE (connection, session_id) NOT IN (SELECT (connection, session_id) FROM log.diagnoses)"
)


def number_runs(connection: duckdb.DuckDBPyConnection, diagnoses: pl.DataFrame) -> dict[str, int]:
    """Give numbers to those of the diagnosed sessions that have none; answers the next number of each project that got any.

    `diagnoses` are rows of the log with `_offset`; the caller keeps the answer as watermarks of RUN_NUMBERS.
    """
    with registered(connection, diagnoses.select("connection", "session_id", "project", "_offset")):
        return _give(connection, BATCH)


def number_all(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """The same for every diagnosis of a log that comes from before numbers were kept."""
    return _give(connection, "log.diagnoses")


def forget_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    """Forget who had a number where nothing is left of the run; the number stays given."""
    connection.execute(_FORGET)


def _give(connection: duckdb.DuckDBPyConnection, diagnoses: str) -> dict[str, int]:
    given = connection.execute(_GIVE.format(diagnoses=diagnoses)).fetchall()
    return {project: number + 1 for project, number in sorted(given)}
