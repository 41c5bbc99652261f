"""Baselines over HTTP: the normal range of a project's scores."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from schemas.records import Baseline
from service.read.scores import NO_BASELINE, LatestBaseline, project_baseline
from service.text.links import API
from service.web.authentication import Admin, Reader, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import documented
from service.web.json_routes import JsonRoute
from service.web.models import OperatorBody

router = APIRouter(route_class=JsonRoute, tags=["baselines"])
BASELINE = f"{API}/{{project}}/baseline"


class WindowBody(OperatorBody):
    """The window of a baseline."""

    window: Annotated[str, Field(pattern="^[1-9][0-9]{0,2}d$", examples=["14d"])] | None = Field(
        None, description="Days, such as 14d; 999d at most. The policy's value by default."
    )


@router.get(BASELINE, responses=documented(404))
async def baseline(_: Reader, project: VisibleProject, services: Services) -> LatestBaseline:
    """Return the latest baseline of a project. It is computed after new scores, and again when it is older than a day."""
    return _latest_baseline(services, project, await services.watch.baseline(project))


@router.post(f"{BASELINE}/recompute", responses=documented(400, 404, 408, 413, 415))
async def recompute(_: Admin, project: VisibleProject, services: Services, body: WindowBody | None = None) -> LatestBaseline:
    """Compute a baseline over a window that ends now, and compare with it from now on."""
    window = None if body is None or body.window is None else int(body.window.removesuffix("d"))
    with durable_or_refused():
        return _latest_baseline(services, project, await services.watch.recompute(project, window))


def _latest_baseline(services: ApiContext, project: str, baseline: Baseline | None) -> LatestBaseline:
    if baseline is None:
        return LatestBaseline(baseline=None, message=NO_BASELINE)
    version = services.engine.policy.for_project(project).methodology.version
    return LatestBaseline(baseline=project_baseline(baseline, version))
