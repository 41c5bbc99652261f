"""What operators read of a project: scores, anomalies, the summary, the banner."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import PlainTextResponse

from service.api.authentication import VisibleProject
from service.api.context import ApiContext, Services
from service.api.errors import ApiError, documented
from service.api.models import QueryMoment
from service.api.project_answers import AnomaliesAnswer, ScoreAnswer, ScoresAnswer, SummaryAnswer
from service.api.settings import API
from service.banner import banner_text
from service.documents import project_scores, project_summary

router = APIRouter(tags=["reading"])
PROJECT = f"{API}/{{project}}"
MAX_ROWS = 1000
Window = tuple[datetime | None, datetime | None]

Since = Annotated[QueryMoment | None, Query(alias="from", description="Only exchanges at or after this time.")]
Until = Annotated[QueryMoment | None, Query(alias="to", description="Only exchanges before this time.")]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="At most so many.")]


def _window(since: Since = None, until: Until = None) -> Window:
    if since is not None and until is not None and since > until:
        raise ApiError(400, "invalid", "from: lies after to")
    return since, until


Between = Annotated[Window, Depends(_window)]


@router.get(f"{PROJECT}/scores", responses=documented(400))
async def scores(
    project: VisibleProject,
    services: Services,
    window: Between,
    anomalies: Annotated[bool, Query(description="Only exchanges with an anomaly.")] = False,
    limit: Limit = 100,
) -> ScoresAnswer:
    """List the scores of a project, newest exchange first."""
    found = await _scores(services, project, window, anomalies=anomalies, limit=limit)
    return ScoresAnswer(scores=found, count=len(found))


@router.get(f"{PROJECT}/anomalies", responses=documented(400))
async def anomalies(project: VisibleProject, services: Services, window: Between, limit: Limit = 100) -> AnomaliesAnswer:
    """List the scores of a project that have an anomaly, newest exchange first."""
    found = await _scores(services, project, window, anomalies=True, limit=limit)
    return AnomaliesAnswer(anomalies=found, count=len(found))


@router.get(f"{PROJECT}/summary", responses=documented(400))
async def summary(project: VisibleProject, services: Services) -> SummaryAnswer:
    """Say where a project stands: what became of its exchanges, means of the tiers, what is open."""
    return SummaryAnswer.model_validate(await services.ask(lambda cursor: project_summary(cursor, project)))


@router.get(f"{PROJECT}/banner", response_class=PlainTextResponse, responses=documented(400))
async def banner(project: VisibleProject, services: Services) -> str:
    """The banner that an agent is shown when its session starts, with the settings in force."""
    known = await services.ask(lambda cursor: project_summary(cursor, project))
    settings = services.engine.policy.for_project(project).settings
    return banner_text(settings, known["openIncidents"], services.engine.judge_name)


async def _scores(services: ApiContext, project: str, window: Window, *, anomalies: bool, limit: int) -> list[ScoreAnswer]:
    start, end = window
    documents = await services.ask(
        lambda cursor: project_scores(cursor, project, start=start, end=end, anomalies=anomalies, limit=limit)
    )
    return [ScoreAnswer.model_validate(document) for document in documents]
