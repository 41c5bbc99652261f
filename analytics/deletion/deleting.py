# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Deleting from the log: rows by their places, what stages keep of sessions, and what stages can make again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analytics.store.inserting import BATCH, registered
from analytics.store.positions import PLACE, RETENTION
from analytics.store.tables import full_name
from analytics.sums.kept import Day, KeptSums
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import current_schemas, schema_of, topics


def delete_places(connection: duckdb.DuckDBPyConnection, name: str, places: pl.DataFrame) -> int:
    """Delete the rows of a record type that stand at these places (PLACE); answers how many there were."""
    matches = " AND ".join(f"old.{column} = gone.{column}" for column in PLACE)
    # The bounds let whole row groups be passed over.
    bounds = {"first": places["_offset"].min(), "last": places["_offset"].max()}
    with registered(connection, places.select(PLACE)):
        ((deleted,),) = connection.execute(
            f"DELETE FROM {full_name(schema_of(name))} AS old USING {BATCH} AS gone WHERE {matches} "
            "AND old._offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return int(deleted)


def delete_states(connection: duckdb.DuckDBPyConnection, keys: Sequence[str], stages: Sequence[str]) -> None:
    """Delete what these stages keep of these sessions."""
    with registered(connection, pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
        connection.execute(
            f"DELETE FROM {full_name(schema_of('StageState'))} AS old USING {BATCH} AS gone "
            "WHERE old.key = gone.key AND list_contains($stages, old.stage)",
            {"stages": list(stages)},
        )


def delete_landed(connection: duckdb.DuckDBPyConnection, topic: str, starts: Mapping[int, int], made_here: int) -> None:
    """Delete what a topic has from these positions on, by partition, and the dead letters of it that stand on partition `made_here`."""
    starting = pl.DataFrame(
        {"part": list(starts), "start": list(starts.values())}, schema={"part": pl.Int32, "start": pl.Int64}
    )
    landed = [
        f"{full_name(schema_of(name))} AS old USING {BATCH} WHERE old._topic = $topic AND old._partition = part"
        " AND old._offset >= start"
        for name in topics()[topic]
    ]
    made = (
        f"{full_name(schema_of('DeadLetter'))} AS old USING {BATCH} WHERE old._partition = {made_here} AND old.source = $topic"
    )
    with registered(connection, starting):
        for rows in [*landed, f"{made} AND old.partition = part AND old.position >= start"]:
            connection.execute(f"DELETE FROM {rows}", {"topic": topic})


def delete_tables(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> None:
    """Delete every row of the named tables."""
    named = {schema.table: schema for schema in current_schemas().values()}
    for table in tables:
        connection.execute(f"DELETE FROM {full_name(named[table])}")


def delete_derived(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], but: str, stages: Sequence[str], consumers: Sequence[str]
) -> None:
    """Delete what stages made, their states and how far they have read.

    Of a session of which the stage `but` keeps a state everything stays, and so do the states of `stages` and the watermarks of `consumers`.
    """
    kept = f"NOT IN (SELECT key FROM {full_name(schema_of('StageState'))} WHERE stage = $but)"
    named = {schema.table: schema for schema in current_schemas().values()}
    for table in tables:
        connection.execute(f"DELETE FROM {full_name(named[table])} WHERE connection || '/' || session_id {kept}", {"but": but})
    connection.execute(
        f"DELETE FROM {full_name(named['stage_state'])} WHERE key {kept} AND NOT list_contains($stages, stage)",
        {"but": but, "stages": list(stages)},
    )
    connection.execute(
        f"DELETE FROM {full_name(named['watermarks'])} WHERE NOT list_contains($consumers, consumer)",
        {"consumers": list(consumers)},
    )


def delete_sums(connection: duckdb.DuckDBPyConnection, sums: KeptSums) -> None:
    """Delete kept sums and how far they were added up, but for those that outlive what they were made from, of days that retention has deleted."""
    marks = full_name(schema_of("Watermark"))
    for name, day in sums.tables.items():
        outlives = (
            f"SELECT 1 FROM {marks} WHERE $outlives AND consumer = $retention AND topic = kept.project"
            f" AND {day} < make_timestamp(next_position)"
        )
        connection.execute(
            f"DELETE FROM {full_name(schema_of(name))} AS kept WHERE NOT EXISTS ({outlives})",
            {"retention": RETENTION, "outlives": not sums.deleted},
        )
    connection.execute(f"DELETE FROM {marks} WHERE consumer = $consumer", {"consumer": sums.consumer})


def days_at(connection: duckdb.DuckDBPyConnection, name: str, time: str, places: pl.DataFrame) -> set[Day]:
    """Return the projects and UTC days of the records of a type that stand at these places (PLACE), by the column of their time."""
    bounds = {"first": places["_offset"].min(), "last": places["_offset"].max()}
    with registered(connection, places.select(PLACE)):
        rows = connection.execute(
            f"SELECT DISTINCT project, {time}::DATE FROM {full_name(schema_of(name))} SEMI JOIN {BATCH} USING ({', '.join(PLACE)}) "
            "WHERE _offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return {(project, day) for project, day in rows}
