"""Rows for the evidence fold, with the payload of calls if a session's thresholds compare payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analytics.queries import run_query
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

QUERY = "call_payloads"


def with_payloads(
    cursor: duckdb.DuckDBPyConnection, events: pl.DataFrame, runs: Sequence[Mapping[str, Any]], *, wanted: bool
) -> pl.DataFrame:
    """Return the events of some runs with the column `payload`: of calls if wanted, else empty, because it may be large."""
    if not wanted:
        return events.with_columns(pl.lit(None, pl.String).alias("payload"))
    payloads = run_query(cursor, QUERY, {"runs": list(runs)})
    return events.join(payloads.unique(["run", "event_id"]), on=["run", "event_id"], how="left", maintain_order="left")
