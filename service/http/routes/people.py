"""Human scores over HTTP: record them, serve the review queue, and measure agreement with the judge."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints

from audit.agreement import HIGHEST, LOWEST
from schemas.errors import PolicyError
from service.read.agreement import Agreement, project_agreement
from service.read.people import (
    MAX_SKIPPED,
    HumanScores,
    NextReview,
    Order,
    human_scores,
    next_to_review,
    with_human_score,
)
from service.read.scores import OneScore, Score, score_by_id
from service.text.links import API
from service.web.authentication import Reader, Reviewer, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.models import Id, OperatorBody, QueryMoment, Text
from streams.upkeep.annotations import MAX_COMMENT, REVIEWS, human_score, require_human_scores

router = APIRouter(route_class=JsonRoute, tags=["people"])
PROJECT = f"{API}/{{project}}"
ScoreId = Annotated[Id, Path(description="Id of the judge's score.")]
Rater = Annotated[Id | None, Query(description="Name of the reviewer; by default the operator.")]
Skip = Annotated[list[Id] | None, Query(max_length=MAX_SKIPPED, description="Ids of scores to skip; may be repeated.")]
Blind = Annotated[bool, Query(description="Hide the judge's verdict, so that it cannot bias the score.")]
Ordering = Annotated[
    Order,
    Query(description="anomalies: anomalies first; interval: what narrows the interval of the corrected mean most."),
]
Since = Annotated[QueryMoment | None, Query(alias="from", description="Only exchanges at or after this time.")]
Until = Annotated[QueryMoment | None, Query(alias="to", description="Only exchanges before this time.")]


class HumanScoreBody(OperatorBody):
    """A human score of an exchange."""

    score: Annotated[int, Field(ge=LOWEST, le=HIGHEST, description="1 (worst) to 5 (best), as in Tier 3.", examples=[4])]
    comment: Annotated[Text, StringConstraints(max_length=MAX_COMMENT)] | None = None
    rater: Id | None = Field(None, description="Name of the reviewer; by default the operator.")


@router.post(f"{PROJECT}/scores/{{score_id}}/human", responses=documented(400, 404, 408, 409, 413, 415))
async def score_by_a_person(
    project: VisibleProject, score_id: ScoreId, body: HumanScoreBody, caller: Reviewer, services: Services
) -> OneScore:
    """Record a human score, beside the judge's. The newest of each reviewer counts. 409 if the project takes none."""
    engine = services.engine
    _require_human_scores(services, project)
    score = await _require_score(services, project, score_id)
    rater = body.rater or caller.name
    record = human_score(project, score_id, rater, body.score, body.comment, redactor=engine.redactor, now=engine.now())
    with durable_or_refused():
        await engine.publish(REVIEWS, [record])
    return OneScore(score=with_human_score(score, record))


@router.get(f"{PROJECT}/scores/{{score_id}}/human", responses=documented(400, 404))
async def history(project: VisibleProject, score_id: ScoreId, _: Reader, services: Services) -> HumanScores:
    """List all human scores of an exchange, newest first."""
    await _require_score(services, project, score_id)
    scores = await services.ask(lambda cursor: human_scores(cursor, project, score_id))
    return HumanScores(human_scores=scores, count=len(scores))


@router.get(f"{PROJECT}/review/next", responses=documented(400, 404, 409))
async def next_review(
    project: VisibleProject,
    caller: Reviewer,
    services: Services,
    *,
    rater: Rater = None,
    skip: Skip = None,
    blind: Blind = False,
    order: Ordering = "anomalies",
) -> NextReview:
    """Return the next exchange to review, except the skipped ones. 409 if the policy switches human scores off for the project."""
    _require_human_scores(services, project)
    reviewer = rater or caller.name
    times = services.score_times
    item = await services.ask(
        lambda cursor: next_to_review(cursor, project, reviewer, skip or (), blind=blind, order=order, times=times)
    )
    return NextReview(review=item)


@router.get(f"{PROJECT}/agreement", responses=documented(400, 404))
async def get_agreement(
    project: VisibleProject, _: Reader, services: Services, since: Since = None, until: Until = None
) -> Agreement:
    """Return the agreement between people and the judge, among people, between judges, and of a judge with itself."""
    database = services.engine.store.path
    return await services.ask(lambda cursor: project_agreement(cursor, project, since, until, database=database))


def _require_human_scores(services: ApiContext, project: str) -> None:
    try:
        require_human_scores(services.engine.policy, project)
    except PolicyError as error:
        raise ApiError(409, "human_scores_off", str(error)) from None


async def _require_score(services: ApiContext, project: str, score_id: str) -> Score:
    """Return the score; 404 if the project has no score of this id."""
    at = services.score_times.get(project, score_id)
    score = await services.ask(lambda cursor: score_by_id(cursor, project, score_id, at))
    if score is None:
        raise ApiError(404, "not_found", "the project has no score with this id")
    return score
