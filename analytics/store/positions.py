# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Next position of each topic, independent of what was deleted before it.

Stages remember how far they have read by position. A position that was given once is therefore never given again, not even after
retention or an erasure has emptied the topic: the end of a topic is noted in the transaction that deletes from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from analytics.store.tables import full_name
from analytics.sums.macros import RETENTION
from schemas.lazy.duckdb import duckdb
from schemas.registry import schema_of, topics

__all__ = [
    "AHEAD",
    "COMPACTION",
    "END",
    "PLACE",
    "RETENTION",
    "RUN_NUMBERS",
    "move_watermarks",
    "next_stored",
    "stored_ends",
    "watermarks_of",
]
AHEAD = "write-ahead log"
"""Consumer whose watermark says which entry of the write-ahead log lands next."""
END = "end"
"""Consumer whose watermarks say where topics ended when something was last deleted from them."""
COMPACTION = "compaction"
"""Consumer whose watermark is 1 while the file's free space holds what was erased, else 0."""
RUN_NUMBERS = "run numbers"
"""Consumer whose watermarks say, by project, which number its next run gets."""
PLACE = ("_topic", "_partition", "_offset")
"""The columns that tell a row of a log table from all others."""


def stored_ends(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """The position the next record of each topic will get."""
    noted = dict(
        connection.execute(
            f"SELECT topic, next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = ?",
            [END],
        ).fetchall()
    )
    found = dict(connection.execute(_ends()).fetchall())
    return {topic: max(found[topic], noted.get(topic, 0)) for topic in topics()}


def watermarks_of(connection: duckdb.DuckDBPyConnection, consumer: str) -> dict[tuple[str, int], int]:
    """The positions that a consumer reads next, by topic and partition."""
    # All of the result is fetched: an unfinished one keeps the connection from anything else.
    rows = connection.execute(
        f"SELECT topic, partition, next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = ?", [consumer]
    ).fetchall()
    return {(topic, partition): position for topic, partition, position in rows}


def move_watermarks(connection: duckdb.DuckDBPyConnection, consumer: str, positions: Mapping[tuple[str, int], int]) -> bool:
    """Move watermarks of a consumer by one statement; False where it has none yet of one of the partitions."""
    values = {
        "consumer": consumer,
        "topics": [topic for topic, _ in positions],
        "partitions": [partition for _, partition in positions],
        "next": list(positions.values()),
    }
    moved = (
        "unnest($topics::VARCHAR[]) AS topic, unnest($partitions::INTEGER[]) AS part, unnest($next::BIGINT[]) AS next_position"
    )
    ((updated,),) = connection.execute(
        f"UPDATE {full_name(schema_of('Watermark'))} AS old SET next_position = new.next_position FROM (SELECT {moved}) AS new "
        "WHERE old.consumer = $consumer AND old.topic = new.topic AND old.partition = new.part",
        values,
    ).fetchall()
    return bool(updated == len(positions))


def next_stored(connection: duckdb.DuckDBPyConnection, topic: str, start: int) -> int | None:
    """The lowest position from `start` on at which the topic has a record; None where it has none."""
    tables = " UNION ALL ".join(
        f"SELECT min(_offset) AS first FROM {full_name(schema_of(name))} WHERE _topic = $topic AND _offset >= $start"
        for name in topics()[topic]
    )
    ((first,),) = connection.execute(
        f"SELECT min(first) FROM ({tables})",
        {"topic": topic, "start": start},
    ).fetchall()
    return None if first is None else int(first)


def _ends() -> str:
    """The statement that answers each topic with the position after the highest that a record of it has.

    One for all: each statement by itself costs every start of a command more than what it asks for.
    """
    tables = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, max(_offset) AS last FROM {full_name(schema_of(name))} WHERE _topic = '{topic}'"
        for topic, names in topics().items()
        for name in names
    )
    return f"SELECT topic, coalesce(max(last) + 1, 0) FROM ({tables}) GROUP BY topic"
