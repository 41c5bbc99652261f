# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""States of stages, read by stage and session key."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from analytics.store.inserting import BATCH, registered
from analytics.store.replacing import FEW
from analytics.store.tables import full_name
from schemas.lazy.polars import pl
from schemas.registry import schema_of


def stored_states(connection: duckdb.DuckDBPyConnection, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the states of a stage for those of the keys that have one."""
    return states_of_stages(connection, [stage], keys)[stage]


def states_of_stages(
    connection: duckdb.DuckDBPyConnection, stages: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, bytes]]:
    """Return the states of each stage for those of the keys that have one: the table is read once."""
    found: dict[str, dict[str, bytes]] = {stage: {} for stage in stages}
    for stage, key, state in _rows(connection, stages, keys):
        found[stage][key] = state
    return found


def _rows(connection: duckdb.DuckDBPyConnection, stages: Sequence[str], keys: Sequence[str]) -> list[tuple[str, str, bytes]]:
    table, wanted = full_name(schema_of("StageState")), f"stage IN ({_marks(stages)})"
    if len(keys) <= FEW:
        statement = f"SELECT stage, key, state FROM {table} WHERE {wanted} AND key IN ({_marks(keys)})"
        return connection.execute(statement, [*stages, *keys]).fetchall()
    with registered(connection, pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
        statement = f"SELECT stage, key, state FROM {table} SEMI JOIN {BATCH} USING (key) WHERE {wanted}"
        return connection.execute(statement, list(stages)).fetchall()


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values)) or "NULL"
