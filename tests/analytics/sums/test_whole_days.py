"""Queries over whole days: what they answer from kept sums alone is what they answer anyway, and they read these alone only where that is so."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.builders import exchange, judgement, score
from support.random_scores import publish_by_chance, same, score_by_chance

from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.sums import daily
from analytics.sums.daily import query_days, refresh_daily
from schemas.codec.single_object import encode
from schemas.records import Record, Score

NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)
MIDNIGHT, HOUR, DAY = NOON.replace(hour=0), timedelta(hours=1), timedelta(days=1)
ALL = {"score_days", "cost_hours", "exchange_days"}


def append(store: Store, topic: str, *records: Record) -> None:
    """Append records to the log."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(record) for record in records])


@pytest.fixture
def stored_macros(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The macros that each query answers from stored sums alone, in order of the queries."""
    macros_by_query: list[set[str]] = []

    def record_macros(*arguments: Any, kept: list[str]) -> list[dict[str, Any]]:
        macros_by_query.append(set(kept))
        return query_rows(*arguments, kept=kept)

    monkeypatch.setattr(daily, "query_rows", record_macros)
    return macros_by_query


def random_score(chance: random.Random, number: int, revision: int = 0) -> Score:
    """Return a random score of exchange `number`; its project and time depend only on the number."""
    exchange_at = NOON + timedelta(hours=random.Random(number).randrange(-96, 96))
    project = random.Random(number).choice(["ops", "web"])
    return score_by_chance(chance, number, session_id="s", revision=revision, project=project, exchange_at=exchange_at)


@pytest.mark.parametrize("seed", range(4))
def test_stored_sums_give_the_same_answer(store: Store, stored_macros: list[set[str]], seed: int) -> None:
    """This holds for late scores, revisions, partial days and any order of queries."""
    chance, known_count = random.Random(seed), 0
    for _ in range(6):
        known_count = publish_by_chance(store, chance, known_count, random_score, most=40, refreshed=0.6)
        start = NOON + HOUR * chance.choice([-132, -60, -36, -12, -7])
        parameters = {
            "project": chance.choice(["ops", "web", "none"]),
            "from": start,
            "to": start + HOUR * chance.choice([24, 48, 53]),
        }
        baseline_parameters = {"project": parameters["project"], "as_of": NOON + HOUR * chance.randrange(-100, 120), "days": 3}
        for name, values in (
            *(("points_by_day", {**parameters, "agent": agent}) for agent in (None, "scout")),
            *((one, parameters) for one in ("project_sampling", "period_counts")),
            ("daily_averages", {**baseline_parameters, "agent": None}),
            ("trends", baseline_parameters),
            ("project_summary", {"project": parameters["project"]}),
        ):
            cursor = store.cursor()
            assert same(query_rows(cursor, name, values), query_days(cursor, name, values)), (name, values)
    assert {"score_days"} in stored_macros


@pytest.mark.parametrize(
    ("name", "bounds", "kept"),
    [
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY, "to": MIDNIGHT + DAY}, {"score_days"}),
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY + HOUR, "to": MIDNIGHT + DAY}, set()),
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY, "to": NOON - HOUR}, set()),
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY, "to": NOON}, set()),
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY, "to": NOON + timedelta(microseconds=1)}, {"score_days"}),
        ("points_by_day", {"agent": None, "from": MIDNIGHT - DAY, "to": NOON + DAY}, {"score_days"}),
        ("daily_averages", {"agent": None, "as_of": NOON + HOUR, "days": 2}, {"score_days"}),
        ("daily_averages", {"agent": None, "as_of": NOON, "days": 2}, set()),
        ("window_costs", {"by": "hour", "from": NOON - DAY, "to": NOON + HOUR}, {"cost_hours"}),
        ("window_costs", {"by": "hour", "from": NOON - DAY, "to": NOON + HOUR / 2}, set()),
        ("project_summary", {}, ALL),
    ],
)
def test_complete_days_are_answered_from_stored_sums(
    store: Store, stored_macros: list[set[str]], name: str, bounds: Mapping[str, Any], kept: set[str]
) -> None:
    """A day that ends after its last score is complete, so the current day is as well."""
    append(store, "exchanges", exchange("s", 1, project="ops", occurred_at=NOON, ingested_at=NOON))
    append(store, "scores", score("s", 1, project="ops", exchange_at=NOON))
    refresh_daily(store)
    query_days(store.cursor(), name, {"project": "ops", **bounds})
    assert stored_macros == [kept]


@pytest.mark.parametrize(
    ("topic", "record", "kept"),
    [
        ("scores", score("s", 2, project="ops", exchange_at=NOON), {"cost_hours", "exchange_days"}),
        ("exchanges", exchange("s", 2, project="ops", occurred_at=NOON, ingested_at=NOON), {"score_days", "cost_hours"}),
        ("judgements", judgement("s", 2, project="ops", judged_at=NOON), {"score_days", "exchange_days"}),
        ("scores", score("s", 2, project="web", exchange_at=NOON), ALL),
    ],
)
def test_new_scores_are_read_singly(
    store: Store, stored_macros: list[set[str]], topic: str, record: Record, kept: set[str]
) -> None:
    """They are read until they are summed; new scores of another project do not matter."""
    append(store, "scores", score("s", 1, project="ops", exchange_at=NOON))
    refresh_daily(store)
    append(store, topic, record)
    query_days(store.cursor(), "project_summary", {"project": "ops"})
    refresh_daily(store)
    query_days(store.cursor(), "project_summary", {"project": "ops"})
    assert stored_macros == [kept, ALL]


def test_the_day_of_a_moment_needs_hourly_sums(store: Store, stored_macros: list[set[str]]) -> None:
    """Hourly sums give the state of a day at a moment; without them, the scores are read."""
    append(store, "scores", score("s", 1, project="ops", exchange_at=NOON))
    refresh_daily(store)
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.hourly_scores")
    query_days(store.cursor(), "daily_averages", {"project": "ops", "agent": None, "as_of": NOON + HOUR, "days": 2})
    assert stored_macros == [set()]
