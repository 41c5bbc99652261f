# ruff: noqa: S608 - statements are built from names of our own; values are always parameters
"""The index of the words in exchanges: which blocks of their topic may have a word ([decision 131](../../docs/decisions/0131-search.md)).

1. A block is `BLOCK_SIZE` consecutive positions of a partition. Once the topic has passed it, the hashes of its words are stored, each
   once. A search reads the texts of blocks with all its words, and of those that are not indexed. The index therefore never decides what
   matches, and a missing entry would only be slow; a hash that two words share costs one block.
2. DuckDB skips row groups by the least and the largest value of a column. Of blocks stored one after the other, each row group has every
   hash. Once RUN_BLOCKS in sequence are indexed, their rows are stored again in the order of their hashes, and a search reads one or two
   row groups of each run, not all eight.
3. A deletion of exchanges deletes the words of their blocks in the same transaction. What is left of such a block has the word ANY_WORD
   until the next refresh indexes it again. Its words then follow those of the newest block, out of its run, which only costs a search time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from analytics.store.connection import fetch
from analytics.store.positions import read_watermarks
from analytics.store.tables import BATCH, registered
from analytics.sums.macros import BLOCK_SIZE, PARTITION_BLOCKS
from schemas.lazy import duckdb, pl

if TYPE_CHECKING:
    from analytics.store.store import Store

SEARCH = "words and times of exchanges"
"""Consumer of the index. Rename it when words are read differently, so that all blocks are indexed again."""
ANY_WORD = -1
"""Stands for any word in a block that is not indexed again yet."""
TIMES = -2
"""Marks the row with the times of an indexed block. Its other rows have none: in the order of hashes they would take most of the space."""
MAX_BLOCKS = 32
"""Blocks of one refresh, each its own transaction of 0.2 s, so that neither ingestion nor the watch waits long for a large import."""
RUN_BLOCKS = 32
"""Blocks whose words are stored together, a million rows. The transaction of the last one takes half a second more."""
_TOPIC = "exchanges"
_NO_POSITION = "'' AS _topic, 0 AS _partition, 0 AS _offset"
_IN_BLOCK = f"_partition = $block // {PARTITION_BLOCKS} AND _offset >= $block % {PARTITION_BLOCKS} * {BLOCK_SIZE} AND _offset < ($block % {PARTITION_BLOCKS} + 1) * {BLOCK_SIZE}"
_INSERT_WORDS = f"""
INSERT INTO log.search_words BY NAME
WITH texts AS MATERIALIZED (
    SELECT occurred_at, log.searched_text(user_message, agent_response, tool_calls) AS text FROM log.exchanges WHERE {_IN_BLOCK}
)
SELECT {_NO_POSITION}, $block AS block, word, earliest, latest
FROM (
    SELECT DISTINCT log.word_hash(unnest(log.words_of(text))) AS word, TIMESTAMP '1970-01-01' AS earliest, TIMESTAMP '1970-01-01' AS latest
    FROM texts
    UNION ALL
    SELECT {TIMES}, min(occurred_at), max(occurred_at) FROM texts HAVING count(*) > 0
)
ORDER BY word"""
_IN_RUN = "block BETWEEN $first AND $last"
_SELECT_RUN = f"SELECT block, word, earliest, latest FROM log.search_words WHERE {_IN_RUN} ORDER BY word, block"
_DELETE_RUN = f"DELETE FROM log.search_words WHERE {_IN_RUN}"
_INSERT_RUN = f"INSERT INTO log.search_words BY NAME SELECT {_NO_POSITION}, * FROM {BATCH}"
_DELETE_BLOCK = "DELETE FROM log.search_words WHERE block = $block"
_SELECT_ENDS = "SELECT _partition, max(_offset) + 1 FROM log.exchanges WHERE _offset >= $first GROUP BY _partition"
_SELECT_STALE = f"SELECT DISTINCT block FROM log.search_words WHERE word = {ANY_WORD} ORDER BY block LIMIT {MAX_BLOCKS}"
_DELETE_TOUCHED = f"DELETE FROM log.search_words WHERE block IN (SELECT block FROM {BATCH}) AND block BETWEEN $first AND $last"
_MARK_TOUCHED = f"""
INSERT INTO log.search_words BY NAME
SELECT {_NO_POSITION}, block, {ANY_WORD} AS word, min(occurred_at) AS earliest, max(occurred_at) AS latest
FROM (SELECT log.block_of(_partition, _offset) AS block, occurred_at FROM log.exchanges WHERE _offset BETWEEN $start AND $end)
JOIN (SELECT block FROM {BATCH}) USING (block)
GROUP BY block"""


def refresh_search(store: Store) -> bool:
    """Index up to MAX_BLOCKS blocks; return whether more are left. Thread-safe."""
    with contextlib.closing(store.cursor()) as cursor:
        starts = {partition: position for (_, partition), position in read_watermarks(cursor, SEARCH).items()}
        ends = dict(cursor.execute(_SELECT_ENDS, {"first": min(starts.values(), default=0)}).fetchall())
        stale = [block for (block,) in cursor.execute(_SELECT_STALE).fetchall()]
    for block in stale:
        with store.transaction() as transaction:
            _index_block(transaction.connection, block)
    left = MAX_BLOCKS - len(stale)
    for partition, end in ends.items():
        start = starts.get(partition, 0)
        blocks = range(start // BLOCK_SIZE, end // BLOCK_SIZE)
        for block in blocks[:left]:
            with store.transaction() as transaction:
                if transaction.watermarks(SEARCH).get((_TOPIC, partition), 0) != block * BLOCK_SIZE:
                    return True  # exchanges were deleted from a position on
                _index_block(transaction.connection, partition * PARTITION_BLOCKS + block)
                if (block + 1) % RUN_BLOCKS == 0:
                    _sort_run(transaction.connection, partition * PARTITION_BLOCKS + block)
                transaction.set_watermarks(SEARCH, {(_TOPIC, partition): (block + 1) * BLOCK_SIZE})
        left -= len(blocks)
    return left <= 0


def _index_block(connection: duckdb.DuckDBPyConnection, block: int) -> None:
    connection.execute(_DELETE_BLOCK, {"block": block})
    connection.execute(_INSERT_WORDS, {"block": block})


def _sort_run(connection: duckdb.DuckDBPyConnection, last: int) -> None:
    """Store the words of the blocks up to the last one of a run in the order of their hashes."""
    values = {"first": last + 1 - RUN_BLOCKS, "last": last}
    run = fetch(connection, _SELECT_RUN, values)
    connection.execute(_DELETE_RUN, values)
    with registered(connection, run):
        connection.execute(_INSERT_RUN)


def delete_words(connection: duckdb.DuckDBPyConnection, positions: pl.DataFrame) -> None:
    """Delete the words of the blocks from which exchanges at these positions were deleted."""
    numbers = positions["_partition"].cast(pl.Int64) * PARTITION_BLOCKS + positions["_offset"] // BLOCK_SIZE
    blocks = pl.DataFrame({"block": numbers}).unique()
    first, last = positions["_offset"].min(), positions["_offset"].max()
    with registered(connection, blocks):
        values = {"first": blocks["block"].min(), "last": blocks["block"].max()}
        indexed = connection.execute(_DELETE_TOUCHED, values).fetchall()[0][0]
        if indexed:
            # Blocks that the index has not reached are marked too, which does no harm.
            values = {"start": int(first) // BLOCK_SIZE * BLOCK_SIZE, "end": int(last) + BLOCK_SIZE}  # type: ignore[arg-type]  # integers
            connection.execute(_MARK_TOUCHED, values)


def delete_words_from(connection: duckdb.DuckDBPyConnection, starts: Mapping[int, int]) -> dict[int, int]:
    """Delete the words of exchanges from these positions on, by partition; return the positions from which to index again."""
    for partition, start in starts.items():
        first = partition * PARTITION_BLOCKS + start // BLOCK_SIZE
        values = {"first": first, "end": (partition + 1) * PARTITION_BLOCKS}
        connection.execute("DELETE FROM log.search_words WHERE block >= $first AND block < $end", values)
    return {partition: start // BLOCK_SIZE * BLOCK_SIZE for partition, start in starts.items()}
