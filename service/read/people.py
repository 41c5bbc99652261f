"""Human scores, the next exchange to review, and the agreement of people with the judge."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, field

from analytics.queries import query_records, query_rows
from analytics.sums.daily import query_days
from audit.agreement import Estimate as MeasuredEstimate
from audit.agreement import Label, agreement
from audit.corrected_mean import NO_SESSIONS, PopulationSums, SessionSum, WeightedLabel, corrected_mean, has_enough_labels
from schemas.lazy import duckdb
from schemas.records import Exchange, Review
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
    scored_at: Moment
    counts: Annotated[bool, Meta(description="Whether it is the person's newest score. Only that one counts.")]


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
        Meta(description="random: drawn from all judged exchanges; priority: picked for a reason.", examples=["random"]),
    ]
    stratum: Annotated[Literal["anomaly", "unscored", "unsure", "routine"] | None, Meta(description="Reason of the pick.")]
    seen_by: Annotated[int, Meta(description="Number of people who have scored it.")]
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
        """Return the answer for an estimate. `others` are the fields that the estimate lacks."""
        return cls.of(dataclasses.asdict(estimate), **others)


class RaterEstimate(Estimate, frozen=True):
    """The agreement of the judge with one person."""

    rater: str


class CorrectedMean(Answer, frozen=True):
    """The judge's Tier 3 mean, corrected by people's scores, with its 95 % interval; null with too few labels."""

    state: Literal["enough", "not_enough_labels"]
    labels: Annotated[int, Meta(description="Exchanges that people have scored.")]
    sessions: Annotated[int, Meta(description="Sessions with such exchanges.")]
    judge: Annotated[float | None, Meta(description="The judge's mean of all exchanges, 1 to 5.")]
    corrected: Annotated[float | None, Meta(description="The mean that people would have given, by estimate.")]
    low: float | None
    high: float | None
    power: Annotated[
        float | None,
        Meta(description="Share of the judge's information that is used: near 0 if its scores vary unlike people's."),
    ]


class Agreement(Answer, frozen=True):
    """The agreement of the judge with people, overall and one by one, and of people among themselves."""

    project: str
    overall: Estimate
    corrected_mean: CorrectedMean
    raters: list[RaterEstimate]
    between_raters: Estimate
    covered: Annotated[float | None, Meta(description="Share of the judged exchanges that the labels represent.")]
    unjudged: Annotated[int, Meta(description="Labels of exchanges that have no Tier 3 to compare with.")]


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
    return [HumanScore.of(row) for row in query_rows(cursor, "human_scores", {"project": project, "score": score_id})]


def with_human_score(score: Score, review: Review) -> Score:
    """Return a score with a new human score, which may not be in the tables yet."""
    return msgspec.structs.replace(
        score, human_score=review.score, human_comment=review.comment, human_scored_at=review.occurred_at
    )


def next_to_review(
    cursor: duckdb.DuckDBPyConnection, project: str, rater: str, skip: Sequence[str] = (), *, blind: bool = False
) -> ReviewItem | None:
    """Return the exchange most worth reviewing, with its texts; None if nothing is left.

    `blind` omits the judge's verdict, so that it cannot bias the person. Texts are None if the exchange was deleted.
    """
    rows = query_rows(cursor, "review_queue", {"project": project, "rater": rater, "skip": list(skip)})
    if not rows:
        return None
    row = rows[0]
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
    params = {"project": project, "from": start, "to": end, "times": cached_times(times, cursor, project)}
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
        corrected_mean=_correct_mean(cursor, project, start, end, judged),
        raters=[RaterEstimate.measured(estimate, rater=name) for name, estimate in measured.raters.items()],
        between_raters=Estimate.measured(measured.between_raters),
        covered=measured.covered,
        unjudged=len(rows) - len(judged),
    )


def _correct_mean(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    start: datetime | None,
    end: datetime | None,
    pairs: Sequence[dict[str, Any]],
) -> CorrectedMean:
    """Correct the judge's mean of a period. `pairs` are the human scores in it, each beside the judge's score of the exchange."""
    labels = _weigh_labels(pairs)
    rows: list[dict[str, Any]] = []
    if has_enough_labels(labels):  # the query reads all scores of the period
        sessions = {(pair["connection"], pair["session_id"]) for pair in pairs}
        keys = [{"connection": connection, "session_id": session_id} for connection, session_id in sessions]
        rows = query_rows(cursor, "judged_sessions", {"project": project, "from": start, "to": end, "sessions": keys})
    mean = corrected_mean(labels, _sum_labeled_sessions(rows), _sum_other_sessions(rows))
    return CorrectedMean.of(dataclasses.asdict(mean))


def _weigh_labels(pairs: Sequence[dict[str, Any]]) -> list[WeightedLabel]:
    """Return a label for each exchange in the pairs. Several human scores of an exchange count as their mean."""
    by_exchange: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for pair in pairs:
        by_exchange[pair["score_id"]].append(pair)
    labeled_in_stratum = Counter(ratings[0]["stratum"] for ratings in by_exchange.values())
    labels = []
    for ratings in by_exchange.values():
        pair = ratings[0]
        labels.append(
            WeightedLabel(
                session=(pair["connection"], pair["session_id"]),
                weight=pair["weight"] * pair["in_stratum"] / labeled_in_stratum[pair["stratum"]],
                human=fmean(rating["human_score"] for rating in ratings),
                judge=pair["judge_score"],
            )
        )
    return labels


def _sum_labeled_sessions(rows: Sequence[dict[str, Any]]) -> dict[Hashable, SessionSum]:
    """Return the judge's sums of the sessions with labels, from rows of the query `judged_sessions`."""
    return {
        (row["connection"], row["session_id"]): SessionSum(weight=row["weight"], total=row["total"])
        for row in rows
        if row["session_id"] is not None
    }


def _sum_other_sessions(rows: Sequence[dict[str, Any]]) -> PopulationSums:
    """Return the judge's sums over all sessions without labels: the row of `judged_sessions` that has no session id."""
    for row in rows:
        if row["session_id"] is None:
            return PopulationSums(
                weight=row["weight"],
                total=row["total"],
                weight_squares=row["weight_squares"],
                mixed=row["mixed"],
                total_squares=row["total_squares"],
            )
    return NO_SESSIONS
