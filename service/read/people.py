"""Human scores, and the next exchange to review."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from analytics.queries import query_records, query_rows
from schemas.lazy import duckdb
from schemas.records import Exchange, Review
from service.read.agreement import LabelGain, label_gains
from service.read.review_queues import ReviewQueue, count_progress, next_item, queue_items, scores_of_session
from service.read.scores import Score, newest_score, score_by_id
from service.text.answers import Answer, Moment

MAX_SKIPPED = 1000
"""Maximum number of scores that a reviewer can skip."""
MAX_CACHED_TIMES = 10_000
"""Maximum number of cached times of single scores. Beyond it, the oldest entry is dropped."""
SEARCH_DAYS = (None, 1, 4, 16, 64, None)
"""Bounds of the periods that are searched for a score one after the other, in days before the newest exchange."""


class HumanScore(Answer, frozen=True):
    """One person's score at one time."""

    rater: str
    score: int
    comment: str | None
    queue: Annotated[str | None, Meta(description="The review queue in which it was given; null for the general one.")]
    dimensions: Annotated[dict[str, int], Meta(description="Points of the dimensions that the queue asks for.")]
    scored_at: Moment
    counts: Annotated[bool, Meta(description="Whether it is the person's newest score. Only that one counts.")]


class HumanScores(Answer, frozen=True):
    """All human scores of an exchange, newest first."""

    human_scores: list[HumanScore]
    count: int


Order = Literal["anomalies", "interval"]
"""The order of the review queue: anomalies first, or what narrows the interval of the corrected mean most."""


class ReviewItem(Answer, frozen=True):
    """An exchange to review: redacted texts, and the judge's verdict unless it is hidden."""

    score_id: str
    exchange_id: str
    connection: str
    session_id: str
    turn_number: int | None
    exchange_at: Moment = field(name="exchangeTimestamp")
    user_message: Annotated[str | None, Meta(description="null if the exchange was deleted.")]
    agent_response: str | None
    agent_thinking: str | None
    pick: Annotated[
        Literal["random", "priority", "interval", "queue"],
        Meta(
            description="random: drawn from all judged exchanges; priority: picked for a reason; interval: drawn where a label "
            "narrows the interval of the corrected mean most; queue: the next one of a review queue.",
            examples=["random"],
        ),
    ]
    stratum: Annotated[Literal["anomaly", "unscored", "unsure", "routine"] | None, Meta(description="Reason of the pick.")]
    seen_by: Annotated[int, Meta(description="Number of people who have scored it in this queue.")]
    queue: Annotated[ReviewQueue | None, Meta(description="The review queue it is in; null for the general one.")]
    gain: Annotated[LabelGain | None, Meta(description="Why it narrows the interval; null in the other order, or if hidden.")]
    score: Score | None


class NextReview(Answer, frozen=True):
    """The next exchange to review; null if nothing is left for this reviewer."""

    review: ReviewItem | None


