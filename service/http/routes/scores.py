"""Scores, anomalies, the summary and the banner of a project."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import PlainTextResponse

from service.read.banner import banner_text
from service.read.baselines import project_baseline
from service.read.project import check_words, read_project
from service.read.scores import (
    Anomalies,
    OneScore,
    ProjectSummary,
    Score,
    Scores,
    Wanted,
    project_scores,
    project_summary,
    score_by_id,
)
from service.text.answers import Place, page_of
from service.text.links import API
from service.web.answering import AnswerRoute
from service.web.authentication import Reader, VisibleProject
from service.web.context import ApiContext, Services
from service.web.errors import ApiError, documented
from service.web.models import Id, QueryMoment
from service.web.parameters import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["reading"])
PROJECT = f"{API}/{{project}}"

From = Annotated[QueryMoment | None, Query(alias="from", description="Only exchanges at or after this time.")]
To = Annotated[QueryMoment | None, Query(alias="to", description="Only exchanges before this time.")]
Since = Annotated[QueryMoment | None, Query(description="Only exchanges scored, or scored again, at or after this time.")]
Session = Annotated[Id | None, Query(description="Only exchanges of this session.")]
ScoreId = Annotated[Id, Path(description="Id of the score.")]


def require_window(start: datetime | None, end: datetime | None) -> None:
    """Refuse with 400 a window that ends before it begins."""
    if start is not None and end is not None and start > end:
        raise ApiError(400, "invalid", "from: must not be after to")


def _wanted(
    *,
    start: From = None,
    end: To = None,
    since: Since = None,
    session: Session = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Wanted:
    require_window(start, end)
    after = None if cursor is None else (cursor.at, cursor.id, cursor.number)
    return Wanted(start=start, end=end, since=since, session=session, limit=limit, after=after)


Asked = Annotated[Wanted, Depends(_wanted)]


@router.get(f"{PROJECT}/scores", responses=documented(404))
async def scores(
    _: Reader,
    project: VisibleProject,
    services: Services,
    asked: Asked,
    anomalies: Annotated[bool, Query(description="Only exchanges with an anomaly.")] = False,
) -> Scores:
    """List the scores of a project, newest exchange first."""
    found, following = await _scores(services, project, dataclasses.replace(asked, anomalies=anomalies))
    return Scores(scores=found, count=len(found), next_cursor=following)


@router.get(f"{PROJECT}/anomalies", responses=documented(404))
async def anomalies(_: Reader, project: VisibleProject, services: Services, asked: Asked) -> Anomalies:
    """List the scores of a project that have an anomaly, newest exchange first.

    An exchange is listed once it has a score, moments after the ingest has answered with the result of Tier 1.
    """
    found, following = await _scores(services, project, dataclasses.replace(asked, anomalies=True))
    return Anomalies(anomalies=found, count=len(found), next_cursor=following)


@router.get(f"{PROJECT}/scores/{{score_id}}", responses=documented(404))
async def score(_: Reader, project: VisibleProject, services: Services, score_id: ScoreId) -> OneScore:
    """Return one score in its latest revision."""
    found = await services.ask(lambda cursor: score_by_id(cursor, project, score_id))
    if found is None:
        raise ApiError(404, "not_found", "the project has no score with this id")
    return OneScore(score=found)


@router.get(f"{PROJECT}/summary", responses=documented(404))
async def summary(_: Reader, project: VisibleProject, services: Services) -> ProjectSummary:
    """Return the state of a project: outcomes of its exchanges, means of the tiers, open incidents."""
    version = services.engine.policy.for_project(project).methodology.version
    baseline = await services.watch.baseline(project)
    described = None if baseline is None else project_baseline(baseline, version)
    return await services.ask(lambda cursor: project_summary(cursor, project, described))


@router.get(f"{PROJECT}/banner", response_class=PlainTextResponse, responses=documented(404))
async def banner(_: Reader, project: VisibleProject, services: Services) -> str:
    """Return the banner for an agent at the start of its session, with the settings in force."""
    settings = services.engine.policy.for_project(project).settings
    engine = services.engine
    found = await services.ask(lambda cursor: read_project(cursor, engine.policy, engine.now(), project))
    return banner_text(settings, found.open_incidents, engine.judge_name, check_words(found))


async def _scores(services: ApiContext, project: str, asked: Wanted) -> tuple[list[Score], str | None]:
    """Return a page of scores, and the cursor of the next one."""
    one_more = dataclasses.replace(asked, limit=asked.limit + 1)
    found = await services.ask(lambda cursor: project_scores(cursor, project, one_more))
    return page_of(found, asked.limit, score_place)


def score_place(score: Score) -> Place:
    """Return the place of a score among those of its project."""
    return Place(score.exchange_at, score.score_id, -1 if score.turn_number is None else score.turn_number)
