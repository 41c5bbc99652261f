"""Anchors over HTTP: exchanges that are judged again in rounds, and the check whether the judge has changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field, model_validator

from schemas.errors import InputError
from service.read.judges import Anchors, BegunRound, ChosenAnchors, OneAnchor, anchored_exchange, project_anchors
from service.text.links import API
from service.web.authentication import Admin, Reader, Reviewer, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.models import ConnectionName, Id, OperatorBody
from streams.upkeep.anchors import candidates, choose, find_exchanges, run_round, withdraw

router = APIRouter(route_class=JsonRoute, tags=["anchors"])
ANCHORS_PATH = f"{API}/{{project}}/anchors"
MAX_ANCHORS = 500


class AnchorsBody(OperatorBody):
    """The exchanges to choose as anchors: named ones, or a number spread over the range of the judge's scores."""

    exchange_ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_ANCHORS)] | None = Field(None, alias="exchangeIds")
    connection: ConnectionName | None = Field(None, description="Connection of the exchanges, if two connections use one id.")
    count: Annotated[int, Field(ge=1, le=MAX_ANCHORS)] | None = Field(
        None, description="Number of anchors; by default that of the policy."
    )

    @model_validator(mode="after")
    def _check_choice(self) -> AnchorsBody:
        if self.exchange_ids is not None and self.count is not None:
            raise ValueError("give either exchangeIds or count")
        return self


@router.get(ANCHORS_PATH, responses=documented(400, 404))
async def anchors(project: VisibleProject, _: Reader, services: Services) -> Anchors:
    """List the anchors of a project, and whether its judge has changed."""
    return await services.ask(lambda cursor: project_anchors(cursor, project))


@router.post(ANCHORS_PATH, status_code=201, responses=documented(400, 404, 408, 413, 415))
async def choose_anchors(
    project: VisibleProject, caller: Reviewer, services: Services, body: AnchorsBody | None = None
) -> ChosenAnchors:
    """Choose anchors. Each is judged again in every round, which costs at most the cap of one session."""
    exchanges = await _select_exchanges(services, project, body or AnchorsBody())
    with durable_or_refused():
        chosen = await choose(services.engine, project, exchanges, caller.name)
    return ChosenAnchors(anchors=[anchored_exchange(anchor) for anchor in chosen], count=len(chosen))


@router.delete(f"{ANCHORS_PATH}/{{anchor_id}}", responses=documented(400, 404))
async def withdraw_anchor(
    project: VisibleProject,
    anchor_id: Annotated[Id, Path(description="Id of the anchor.")],
    caller: Reviewer,
    services: Services,
) -> OneAnchor:
    """Stop judging an anchor; its results so far are kept."""
    with durable_or_refused():
        withdrawn = await withdraw(services.engine, project, anchor_id, caller.name)
    if withdrawn is None:
        raise ApiError(404, "not_found", "the project has no anchor with this id")
    return OneAnchor(anchor=anchored_exchange(withdrawn))


@router.post(f"{ANCHORS_PATH}/run", status_code=202, responses=documented(400, 404, 408, 409, 413, 415))
async def begin_round(project: VisibleProject, _: Admin, services: Services) -> BegunRound:
    """Judge the anchors again now, at most once per minute. 409 without a judge, or if the project is not audited."""
    engine = services.engine
    if not engine.has_judge:
        raise ApiError(409, "no_judge", "this server has no judge")
    if not engine.policy.for_project(project).settings.enabled:
        raise ApiError(409, "not_audited", "auditing of this project is switched off")
    with durable_or_refused():
        anchor_round = await run_round(engine, project)
    return BegunRound(round=anchor_round.at, anchors=anchor_round.exchanges)


async def _select_exchanges(services: ApiContext, project: str, body: AnchorsBody) -> list[tuple[str, str]]:
    """Return the connection and id of each chosen exchange. Raises ApiError (400) if the project lacks a named exchange."""
    ids = body.exchange_ids
    if ids is None:
        count = body.count or services.engine.policy.for_project(project).settings.anchors.count
        return await services.ask(lambda cursor: candidates(cursor, project, count))
    try:
        return await services.ask(lambda cursor: find_exchanges(cursor, project, ids, body.connection))
    except InputError as error:
        raise ApiError(400, "invalid", f"exchangeIds: {error}") from None
