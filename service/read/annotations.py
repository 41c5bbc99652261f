"""Annotations: the times and ranges of a project that people marked, with a text, on its charts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment
from streams.upkeep.annotations import MAX_LISTED


class Annotation(Answer, frozen=True):
    """A time or a range of a project with a person's text."""

    id: str
    project: str
    text: str
    at: Annotated[Moment, Meta(description="The marked time, or the start of the range.")]
    until: Annotated[Moment | None, Meta(description="The end of the range; null for a moment.")]
    by: Annotated[str, Meta(description="Who made it. Only they and admins change it.")]
    changed_by: Annotated[str, Meta(description="Who changed it last.")]
    changed_at: Moment


class ChangedAnnotation(Answer, frozen=True):
    """An annotation after a change."""

    annotation: Annotation


class AnnotationList(Answer, frozen=True):
    """Annotations, newest first."""

    annotations: list[Annotation]
    count: int


def read_annotations(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    annotation_id: str | None = None,
    limit: int = MAX_LISTED,
) -> list[Annotation]:
    """Return the annotations of a project within a time, newest first; `since` is inclusive, `until` is not. Ranges need only overlap."""
    values = {"project": project, "id": annotation_id, "since": since, "until": until, "limit": limit}
    return [
        Annotation.of(row, id=row["annotation_id"], at=row["marked_from"], until=row["marked_until"], by=row["author"])
        for row in query_rows(cursor, "annotations", values)
    ]


def read_annotation(cursor: duckdb.DuckDBPyConnection, project: str, annotation_id: str) -> Annotation | None:
    """Return an annotation of a project; None if there is none with this id, or if it was deleted."""
    return next(iter(read_annotations(cursor, project, annotation_id=annotation_id, limit=1)), None)
