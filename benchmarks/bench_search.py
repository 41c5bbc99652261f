# ruff: noqa: S608 - statements are made of our own text
"""The search for words: the size and cost of its index, and the time of the first page, beside a scan of all texts.

`--exchanges N` says how many (a million without it), `--indexed N` how many blocks are indexed by the product, the newest ones: the others get as
many random hashes, which cost a search as much as real ones and take minutes to write instead of an hour. Texts have 72 words, frequent and rare
as in a language, and three numbers of their own. `--dir DIR` keeps the file.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.datastructures import QueryParams

from analytics.store.connection import fetch
from analytics.store.store import Store
from analytics.sums.macros import BLOCK_SIZE
from analytics.sums.search_index import RUN_BLOCKS, SEARCH, TIMES, refresh_search
from benchmarks.measure import print_table
from schemas.bounds import EARLIEST, LATEST
from service.pages.listing import parse_list_request, read_page
from service.pages.lists import FLEET_LISTS

REPEATS = 5
STEP = 500_000
TEXTS = 200_000
"""Different texts, before each gets its numbers."""
_VOCABULARY = """
CREATE TEMP TABLE vocabulary AS
SELECT list(substr(translate(md5(i::VARCHAR), '0123456789', 'ghijklmnop'), 1, 3 + (hash(i) % 8)::INTEGER) ORDER BY i) AS words
FROM range(60000) AS numbers(i)"""
_WORD = "words[1 + pow(60000, hash(i * 100 + {first} + x) % 1000000 / 1e6)::INTEGER % 60000]"
_TEXTS = f"""
CREATE TEMP TABLE texts AS
SELECT
    i, array_to_string(list_transform(range(12), lambda x: {_WORD.format(first=0)}), ' ') AS question,
    array_to_string(list_transform(range(60), lambda x: {_WORD.format(first=50)}), ' ') AS answer
FROM range({TEXTS}) AS numbers(i), vocabulary"""
_OF_EXCHANGE = """'e' || n AS exchange_id, 'c' || n // 20 % 50 AS "connection", 'project-' || hash(n // 20) % 1000 AS project,
    'agent-' || n // 20 % 40 AS agent, 's' || n // 20 AS session_id"""
_AT = "TIMESTAMP '2026-09-01' + to_milliseconds((n * 90.0 * 86400000 / $count)::BIGINT)"
_EXCHANGES = f"""
INSERT INTO log.exchanges BY NAME
SELECT
    'exchanges' AS _topic, 0 AS _partition, n AS _offset, {_OF_EXCHANGE}, {_AT} AS occurred_at, occurred_at AS ingested_at,
    question || ' order ' || n * 7919 % 100000007 AS user_message,
    answer || ' ticket ' || n * 104729 % 1000000007 || ' amount ' || hash(n) % 100000 || if(n = $count // 10, ' needleintheheap', '') AS agent_response,
    'answered' AS outcome, false AS multi_user, [] AS tags, [] AS labels, [] AS redactions, 'd' AS content_digest, 0 AS revision,
    false AS withdrawn, [] AS tool_calls
FROM range($first, $end) AS numbers(n) JOIN texts ON texts.i = hash(n) % {TEXTS}"""
_SCORES = f"""
INSERT INTO log.scores BY NAME
SELECT
    'scores' AS _topic, 0 AS _partition, n AS _offset, 'e' || n AS score_id, 0 AS revision, {_OF_EXCHANGE}, (n % 20)::INTEGER AS turn_number,
    {_AT} AS exchange_at, exchange_at AS scored_at, 'sampling_skip' AS disposition, 'routine_sample' AS sampling_reason, 1.0 AS tier1_score,
    [] AS tier1_flags, false AS anomaly, [] AS anomaly_reasons, false AS simulated, 0.0 AS cost_usd
FROM range($first, $end) AS numbers(n)"""
_RANDOM_WORDS = f"""
INSERT INTO log.search_words BY NAME
WITH blocks AS MATERIALIZED (
    SELECT _offset // {BLOCK_SIZE} AS block, {TIMES} AS word, min(occurred_at) AS earliest, max(occurred_at) AS latest
    FROM log.exchanges WHERE _offset >= $first AND _offset < $end GROUP BY block
)
SELECT '' AS _topic, 0 AS _partition, 0 AS _offset, *
FROM (
    FROM blocks
    UNION ALL
    SELECT block, (hash(block * 100000 + w) >> 33)::INTEGER, TIMESTAMP '1970-01-01', TIMESTAMP '1970-01-01'
    FROM blocks, range($words) AS numbers(w)
)
ORDER BY word, block"""
SEARCHES = {
    "a word that never occurs": {"text": "nowhereatall"},
    "a word that occurs once, in the oldest tenth": {"text": "needleintheheap"},
    "a number that occurs once": {"text": "{number}"},
    "the commonest word": {"text": "{common}"},
    "two common words": {"text": "{common} {second}"},
    "a common word, of an agent": {"text": "{common}", "agent": "agent-7"},
    "a common word, of an agent that has none": {"text": "{common}", "agent": "nobody"},
}


