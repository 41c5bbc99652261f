"""Human scores over HTTP: record them, serve the review queue, and measure agreement with the judge."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints

from audit.agreement import HIGHEST, LOWEST
from schemas.errors import PolicyError
from service.read.agreement import Agreement, project_agreement
from service.read.incidents import assignee_problem, people_of
from service.read.people import (
    MAX_SKIPPED,
    HumanScores,
    NextReview,
    Order,
    find_scores,
    human_scores,
    next_of_queue,
    next_to_review,
    with_human_score,
)
from service.read.review_queues import (
    MAX_ADDED,
    MAX_NAMES,
    MAX_PER_DAY,
    MAX_QUEUES,
    MAX_REVIEWS,
    MAX_RUBRIC,
    ChangedItems,
    ReviewQueue,
    ReviewQueues,
    Tier,
    dump_settings,
    parse_settings,
    read_queues,
    review_queues,
)
from service.read.scores import OneScore, Score, score_by_id
from service.text.links import API
from service.web.authentication import Reader, Reviewer, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.models import ConnectionName, Id, OperatorBody, QueryMoment, QueueName, Text
from streams.upkeep.annotations import MAX_COMMENT, REVIEWS, human_score, queue_item, require_human_scores, review_queue

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


NamedQueue = Annotated[QueueName, Path(description="Name of the review queue.")]


class RuleBody(OperatorBody):
    """The exchanges that come into a review queue by themselves. Each condition that is given must hold."""

    agent: Id | None = None
    version: Id | None = Field(None, description="Of the agent, from its label.")
    tool: Id | None = Field(None, description="Called in the exchange.")
    tool_error: bool = Field(False, alias="toolError", description="Only with a failed tool call, of `tool` if that is given.")
    anomaly: bool = Field(False, description="Only with an anomaly.")
    reason: Id | None = Field(None, description="Part of an anomaly reason or a flag of Tier 1.")
    failure: Id | None = Field(None, description="Primary failure of the session's run.")
    tier: Tier = Field("tier2", description="Tier of `most`.")
    most: float | None = Field(None, description="Only with at most this score.", examples=[0.5])
    share: float = Field(1.0, gt=0, le=1, description="Share of the matching exchanges, drawn by hash.")
    per_day: int = Field(20, alias="perDay", ge=1, le=MAX_PER_DAY, description="At most so many per UTC day, drawn by hash.")


class QueueBody(OperatorBody):
    """The definition of a review queue."""

    rubric: Annotated[Text, StringConstraints(max_length=MAX_RUBRIC)] = Field("", description="What reviewers are to look at.")
    dimensions: Annotated[list[Id], Field(max_length=MAX_NAMES)] = Field(
        default_factory=list, description="Dimensions of the judge to score, besides the whole."
    )
    assignees: Annotated[list[Id], Field(max_length=MAX_NAMES)] = Field(
        default_factory=list, description="Names of the operators who review it; empty for anyone."
    )
    reviews: int = Field(1, ge=1, le=MAX_REVIEWS, description="People who are to score each exchange.")
    rule: RuleBody | None = Field(None, description="null: only exchanges that people add.")


class ItemsBody(OperatorBody):
    """Exchanges for a review queue."""

    scores: Annotated[list[Id], Field(max_length=MAX_ADDED)] = Field(default_factory=list, description="Ids of their scores.")
    session: Id | None = Field(None, description=f"A session, of which the first {MAX_ADDED} scored exchanges are meant.")
    connection: ConnectionName | None = Field(None, description="Connection of the session, if several have its id.")
    remove: bool = Field(False, description="Take the exchanges out.")


class HumanScoreBody(OperatorBody):
    """A human score of an exchange."""

    score: Annotated[int, Field(ge=LOWEST, le=HIGHEST, description="1 (worst) to 5 (best), as in Tier 3.", examples=[4])]
    comment: Annotated[Text, StringConstraints(max_length=MAX_COMMENT)] | None = None
    rater: Id | None = Field(None, description="Name of the reviewer; by default the operator.")
    queue: QueueName | None = Field(None, description="The review queue in which it is given; null for the general one.")
    dimensions: Annotated[dict[Id, int], Field(max_length=MAX_NAMES)] = Field(
        default_factory=dict, description="Points of the dimensions that the queue asks for, 1 to 5."
    )


@router.post(f"{PROJECT}/scores/{{score_id}}/human", responses=documented(400, 404, 408, 409, 413, 415))
async def score_by_a_person(
    project: VisibleProject, score_id: ScoreId, body: HumanScoreBody, caller: Reviewer, services: Services
) -> OneScore:
    """Record a human score, beside the judge's. The newest of each reviewer counts. 409 if the project takes none."""
    engine = services.engine
    _require_human_scores(services, project)
    score = await _require_score(services, project, score_id)
    rater = body.rater or caller.name
    queue = None if body.queue is None else await _require_queue(services, project, body.queue)
    for name in body.dimensions:
        if queue is None or name not in queue.settings.dimensions:
            raise ApiError(400, "invalid", f"dimensions.{name}: is not a dimension of the review queue")
    record = human_score(
        project,
        score_id,
        rater,
        body.score,
        body.comment,
        redactor=engine.redactor,
        now=engine.now(),
        queue=body.queue,
        dimensions=body.dimensions,
        exchange_at=score.exchange_at if queue else None,
    )
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
    queue: Annotated[QueueName | None, Query(description="A review queue; by default the general one.")] = None,
) -> NextReview:
    """Return the next exchange to review, except the skipped ones. 409 if the policy switches human scores off for the project."""
    _require_human_scores(services, project)
    reviewer = rater or caller.name
    times = services.score_times
    if queue is not None:
        chosen = await _require_queue(services, project, queue)
        now = services.engine.now()
        item, _ = await services.ask(
            lambda cursor: next_of_queue(cursor, project, chosen, reviewer, skip or (), now=now, blind=blind)
        )
        return NextReview(review=item)
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


