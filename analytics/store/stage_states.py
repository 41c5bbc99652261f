# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""States of stages, read by stage and session key."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from analytics.store.inserting import BATCH, registered
from analytics.store.replacing import FEW
from analytics.store.tables import full_name
from schemas.registry import schema_of


def stored_states(connection: duckdb.DuckDBPyConnection, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the states of a stage for those of the keys that have one."""
    if len(keys) <= FEW:
        marks = ", ".join("?" * len(keys)) or "NULL"
        statement = f"SELECT key, state FROM {full_name(schema_of('StageState'))} WHERE stage = ? AND key IN ({marks})"
        return dict(connection.execute(statement, [stage, *keys]).fetchall())
    with registered(connection, pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
        rows = connection.execute(
            f"SELECT key, state FROM {full_name(schema_of('StageState'))} SEMI JOIN {BATCH} USING (key) WHERE stage = $stage",
            {"stage": stage},
        ).fetchall()
    return dict(rows)
