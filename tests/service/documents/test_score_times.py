"""What the server remembers of scores that people have looked at."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from builders import score
from watched import put

from analytics.store.store import Store
from schemas.records import Review
from service.documents.people import ScoreTimes

AT = datetime(2026, 11, 1, 9, tzinfo=UTC)


def said(score_id: str) -> Review:
    """What somebody says of a score."""
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
        put(made, "reviews", map(said, "ac"))
        yield made


def test_the_times_of_what_people_scored_are_learnt_once(store: Store) -> None:
    """Learning them reads every id of a project; so it is done for those alone that are not known."""
    times = ScoreTimes()
    expected = [AT, AT + timedelta(days=2)]
    assert expected == times.of_people(store.cursor(), "ops")
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.scores")
    assert expected == times.of_people(store.cursor(), "ops")
    assert [] == times.of_people(store.cursor(), "web")


def test_a_time_that_was_read_anyway_is_kept() -> None:
    """The page that shows an exchange has its time: scoring it then needs no search."""
    times = ScoreTimes()
    assert None is times.time_of("ops", "b")
    times.learn("ops", "b", AT)
    assert AT == times.time_of("ops", "b")
    assert None is times.time_of("web", "b")
