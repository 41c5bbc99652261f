# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Deletion from the log in a transaction: rows by position, states of sessions, and derived rows that stages can recompute.

Erasures stay stored, so that no later record of an erased session or connection is written, from any source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from analytics.store.positions import COLD, POSITION, RETENTION
from analytics.store.tables import BATCH, full_name, registered
from analytics.sums.kept import Day, KeptSums
from audit.fingerprints import canonical_json
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.lazy import duckdb, pl
from schemas.registry import RecordSchema, current_schemas, schema_of, topics

STAGE = "erasure"
"""Stage whose states record the progress of each erasure in this database."""
ERASURES = "erasures"
"""The topic of erasures."""
_SESSION_KEY = ["connection", "session_id"]


def delete_at(connection: duckdb.DuckDBPyConnection, name: str, positions: pl.DataFrame) -> int:
    """Delete the rows of a record type at these positions (POSITION); return their number."""
    matches = " AND ".join(f"old.{column} = deleted.{column}" for column in POSITION)
    # The bounds let DuckDB skip whole row groups.
    bounds = {"first": positions["_offset"].min(), "last": positions["_offset"].max()}
    with registered(connection, positions.select(POSITION)):
        ((deleted,),) = connection.execute(
            f"DELETE FROM {full_name(schema_of(name))} AS old USING {BATCH} AS deleted WHERE {matches} "
            "AND old._offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return int(deleted)


def delete_states(connection: duckdb.DuckDBPyConnection, keys: Sequence[str], stages: Sequence[str]) -> None:
    """Delete the states of these sessions in these stages."""
    with registered(connection, pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
        connection.execute(
            f"DELETE FROM {full_name(schema_of('StageState'))} AS old USING {BATCH} AS deleted "
            "WHERE old.key = deleted.key AND list_contains($stages, old.stage)",
            {"stages": list(stages)},
        )


def delete_flushed(connection: duckdb.DuckDBPyConnection, topic: str, starts: Mapping[int, int], sink_partition: int) -> None:
    """Delete a topic's rows from these positions on, by partition, and its dead letters on partition `sink_partition`."""
    starting = pl.DataFrame(
        {"part": list(starts), "start": list(starts.values())}, schema={"part": pl.Int32, "start": pl.Int64}
    )
    record_rows = [
        f"{full_name(schema_of(name))} AS old USING {BATCH} AS first WHERE old._topic = $topic AND old._partition = first.part"
        " AND old._offset >= first.start"
        for name in topics()[topic]
    ]
    dead_letter_rows = f"{full_name(schema_of('DeadLetter'))} AS old USING {BATCH} AS first WHERE old._partition = {sink_partition} AND old.source = $topic"
    with registered(connection, starting):
        for rows in [*record_rows, f"{dead_letter_rows} AND old.partition = first.part AND old.position >= first.start"]:
            connection.execute(f"DELETE FROM {rows}", {"topic": topic})


def delete_tables(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> None:
    """Delete every row of the named tables."""
    schemas = {schema.table: schema for schema in current_schemas().values()}
    for table in tables:
        connection.execute(f"DELETE FROM {full_name(schemas[table])}")


def delete_derived(
    connection: duckdb.DuckDBPyConnection,
    tables: Sequence[str],
    except_stage: str,
    stages: Sequence[str],
    consumers: Sequence[str],
) -> None:
    """Delete the rows that stages derived, their states and their watermarks.

    Sessions with a state in the stage `except_stage` keep their rows and states. The states of `stages` and the watermarks of `consumers` stay.
    """
    not_excepted = f"NOT IN (SELECT key FROM {full_name(schema_of('StageState'))} WHERE stage = $stage)"
    schemas = {schema.table: schema for schema in current_schemas().values()}
    for table in tables:
        connection.execute(
            f"DELETE FROM {full_name(schemas[table])} WHERE connection || '/' || session_id {not_excepted}",
            {"stage": except_stage},
        )
    connection.execute(
        f"DELETE FROM {full_name(schemas['stage_state'])} WHERE key {not_excepted} AND NOT list_contains($stages, stage)",
        {"stage": except_stage, "stages": list(stages)},
    )
    connection.execute(
        f"DELETE FROM {full_name(schemas['watermarks'])} WHERE NOT list_contains($consumers, consumer)",
        {"consumers": list(consumers)},
    )


def delete_sums(connection: duckdb.DuckDBPyConnection, sums: KeptSums) -> None:
    """Delete kept sums and their watermarks. Sums of cold days stay, and for days that retention has deleted those that outlive their records."""
    watermarks = full_name(schema_of("Watermark"))
    for name, day in sums.tables.items():
        outlives = (
            f"SELECT 1 FROM {watermarks} WHERE (consumer = $cold OR $outlives AND consumer = $retention) AND topic = kept.project"
            f" AND {day} < make_timestamp(next_position)"
        )
        connection.execute(
            f"DELETE FROM {full_name(schema_of(name))} AS kept WHERE NOT EXISTS ({outlives})",
            {"cold": COLD, "retention": RETENTION, "outlives": not sums.deleted},
        )
    connection.execute(f"DELETE FROM {watermarks} WHERE consumer = $consumer", {"consumer": sums.consumer})


def find_days(connection: duckdb.DuckDBPyConnection, name: str, time: str, positions: pl.DataFrame) -> set[Day]:
    """Return the projects and UTC days of the records of a type at these positions (POSITION), by the type's time column."""
    bounds = {"first": positions["_offset"].min(), "last": positions["_offset"].max()}
    with registered(connection, positions.select(POSITION)):
        rows = connection.execute(
            f"SELECT DISTINCT project, {time}::DATE FROM {full_name(schema_of(name))} SEMI JOIN {BATCH} USING ({', '.join(POSITION)}) "
            "WHERE _offset BETWEEN $first AND $last",
            bounds,
        ).fetchall()
    return {(project, day) for project, day in rows}


@dataclass(frozen=True)
class ErasureScope:
    """The scope of an erasure: whole connections, and single sessions by connection and id."""

    connections: frozenset[str]
    sessions: frozenset[tuple[str, str]]

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[str, str | None]]) -> ErasureScope:
        """Return the scope for pairs of connection and session id. A pair without a session id covers the whole connection."""
        return cls(
            frozenset(connection for connection, session in pairs if session is None),
            frozenset((connection, session) for connection, session in pairs if session is not None),
        )

    def covers(self, connection: object, session_id: object) -> bool:
        """Tell whether the scope includes a session."""
        return connection in self.connections or (connection, session_id) in self.sessions

    def frame(self) -> pl.DataFrame:
        """Return one row per session or connection, with a null session for a whole connection."""
        rows = [*((connection, None) for connection in sorted(self.connections)), *sorted(self.sessions)]
        return pl.DataFrame(rows, schema=dict.fromkeys(_SESSION_KEY, pl.String), orient="row")


REDACTED = {"erased": True}
"""Replacement for an erased exchange in an incident's evidence."""
MIN_ID_LENGTH = 8
"""Minimum length of a session id to search for in unreadable bytes and paths, where a shorter one could occur by chance."""


class ErasedMentions:
    """Finds erased sessions in records that are not theirs. `ids` are the ids of erased sessions; short ones are not searched for."""

    def __init__(self, erased: ErasureScope, ids: Iterable[str]) -> None:
        self.ids = tuple(session for session in ids if len(session) >= MIN_ID_LENGTH)
        self._erased = erased

    def is_named(self, name: str) -> bool:
        """Tell whether a name is the id or key of an erased session, or a source that ends in its id."""
        parts = name.split("/", 1)
        return self._erased.covers(parts[0], parts[-1]) or any(name == session for _, session in self._erased.sessions)

    def is_in_record(self, body: bytes) -> bool:
        """Tell whether bytes hold a record of an erased session, JSON that mentions one, or an unreadable text with its id."""
        try:
            value: Any = msgspec.to_builtins(decode(body))
        except RecordError:
            value = _parse_json(body)
        if isinstance(value, dict | list):
            return bool(self._redact(value) != value)
        return self._contains_id(body)

    def is_in_letter(self, source: str, body: bytes, detail: str) -> bool:
        """Tell whether a dead letter is about an erased session."""
        return self.is_in_record(body) or self.is_named(source) or self._contains_id(detail.encode())

    def redact(self, evidence: str) -> str:
        """Return the evidence of an incident, in JSON, without erased sessions; unchanged if it names none."""
        before = _parse_json(evidence.encode())
        after = self._redact(before)
        return evidence if after == before else canonical_json(after)

    def _contains_id(self, body: bytes) -> bool:
        return any(session.encode() in body for session in self.ids)

    def _redact(self, value: Any) -> Any:
        """Return a copy of a JSON value with every object replaced that names an erased session."""
        if isinstance(value, dict):
            connection = value.get("connection", value.get("connectionId", value.get("connection_id")))
            session = value.get("sessionId", value.get("session_id"))
            if self._erased.covers(connection, session) or (
                connection is None and session in {session_id for _, session_id in self._erased.sessions}
            ):
                return REDACTED
            return {key: self._redact(inner) for key, inner in value.items()}
        return [self._redact(inner) for inner in value] if isinstance(value, list) else value


def _parse_json(body: bytes) -> Any:
    """Return the value of JSON bytes; None if they are not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def schemas_of_sessions() -> list[RecordSchema]:
    """Return the record types that are on topics and name their session."""
    return [
        schema
        for schema in current_schemas().values()
        if schema.topics and schema.name != "Erasure" and {*_SESSION_KEY} <= {field["name"] for field in schema.fields}
    ]


def read_erasures(connection: duckdb.DuckDBPyConnection) -> ErasureScope:
    """Return the scope of all erasures in a database."""
    rows = connection.execute(f"SELECT DISTINCT connection, session_id FROM {full_name(schema_of('Erasure'))}").fetchall()
    return ErasureScope.from_pairs(rows)


def drop_erased(connection: duckdb.DuckDBPyConnection, frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the frames of a batch, by record type, without the rows of erased sessions."""
    erased = read_erasures(connection).frame()
    connections = erased.filter(pl.col("session_id").is_null())["connection"]
    sessions = erased.drop_nulls()
    names = {schema.name for schema in schemas_of_sessions()}
    return {
        name: frame.filter(~pl.col("connection").is_in(connections.to_list())).join(
            sessions, on=_SESSION_KEY, how="anti", maintain_order="left"
        )
        if name in names
        else frame
        for name, frame in frames.items()
    }
