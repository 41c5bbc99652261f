"""Sums of judgements and numbers of exchanges: they are those of the single records whatever came, in whatever order, and whether or not they were added up before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from support.builders import exchange as build_exchange
from support.builders import judgement

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.queries import query_rows
from analytics.store.positions import POSITION
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from analytics.sums.kept import COST_SUMS
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Exchange, Judgement

NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)
ALWAYS = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
NAIVE = """
    SELECT
        j.project, date_trunc('hour', coalesce(occurred_at, judged_at)) AS hour, j.connection, j.session_id, requested_model, max(agent),
        count(*), sum(attempts), coalesce(sum(j.input_tokens), 0), coalesce(sum(j.cache_read_tokens), 0),
        coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0), count(*) - count(cost_usd), count_if(j.simulated)
    FROM judgements AS j
    LEFT JOIN exchanges AS e ON e.project = j.project AND e.connection = j.connection AND e.exchange_id = j.subject_id
    WHERE ($project IS NULL OR j.project = $project)
        AND coalesce(occurred_at, judged_at) >= $first AND coalesce(occurred_at, judged_at) < $until
    GROUP BY ALL
    ORDER BY ALL
"""
"""The same sums from the current judgements, without stored sums."""
KEPT = """
    SELECT
        project, hour, connection, session_id, model, max(agent), sum(judgements), sum(calls), sum(input_tokens), sum(cache_read_tokens),
        sum(nano_usd), sum(unknown_costs), sum(simulated)
    FROM log.cost_hours($project, $first::TIMESTAMP, $until::TIMESTAMP)
    GROUP BY ALL
    ORDER BY ALL
"""
COUNTED = """
    SELECT project, date_trunc('day', occurred_at) AS day, count(*), max(occurred_at)
    FROM exchanges
    WHERE $project IS NULL OR project = $project
    GROUP BY ALL
    ORDER BY ALL
