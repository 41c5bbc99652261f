# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""States of stages, read by stage and session key; and which sessions certainly have none."""

from __future__ import annotations

from collections.abc import Sequence

from analytics.identity.identity_index import Hashes
from analytics.store.tables import full_name
from schemas.lazy.duckdb import duckdb
from schemas.registry import schema_of


def stored_states(connection: duckdb.DuckDBPyConnection, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the states of a stage for those of the keys that have one."""
    return states_of_stages(connection, [stage], keys)[stage]


def all_states(connection: duckdb.DuckDBPyConnection, stage: str) -> dict[str, bytes]:
    """Return every state of a stage, by key."""
    statement = f"SELECT key, state FROM {full_name(schema_of('StageState'))} WHERE stage = ?"
    return dict(connection.execute(statement, [stage]).fetchall())


def states_of_stages(
    connection: duckdb.DuckDBPyConnection, stages: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, bytes]]:
    """Return the states of each stage for those of the keys that have one: the table is read once."""
    statement = (
        f"SELECT stage, key, state FROM {full_name(schema_of('StageState'))} "
        "WHERE stage IN (SELECT unnest($stages)) AND key IN (SELECT unnest($keys))"
    )
    states: dict[str, dict[str, bytes]] = {stage: {} for stage in stages}
    for stage, key, state in connection.execute(statement, {"stages": list(stages), "keys": list(keys)}).fetchall():
        states[stage][key] = state
    return states


class KnownSessions:
    """Hashes of the sessions that have a state: tells that a session has none without a look through the table. Belongs to one thread at a time."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._hashes = Hashes()
        self._read = dict.fromkeys(stages, -1)

    def read(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Read what the table has more than when it was read last: the positions of a stage's states only grow."""
        for stage, position in self._read.items():
            statement = (
                f"SELECT key, next_position FROM {full_name(schema_of('StageState'))} "
                "WHERE stage = $stage AND next_position >= $position"
            )
            rows = connection.execute(statement, {"stage": stage, "position": position}).fetchall()
            self._hashes.add([hash(key) for key, _ in rows])
            self._read[stage] = max((at for _, at in rows), default=position)

    def add(self, keys: Sequence[str]) -> None:
        """Take in sessions that have a state from now on."""
        if keys:
            self._hashes.add(list(map(hash, keys)))

    def unknown(self, keys: Sequence[str]) -> list[str]:
        """Return those of the keys that certainly have no state."""
        return [key for key, known in zip(keys, self._hashes.which_of(list(map(hash, keys))), strict=True) if not known]
