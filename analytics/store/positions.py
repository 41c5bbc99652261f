# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""The next position of each topic, and the states of stages by stage and session key.

The watermark of a stage is a position, so no position may be assigned twice, not even after retention or an erasure has emptied
the topic. The transaction that deletes from a topic therefore records its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analytics.identity.duplicate_matching import Hashes
from analytics.store.tables import full_name
from analytics.sums.kept import COLD, RETENTION
from schemas.lazy import duckdb
from schemas.registry import schema_of, topics

__all__ = [
    "COLD",
    "COMPACTION",
    "END",
    "POSITION",
    "RETENTION",
    "RUN_NUMBERS",
    "WRITE_AHEAD_LOG",
    "find_next_position",
    "move_watermarks",
    "read_ends",
    "read_watermarks",
]
WRITE_AHEAD_LOG = "write-ahead log"
"""Consumer whose watermark is the next entry of the write-ahead log to flush."""
END = "end"
"""Consumer whose watermarks are the ends of topics at the time of the last deletion from them."""
COMPACTION = "compaction"
"""Consumer whose watermark is 1 while the file's free space may hold erased data, else 0."""
RUN_NUMBERS = "run numbers"
"""Consumer whose watermarks are, by project, the number of its next run."""
POSITION = ("_topic", "_partition", "_offset")
"""The key columns of a log table."""


def read_ends(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Return the next position to assign in each topic."""
    recorded = dict(
        connection.execute(
            f"SELECT topic, next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = ?",
            [END],
        ).fetchall()
    )
    stored = dict(connection.execute(_ends_sql()).fetchall())
    return {topic: max(stored[topic], recorded.get(topic, 0)) for topic in topics()}


def _ends_sql() -> str:
    """Return the statement that returns each topic with the position after its last record.

    One statement covers all topics, because separate ones would slow down the start of every command.
    """
    tables = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, max(_offset) AS last FROM {full_name(schema_of(name))} WHERE _topic = '{topic}'"
        for topic, names in topics().items()
        for name in names
    )
    return f"SELECT topic, coalesce(max(last) + 1, 0) FROM ({tables}) GROUP BY topic"


def read_watermarks(connection: duckdb.DuckDBPyConnection, consumer: str) -> dict[tuple[str, int], int]:
    """Return the next positions of a consumer, by topic and partition."""
    # Fetch the whole result: an unfinished one blocks the connection.
    rows = connection.execute(
        f"SELECT topic, partition, next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = ?", [consumer]
    ).fetchall()
    return {(topic, partition): position for topic, partition, position in rows}


def move_watermarks(connection: duckdb.DuckDBPyConnection, consumer: str, positions: Mapping[tuple[str, int], int]) -> bool:
    """Update watermarks of a consumer in one statement; return False if a partition has none yet."""
    values = {
        "consumer": consumer,
        "topics": [topic for topic, _ in positions],
        "partitions": [partition for _, partition in positions],
        "next": list(positions.values()),
    }
    new_rows = (
        "unnest($topics::VARCHAR[]) AS topic, unnest($partitions::INTEGER[]) AS part, unnest($next::BIGINT[]) AS next_position"
    )
    ((updated,),) = connection.execute(
        f"UPDATE {full_name(schema_of('Watermark'))} AS old SET next_position = new.next_position FROM (SELECT {new_rows}) AS new "
        "WHERE old.consumer = $consumer AND old.topic = new.topic AND old.partition = new.part",
        values,
    ).fetchall()
    return bool(updated == len(positions))


def find_next_position(connection: duckdb.DuckDBPyConnection, topic: str, start: int) -> int | None:
    """Return the position of the topic's first record at or after `start`; None if there is none."""
    tables = " UNION ALL ".join(
        f"SELECT min(_offset) AS first FROM {full_name(schema_of(name))} WHERE _topic = $topic AND _offset >= $start"
        for name in topics()[topic]
    )
    ((first,),) = connection.execute(
        f"SELECT min(first) FROM ({tables})",
        {"topic": topic, "start": start},
    ).fetchall()
    return None if first is None else int(first)


def read_states(connection: duckdb.DuckDBPyConnection, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the states of a stage for the keys that have one."""
    return read_states_of_stages(connection, [stage], keys)[stage]


def read_states_of_stages(
    connection: duckdb.DuckDBPyConnection, stages: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, bytes]]:
    """Return the states of several stages for the keys that have one, reading the table once."""
    statement = (
        f"SELECT stage, key, state FROM {full_name(schema_of('StageState'))} "
        "WHERE stage IN (SELECT unnest($stages)) AND key IN (SELECT unnest($keys))"
    )
    states: dict[str, dict[str, bytes]] = {stage: {} for stage in stages}
    for stage, key, state in connection.execute(statement, {"stages": list(stages), "keys": list(keys)}).fetchall():
        states[stage][key] = state
    return states


def read_all_states(connection: duckdb.DuckDBPyConnection, stage: str) -> dict[str, bytes]:
    """Return every state of a stage, by key."""
    statement = f"SELECT key, state FROM {full_name(schema_of('StageState'))} WHERE stage = ?"
    return dict(connection.execute(statement, [stage]).fetchall())


class KnownSessions:
    """Hashes of the sessions with a state, which show without a query that a session has none. Not thread-safe."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._hashes = Hashes()
        self._read = dict.fromkeys(stages, -1)

    def read(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Read the rows added since the last call. It finds them by position, because positions of a stage's states only grow."""
        for stage, position in self._read.items():
            statement = (
                f"SELECT key, next_position FROM {full_name(schema_of('StageState'))} "
                "WHERE stage = $stage AND next_position >= $position"
            )
            rows = connection.execute(statement, {"stage": stage, "position": position}).fetchall()
            self._hashes.add([hash(key) for key, _ in rows])
            self._read[stage] = max((next_position for _, next_position in rows), default=position)

    def add(self, keys: Sequence[str]) -> None:
        """Add sessions that now have a state."""
        if keys:
            self._hashes.add(list(map(hash, keys)))

    def find_unknown(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that certainly have no state."""
        may_have_state = self._hashes.contains_each(list(map(hash, keys)))
        return [key for key, is_known in zip(keys, may_have_state, strict=True) if not is_known]
