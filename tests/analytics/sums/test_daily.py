"""Daily sums: they are those of the current scores whatever came, in whatever order, and whether or not they were added up before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from support.builders import score
from support.random_scores import publish, publish_by_chance, score_by_chance

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.sums import daily
from analytics.sums import kept as kept_sums
from analytics.sums.daily import recompute_days, refresh_daily
from analytics.sums.kept import KEY, RETENTION, SCORE_SUMS, Day
from audit.drift.consecutive_days import DailyAverage, consecutive_days
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Baseline, Score, TierStatistics

NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)
ALWAYS = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
SUMMED = (
    f"SELECT {KEY}, exchanges, anomalies, tier1_sum, tier2_count, tier2_sum, tier2_squares::DOUBLE, nano_usd, unknown_costs,"
    " rated_anomalies, rated_unsure, rated_routine"
)
NAIVE = """
    SELECT
        project, date_trunc('day', exchange_at), coalesce(agent, ''), sampling_reason, disposition, simulated,
        1 / coalesce(sampling_probability, 1) AS weight, count(*), count_if(anomaly), sum(round(tier1_score * 1e9)::BIGINT),
        count(tier2_score), coalesce(sum(round(tier2_score * 1e9)::BIGINT), 0),
        coalesce(sum(round(tier2_score * 1e9)::HUGEINT * round(tier2_score * 1e9)::BIGINT), 0)::DOUBLE,
        coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0), count(*) - count(cost_usd),
        count_if(tier3_score IS NOT NULL AND anomaly),
        count_if(tier3_score IS NOT NULL AND NOT anomaly AND unsure), count_if(tier3_score IS NOT NULL AND NOT anomaly AND NOT unsure)
    FROM (
        SELECT *, coalesce(tier3_score >= 2.5 AND tier3_score <= 3.5, false) OR coalesce(tier2_score >= 0.4 AND tier2_score <= 0.6, false)
            OR coalesce(tier2_5_alignment >= 0.4 AND tier2_5_alignment <= 0.6, false)
            OR coalesce(abs(tier2_score - (tier3_score - 1) / 4) >= 0.4, false) OR coalesce(tier2_flagged AND tier3_score >= 4, false) AS unsure
        FROM scores
    )
    WHERE ($project IS NULL OR project = $project) AND exchange_at >= $first AND exchange_at < $until
    GROUP BY ALL
    ORDER BY ALL
