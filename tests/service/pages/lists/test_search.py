"""Search for words over blocks of exchanges: what is found does not depend on the index, which knows nothing that was deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from starlette.datastructures import QueryParams
from support.api_server import NOW
from support.builders import exchange, score
from support.watch_histories import put

from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.sums import search_index
from analytics.sums.macros import BLOCK_SIZE
from analytics.sums.search_index import ANY_WORD, refresh_search
from schemas.bounds import EARLIEST, LATEST
from service.pages import listing
from service.pages.listing import Listing, parse_list_request, read_list, read_page
from service.pages.lists import FLEET_LISTS

BLOCKS = 3
NEEDLE = 17
"""Number of the exchange with a word of its own, in the oldest block."""
_COPY = """
INSERT INTO log.{table} BY NAME
SELECT e.* REPLACE (numbers.i AS _offset, 'e' || i AS exchange_id, {time} - to_minutes({last}) + to_minutes(i) AS {time}, {more})
FROM log.{table} AS e, range(1, {count}) AS numbers(i)
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store of three blocks of exchanges with scores, a minute apart; the words of the first two will be a run."""
    monkeypatch.setattr(search_index, "RUN_BLOCKS", 2)
    monkeypatch.setattr(listing, "_SEARCH_SECONDS", 60.0)
    store = Store(None)
    put(store, "exchanges", [exchange("s", 1, exchange_id="e0", user_message="message 0", occurred_at=NOW, ingested_at=NOW)])
    put(store, "scores", [score("s", 1, exchange_id="e0", score_id="s0", exchange_at=NOW)])
    count = BLOCKS * BLOCK_SIZE
    message = f"if(i = {NEEDLE}, 'the needle', 'message ' || i) AS user_message"
    cursor = store.cursor()
    for table, time, more in (("exchanges", "occurred_at", message), ("scores", "exchange_at", "'s' || i AS score_id")):
        cursor.execute(_COPY.format(table=table, time=time, more=more, count=count, last=count))
    return store


def find(store: Store, name: str = "exchanges", **params: str) -> Listing:
    """Return a page of a search over all projects."""
    request = parse_list_request(FLEET_LISTS[name], QueryParams(params), f"/{name}")
    return read_page(store.cursor(), None, request, (EARLIEST, LATEST))


def blocks_of(store: Store, text: str) -> list[int]:
    """Return the blocks that a search reads."""
    return [
        row["block"] for row in query_rows(store.cursor(), "search_blocks", {"text": text, "since": EARLIEST, "until": LATEST})
    ]


def test_a_search_reads_only_blocks_that_may_have_all_words(store: Store) -> None:
    """Ten million texts cannot be read within half a second."""
    assert set(blocks_of(store, "needle")) == {0, 1, 2}
    assert [row["exchange_id"] for row in find(store, text="Needle").rows] == [f"e{NEEDLE}"]
    refresh_search(store)
    assert blocks_of(store, "needle") == [0]
    assert blocks_of(store, "needle 4000") == []
    assert [row["exchange_id"] for row in find(store, text="the NEEDLE").rows] == [f"e{NEEDLE}"]
    assert find(store, text="need").rows == []


def test_the_words_of_a_run_are_stored_in_the_order_of_their_hashes(store: Store) -> None:
    """A search skips row groups by their least and largest hash; each row group of blocks stored one by one has nearly all."""
    refresh_search(store)
    rows = store.cursor().execute("SELECT block, word FROM log.search_words ORDER BY rowid").fetchall()
    run, rest = [row for row in rows if row[0] < 2], [row for row in rows if row[0] == 2]
    assert run == sorted(run, key=lambda row: (row[1], row[0]))
    assert rows == run + rest
    assert len(set(rows)) == len(rows)
    assert {block for block, _ in run} == {0, 1}


def test_a_search_that_ran_out_of_time_goes_on_where_it_stopped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page waits for a whole fleet, and no exchange is skipped or shown twice."""
    monkeypatch.setattr(listing, "_SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(listing, "_FIRST_BLOCKS", 1)
    page = find(store, text="needle")
    times: list[datetime] = []
    while page.following is not None:
        assert page.rows == []
        assert page.searched_to is not None
        times.append(page.searched_to)
        page = find(store, text="needle", cursor=page.following.partition("cursor=")[2])
    assert [row["exchange_id"] for row in page.rows] == [f"e{NEEDLE}"]
    assert times == sorted(times, reverse=True)
    assert times[0] < datetime.max.replace(tzinfo=UTC)


def test_sessions_are_found_by_the_words_of_their_exchanges(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader remembers what was said, not an id. The search is as bounded as that of exchanges, and says so; a file waits for it."""
    at = NOW - timedelta(days=1)
    put(store, "exchanges", [exchange("t", 1, exchange_id="other", user_message="a needle", occurred_at=at, ingested_at=at)])
    put(store, "scores", [score("t", 1, exchange_id="other", score_id="other", exchange_at=at)])
    page = find(store, "sessions", text="NEEDLE")
    assert ({row["session_id"] for row in page.rows}, page.searched_to) == ({"s", "t"}, None)
    assert [row["session_id"] for row in find(store, "sessions", text="needle", turns="2").rows] == ["s"]
    assert find(store, "sessions", text="need").rows == []
    monkeypatch.setattr(listing, "_MAX_MATCHES", 1)
    page = find(store, "sessions", text="needle")
    assert ([row["session_id"] for row in page.rows], page.searched_to is None) == (["t"], False)
    monkeypatch.setattr(listing, "_MAX_MATCHES", 500)
    monkeypatch.setattr(listing, "_SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(listing, "_FIRST_BLOCKS", 1)
    request = parse_list_request(FLEET_LISTS["sessions"], QueryParams(text="needle"))
    rows = read_list(store.cursor(), None, request, (EARLIEST, LATEST), limit=10, after=None)
    assert {row["session_id"] for row in rows} == {"s", "t"}
    assert find(store, "sessions", text="needle").searched_to is not None


def test_the_index_keeps_no_word_of_deleted_exchanges(store: Store) -> None:
    """Retention and erasure delete by position. Until the next refresh, the rest of the block is read without the index."""
    refresh_search(store)
    (hashed,) = store.cursor().execute("SELECT log.word_hash('needle')").fetchall()[0]

    def stored(word: int) -> int:
        return store.cursor().execute("SELECT count(*) FROM log.search_words WHERE word = ?", [word]).fetchall()[0][0]

    assert stored(hashed) == 1
    position = pl.DataFrame(
        {"_topic": ["exchanges"], "_partition": [0], "_offset": [NEEDLE]}, schema_overrides={"_partition": pl.Int32}
    )
    with store.transaction() as transaction:
        transaction.delete_at("Exchange", position)
    assert (stored(hashed), stored(ANY_WORD)) == (0, 1)
    assert [row["exchange_id"] for row in find(store, text="message 18").rows] == ["e18"]
    refresh_search(store)
    assert (stored(hashed), stored(ANY_WORD)) == (0, 0)
    assert find(store, text="needle").rows == []
    assert [row["exchange_id"] for row in find(store, text="message 18").rows] == ["e18"]


def test_exchanges_that_are_written_again_are_indexed_again(store: Store) -> None:
    """On Kafka, rows behind a lost commit are deleted and delivered again, perhaps with other records."""
    refresh_search(store)
    with store.transaction() as transaction:
        transaction.delete_from("exchanges", {0: BLOCK_SIZE + 5})
    assert blocks_of(store, "message 2050") == [1]
    assert blocks_of(store, "message 5000") == [1]
    refresh_search(store)
    assert set(blocks_of(store, "needle")) == {0, 1}


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"text": "?!"}, "text: must have a letter"),
        ({"text": "a", "sort": "tier1"}, "sort: must be at"),
        ({"text": "a " * 20}, "text: must have at most"),
    ],
)
def test_a_search_that_cannot_be_answered_is_refused(store: Store, params: dict[str, str], error: str) -> None:
    """An empty search would match everything, and another order would have to read everything."""
    with pytest.raises(listing.ApiError) as refused:
        find(store, **params)
    assert str(refused.value.detail if hasattr(refused.value, "detail") else refused.value).find(error) >= 0