class ScoreTimes:
    """A cache of exchange times by score id. Threads can share it.

    The tables are sorted by time, so a score is found quickly by the time of its exchange and slowly by its id. That time never changes.
    """

    def __init__(self) -> None:
        self._scored: dict[tuple[str, str], datetime] = {}
        self._searched: dict[tuple[str, str], datetime] = {}

    def read_scored_times(self, cursor: duckdb.DuckDBPyConnection, project: str, rater: str | None = None) -> list[datetime]:
        """Return the distinct times of a project's exchanges that people, or one person, have scored, in order."""
        scored = [row["score_id"] for row in query_rows(cursor, "people_scores", {"project": project, "rater": rater})]
        missing = [score_id for score_id in scored if (project, score_id) not in self._scored]
        if missing:
            for row in _read_times(cursor, project, missing, None, None):
                self.store(project, row["score_id"], row["exchange_at"])
        times = {self._scored.get((project, score_id)) for score_id in scored}
        return sorted(time for time in times if time is not None)

    def get(self, project: str, score_id: str) -> datetime | None:
        """Return the cached time of a score's exchange; None if it is not cached."""
        return self._scored.get((project, score_id)) or self._searched.get((project, score_id))

    def find(self, cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> datetime | None:
        """Return the time of a score's exchange, and search for it if it is not cached; None if the project has no such score."""
        at = self.get(project, score_id)
        if at is None:
            at = _search_time(cursor, project, score_id)
            if at is not None:
                self._searched[project, score_id] = at
                if len(self._searched) > MAX_CACHED_TIMES:
                    self._searched.pop(next(iter(self._searched)), None)
        return at

    def store(self, project: str, score_id: str, at: datetime) -> None:
        """Cache the time of a score's exchange."""
        self._scored[project, score_id] = at


def find_scores(
    cursor: duckdb.DuckDBPyConnection,
    times: ScoreTimes,
    project: str,
    score_ids: Iterable[str],
    *,
    session: str | None = None,
    connection: str | None = None,
) -> dict[str, datetime | None]:
    """Return the times of the exchanges of scores, and of the first scores of a session; None if the project has no such score."""
    scores = {score_id: times.find(cursor, project, score_id) for score_id in score_ids}
    if session:
        scores |= dict(scores_of_session(cursor, project, session, connection))
    return scores


def _search_time(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> datetime | None:
    """Search for the time of a score's exchange; None if there is no such score.

    People mostly open new scores, so the newest exchanges are searched first. A search through all of them takes half a second.
    """
    newest = newest_score(cursor, None)
    if newest is None:
        return None
    bounds = [None if days is None else newest - timedelta(days=days) for days in SEARCH_DAYS]
    for until, since in pairwise(bounds):
        rows = _read_times(cursor, project, [score_id], since, until)
        if rows:
            exchange_at: datetime = rows[0]["exchange_at"]
            return exchange_at
    return None


def _read_times(
    cursor: duckdb.DuckDBPyConnection, project: str, scores: Sequence[str], since: datetime | None, until: datetime | None
) -> list[dict[str, Any]]:
    """Return the times of scores with exchanges from `since` (inclusive) to `until` (exclusive); None for no bound."""
    return query_rows(cursor, "score_times", {"project": project, "scores": scores, "since": since, "until": until})


def cached_times(times: ScoreTimes | None, cursor: duckdb.DuckDBPyConnection, project: str) -> Sequence[datetime] | None:
    """Return the times of scored exchanges as a query parameter; None without a cache."""
    return None if times is None else times.read_scored_times(cursor, project)


def human_scores(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> list[HumanScore]:
    """Return all human scores of an exchange by its score id, newest first."""
    return [
        HumanScore.of(row, dimensions={points["dimension"]: points["score"] for points in row["dimensions"] or ()})
        for row in query_rows(cursor, "human_scores", {"project": project, "score": score_id})
    ]


def with_human_score(score: Score, review: Review) -> Score:
    """Return a score with a new human score, which may not be in the tables yet."""
    return msgspec.structs.replace(
        score, human_score=review.score, human_comment=review.comment, human_scored_at=review.occurred_at
    )


def next_to_review(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    rater: str,
    skip: Sequence[str] = (),
    *,
    blind: bool = False,
    order: Order = "anomalies",
    times: ScoreTimes | None = None,
) -> ReviewItem | None:
    """Return the exchange most worth reviewing, with its texts; None if nothing is left.

    `blind` omits the judge's verdict, so that it cannot bias the person. Texts are None if the exchange was deleted.
    """
    row, gain = _pick(cursor, project, {"project": project, "rater": rater, "skip": list(skip)}, order, times)
    return None if row is None else _build_item(cursor, project, row, blind=blind, gain=gain)


def next_of_queue(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    queue: ReviewQueue,
    rater: str,
    skip: Sequence[str] = (),
    *,
    now: datetime,
    blind: bool = False,
) -> tuple[ReviewItem | None, ReviewQueue]:
    """Return the next exchange of a review queue for a reviewer, None if none waits; and the queue with its progress."""
    items = queue_items(cursor, project, queue, now)
    counted = count_progress(queue, items, rater)
    item = next_item(queue, items, rater, skip)
    if item is None:
        return None, counted
    row = {
        **dataclasses.asdict(item),
        "pick": "queue",
        "stratum": None,
        "seen_by": len(item.reviewers),
    }
    return _build_item(cursor, project, row, blind=blind, queue=counted), counted


def _build_item(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    row: dict[str, Any],
    *,
    blind: bool,
    gain: LabelGain | None = None,
    queue: ReviewQueue | None = None,
) -> ReviewItem | None:
    """Return the item of a picked exchange, with its texts; None if its score is gone."""
    score = score_by_id(cursor, project, row["score_id"], row["exchange_at"])
    if score is None:
        return None
    params = {"connection": row["connection"], "exchange": row["exchange_id"], "at": row["exchange_at"]}
    exchange = next(query_records(cursor, "exchange_of", Exchange, params), None)
    return ReviewItem.of(
        row,
        session_id=score.session_id,
        turn_number=score.turn_number,
        user_message=None if exchange is None else exchange.user_message,
        agent_response=None if exchange is None else exchange.agent_response,
        agent_thinking=None if exchange is None else exchange.agent_thinking,
        stratum=None if blind else row["stratum"],
        gain=None if blind else gain,
        queue=queue,
        score=None if blind else score,
    )


def _pick(
    cursor: duckdb.DuckDBPyConnection, project: str, params: dict[str, Any], order: Order, times: ScoreTimes | None
) -> tuple[dict[str, Any] | None, LabelGain | None]:
    """Return the row of the next exchange, and what its label does for the interval, if that is the order."""
    if order == "anomalies":
        rows = query_rows(cursor, "review_queue", params | {"class": None, "is_sampled": None})
        return (rows[0] if rows else None), None
    for gain in label_gains(cursor, project, cached_times(times, cursor, project)):
        rows = query_rows(cursor, "review_queue", params | {"class": gain.stratum, "is_sampled": gain.is_sampled})
        if rows:
            return rows[0], gain
    return None, None
