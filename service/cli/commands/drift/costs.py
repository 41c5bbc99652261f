"""`driftline costs` and `driftline banner`: the cost of judging, and the banner for agents."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from analytics.queries import query_rows
from schemas.bounds.limits import NAME
from schemas.errors import InputError
from service.banner import banner_text
from service.cli.commands.options import AsJson, Database, PolicyFile, Project, print_json, settings_of, show_rows
from service.cli.commands.runs.listing import of_project, opened_to_show
from service.cli.terminal import err, out, plain
from service.cli.views import costs_table
from service.documents.project_checks import check_row, check_words
from service.judge_setup import who_judges
from service.known_projects import require_known
from service.workspace import Workspace, open_workspace


class By(StrEnum):
    """Groups that costs can be summed by."""

    SESSION = "session"
    PROJECT = "project"
    DAY = "day"
    MODEL = "model"


GROUPS = {
    By.SESSION: ("project", "connection", "session_id"),
    By.PROJECT: ("project",),
    By.DAY: ("day",),
    By.MODEL: ("model",),
}
"""The columns of the query `judge_costs` that name a row's group; the others of these are empty."""


def costs(
    by: Annotated[By, typer.Option("--by", help="Group to sum by; a day is the UTC day of the judge's answer.")] = By.PROJECT,
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show what judging cost: calls, tokens and money by session, project, day or model, most expensive first."""
    with opened_to_show(database, project) as workspace:
        rows = query_rows(
            workspace.store.cursor(), "judge_costs", {"by": by.value, "project": project, "from": None, "to": None}
        )
    left_out = {name for group in GROUPS.values() for name in group} - set(GROUPS[by])
    shown = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    show_rows(shown, costs_table, as_json=as_json, none=f"the judge has not been asked yet{of_project(project)}: no cost")


def banner(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")],
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the banner that an agent of the project sees when a session begins."""
    if not re.fullmatch(NAME, project):
        raise InputError(
            f"{plain(project, 64)!r} is not a valid project name",
            hint="Names have a-z, 0-9, _ . - and at most 63 characters.",
        )
    with open_workspace(settings_of(database, policy)) as workspace:
        _note_unknown(workspace, project)
        settings = workspace.policy.for_project(project).settings
        row = check_row(workspace.store.cursor(), workspace.policy, workspace.now(), project)
        judge = who_judges(workspace.settings, workspace.policy).name
        text = banner_text(settings, row["open_incidents"], judge, check_words(row))
    if as_json:
        print_json({"project": project, "banner": text})
    else:
        out.say(text)


def _note_unknown(workspace: Workspace, project: str) -> None:
    """Say that an unknown project is new or misspelt: a banner is shown before the first record, too."""
    try:
        require_known(workspace, project, place="PROJECT")
    except InputError as error:
        err.say(f"note: {error}. {error.hint}", style="yellow")
