"""Ad-hoc SQL by the owner of the file: one statement, on a connection that can read the database and reach nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from schemas.errors import QueryError

LOCKED = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
    "lock_configuration": True,
}
"""Settings of the connection: no files, no network, no extensions, no Python variables, and no way to change that."""


def read_only_rows(path: Path, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Column names, up to `limit` rows, and whether there are more.

    QueryError when it is not exactly one statement, when it would change something, or when DuckDB cannot answer it.
    """
    try:
        with duckdb.connect(str(path), read_only=True, config={"TimeZone": "UTC", **LOCKED}) as connection:
            statements = connection.extract_statements(statement)
            if len(statements) != 1:
                raise QueryError(f"{len(statements)} statements were given", hint="Give one statement that reads.")
            result = connection.execute(statements[0])
            rows = result.fetchmany(limit + 1)
            return [column[0] for column in result.description or []], rows[:limit], len(rows) > limit
    except duckdb.Error as error:
        raise QueryError(str(error).strip(), hint=_hint(str(error))) from error


def _hint(message: str) -> str:
    if "read-only" in message:
        return "The database is opened for reading only."
    if "lock" in message.lower() and "another" in message.lower():
        return "Another process has the file: one process owns a DuckDB file."
    return "`driftline sql 'SHOW TABLES'` lists the tables, `driftline sql 'DESCRIBE scores'` the columns of one."
