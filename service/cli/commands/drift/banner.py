"""`driftline banner`: the banner for agents."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from schemas.bounds import NAME
from schemas.errors import InputError
from service.cli.commands.options import AsJson, Database, PolicyFile, print_json, settings_of
from service.cli.completion.values import project_names
from service.cli.terminal import err, out
from service.read.banner import banner_text
from service.read.known_projects import require_known
from service.read.project import check_words, read_project
from service.setup.judge_setup import who_judges
from service.setup.workspace import Workspace, open_workspace
from service.text.plain import plain


def banner(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.", autocompletion=project_names)],
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
        found = read_project(workspace.store.cursor(), workspace.policy, workspace.now(), project)
        judge = who_judges(workspace.settings, workspace.policy).name
        text = banner_text(settings, found.open_incidents, judge, check_words(found))
    if as_json:
        print_json({"project": project, "banner": text})
    else:
        out.say(text)


def _note_unknown(workspace: Workspace, project: str) -> None:
    """Warn that an unknown project is new or misspelt; a banner is shown even before the first record."""
    try:
        require_known(workspace, project, place="PROJECT")
    except InputError as error:
        err.say(f"note: {error}. {error.hint}", style="yellow")