def fill(store: Store, count: int, indexed: int) -> tuple[float, int]:
    """Store exchanges with scores and their index; return the seconds of indexing a block and the number of its words."""
    cursor = store.cursor()
    cursor.execute("SET GLOBAL memory_limit = '4GB'")
    cursor.execute(_VOCABULARY)
    cursor.execute(_TEXTS)
    for first in range(0, count, STEP):
        values = {"first": first, "end": min(count, first + STEP), "count": count}
        cursor.execute(_EXCHANGES, values)
        cursor.execute(_SCORES, values)
    blocks = count // BLOCK_SIZE
    start = max(0, blocks - indexed) // RUN_BLOCKS * RUN_BLOCKS
    with store.transaction() as transaction:
        transaction.set_watermarks(SEARCH, {("exchanges", 0): start * BLOCK_SIZE})
    began = time.process_time()
    while refresh_search(store):
        pass
    seconds = (time.process_time() - began) / max(1, min(indexed, blocks))
    ((words,),) = cursor.execute("SELECT count(*) // count(DISTINCT block) FROM log.search_words").fetchall()
    # The oldest tenth is indexed in part by the product: the block with the word that occurs once.
    for block in range(0, start, RUN_BLOCKS):
        values = {"first": block * BLOCK_SIZE, "end": min(start, block + RUN_BLOCKS) * BLOCK_SIZE, "words": words}
        cursor.execute(_RANDOM_WORDS, values)
    needle = count // 10 // BLOCK_SIZE
    cursor.execute(
        "INSERT INTO log.search_words BY NAME SELECT * REPLACE (log.word_hash('needleintheheap') AS word) FROM log.search_words"
        " WHERE block = ? AND word >= 0 LIMIT 1",
        [needle],
    )
    store.checkpoint()
    return seconds, words


def time_best(act: Callable[[], object]) -> tuple[float, float]:
    """Return the median wall time and processor time of an act, in milliseconds."""
    walls, processors = [], []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        act()
        walls.append(1000 * (time.perf_counter() - wall))
        processors.append(1000 * (time.process_time() - processor))
    return statistics.median(walls), statistics.median(processors)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks search")
    parser.add_argument("--exchanges", type=int, default=1_000_000)
    parser.add_argument("--indexed", type=int, default=100)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        path = (options.dir or Path(name)) / f"search{options.exchanges}.duckdb"
        is_new = not path.exists()
        with Store(path) as store:
            if is_new:
                seconds, words = fill(store, options.exchanges, options.indexed)
                print(f"indexing a block of {BLOCK_SIZE}: {1000 * seconds:.0f} ms of the processor, {words:,} words")
            _measure(store, options.exchanges)
        print(f"file: {path.stat().st_size / 1e6:,.0f} MB")


def _measure(store: Store, count: int) -> None:
    with contextlib.closing(store.cursor()) as cursor:
        cursor.execute(_VOCABULARY)
        common, second = cursor.execute("SELECT words[2], words[3] FROM vocabulary").fetchall()[0]
        names = {"common": common, "second": second, "number": (count - 10_000) * 104729 % 1000000007}
        rows = []
        for label, search in SEARCHES.items():
            params = QueryParams({name: text.format(**names) for name, text in search.items()})
            request = parse_list_request(FLEET_LISTS["exchanges"], params, "/exchanges")
            page = read_page(cursor, None, request, (EARLIEST, LATEST))
            wall, processor = time_best(lambda request=request: read_page(cursor, None, request, (EARLIEST, LATEST)))
            found = "everything" if page.searched_to is None else f"back to {page.searched_to:%Y-%m-%d %H:%M}"
            rows.append([label, f"{wall:.0f}", f"{processor:.0f}", str(len(page.rows)), found])
        print_table([f"first page, {count:,} exchanges", "ms", "of the processor", "rows", "searched"], rows)
        day = "occurred_at >= (SELECT max(occurred_at) FROM log.exchanges) - INTERVAL 1 DAY"
        contains = "contains(lower(user_message), 'nowhereatall') OR contains(lower(agent_response), 'nowhereatall')"
        scans = {"scan of a day": f"{day} AND ({contains})", "scan of everything": contains}
        rows = []
        for label, condition in scans.items():
            began, processor = time.perf_counter(), time.process_time()
            fetch(cursor, f"SELECT count(*) AS n FROM log.exchanges WHERE {condition}", {})
            rows.append(
                [label, f"{1000 * (time.perf_counter() - began):.0f}", f"{1000 * (time.process_time() - processor):.0f}"]
            )
        print_table(["without an index", "ms", "of the processor"], rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
