"""`driftline annotations`: mark times and ranges of a project on its charts, with a text."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from dataclasses import dataclass
from typing import Annotated

import typer

from audit.times import iso_time
from schemas.errors import InputError
from service.cli.commands.options import (
    AsJson,
    Database,
    ListOptions,
    OfProject,
    PolicyFile,
    print_json,
    settings_of,
    with_option_group,
)
from service.cli.list_views import print_of_project
from service.cli.terminal import out
from service.read.annotations import Annotation, read_annotation, read_annotations
from service.read.known_projects import require_known
from service.setup.workspace import Workspace, open_workspace, utc_now
from service.text.answers import document
from service.text.formats import plain
from service.text.window import moment_of
from streams.upkeep.annotations import REVIEWS, annotation, deleted_annotation

annotations_app = typer.Typer(no_args_is_help=True, help="Mark times and ranges of a project on its charts, with a text.")
Text = Annotated[str, typer.Argument(metavar="TEXT", help="What happened.")]
AnnotationId = Annotated[str, typer.Argument(metavar="ID", help="Id of the annotation.")]
By = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Your name; your account by default.")]


@dataclass(frozen=True)
class MarkOptions:
    """Options of an annotation that is added or changed."""

    project: OfProject
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="The time, or the start of the range, in the format of --since."),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="The end of the range; by default it marks a moment.")
    ] = None
    by: By = None
    database: Database = None
    policy: PolicyFile = None
    as_json: AsJson = False


@annotations_app.command("add")
@with_option_group
def add_annotation(text: Text, options: MarkOptions) -> None:
    """Mark a time or a range on all charts of a project, by default now."""
    _write(text, options)


@annotations_app.command("change")
@with_option_group
def change_annotation(annotation_id: AnnotationId, text: Text, options: MarkOptions) -> None:
    """Change the text of an annotation, and its time if given. A range needs its --until again."""
    _write(text, options, annotation_id)


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
        require_known(workspace, project)
        current = _require_annotation(workspace, project, annotation_id)
        author = by or getpass.getuser()
        review = deleted_annotation(project, annotation_id, author, workspace.now(), workspace.redactor)
        asyncio.run(workspace.publisher.publish(REVIEWS, [review]))
    if as_json:
        print_json(document(current))
    else:
        out.print(f"{plain(current.text)} at {iso_time(current.at)}: deleted", markup=False)


@annotations_app.command("list")
@with_option_group
def list_annotations(project: OfProject, options: ListOptions) -> None:
    """List the annotations of a project, newest first."""
    names = ("id", "at", "until", "text", "by")
    print_of_project(
        project, options, read_annotations, names, whole=["id", "at"], optional=["until", "by"], none="no annotation"
    )


def _write(text: str, options: MarkOptions, annotation_id: str | None = None) -> None:
    project = options.project
    start = None if options.at is None else moment_of(options.at, "--at", utc_now())
    end = None if options.until is None else moment_of(options.until, "--until", utc_now())
    with open_workspace(settings_of(options.database, options.policy), writes=True) as workspace:
        require_known(workspace, project)
        current = None if annotation_id is None else _require_annotation(workspace, project, annotation_id)
        review = annotation(
            project=project,
            text=text,
            by=options.by or getpass.getuser(),
            now=workspace.now(),
            redactor=workspace.redactor,
            at=start or (current.at if current else None),
            until=end,
            annotation_id=annotation_id,
        )
        asyncio.run(workspace.publisher.publish(REVIEWS, [review]))
        stored = _require_annotation(workspace, project, review.subject_id)
    if options.as_json:
        print_json(document(stored))
    else:
        out.print(f"{plain(stored.text)} at {iso_time(stored.at)}: recorded as {stored.id}", markup=False)


def _require_annotation(workspace: Workspace, project: str, annotation_id: str) -> Annotation:
    with contextlib.closing(workspace.store.cursor()) as cursor:
        current = read_annotation(cursor, project, annotation_id)
    if current is None:
        raise InputError(
            f"the project {project} has no annotation {annotation_id}", hint="driftline annotations list shows the ids."
        )
    return current
