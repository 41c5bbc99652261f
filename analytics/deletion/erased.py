# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Sessions and connections that were erased: nothing of them is written any more, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analytics.store.tables import full_name
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import RecordSchema, current_schemas, schema_of

STAGE = "erasure"
"""Stage whose states say, by erasure, what this database has done of it."""
ERASURES = "erasures"
"""Topic of erasures."""
_SESSION = ["connection", "session_id"]


@dataclass(frozen=True)
class Erased:
    """The records to erase: connections as a whole, and single sessions by connection and id."""

    connections: frozenset[str]
    sessions: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str | None]]) -> Erased:
        """Return the sessions that these connections and session ids name; without a session id, the whole connection."""
        return cls(
            frozenset(connection for connection, session in pairs if session is None),
            frozenset((connection, session) for connection, session in pairs if session is not None),
        )

    def has(self, connection: object, session_id: object) -> bool:
        """Tell whether a session is among them."""
        return connection in self.connections or (connection, session_id) in self.sessions

    def frame(self) -> pl.DataFrame:
        """One row each, the session null for a whole connection."""
        rows = [*((connection, None) for connection in sorted(self.connections)), *sorted(self.sessions)]
        return pl.DataFrame(rows, schema=dict.fromkeys(_SESSION, pl.String), orient="row")


def schemas_of_sessions() -> list[RecordSchema]:
    """The record types that travel and say whose session they belong to."""
    return [
        schema
        for schema in current_schemas().values()
        if schema.topics and schema.name != "Erasure" and {*_SESSION} <= {field["name"] for field in schema.fields}
    ]


def erased_in(connection: duckdb.DuckDBPyConnection) -> Erased:
    """Return everything that a database was ever asked to erase."""
    rows = connection.execute(f"SELECT DISTINCT connection, session_id FROM {full_name(schema_of('Erasure'))}").fetchall()
    return Erased.of(rows)


def without_erased(connection: duckdb.DuckDBPyConnection, frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames of a batch, by record type, without what belongs to anybody who was erased."""
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
