"""Baselines over HTTP: the normal range of a project's scores."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from schemas.records import Baseline
from service.http.answers.project_answers import Moment, ProjectAnswer, Share
from service.read.incidents import NO_BASELINE, baseline_document
from service.text.paths import API
from service.web.authentication import Admin, Reader, VisibleProject
from service.web.bodies import JsonRoute
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import documented
from service.web.models import OperatorBody
from service.web.response_models import Answer

router = APIRouter(route_class=JsonRoute, tags=["baselines"])
BASELINE = f"{API}/{{project}}/baseline"


class WindowBody(OperatorBody):
    """The window of a baseline."""

    window: Annotated[str, Field(pattern="^[1-9][0-9]{0,2}d$", examples=["14d"])] | None = Field(
        None, description="Days, such as 14d; 999d at most. The policy's value by default."
    )


class TierAnswer(Answer):
    """Distribution of one tier, rounded to three decimals; the deviation is of the population."""

    avg: float | None
    stddev: float | None
    count: int


class AveragesAnswer(ProjectAnswer):
    """The tiers of a baseline and its rate of anomalies."""

    tier1: TierAnswer
    tier2: TierAnswer
    tier2_5: TierAnswer
    tier3: TierAnswer
    anomaly_rate: Share | None


class BaselineAnswer(ProjectAnswer):
    """The normal range of a project's scores."""

    id: str
    project: str
    computed_at: Moment
    window_start: Moment
    window_end: Moment
    dimension_averages: AveragesAnswer
    exchange_count: int
    schema_version: str = Field(description="Version of the methodology.")


class OneBaselineAnswer(Answer):
    """The latest baseline, or the reason why there is none."""

    baseline: BaselineAnswer | None
    message: str | None = Field(None, description="Why there is none.")


@router.get(BASELINE, responses=documented(404), response_model_exclude_unset=True)
async def baseline(_: Reader, project: VisibleProject, services: Services) -> OneBaselineAnswer:
    """Return the latest baseline of a project. It is computed after new scores, and again when it is older than a day."""
    return _answer(services, project, await services.watch.baseline(project))


@router.post(f"{BASELINE}/recompute", responses=documented(400, 404, 408, 413, 415), response_model_exclude_unset=True)
async def recompute(_: Admin, project: VisibleProject, services: Services, body: WindowBody | None = None) -> OneBaselineAnswer:
    """Compute a baseline over a window that ends now, and compare with it from now on."""
    window = None if body is None or body.window is None else int(body.window.removesuffix("d"))
    with durable_or_refused():
        return _answer(services, project, await services.watch.recompute(project, window))


def _answer(services: ApiContext, project: str, found: Baseline | None) -> OneBaselineAnswer:
    version = services.engine.policy.for_project(project).methodology.version
    document = baseline_document(found, version)
    if document is None:
        return OneBaselineAnswer(baseline=None, message=NO_BASELINE)
    return OneBaselineAnswer(baseline=BaselineAnswer.model_validate(document))
