"""Annotations over HTTP: times and ranges of a project that people mark on its charts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field

from schemas.records import Review
from service.read.annotations import Annotation, AnnotationList, ChangedAnnotation, read_annotation, read_annotations
from service.setup.access import Holder
from service.text.links import API
from service.web.authentication import Reader, Reviewer, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import Id, Moment, OperatorBody, QueryMoment, Text
from streams.upkeep.annotations import MAX_ANNOTATION, REVIEWS, annotation, deleted_annotation

router = APIRouter(route_class=JsonRoute, tags=["annotations"])
PATH = f"{API}/{{project}}/annotations"
AnnotationId = Annotated[Id, Path(description="Id of the annotation.")]


class AnnotationBody(OperatorBody):
    """What happened, and when."""

    text: Annotated[Text, Field(min_length=1, max_length=MAX_ANNOTATION, examples=["Switched the prompt"])]
    at: Moment | None = Field(None, description="The time, or the start of the range; by default now, or unchanged.")
    until: Moment | None = Field(None, description="The end of the range; by default it marks a moment.")


@router.get(PATH, responses=documented(400, 404))
async def list_annotations(
    project: VisibleProject,
    _: Reader,
    services: Services,
    since: QueryMoment | None = None,
    until: QueryMoment | None = None,
) -> AnnotationList:
    """List the annotations of a project, newest first, at most a thousand. `since` is inclusive, `until` exclusive; ranges need only overlap."""
    listed = await services.ask(lambda cursor: read_annotations(cursor, project, since, until))
    return AnnotationList(annotations=listed, count=len(listed))


@router.post(PATH, status_code=201, responses=documented(400, 404, 408, 413, 415))
async def add_annotation(
    request: Request, project: VisibleProject, caller: Reviewer, services: Services, body: AnnotationBody
) -> ChangedAnnotation:
    """Mark a time or a range on all charts of the project. The same mark sent again, with its time, is one."""
    record = _build_record(services, project, caller, body)
    set_subject(request, record.subject_id)
    return await _store(services, record)


@router.put(f"{PATH}/{{annotation_id}}", responses=documented(400, 403, 404, 408, 413, 415))
async def change_annotation(
    project: VisibleProject, annotation_id: AnnotationId, caller: Reviewer, services: Services, body: AnnotationBody
) -> ChangedAnnotation:
    """Change the text and the time of an annotation. Only its author and admins may."""
    current = await _require_own(services, project, annotation_id, caller)
    return await _store(services, _build_record(services, project, caller, body, current))


@router.delete(f"{PATH}/{{annotation_id}}", status_code=204, responses=documented(400, 403, 404))
async def delete_annotation(
    project: VisibleProject, annotation_id: AnnotationId, caller: Reviewer, services: Services
) -> Response:
    """Remove an annotation from all charts. Only its author and admins may. The log keeps it, as every decision."""
    await _require_own(services, project, annotation_id, caller)
    engine = services.engine
    await _publish(services, deleted_annotation(project, annotation_id, caller.name, engine.now(), engine.redactor))
    return Response(status_code=204)


def _build_record(
    services: ApiContext, project: str, caller: Holder, body: AnnotationBody, current: Annotation | None = None
) -> Review:
    return annotation(
        project=project,
        text=body.text,
        by=caller.name,
        now=services.engine.now(),
        redactor=services.engine.redactor,
        at=body.at or (current.at if current else None),
        until=body.until,
        annotation_id=current.id if current else None,
    )


async def _require_own(services: ApiContext, project: str, annotation_id: str, caller: Holder) -> Annotation:
    current = await services.ask(lambda cursor: read_annotation(cursor, project, annotation_id))
    if current is None:
        raise ApiError(404, "not_found", "the project has no annotation with this id")
    if caller.name != current.by and "admin" not in caller.scopes:
        raise ApiError(403, "other_author", f"only {current.by} and admins may change this annotation")
    return current


async def _publish(services: ApiContext, review: Review) -> None:
    with durable_or_refused():
        await services.engine.publish(REVIEWS, [review])
        await services.engine.wait_for_tables(REVIEWS)


async def _store(services: ApiContext, review: Review) -> ChangedAnnotation:
    await _publish(services, review)
    stored = await services.ask(lambda cursor: read_annotation(cursor, review.project, review.subject_id))
    if stored is None:  # deleted by another call in between
        raise ApiError(404, "not_found", "the annotation was deleted meanwhile")
    return ChangedAnnotation(annotation=stored)