"""
"""The same sums from the current scores, without stored sums."""
Window = tuple[str | None, datetime, datetime]


def stored_sums(store: Store, window: Window) -> list[tuple[Any, ...]]:
    """Return the sums that queries read."""
    values = dict(zip(("project", "first", "until"), window, strict=True))
    calls = "log.score_days($project, $first::TIMESTAMP, $until::TIMESTAMP)"
    return store.cursor().execute(f"{SUMMED} FROM {calls} ORDER BY ALL", values).fetchall()


def naive_sums(store: Store, window: Window) -> list[tuple[Any, ...]]:
    """Return the sums of the single scores."""
    values = dict(zip(("project", "first", "until"), window, strict=True))
    return store.cursor().execute(NAIVE, values).fetchall()


def append_at_offset(store: Store, partition: int, first_offset: int, scores: Sequence[Score]) -> None:
    """Flush scores at an offset of a partition, as a consumer of several partitions does."""
    frame = decode_batch([encode(one) for one in scores]).frames["Score"]
    positions = [
        pl.lit(partition, pl.Int32).alias("_partition"),
        (pl.col(INDEX).cast(pl.Int64) + first_offset).alias("_offset"),
    ]
    with store.transaction() as transaction:
        identities = KnownIdentities()
        transaction.read_identities("scores", identities)
        transaction.flush("scores", {"Score": frame.with_columns(positions)}, identities)


def random_score(chance: random.Random, number: int, revision: int = 0) -> Score:
    """Return a random score of exchange `number`; its project and time depend only on the number."""
    exchange = random.Random(number)
    return score_by_chance(
        chance, number,
        session_id=f"s{number % 17}", revision=revision, project=exchange.choice(["ops", "web", "anchors.ops"]),
        agent=exchange.choice([None, "scout"]),
        exchange_at=NOON + timedelta(hours=exchange.randrange(-96, 96), minutes=exchange.choice([0, 0, 30])),
        cost_usd=chance.choice([None, 0.0, 0.00123]), tier2_flagged=chance.choice([None, False, True]),
        tier2_5_alignment=chance.choice([None, 0.5, 0.9]), tier3_score=chance.choice([None, 1.0, 3.0, 4.6]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_daily_sums_equal_those_of_the_current_scores(store: Store, seed: int) -> None:
    """This holds for late scores, revisions and partial days, before and after a refresh."""
    chance = random.Random(seed)
    known_count = 0
    for _ in range(6):
        known_count = publish_by_chance(store, chance, known_count, random_score, most=40, refreshed=0.6)
        cuts = sorted(NOON + timedelta(hours=chance.randrange(-100, 100)) for _ in range(2))
        midnight = cuts[0].replace(hour=0)
        for query_window in ((None, *ALWAYS), ("ops", cuts[0], cuts[1]), (None, midnight, cuts[1]), ("web", cuts[0], cuts[0])):
            assert naive_sums(store, query_window) == stored_sums(store, query_window)


@pytest.mark.parametrize("seed", range(4))
def test_a_refresh_does_not_change_the_fleet(store: Store, seed: int) -> None:
    """The query `projects` combines stored days and single scores, and a page must show no jump at a refresh."""
    chance = random.Random(seed)
    known_count = 0
    for _ in range(4):
        known_count = publish_by_chance(store, chance, known_count, random_score, most=40, refreshed=0.3)
        end = NOON.replace(hour=0) + timedelta(days=2)
        period = {"as_of": NOON + timedelta(days=1), "from": end - timedelta(days=3), "to": end}
        windows = [{"project": project, **period} for project in (None, "ops", "web")]
        rows_before = [query_rows(store.cursor(), "projects", window) for window in windows]
        refresh_daily(store)
        assert [query_rows(store.cursor(), "projects", window) for window in windows] == rows_before
        assert {"ops", "web"} >= {row["project"] for row in rows_before[0]}


def test_a_refresh_returns_the_changed_days_only(store: Store) -> None:
    """The watch checks the projects of these days, and unchanged days must cost nothing."""
    publish(store, score("a", 1, exchange_at=NOON), score("b", 1, exchange_at=NOON - timedelta(days=3), project="web"))

    assert refresh_daily(store) == {("ops", date(2026, 10, 10)), ("web", date(2026, 10, 7))}
    assert refresh_daily(store) == set()
    publish(store, score("b", 1, revision=1, exchange_at=NOON - timedelta(days=3), project="web", tier1_score=0.5))

    assert refresh_daily(store) == {("web", date(2026, 10, 7))}
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


def test_after_a_refresh_no_single_score_is_read(store: Store) -> None:
    """Unused sums would only cost time."""
    publish(store, score("a", 1, exchange_at=NOON))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.daily_scores SET exchanges = 7")

    assert [row["exchange_count"] for row in query_rows(store.cursor(), "baseline", baseline_parameters("ops"))] == [7]


def baseline_parameters(project: str) -> dict[str, Any]:
    """Return the parameters of a query over the days around noon."""
    return {"project": project, "as_of": NOON + timedelta(days=2), "days": 7}


def test_each_partition_of_a_topic_has_its_own_position(store: Store) -> None:
    """A new or slow partition has scores that were not summed yet."""
    append_at_offset(store, 0, 100, [score("a", number, exchange_at=NOON) for number in range(3)])
    refresh_daily(store)
    append_at_offset(store, 1, 0, [score("b", number, exchange_at=NOON) for number in range(2)])
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    refresh_daily(store)
    append_at_offset(store, 1, 2, [score("c", 1, exchange_at=NOON, tier1_score=0.5)])

    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    assert refresh_daily(store) == {("ops", NOON.date())}
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


def test_rebuilt_records_are_summed_again(store: Store) -> None:
    """A rebuild gives the same positions to other scores."""
    publish(store, score("a", 1, exchange_at=NOON), score("b", 1, exchange_at=NOON))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.clear_tables(["scores"])
    publish(store, score("a", 1, exchange_at=NOON, tier1_score=0.25))

    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    refresh_daily(store)
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


def test_a_rebuild_during_a_refresh_is_not_taken_for_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old watermark would hide new scores at old positions."""
    publish(store, score("a", 1, exchange_at=NOON), score("b", 1, exchange_at=NOON))
    batches = daily._split_days

    def rebuilt_meanwhile(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
        yield from batches(changed)
        if changed:
            with store.transaction() as transaction:
                transaction.clear_tables(["scores"])
                transaction.append("scores", [encode(score("c", 1, exchange_at=NOON, tier1_score=0.25))])

    monkeypatch.setattr(daily, "_split_days", rebuilt_meanwhile)
    refresh_daily(store)
    monkeypatch.undo()

    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    refresh_daily(store)
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


def test_an_interrupted_refresh_starts_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two days leaves some of them summed, and all of them must be checked."""
    publish(store, *(score("a", number, exchange_at=NOON + timedelta(days=number)) for number in range(3)))
    batches = daily._split_days

    class StopError(Exception):
        """The end of a process."""

    def stopping(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
        for days in batches(changed):
            if days[0][1] == NOON.date() + timedelta(days=1):
                raise StopError
            yield days

    monkeypatch.setattr(daily, "_split_days", stopping)
    monkeypatch.setattr(daily, "MAX_NEW_RECORDS", 1)
    with pytest.raises(StopError):
        refresh_daily(store)
    monkeypatch.undo()

    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    assert len(refresh_daily(store)) == 3


def test_a_transaction_sums_a_bounded_number_of_scores(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import of years, ingestion must not wait for all of them."""
    days = [[score(f"{day}", number, exchange_at=NOON + timedelta(days=day)) for number in range(day)] for day in range(1, 6)]
    publish(store, *(one for day in days for one in day))
    summed_counts: list[int] = []
    batches = daily._split_days
    monkeypatch.setattr(daily, "MAX_NEW_RECORDS", 4)

    def counted(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
        for days in batches(changed):
            summed_counts.append(len(days))
            yield days

    monkeypatch.setattr(daily, "_split_days", counted)
    refresh_daily(store)

    # Once for the sums by day and hour, once for those by session.
    assert summed_counts == [2, 1, 1, 1] * 2
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


@pytest.mark.parametrize("max_rows", [1, 3, 1_000])
def test_sums_do_not_depend_on_the_days_per_statement(store: Store, monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    """Months with few records share a statement, and a busy day has its own."""
    monkeypatch.setattr(kept_sums, "MAX_ROWS", max_rows)
    chance = random.Random(11)
    publish(store, *(random_score(chance, number) for number in range(60)))
    refresh_daily(store)
    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))


def test_consecutive_days_share_a_statement_up_to_a_number_of_records() -> None:
    """Planning a statement takes longer than summing months of a small project, but a large project must not be delayed."""
    first_day = NOON.date()
    days = [(project, first_day + timedelta(days=number)) for number in (0, 1, 2, 4) for project in ("ops", "web")]
    sizes = {first_day: 90_000, first_day + timedelta(days=1): 110_000, first_day + timedelta(days=2): 1}
    assert list(kept_sums._split_consecutive(days, sizes)) == [days[:4], days[4:6], days[6:]]


def test_days_are_summed_again_after_a_deletion(store: Store) -> None:
    """A deletion leaves no new position that would show it."""
    publish(
        store,
        score("a", 1, exchange_at=NOON),
        score("b", 1, exchange_at=NOON),
        score("c", 1, exchange_at=NOON - timedelta(days=1)),
    )
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.scores WHERE session_id IN ('b', 'c')")
        recompute_days(transaction, [("ops", NOON.date()), ("ops", NOON.date() - timedelta(days=1))])

    assert naive_sums(store, (None, *ALWAYS)) == stored_sums(store, (None, *ALWAYS))
    assert [count for (count,) in store.cursor().execute("SELECT exchanges FROM log.daily_scores").fetchall()] == [1]


def test_sums_do_not_depend_on_the_order_of_the_scores(store: Store) -> None:
    """Adding floats does, and a baseline would differ from that of a replay."""
    scores = [score("a", number, exchange_at=NOON, tier1_score=random.Random(number).random()) for number in range(300)]
    publish(store, *scores)
    refresh_daily(store)
    expected = stored_sums(store, (None, *ALWAYS))
    with store.transaction() as transaction:
        transaction.clear_tables(["scores"])
    publish(store, *reversed(scores))
    refresh_daily(store)

    assert expected == stored_sums(store, (None, *ALWAYS))


def test_an_empty_log_has_no_sums(store: Store) -> None:
    """This is the state at the first start."""
    assert refresh_daily(store) == set()
    assert stored_sums(store, (None, *ALWAYS)) == []
    with store.transaction() as transaction:
        assert transaction.watermarks(SCORE_SUMS) == {}


@pytest.mark.parametrize("seed", range(8))
def test_the_query_finds_the_same_runs_as_the_rule(store: Store, seed: int) -> None:
    """Analysts see drift by SQL and incidents come from the rule, so both must agree."""
    chance = random.Random(seed)
    mean, stddev = 0.5, chance.choice([0.0, 0.125])
    as_of = NOON + timedelta(days=7)
    statistics = TierStatistics(mean=mean, stddev=stddev, count=9)
    none = TierStatistics(count=0)
    baseline = Baseline(
        baseline_id="b", project="ops", computed_at=NOON, window_start=NOON, window_end=NOON, tier1=statistics, tier2=none,
        tier2_5=none, tier3=none, anomaly_rate=0.0, exchange_count=9, policy_digest="p",
    )  # fmt: skip
    with store.transaction() as transaction:
        transaction.append("baselines", [encode(baseline)])
    offsets = [day for day in range(-1, 8) for _ in range(chance.choice([0, 1, 2]))]
    scores = [
        score("s", number, exchange_at=NOON + timedelta(days=day), tier1_score=chance.choice([0.25, 0.375, 0.625, 0.75]))
        for number, day in enumerate(offsets)
    ]
    publish(store, *scores)
    parameters = {"project": "ops", "as_of": as_of + timedelta(hours=1), "days": 7}

    averages = query_rows(store.cursor(), "daily_averages", {**parameters, "agent": None})
    days = [DailyAverage(row["day"], row["mean"]) for row in averages if row["tier"] == "tier1"]
    expected = [
        (one.direction, one.severity, [(day.day, day.average) for day in one.days], one.deviation)
        for one in consecutive_days(days, mean, stddev, as_of.date())
    ]
    drift_runs = query_rows(store.cursor(), "drift_runs", parameters)
    runs = [
        (row["direction"], row["severity"], [(day["day"], day["average"]) for day in row["days"]], row["deviation"])
        for row in drift_runs
    ]

    assert runs == expected


def test_agreement_is_weighted_by_the_scores_that_retention_left(store: Store) -> None:
    """The daily sums outlive the scores, and those of deleted exchanges would distort the weights."""
    days = [NOON - timedelta(days=back) for back in (2, 1, 0)]
    publish(store, *(score("a", number, exchange_at=at, tier3_score=4.5) for number, at in enumerate(days)))
    parameters = {"project": "ops", "from": None, "to": None}
    refresh_daily(store)
    assert [row["judged"] for row in query_rows(store.cursor(), "review_strata", parameters)] == [3]
    with store.transaction() as transaction:
        transaction.set_watermarks(RETENTION, {("ops", 0): int((NOON - timedelta(days=1)).timestamp() * 1_000_000)})

    assert [row["judged"] for row in query_rows(store.cursor(), "review_strata", parameters)] == [2]