"""
"""Exchanges by day, without stored sums."""
KEPT_COUNTS = "SELECT project, day, exchanges, last_at FROM log.exchange_days($project) ORDER BY ALL"
Window = tuple[str | None, datetime, datetime]
Observation = Exchange | Judgement


def exchange(session: str, number: int, occurred_at: datetime = NOON, **fields: Any) -> Exchange:
    """Return exchange `number` of a session, ingested when it occurred."""
    return build_exchange(session, number, occurred_at=occurred_at, ingested_at=occurred_at, **fields)


def fetch_window(store: Store, statement: str, window: Window) -> list[tuple[Any, ...]]:
    """Return the rows of a statement for a project and a period."""
    values = dict(zip(("project", "first", "until"), window, strict=True))
    return store.cursor().execute(statement, {name: one for name, one in values.items() if f"${name}" in statement}).fetchall()


def assert_sums_match(store: Store, *window: Window) -> None:
    """Assert that the stored sums equal those of the single records."""
    for query_window in window or ((None, *ALWAYS),):
        assert fetch_window(store, NAIVE, query_window) == fetch_window(store, KEPT, query_window)
        assert fetch_window(store, COUNTED, query_window) == fetch_window(store, KEPT_COUNTS, query_window)


def publish(store: Store, *records: Observation) -> None:
    """Append exchanges and judgements to the log."""
    with store.transaction() as transaction:
        for topic, kind in (("exchanges", Exchange), ("judgements", Judgement)):
            transaction.append(topic, [encode(record) for record in records if isinstance(record, kind)], skip_known=True)


def append_at_offset(store: Store, topic: str, partition: int, first_offset: int, records: Sequence[Observation]) -> None:
    """Flush records at an offset of a partition, as a consumer of several partitions does."""
    ((name, frame),) = decode_batch([encode(record) for record in records]).frames.items()
    positions = [
        pl.lit(partition, pl.Int32).alias("_partition"),
        (pl.col(INDEX).cast(pl.Int64) + first_offset).alias("_offset"),
    ]
    with store.transaction() as transaction:
        identities = KnownIdentities()
        transaction.read_identities(topic, identities)
        transaction.flush(topic, {name: frame.with_columns(positions)}, identities)


def remove(store: Store, name: str, table: str, where: str) -> None:
    """Delete records, as retention and an erasure do."""
    positions = pl.DataFrame(store.cursor().sql(f"SELECT {', '.join(POSITION)} FROM log.{table} WHERE {where}"))
    with store.transaction() as transaction:
        transaction.delete_at(name, positions)


def random_exchange(number: int) -> tuple[Exchange, list[Judgement]]:
    """Return exchange `number` and its judgements, made at once, hours or weeks later; some have no known exchange."""
    chance = random.Random(number)
    session, project = f"s{number % 7}", chance.choice(["ops", "web"])
    occurred_at = NOON + timedelta(hours=chance.randrange(-96, 96), minutes=chance.choice([0, 0, 30]))
    exchange_record = exchange(session, number, project=project, occurred_at=occurred_at, agent=chance.choice([None, "scout"]))
    answers = [
        judgement(
            session, number, purpose, project=project, judged_at=occurred_at + timedelta(hours=chance.choice([0, 0, 1, 30, 24 * 40])),
            requested_model=chance.choice(["small", "large"]), cost_usd=chance.choice([None, 0.0, 0.00123]),
            attempts=chance.randrange(1, 4), input_tokens=chance.choice([None, 7]), simulated=chance.random() < 0.2,
            subject_id=chance.choice([exchange_record.exchange_id] * 5 + ["gone"]),
        )
        for purpose in ("tier2", "tier3")
    ]  # fmt: skip
    return exchange_record, answers[: chance.randrange(3)]


@pytest.mark.parametrize("seed", range(8))
def test_sums_equal_those_of_the_single_judgements(store: Store, seed: int) -> None:
    """This holds for late answers, exchanges stored after their answers, deletions and partial hours, before and after a refresh."""
    chance = random.Random(seed)
    waiting: list[Observation] = []
    known_count = 0
    for _ in range(6):
        first_number, known_count = known_count, known_count + chance.randrange(1, 40)
        waiting += [
            one
            for number in range(first_number, known_count)
            for one in (random_exchange(number)[0], *random_exchange(number)[1])
        ]
        chance.shuffle(waiting)
        part = [waiting.pop() for _ in range(chance.randrange(len(waiting) + 1))]
        publish(store, *part)
        if chance.random() < 0.6:
            refresh_daily(store)
        if chance.random() < 0.3:
            remove(store, "Judgement", "judgements", f"session_id = 's{chance.randrange(7)}' AND judged_at < '{NOON:%Y-%m-%d}'")
        if chance.random() < 0.3:
            of_session = f"session_id = 's{chance.randrange(7)}'"
            remove(store, "Judgement", "judgements", of_session)
            remove(store, "Exchange", "exchanges", of_session)
        cuts = sorted(NOON + timedelta(minutes=chance.randrange(-6000, 6000)) for _ in range(2))
        hours = [cut.replace(minute=0) for cut in cuts]
        assert_sums_match(store, (None, *ALWAYS), ("ops", cuts[0], cuts[1]), ("web", *hours), (None, hours[0], cuts[1]))


def test_after_a_refresh_no_single_judgement_is_read(store: Store) -> None:
    """Unused sums would only cost time."""
    publish(store, exchange("a", 1), judgement("a", 1))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.session_costs SET judgements = 7")
    parameters = {"project": "ops", "by": "day", "from": ALWAYS[0], "to": ALWAYS[1]}

    assert [row["judgements"] for row in query_rows(store.cursor(), "window_costs", parameters)] == [7]


def test_an_exchange_stored_after_its_answer_includes_the_answer(store: Store) -> None:
    """On Kafka, topics and partitions are stored in any order."""
    early, late = NOON - timedelta(days=3), NOON
    append_at_offset(store, "judgements", 1, 50, [judgement("a", 1, judged_at=late), judgement("b", 1, judged_at=late)])
    refresh_daily(store)
    assert [row[1].replace(tzinfo=UTC) for row in fetch_window(store, KEPT, (None, *ALWAYS))] == [late, late]

    append_at_offset(store, "exchanges", 2, 7, [exchange("a", 1, occurred_at=early)])
    assert_sums_match(store)
    refresh_daily(store)

    assert_sums_match(store)
    assert [row[1].replace(tzinfo=UTC) for row in fetch_window(store, KEPT, (None, *ALWAYS))] == [early, late]
    append_at_offset(store, "exchanges", 0, 0, [exchange("b", 1, occurred_at=early)])
    assert_sums_match(store)
    refresh_daily(store)
    assert store.cursor().execute("SELECT DISTINCT is_placed FROM log.session_costs").fetchall() == [(True,)]


def test_rebuilt_records_are_summed_again(store: Store) -> None:
    """A rebuild reuses positions, and stores exchanges and judgements one after another."""
    publish(store, exchange("a", 1), judgement("a", 1), exchange("b", 1), judgement("b", 1))
    refresh_daily(store)
    for topic, record in (("judgements", judgement("a", 1, cost_usd=0.5)), ("exchanges", exchange("a", 1, occurred_at=NOON))):
        with store.transaction() as transaction:
            transaction.delete_from(topic, {0: 0})
        assert_sums_match(store)
        append_at_offset(store, topic, 0, 0, [record])
        assert_sums_match(store)
        refresh_daily(store)
        assert_sums_match(store)


def test_deleted_judgements_are_not_counted_and_leave_no_name(store: Store) -> None:
    """Sums per session contain its name, so retention and erasure delete them in the same transaction."""
    publish(store, exchange("a", 1), judgement("a", 1), exchange("b", 1), judgement("b", 1))
    refresh_daily(store)
    remove(store, "Judgement", "judgements", "session_id = 'a'")
    remove(store, "Exchange", "exchanges", "session_id = 'a'")

    assert store.cursor().execute("SELECT exchanges FROM log.daily_exchanges").fetchall() == [(1,)]
    assert store.cursor().execute("SELECT session_id, judgements FROM log.session_costs").fetchall() == [("b", 1)]
    assert_sums_match(store)


def test_stored_sums_do_not_depend_on_the_order(store: Store, tmp_path: Any) -> None:
    """A rebuilt database must have the same bytes."""
    records = [one for number in range(60) for one in (random_exchange(number)[0], *random_exchange(number)[1])]
    publish(store, *records)
    refresh_daily(store)
    with Store(tmp_path / "other.duckdb") as other_store:
        for start in range(0, len(records), 7):
            publish(other_store, *records[::-1][start : start + 7])
            refresh_daily(other_store)
        for table in ("session_costs", "daily_exchanges"):
            query = f"SELECT * FROM log.{table} ORDER BY ALL"
            assert store.cursor().execute(query).fetchall() == other_store.cursor().execute(query).fetchall()


def test_a_refresh_records_its_progress(store: Store) -> None:
    """Summed records are not read again, and judgements that wait for their exchange are not summed without it."""
    publish(store, exchange("a", 1), judgement("a", 1), judgement("b", 1))
    refresh_daily(store)
    with store.transaction() as transaction:
        assert transaction.watermarks(COST_SUMS) == {("judgements", 0): 2, ("exchanges", 0): 1}
    commits = store.commits
    refresh_daily(store)

    assert commits == store.commits


def test_the_next_refresh_sums_an_older_file(tmp_path: Any) -> None:
    """Databases of earlier versions have judgements without sums."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        publish(store, *(one for number in range(20) for one in (random_exchange(number)[0], *random_exchange(number)[1])))
        with store.transaction() as transaction:
            transaction.connection.execute("DROP TABLE log.session_costs")
            transaction.connection.execute("DROP TABLE log.daily_exchanges")
    with Store(path) as store:
        assert_sums_match(store)
        refresh_daily(store)
        assert_sums_match(store)
        for table in ("session_costs", "daily_exchanges"):
            assert store.cursor().execute(f"SELECT count(*) > 0 FROM log.{table}").fetchall()[0][0]