@router.get(f"{PROJECT}/review/queues", responses=documented(400, 404))
async def list_queues(project: VisibleProject, caller: Reader, services: Services, rater: Rater = None) -> ReviewQueues:
    """List the open review queues of a project, with their progress."""
    now = services.engine.now()
    queues = await services.ask(lambda cursor: review_queues(cursor, project, rater or caller.name, now))
    return ReviewQueues(queues=queues, count=len(queues))


@router.put(f"{PROJECT}/review/queues/{{name}}", responses=documented(400, 404, 408, 409, 413, 415))
async def define_queue(
    project: VisibleProject, name: NamedQueue, body: QueueBody, caller: Reviewer, services: Services
) -> ReviewQueue:
    """Create a review queue, or replace its definition. Its exchanges and scores stay. 409 with too many queues."""
    engine = services.engine
    await services.require_project(project)
    settings = parse_settings(body.model_dump(by_alias=True), engine.policy.for_project(project))
    people = people_of(services.access, project)
    for assignee in settings.assignees:
        problem = assignee_problem(assignee, people, project)
        if problem:
            raise ApiError(400, "invalid", f"assignees: {problem.removeprefix('assignee: ')}")
    queues = await services.ask(lambda cursor: read_queues(cursor, project))
    if len(queues) >= MAX_QUEUES and name not in {queue.name for queue in queues}:
        raise ApiError(409, "too_many_queues", f"the project has {MAX_QUEUES} review queues; close one first")
    settings = msgspec.structs.replace(settings, rubric=engine.redactor.redact(settings.rubric)[0])
    record = review_queue(project, name, caller.name, dump_settings(settings), now=engine.now())
    with durable_or_refused():
        await engine.publish(REVIEWS, [record])
    return ReviewQueue(name=name, settings=settings, defined_by=caller.name, defined_at=record.occurred_at)


@router.delete(f"{PROJECT}/review/queues/{{name}}", responses=documented(400, 404, 408))
async def close_queue(project: VisibleProject, name: NamedQueue, caller: Reviewer, services: Services) -> ReviewQueue:
    """Close a review queue. Its scores stay; defining it again reopens it with its exchanges."""
    queue = await _require_queue(services, project, name)
    with durable_or_refused():
        await services.engine.publish(REVIEWS, [review_queue(project, name, caller.name, None, now=services.engine.now())])
    return queue


@router.post(f"{PROJECT}/review/queues/{{name}}/items", responses=documented(400, 404, 408, 413, 415))
async def add_items(
    project: VisibleProject, name: NamedQueue, body: ItemsBody, caller: Reviewer, services: Services
) -> ChangedItems:
    """Add exchanges to a review queue, or take them out: by the ids of their scores, or those of a session."""
    await _require_queue(services, project, name)
    if not body.scores and body.session is None:
        raise ApiError(400, "invalid", "scores: give ids of scores, or a session")
    times = services.score_times
    scores = await services.ask(
        lambda cursor: find_scores(cursor, times, project, body.scores, session=body.session, connection=body.connection)
    )
    missing = [score_id for score_id, at in scores.items() if at is None]
    if missing or not scores:
        named = f"no score with the id {missing[0]}" if missing else "no scored exchange in this session"
        raise ApiError(404, "not_found", f"the project has {named}")
    now = services.engine.now()
    records = [
        queue_item(project, name, score_id, at, caller.name, now=now, is_removed=body.remove)
        for score_id, at in scores.items()
        if at is not None
    ]
    with durable_or_refused():
        await services.engine.publish(REVIEWS, records)
    return ChangedItems(queue=name, changed=len(records))


async def _require_queue(services: ApiContext, project: str, name: str) -> ReviewQueue:
    """Return an open review queue without its progress; 404 if the project has none of this name."""
    queues = await services.ask(lambda cursor: read_queues(cursor, project))
    queue = next((queue for queue in queues if queue.name == name), None)
    if queue is None:
        raise ApiError(404, "not_found", f"the project has no open review queue {name}")
    return queue


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
