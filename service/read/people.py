"""Human scores: the scores, the next exchange to review, and the agreement with the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, field

from analytics.queries import query_records, query_rows
from analytics.sums.daily import query_days
from audit.agreement import Estimate as MeasuredEstimate
from audit.agreement import Label, agreement
from schemas.lazy import duckdb
from schemas.records import Exchange, Review
from service.read.scores import Score, newest_score, score_by_id
from service.text.answers import Answer, Moment

MAX_SKIPPED = 1000
"""Maximum number of scores that a reviewer can skip."""
MAX_FOUND = 10_000
"""Maximum number of cached times of single scores; beyond it the oldest entry is dropped."""
DAYS_BACK = (None, 1, 4, 16, 64, None)
"""The bounds of the periods in which a score is searched, one after the other, in days before the newest exchange."""


class HumanScore(Answer, frozen=True):
    """One person's score at one time."""

    rater: str
    score: int
    comment: str | None
    scored_at: Moment
    counts: Annotated[bool, Meta(description="Whether it is the reviewer's newest score, which is the one that counts.")]


class HumanScores(Answer, frozen=True):
    """All human scores of an exchange, newest first."""

    human_scores: list[HumanScore]
    count: int


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
        Literal["random", "priority"],
        Meta(description="drawn from all judged exchanges, or picked for a reason.", examples=["random"]),
    ]
    stratum: Annotated[Literal["anomaly", "unscored", "unsure", "routine"] | None, Meta(description="Reason of the pick.")]
    seen_by: Annotated[int, Meta(description="People who have scored it.")]
    score: Score | None


class NextReview(Answer, frozen=True):
    """The next exchange to review; null if nothing is left for this reviewer."""

    review: ReviewItem | None


class Estimate(Answer, frozen=True):
    """Agreement of two sides: kappa with quadratic weights and bias, with 95 % intervals; null with too few labels."""

    state: Literal["enough", "not_enough_labels", "one_category"]
    labels: int
    exchanges: int
    sessions: int
    kappa: float | None
    low: float | None
    high: float | None
    bias: Annotated[float | None, Meta(description="Mean of the judge's points minus the people's.")]
    bias_low: float | None
    bias_high: float | None

    @classmethod
    def measured(cls, estimate: MeasuredEstimate, **others: Any) -> Self:
        """Return the answer for a measured estimate; `others` are the fields that the estimate lacks."""
        return cls.of(dataclasses.asdict(estimate), **others)


class RaterEstimate(Estimate, frozen=True):
    """The judge against one person."""

    rater: str


class Agreement(Answer, frozen=True):
    """The judge against people, overall and one by one, and people among themselves."""

    project: str
    overall: Estimate
    raters: list[RaterEstimate]
    between_raters: Estimate
    covered: Annotated[float | None, Meta(description="Share of the judged exchanges that the labels represent.")]
    unjudged: Annotated[int, Meta(description="Labels of exchanges that have no Tier 3 to compare with.")]


