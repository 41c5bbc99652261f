"""The server's cache of the times of scores that people have opened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from support.builders import score
from support.watch_histories import put

from analytics.store.store import Store
from schemas.records import Review
from service.read import people
from service.read.people import ScoreTimes

AT = datetime(2026, 11, 1, 9, tzinfo=UTC)


def human_score(score_id: str) -> Review:
    """Return a human score of a judged exchange."""
    return Review(
        review_id=f"r-{score_id}", project="ops", kind="human_score", subject_id=score_id, reviewer="ann", score=3,
        occurred_at=AT, ingested_at=AT,
    )  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    """Three scores, of which people have scored two."""
    with Store(None) as made:
        put(
            made,
            "scores",
            [score(name, 1, score_id=name, exchange_at=AT + timedelta(days=day)) for day, name in enumerate("abc")],
        )
        put(made, "reviews", map(human_score, "ac"))
        yield made


def test_the_times_of_scored_exchanges_are_loaded_once(store: Store) -> None:
    """Loading them reads every id of a project, so it is done only for unknown ids."""
    times = ScoreTimes()
    expected = [AT, AT + timedelta(days=2)]
    assert times.read_scored_times(store.cursor(), "ops") == expected
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.scores")
    assert times.read_scored_times(store.cursor(), "ops") == expected
    assert times.read_scored_times(store.cursor(), "web") == []


def test_a_time_from_a_page_is_cached() -> None:
    """The page of an exchange knows its time, so scoring it needs no search."""
    times = ScoreTimes()
    assert None is times.get("ops", "b")
    times.store("ops", "b", AT)
    assert times.get("ops", "b") == AT
    assert None is times.get("web", "b")


def test_a_score_is_found_by_its_id_whatever_its_age(store: Store) -> None:
    """The log is searched partition by partition, and none may be skipped."""
    newest = AT + timedelta(days=2)
    ages = (0, 1, 2, 4, 5, 16, 17, 64, 65, 400)
    scores = [score(f"old{age}", 1, score_id=f"old{age}", exchange_at=newest - timedelta(days=age)) for age in ages]
    put(store, "scores", scores)
    times = ScoreTimes()

    assert [one.exchange_at for one in scores] == [times.find(store.cursor(), "ops", one.score_id) for one in scores]
    assert None is times.find(store.cursor(), "ops", "gone")
    assert None is times.find(store.cursor(), "web", "a")


def test_cached_times_are_reused_and_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search reads the ids of a project, and a program that walks through all scores must not fill the memory."""
    monkeypatch.setattr(people, "MAX_CACHED_TIMES", 2)
    times = ScoreTimes()
    expected = [times.find(store.cursor(), "ops", name) for name in "abc"]
    assert [AT + timedelta(days=day) for day in range(3)] == expected
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.scores")

    assert [times.find(store.cursor(), "ops", name) for name in "abc"] == [None, *expected[1:]]
