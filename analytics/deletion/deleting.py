# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Deletes from the log in a transaction: rows by position, stage states of sessions, and derived rows that stages can recompute.

Erased sessions and connections stay listed, and no new record of theirs is written, whatever its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analytics.store.positions import PLACE, RETENTION
from analytics.store.tables import BATCH, full_name, registered
from analytics.sums.kept import Day, KeptSums
from schemas.lazy import duckdb, pl
from schemas.registry import RecordSchema, current_schemas, schema_of, topics

STAGE = "erasure"
"""Stage whose states record how far this database has carried out each erasure."""
ERASURES = "erasures"
"""Topic of erasures."""
_SESSION = ["connection", "session_id"]


def delete_places(connection: duckdb.DuckDBPyConnection, name: str, places: pl.DataFrame) -> int:
    """Delete the rows of a record type at these places (PLACE); return their number."""
    matches = " AND ".join(f"old.{column} = gone.{column}" for column in PLACE)
    # The bounds let DuckDB skip whole row groups.
    bounds = {"first": places["_offset"].min(), "last": places["_offset"].max()}
    with registered(connection, places.select(PLACE)):
        ((deleted,),) = connection.execute(
            f"DELETE FROM {full_name(schema_of(name))} AS old USING {BATCH} AS gone WHERE {matches} "
            "AND old._offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return int(deleted)


def delete_states(connection: duckdb.DuckDBPyConnection, keys: Sequence[str], stages: Sequence[str]) -> None:
    """Delete the states of these sessions in these stages."""
    with registered(connection, pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
        connection.execute(
            f"DELETE FROM {full_name(schema_of('StageState'))} AS old USING {BATCH} AS gone "
            "WHERE old.key = gone.key AND list_contains($stages, old.stage)",
            {"stages": list(stages)},
        )


def delete_landed(connection: duckdb.DuckDBPyConnection, topic: str, starts: Mapping[int, int], made_here: int) -> None:
    """Delete a topic's rows from these positions on, by partition, and its dead letters on partition `made_here`."""
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
    """Delete the rows that stages derived, their states and their watermarks.

    Sessions that have a state in the stage `but` are left alone. The states of `stages` and the watermarks of `consumers` stay too.
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
    """Delete kept sums and their watermarks, except sums that outlive their records, for days that retention has emptied."""
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
    """Return the projects and UTC days of the records of a type at these places (PLACE), by the type's time column."""
    bounds = {"first": places["_offset"].min(), "last": places["_offset"].max()}
    with registered(connection, places.select(PLACE)):
        rows = connection.execute(
            f"SELECT DISTINCT project, {time}::DATE FROM {full_name(schema_of(name))} SEMI JOIN {BATCH} USING ({', '.join(PLACE)}) "
            "WHERE _offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return {(project, day) for project, day in rows}


@dataclass(frozen=True)
class Erased:
    """The scope of an erasure: whole connections, and single sessions by connection and id."""

    connections: frozenset[str]
    sessions: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str | None]]) -> Erased:
        """Return the scope for these pairs of connection and session id; a pair without a session id stands for the whole connection."""
        return cls(
            frozenset(connection for connection, session in pairs if session is None),
            frozenset((connection, session) for connection, session in pairs if session is not None),
        )

    def has(self, connection: object, session_id: object) -> bool:
        """Tell whether the scope includes a session."""
        return connection in self.connections or (connection, session_id) in self.sessions

    def frame(self) -> pl.DataFrame:
        """One row per session or connection; the session is null for a whole connection."""
        rows = [*((connection, None) for connection in sorted(self.connections)), *sorted(self.sessions)]
        return pl.DataFrame(rows, schema=dict.fromkeys(_SESSION, pl.String), orient="row")


def schemas_of_sessions() -> list[RecordSchema]:
    """The record types that travel on topics and name their session."""
    return [
        schema
        for schema in current_schemas().values()
        if schema.topics and schema.name != "Erasure" and {*_SESSION} <= {field["name"] for field in schema.fields}
    ]


def erased_in(connection: duckdb.DuckDBPyConnection) -> Erased:
    """Return the scope of all erasures ever requested of a database."""
    rows = connection.execute(f"SELECT DISTINCT connection, session_id FROM {full_name(schema_of('Erasure'))}").fetchall()
    return Erased.of(rows)


def without_erased(connection: duckdb.DuckDBPyConnection, frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames of a batch, by record type, without the rows of erased sessions."""
    erased = erased_in(connection).frame()
    whole, single = erased.filter(pl.col("session_id").is_null())["connection"], erased.drop_nulls()
    names = {schema.name for schema in schemas_of_sessions()}
    return {
        name: frame.filter(~pl.col("connection").is_in(whole.to_list())).join(
            single, on=_SESSION, how="anti", maintain_order="left"
        )
        if name in names
        else frame
        for name, frame in frames.items()
    }
