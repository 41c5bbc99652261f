"""Judging unscored exchanges again, while the server has the database."""

from __future__ import annotations

from fastapi import APIRouter

from service.text.links import API
from service.web.authentication import Admin, VisibleProject
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.models import RejudgeBody
from service.write.outcomes import RequestedJudgements

router = APIRouter(route_class=JsonRoute, tags=["judging"])


@router.post(f"{API}/{{project}}/rejudge", status_code=202, responses=documented(400, 404, 408, 409, 413, 415))
async def rejudge(
    _: Admin, project: VisibleProject, services: Services, body: RejudgeBody | None = None
) -> RequestedJudgements:
    """Judge the unscored exchanges of a project in the background, within the cap of each session. 409 without a judge."""
    request = body or RejudgeBody()
    if not services.engine.has_judge:
        raise ApiError(409, "no_judge", "this server has no judge")
    with durable_or_refused():
        return RequestedJudgements(requested=await services.engine.rejudge(project, request.reason, request.limit))
