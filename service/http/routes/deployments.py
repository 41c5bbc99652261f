"""Deployments over HTTP: releases that charts and incidents can name."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import Field

from schemas.bounds import MAX_LABEL
from service.read.versions import DeploymentList, RecordedDeployment, deployed_version, deployed_versions
from service.text.links import API
from service.web.authentication import Reader, Reviewer, VisibleProject
from service.web.context import Services, durable_or_refused
from service.web.errors import documented
from service.web.json_routes import JsonRoute, answering
from service.web.middleware import set_subject
from service.web.models import Id, Moment, OperatorBody, QueryMoment, Text
from streams.upkeep.annotations import (
    DEFAULT_LABEL,
    MAX_DEPLOYMENT_COMMENT,
    MAX_URL,
    TOPIC,
    deployment,
    find_repeated_deployment,
)

router = APIRouter(route_class=JsonRoute, tags=["deployments"])
PATH = f"{API}/{{project}}/deployments"


class DeploymentBody(OperatorBody):
    """A version that was deployed."""

    version: Annotated[Id, Field(max_length=MAX_LABEL, examples=["2.0.0"])]
    label: str = Field(DEFAULT_LABEL, description="Label of the exchanges whose value is the version.")
    agent: Id | None = Field(None, description="Agent that was deployed; by default the whole project.")
    at: Moment | None = Field(
        None, description="Time; now by default, unless this version is already the newest of label and agent."
    )
    by: Id | None = Field(None, description="Person who deployed it; by default the name of the token.")
    comment: Annotated[Text, Field(max_length=MAX_DEPLOYMENT_COMMENT)] | None = None
    url: Annotated[str, Field(max_length=MAX_URL)] | None = Field(None, examples=["https://example.org/releases/2.0.0"])


@router.post(
    PATH,
    status_code=201,
    responses={
        200: answering(RecordedDeployment, "It was recorded before"),
        **documented(400, 404, 408, 413, 415),
    },
)
async def add_deployment(
    *, request: Request, project: VisibleProject, caller: Reviewer, services: Services, response: Response, body: DeploymentBody
) -> RecordedDeployment:
    """Record a deployment. Recording it again changes nothing. Charts mark it, and an incident that began with it names it."""
    engine = services.engine
    record = deployment(
        project=project,
        version=body.version,
        by=body.by or caller.name,
        now=engine.now(),
        redactor=engine.redactor,
        label=body.label,
        agent=body.agent,
        at=body.at,
        comment=body.comment,
        url=body.url,
    )
    set_subject(request, f"{record.label} {record.version}")
    recorded_before = None if body.at is not None else await asyncio.to_thread(find_repeated_deployment, engine.store, record)
    if recorded_before is not None:
        response.status_code = 200
        return RecordedDeployment(deployment=deployed_version(recorded_before), known=True)
    with durable_or_refused():
        published = await engine.publish(TOPIC, [record])
        await engine.wait_for_tables(TOPIC)
    response.status_code = 200 if published.known else 201
    answer = deployed_version(msgspec.structs.asdict(record))
    return RecordedDeployment(deployment=answer, known=bool(published.known))


@router.get(PATH, responses=documented(400, 404))
async def list_deployments(
    project: VisibleProject,
    _: Reader,
    services: Services,
    since: QueryMoment | None = None,
    until: QueryMoment | None = None,
) -> DeploymentList:
    """List the deployments of a project, newest first, at most a thousand. `since` is inclusive, `until` exclusive."""
    listed = await services.ask(lambda cursor: deployed_versions(cursor, project, since, until))
    return DeploymentList(deployments=listed, count=len(listed))
