"""`driftline projects`: the fleet, the worst first."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from schemas.errors import SettingsError
from service.cli.commands.options import SHOWN, AsJson, Database, Limit, PolicyFile, show_rows
from service.cli.commands.runs.listing import opened_to_show
from service.cli.project_views import projects_table, silent_words
from service.cli.terminal import err
from service.read.known_projects import IMPORT_FIRST
from service.read.project import (
    WORST,
    Project,
    read_projects,
    standings,
    with_blind_spots,
    with_changes,
    worst_first,
    worst_incidents,
)
from service.setup.access.access import AccessStore, access_file
from service.setup.workspace import Workspace
from service.text.answers import document
from service.text.window import read_day


def projects(
    health: Annotated[
        str | None, typer.Option("--health", metavar="STATE", help=f"Only projects in this state: {', '.join(WORST)}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DAY", help="Figures of the 7 days up to this UTC day; today by default.")
    ] = None,
    limit: Limit = SHOWN,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the projects, the worst first: their health and why, their last days, and what changed."""
    if health is not None and health not in WORST:
        raise typer.BadParameter(f"must be one of {', '.join(WORST)}", param_hint="--health")
    try:
        last = read_day(until)
    except ValueError as error:
        raise SettingsError(f"--until {until}: {error}", hint="Give the last day of the figures.") from None
    with opened_to_show(database, policy=policy) as workspace:
        found = [project for project in _fleet(workspace, last) if health in (None, project.health)]
    none = f"no projects yet. {IMPORT_FIRST}" if health is None else f"no project is {health}"
    show_rows(found, projects_table, as_json=as_json, none=none, limit=limit, document=document)
    if not as_json and (words := silent_words(found[:limit])):
        err.say(words, style="yellow")


def _fleet(workspace: Workspace, until: date | None) -> list[Project]:
    """Return every project with its change, the worst first; figures cover the days up to a given one, by default today."""
    cursor = workspace.store.cursor()
    found = read_projects(cursor, workspace.policy, workspace.now(), until=until, connected=_connected(workspace))
    worst = worst_incidents(cursor, None)
    return with_blind_spots(cursor, with_changes(worst_first(found, standings(found, worst)), worst))


def _connected(workspace: Workspace) -> set[str]:
    """Return the projects that have a connection."""
    file = access_file(workspace.settings.database)
    if not file.exists():
        return set()
    with AccessStore(file, workspace.now) as access:
        return access.connected_projects()
