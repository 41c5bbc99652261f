"""Sums of sessions: they are those of the current scores whatever came, in whatever order, and whether or not they were added up before."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.builders import score
from support.random_scores import publish, publish_by_chance, score_by_chance

from analytics.queries import query_rows
from analytics.store.positions import POSITION
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from schemas.records import Score

NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)
ALWAYS = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
SUMS = (
    "exchanges, anomalies, simulated, tier1_count, tier1_sum, tier2_count, tier2_sum, tier2_5_count, tier2_5_sum, tier3_count,"
    " tier3_sum, nano_usd, unknown_costs"
)
KEPT = (
    f"SELECT project, day, connection, session_id, agent, first_at, last_at, {SUMS}"
    " FROM log.session_days($project, $first::TIMESTAMP, $until::TIMESTAMP) ORDER BY ALL"
)
NAIVE = """
    SELECT
        project, date_trunc('day', exchange_at) AS day, connection, session_id, max(agent), min(exchange_at), max(exchange_at), count(*),
        count_if(anomaly), count_if(simulated), count(tier1_score), coalesce(sum(round(tier1_score * 1e9)::BIGINT), 0),
        count(tier2_score), coalesce(sum(round(tier2_score * 1e9)::BIGINT), 0), count(tier2_5_alignment),
        coalesce(sum(round(tier2_5_alignment * 1e9)::BIGINT), 0), count(tier3_score), coalesce(sum(round(tier3_score * 1e9)::BIGINT), 0),
        coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0), count(*) - count(cost_usd)
    FROM scores
    WHERE ($project IS NULL OR project = $project) AND exchange_at >= $first AND exchange_at < $until
    GROUP BY ALL
    ORDER BY ALL
"""
"""The same sums from the current scores, without stored sums."""
Window = tuple[str | None, datetime, datetime]


def fetch_window(store: Store, statement: str, window: Window) -> list[tuple[Any, ...]]:
    """Return the rows of a statement for a project and a period."""
    return store.cursor().execute(statement, dict(zip(("project", "first", "until"), window, strict=True))).fetchall()


def assert_sums_match(store: Store, *window: Window) -> None:
    """Assert that the stored sums equal those of the single scores."""
    for query_window in window or ((None, *ALWAYS),):
        assert fetch_window(store, NAIVE, query_window) == fetch_window(store, KEPT, query_window)


def remove(store: Store, where: str) -> None:
    """Delete scores, as retention and an erasure do."""
    positions = pl.DataFrame(store.cursor().sql(f"SELECT {', '.join(POSITION)} FROM log.scores WHERE {where}"))
    if positions.height:
        with store.transaction() as transaction:
            transaction.delete_at("Score", positions)


def random_score(chance: random.Random, number: int, revision: int = 0) -> Score:
    """Return a random score of exchange `number`; its project, session and time depend only on the number."""
    exchange = random.Random(number)
    return score_by_chance(
        chance, number, session_id=f"s{exchange.randrange(7)}", revision=revision, project=exchange.choice(["ops", "web"]),
        agent=exchange.choice([None, "scout", "guide"]),
        exchange_at=NOON + timedelta(hours=exchange.randrange(-96, 96), minutes=exchange.choice([0, 0, 30])),
        cost_usd=chance.choice([None, 0.0, 0.00123]), tier3_score=chance.choice([None, 1.0, 4.6]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_sums_equal_those_of_the_current_scores(store: Store, seed: int) -> None:
    """This holds for late scores, revisions, deletions and partial days, before and after a refresh."""
    chance = random.Random(seed)
    known_count = 0
    for _ in range(6):
        known_count = publish_by_chance(store, chance, known_count, random_score, most=40, refreshed=0.6)
        if chance.random() < 0.3:
            remove(store, f"exchange_at < '{NOON - timedelta(hours=chance.randrange(96)):%Y-%m-%d %H:%M}'")
        if chance.random() < 0.3:
            remove(store, f"session_id = 's{chance.randrange(7)}'")
        cuts = sorted(NOON + timedelta(minutes=chance.randrange(-6000, 6000)) for _ in range(2))
        midnight = cuts[0].replace(hour=0, minute=0)
        assert_sums_match(
            store, (None, *ALWAYS), ("ops", cuts[0], cuts[1]), (None, midnight, cuts[1]), ("web", cuts[0], cuts[0])
        )


def test_after_a_refresh_no_single_score_is_read(store: Store) -> None:
    """Unused sums would only cost time."""
    publish(store, score("a", 1, exchange_at=NOON))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.session_scores SET exchanges = 7")

    assert [row[7] for row in fetch_window(store, KEPT, ("ops", NOON - timedelta(hours=12), NOON + timedelta(minutes=1)))] == [
        7
    ]
    parameters: dict[str, Any] = dict.fromkeys(
        (
            "agent",
            "anomalies",
            "failure",
            "readiness",
            "version",
            "tool",
            "tool_error",
            "turns",
            "ids",
            "least",
            "most",
            "last_number",
            "last_text",
            "last_id",
        )
    )
    window = {
        "project": "ops",
        "since": ALWAYS[0],
        "until": ALWAYS[1],
        "tier": "tier2",
        "sort": "cost",
        "down": True,
        "limit": 9,
    }
    assert [row["turns"] for row in query_rows(store.cursor(), "list_sessions", parameters | window)] == [7]


def test_deleted_sessions_leave_no_name(store: Store) -> None:
    """These sums contain session names, so retention and erasure delete them in the same transaction."""
    publish(store, score("a", 1, exchange_at=NOON), score("b", 1, exchange_at=NOON))
    refresh_daily(store)
    remove(store, "session_id = 'a'")

    assert store.cursor().execute("SELECT session_id, exchanges FROM log.session_scores").fetchall() == [("b", 1)]


def test_stored_sums_do_not_depend_on_the_order(store: Store, tmp_path: Path) -> None:
    """A rebuilt database must have the same bytes."""
    chance = random.Random(1)
    records = [random_score(chance, number) for number in range(60)]
    publish(store, *records)
    refresh_daily(store)
    with Store(tmp_path / "other.duckdb") as other_store:
        for start in range(0, len(records), 7):
            publish(other_store, *records[::-1][start : start + 7])
            refresh_daily(other_store)
        query = "SELECT * FROM log.session_scores ORDER BY ALL"
        assert store.cursor().execute(query).fetchall() == other_store.cursor().execute(query).fetchall()


def test_the_next_refresh_sums_an_older_file(tmp_path: Path) -> None:
    """Databases of earlier versions have scores without sums per session."""
    path, chance = tmp_path / "fleet.duckdb", random.Random(2)
    with Store(path) as store:
        publish(store, *(random_score(chance, number) for number in range(20)))
        with store.transaction() as transaction:
            transaction.connection.execute("DROP TABLE log.session_scores")
    with Store(path) as store:
        assert_sums_match(store)
        refresh_daily(store)
        assert_sums_match(store)
        assert store.cursor().execute("SELECT count(*) > 0 FROM log.session_scores").fetchall() == [(True,)]