class ScoreTimes:
    """A cache of exchange times by score id. It can be shared between threads.

    A score is found among millions by its time, not by its id, and the time of an exchange never changes. With a few hundred cached
    times a page need not search all ids.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], datetime] = {}
        self._found: dict[tuple[str, str], datetime] = {}

    def of_people(self, cursor: duckdb.DuckDBPyConnection, project: str, rater: str | None = None) -> list[datetime]:
        """Return the distinct times of a project's exchanges that people, or one person, have scored."""
        scored = [row["score_id"] for row in query_rows(cursor, "people_scores", {"project": project, "rater": rater})]
        unknown = [one for one in scored if (project, one) not in self._known]
        if unknown:
            for row in _times_of(cursor, project, unknown, None, None):
                self.learn(project, row["score_id"], row["exchange_at"])
        stored_times = (self._known.get((project, one)) for one in scored)
        return sorted({at for at in stored_times if at is not None})

    def time_of(self, project: str, score_id: str) -> datetime | None:
        """Return the cached time of a score's exchange; None if it is not cached."""
        return self._known.get((project, score_id)) or self._found.get((project, score_id))

    def find(self, cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> datetime | None:
        """Return the time of a score's exchange, searching for it once; None if the project has no such score.

        Most scores that people open are new, so the newest exchanges are searched first: searching all takes half a second.
        """
        at = self.time_of(project, score_id)
        if at is None:
            at = _found_time(cursor, project, score_id)
            if at is not None:
                self._found[project, score_id] = at
                if len(self._found) > MAX_FOUND:
                    self._found.pop(next(iter(self._found)), None)
        return at

    def learn(self, project: str, score_id: str, at: datetime) -> None:
        """Cache the time of a score that was read anyway."""
        self._known[project, score_id] = at


def _found_time(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> datetime | None:
    """Return the time of a score's exchange; None if the score is unknown."""
    newest = newest_score(cursor, None)
    if newest is None:
        return None
    bounds = [None if days is None else newest - timedelta(days=days) for days in DAYS_BACK]
    for until, since in pairwise(bounds):
        for row in _times_of(cursor, project, [score_id], since, until):
            at: datetime = row["exchange_at"]
            return at
    return None


def _times_of(
    cursor: duckdb.DuckDBPyConnection, project: str, scores: Sequence[str], since: datetime | None, until: datetime | None
) -> list[dict[str, Any]]:
    """Return the times of scores whose exchanges lie between two moments; None is no bound."""
    return query_rows(cursor, "score_times", {"project": project, "scores": scores, "since": since, "until": until})


def known_times(times: ScoreTimes | None, cursor: duckdb.DuckDBPyConnection, project: str) -> Sequence[datetime] | None:
    """Return the cached times as a query's parameter; None without a cache, which the query reads as unknown."""
    return None if times is None else times.of_people(cursor, project)


def human_scores(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str) -> list[HumanScore]:
    """Return all human scores of an exchange by its score id, newest first."""
    return [HumanScore.of(row) for row in query_rows(cursor, "human_scores", {"project": project, "score": score_id})]


def with_human_score(score: Score, review: Review) -> Score:
    """Return a score with a new human score as its newest, even if that is not in the tables yet."""
    return msgspec.structs.replace(
        score, human_score=review.score, human_comment=review.comment, human_scored_at=review.occurred_at
    )


def next_to_review(
    cursor: duckdb.DuckDBPyConnection, project: str, rater: str, skip: Sequence[str] = (), *, blind: bool = False
) -> ReviewItem | None:
    """Return the exchange most worth reviewing, with its texts; None if nothing is left.

    With `blind` the judge's verdict is left out, so that it cannot bias the score. Texts are None if the exchange was deleted.
    """
    rows = query_rows(cursor, "review_queue", {"project": project, "rater": rater, "skip": list(skip)})
    if not rows:
        return None
    (row,) = rows
    score = score_by_id(cursor, project, row["score_id"], row["exchange_at"])
    if score is None:
        return None
    wanted = {"connection": row["connection"], "exchange": row["exchange_id"], "at": row["exchange_at"]}
    exchange = next(query_records(cursor, "exchange_of", Exchange, wanted), None)
    texts = ("user_message", "agent_response", "agent_thinking")
    return ReviewItem.of(
        row,
        session_id=score.session_id,
        turn_number=score.turn_number,
        **{name: exchange and getattr(exchange, name) for name in texts},
        stratum=None if blind else row["stratum"],
        score=None if blind else score,
    )


def project_agreement(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    start: datetime | None = None,
    end: datetime | None = None,
    times: ScoreTimes | None = None,
) -> Agreement:
    """Return the agreement of people and judge in a project, for exchanges from `start` (inclusive) to `end` (exclusive)."""
    params = {"project": project, "from": start, "to": end, "times": known_times(times, cursor, project)}
    rows = query_days(cursor, "agreement_pairs", params)
    judged = [row for row in rows if row["judge_score"] is not None]
    labels = [
        Label(
            exchange=row["score_id"],
            session=(row["connection"], row["session_id"]),
            rater=row["rater"],
            human=row["human_score"],
            judge=row["judge_score"],
            stratum=row["stratum"],
        )
        for row in judged
    ]
    population = {row["stratum"]: row["in_stratum"] for row in judged}
    if judged:
        population["unseen"] = judged[0]["judged"] - sum(population.values())
    measured = agreement(labels, population)
    return Agreement(
        project=project,
        overall=Estimate.measured(measured.overall),
        raters=[RaterEstimate.measured(estimate, rater=name) for name, estimate in measured.raters.items()],
        between_raters=Estimate.measured(measured.between_raters),
        covered=measured.covered,
        unjudged=len(rows) - len(judged),
    )
