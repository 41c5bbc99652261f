"""`driftline annotations`: mark times and ranges of a project on its charts, with a text."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from audit.times import iso_time
from schemas.errors import InputError
from schemas.records import Review
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    Limit,
    OfProject,
    PolicyFile,
    Since,
    Until,
    print_json,
    settings_of,
    show_rows,
    since_of,
    until_of,
)
from service.cli.terminal import ListTable, out
from service.read.annotations import Annotation, read_annotation, read_annotations
from service.read.known_projects import require_known
from service.setup.workspace import Workspace, open_workspace, utc_now
from service.text.answers import document
from service.text.formats import MISSING, plain
from service.text.window import moment_of
from streams.log.admission import EncodedRecords, encode_validated
from streams.upkeep.annotations import REVIEWS, annotation, deleted_annotation

annotations_app = typer.Typer(no_args_is_help=True, help="Mark times and ranges of a project on its charts, with a text.")
Words = Annotated[str, typer.Argument(metavar="TEXT", help="What happened.")]
AnnotationId = Annotated[str, typer.Argument(metavar="ID", help="Id of the annotation.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="The time, or the start of the range, in the format of --since."),
]
End = Annotated[str | None, typer.Option("--until", metavar="TIME", help="The end of the range; by default it marks a moment.")]
By = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Your name; your account by default.")]


@annotations_app.command("add")
def add_annotation(
    text: Words,
    project: OfProject,
    at: At = None,
    until: End = None,
    by: By = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Mark a time or a range on all charts of a project, by default now."""
    _write(text, project, at, until, by, database, policy, as_json=as_json)


@annotations_app.command("change")
def change_annotation(
    annotation_id: AnnotationId,
    text: Words,
    project: OfProject,
    at: At = None,
    until: End = None,
    by: By = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Change the text of an annotation, and its time if given. A range needs its --until again."""
    _write(text, project, at, until, by, database, policy, as_json=as_json, annotation_id=annotation_id)


@annotations_app.command("delete")
def delete_annotation(
    annotation_id: AnnotationId,
    project: OfProject,
    by: By = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove an annotation from all charts."""
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        current = _require_annotation(workspace, project, annotation_id)
        _publish(workspace, deleted_annotation(project, annotation_id, by or getpass.getuser(), workspace.now()))
    if as_json:
        print_json(document(current))
    else:
        out.print(f"{plain(current.text)} at {iso_time(current.at)}: deleted", markup=False)


@annotations_app.command("list")
def list_annotations(
    project: OfProject,
    since: Since = None,
    until: Until = None,
    limit: Limit = SHOWN,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the annotations of a project, newest first."""
    with open_workspace(settings_of(database)) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        shown = read_annotations(cursor, project, since_of(since), until_of(until), limit=limit + 1)
    show_rows(shown, _build_table, as_json=as_json, none="no annotation", limit=limit, document=document)


def _write(
    text: str,
    project: str,
    at: str | None,
    until: str | None,
    by: str | None,
    database: Path | None,
    policy: Path | None,
    *,
    as_json: bool,
    annotation_id: str | None = None,
) -> None:
    start = None if at is None else moment_of(at, "--at", utc_now())
    end = None if until is None else moment_of(until, "--until", utc_now())
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        current = None if annotation_id is None else _require_annotation(workspace, project, annotation_id)
        review = annotation(
            project=project,
            text=text,
            by=by or getpass.getuser(),
            now=workspace.now(),
            redactor=workspace.redactor,
            at=start or (current.at if current else None),
            until=end,
            annotation_id=annotation_id,
        )
        _publish(workspace, review)
        stored = _require_annotation(workspace, project, review.subject_id)
    if as_json:
        print_json(document(stored))
    else:
        out.print(f"{plain(stored.text)} at {iso_time(stored.at)}: recorded as {stored.id}", markup=False)


def _publish(workspace: Workspace, review: Review) -> None:
    accepted = EncodedRecords()
    accepted.add(REVIEWS, encode_validated(review))
    workspace.runner.publish(accepted)


def _require_annotation(workspace: Workspace, project: str, annotation_id: str) -> Annotation:
    with contextlib.closing(workspace.store.cursor()) as cursor:
        current = read_annotation(cursor, project, annotation_id)
    if current is None:
        raise InputError(
            f"the project {project} has no annotation {annotation_id}", hint="driftline annotations list shows the ids."
        )
    return current


def _build_table(annotations: Sequence[Annotation]) -> ListTable:
    names = ("id", "at", "until", "text", "by")
    cells = [[shown[name] or MISSING for name in names] for shown in map(document, annotations)]
    return ListTable(names, cells, whole=["id", "at"], optional=["until", "by"])
