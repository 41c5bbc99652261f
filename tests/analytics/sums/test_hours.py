"""Hourly sums: what the watch reads is what the current scores say, whatever is kept of it, whatever came and in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import score
from support.random_scores import publish, publish_by_chance, same, score_by_chance

from analytics.queries import run_query
from analytics.store.connection import fetch
from analytics.store.store import Store
from analytics.sums.daily import read_hours, refresh_daily
from analytics.sums.kept import SCORE_SUMS
from benchmarks.one_by_one import ONE_BY_ONE
from schemas.records import Score

NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)
SINCE = NOON.replace(hour=0) - timedelta(days=30)
PROJECTS = ["ops", "web"]
Row = Mapping[str, Any]


def window_parameters(until: datetime, since: datetime = SINCE, projects: Sequence[str] = PROJECTS) -> dict[str, Any]:
    """Return the parameters of the query, with hourly rows for the last two days."""
    coarse = until.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    return {"projects": list(projects), "since": since, "until": until, "coarse_until": coarse}


def watched_hours(store: Store, values: Mapping[str, Any]) -> list[Row]:
    """Return the rows that the watch reads."""
    return run_query(store.cursor(), "watched_hours", values).to_dicts()


def read_all_hours(store: Store, values: Mapping[str, Any]) -> pl.DataFrame:
    """Return the hours that a check reads."""
    hours = read_hours(store.cursor(), values["projects"], values["since"].date(), values["until"])
    assert hours is not None
    return hours


def aggregate_hours(hours: pl.DataFrame, values: Mapping[str, Any]) -> list[Row]:
    """Return the hours of a check, aggregated like the query `watched_hours`."""
    naive = {name: values[name].replace(tzinfo=None) for name in ("until", "coarse_until")}
    rows = hours.with_columns(
        pl.col("hour").dt.date().alias("day"), (pl.col("hour").dt.hour() >= naive["until"].hour).alias("later"),
        pl.when(pl.col("hour") < naive["coarse_until"]).then(pl.col("hour").dt.truncate("6h")).otherwise("hour").alias("hour"),
        pl.col("judge_model").replace("", None),
    )  # fmt: skip
    key = ["project", "day", "hour", "later", "agent", "labels", *rows.columns[2:9]]
    sums = [name for name in rows.columns[10:-2] if name not in key]
    extremes = {"low": pl.Expr.min, "high": pl.Expr.max}
    added = [extremes.get(name.rsplit("_", 1)[-1], pl.Expr.sum)(pl.col(name)) for name in sums]
    return rows.group_by(key).agg(pl.col("last_at").max(), *added).sort(key, nulls_last=True).to_dicts()


def naive_hours(store: Store, values: Mapping[str, Any]) -> list[Row]:
    """Return the same rows, computed from the single scores."""
    return fetch(store.cursor(), ONE_BY_ONE, values).to_dicts()


def random_score(chance: random.Random, number: int, revision: int = 0) -> Score:
    """Return a random score of exchange `number`; its project, session and time depend only on the number."""
    exchange = random.Random(number)
    return score_by_chance(
        chance, number,
        session_id=f"s{exchange.randrange(8)}", revision=revision, project=exchange.choice([*PROJECTS, "else"]),
        exchange_at=NOON + timedelta(hours=exchange.randrange(-96, 24), seconds=exchange.choice([0, 0, 1800, 3599])),
        tier3_state="scored" if chance.random() < 0.3 else "skipped_gate", tier3_score=chance.uniform(1, 5),
        rule_version=chance.choice(["1", "2"]), policy_digest=chance.choice(["p", "q"]),
    )  # fmt: skip


@contextmanager
def open_store() -> Iterator[Store]:
    """Open a store in memory."""
    with Store(None) as store:
        yield store


@pytest.mark.parametrize("seed", range(4))
def test_hourly_sums_equal_those_of_the_current_scores(store: Store, seed: int) -> None:
    """This holds for late scores, revisions and partial days, before and after a refresh."""
    chance = random.Random(seed)
    known_count = 0
    for _ in range(4):
        known_count = publish_by_chance(store, chance, known_count, random_score, most=60, refreshed=0.7)
        for until in (
            NOON + timedelta(days=2),
            NOON + timedelta(hours=chance.randrange(-40, 24), minutes=chance.choice([0, 7])),
        ):
            for since in (SINCE, NOON - timedelta(hours=50)):
                values = window_parameters(until, since)
                assert same(naive_hours(store, values), watched_hours(store, values)), values
                if since == SINCE:
                    assert same(watched_hours(store, values), aggregate_hours(read_all_hours(store, values), values)), values


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(0, 5))
def test_hourly_sums_do_not_depend_on_order_or_batches(chance: random.Random, count: int, refreshes: int) -> None:
    """They are equal to the last bit, because other evidence would make another incident."""
    scores = [random_score(chance, number) for number in range(count)]
    # The highest revision of an exchange counts, whenever it arrives.
    scores += [random_score(chance, number, 1) for number in range(0, count, 3)]
    values = window_parameters(NOON + timedelta(hours=chance.randrange(-40, 30)))
    with open_store() as single_batch:
        publish(single_batch, *scores)
        watched_rows, read_rows = watched_hours(single_batch, values), read_all_hours(single_batch, values)
    chance.shuffle(scores)
    cuts = sorted(chance.randrange(len(scores) + 1) for _ in range(refreshes))
    with open_store() as parts:
        for start, end in zip([0, *cuts], [*cuts, len(scores)], strict=True):
            publish(parts, *scores[start:end])
            refresh_daily(parts)
            assert not parts.cursor().execute("SELECT * FROM log.changed_scores()").fetchall()
        assert watched_rows == watched_hours(parts, values)
        assert read_rows.equals(read_all_hours(parts, values))


def test_after_a_refresh_no_single_score_is_read_even_of_today(store: Store) -> None:
    """A check of ten million scores takes as long as one of a thousand, and every check includes today."""
    publish(store, score("a", 1, exchange_at=NOON - timedelta(hours=2)))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.hourly_scores SET exchanges = 7")

    assert [row["exchanges"] for row in watched_hours(store, window_parameters(NOON))] == [7]
    assert read_all_hours(store, window_parameters(NOON))["exchanges"].to_list() == [7]
    assert watched_hours(store, window_parameters(NOON - timedelta(hours=2))) == []


def test_without_scores_there_are_no_hours(store: Store) -> None:
    """A check of projects with only runs loads no dataframe library."""
    publish(store, score("a", 1, exchange_at=NOON))
    refresh_daily(store)

    assert read_hours(store.cursor(), ["nobody"], SINCE.date(), NOON + timedelta(days=1)) is None
    assert read_hours(store.cursor(), PROJECTS, SINCE.date(), NOON + timedelta(days=1)) is not None


def test_a_partial_day_is_summed_up_to_its_end(store: Store) -> None:
    """A check of an earlier time must not see later scores of a session, nor count the session at a later hour."""
    publish(store, *(score("a", turn, exchange_at=NOON + timedelta(hours=turn)) for turn in (1, 2, 3)))
    refresh_daily(store)

    ((cell,),) = ([row] for row in watched_hours(store, window_parameters(NOON + timedelta(hours=2, minutes=30))))
    assert cell["exchanges"] == 2
    assert cell["tier1_units"] == 1
    assert cell["last_at"] == (NOON + timedelta(hours=2)).replace(tzinfo=None)
    assert read_all_hours(store, window_parameters(NOON + timedelta(hours=2, minutes=30)))["exchanges"].to_list() == [2]


def test_selected_columns_equal_those_of_all_columns(store: Store) -> None:
    """Charts read a few columns, also while some scores are not summed yet."""
    publish(store, *(score("a", turn, exchange_at=NOON + timedelta(hours=turn)) for turn in range(20)))
    columns = ("hour", "exchanges", "tier1_sum")
    for _ in range(2):
        all_columns = read_hours(store.cursor(), PROJECTS, SINCE.date(), NOON + timedelta(days=2))
        selected = read_hours(store.cursor(), PROJECTS, SINCE.date(), NOON + timedelta(days=2), columns)
        assert all_columns is not None
        assert selected is not None
        assert all_columns.select(columns).sort(columns).rows() == selected.rows()
        refresh_daily(store)


def test_a_weight_beyond_any_policy_breaks_no_sums(store: Store) -> None:
    """Scores may come from other producers, and a day is summed for all projects together."""
    judged = {"exchange_at": NOON, "tier2_state": "scored", "tier2_score": 1.0}
    publish(store, *(score("a", turn, sampling_probability=share, **judged) for turn, share in ((1, 0.0), (2, 1e-300))))
    refresh_daily(store)

    assert [row["tier2_weight"] for row in watched_hours(store, window_parameters(NOON + timedelta(days=1)))] == [2e4]


def test_a_database_of_the_previous_version_is_filled(tmp_path: Path) -> None:
    """Its days were summed without hours; until they are summed again, single scores are read."""
    path = tmp_path / "old.duckdb"
    with Store(path) as store:
        publish(store, *(score("a", turn, exchange_at=NOON + timedelta(hours=turn)) for turn in range(20)))
        refresh_daily(store)
        expected = watched_hours(store, window_parameters(NOON + timedelta(days=2)))
        store.checkpoint()
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE log.hourly_scores")
        connection.execute("UPDATE log.watermarks SET consumer = 'daily scores' WHERE consumer = $now", {"now": SCORE_SUMS})

    with Store(path) as store:
        assert watched_hours(store, window_parameters(NOON + timedelta(days=2))) == expected
        assert len(refresh_daily(store)) == 2
        assert refresh_daily(store) == set()
        assert store.cursor().execute("SELECT sum(exchanges)::INTEGER FROM log.hourly_scores").fetchall() == [(20,)]
        assert store.cursor().execute("SELECT sum(exchanges)::INTEGER FROM log.daily_scores").fetchall() == [(20,)]
        assert watched_hours(store, window_parameters(NOON + timedelta(days=2))) == expected
