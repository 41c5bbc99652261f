"""`driftline projects` and `driftline banner`: the fleet, the worst project first, and the banner that an agent sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Annotated

import typer

from audit.drift.watched_series import format_level
from schemas.bounds import NAME
from schemas.errors import InputError, SettingsError
from service.cli.commands.options import SHOWN, AsJson, Database, Full, Limit, PolicyFile, ViewOptions, print_json, settings_of
from service.cli.completion import project_names
from service.cli.list_views import ListView, printed
from service.cli.terminal import ListTable, err, out
from service.read.known_projects import IMPORT_FIRST, require_known
from service.read.project import (
    RECENT_DAYS,
    WORST,
    Change,
    Project,
    describe_check,
    format_banner,
    rank_projects,
    read_project,
    read_projects,
    sort_worst_first,
    with_changes,
    with_remarks,
    worst_incidents,
)
from service.setup.access import AccessStore, access_file
from service.setup.judge_setup import describe_judge
from service.setup.workspace import Workspace, open_workspace
from service.text.formats import MISSING, grouped, plain
from service.text.window import read_day


def list_projects(
    health: Annotated[
        str | None, typer.Option("--health", metavar="STATE", help=f"Only projects in this state: {', '.join(WORST)}.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DAY", help="Show the 7 days up to and including this UTC day; today by default."),
    ] = None,
    limit: Limit = SHOWN,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
    full: Full = False,
) -> ListView[Project]:
    """List the projects, worst health first: reason, last days, changes."""
    if health is not None and health not in WORST:
        raise typer.BadParameter(f"must be one of {', '.join(WORST)}", param_hint="--health")
    try:
        last = read_day(until)
    except ValueError as error:
        raise SettingsError(f"--until {until}: {error}", hint="Give the last day of the figures.") from None
    return ListView(
        read=lambda workspace, _: [project for project in read_fleet(workspace, last) if health in (None, project.health)],
        table=projects_table,
        keys=PROJECT_KEYS,
        identify=lambda project: project.project,
        options=ViewOptions(limit=limit, database=database, as_json=as_json, full=full),
        none=f"no projects yet. {IMPORT_FIRST}" if health is None else f"no project is {health}",
        note=describe_silent,
        policy=policy,
    )


projects = printed(list_projects)


def read_fleet(workspace: Workspace, until: date | None) -> list[Project]:
    """Return every project with its change, the worst first; figures cover the days up to a given one, by default today."""
    cursor = workspace.store.cursor()
    fleet = read_projects(cursor, workspace.policy, workspace.now(), until=until, connected=connected_projects(workspace))
    worst = worst_incidents(cursor, None)
    return with_remarks(cursor, with_changes(sort_worst_first(fleet, rank_projects(fleet, worst)), worst))


def connected_projects(workspace: Workspace) -> set[str]:
    """Return the projects that have a connection."""
    file = access_file(workspace.settings.database)
    if not file.exists():
        return set()
    with AccessStore(file, workspace.now) as access:
        return access.connected_projects()


MAX_SILENT_NAMES = 5
"""Maximum number of silent projects that are named."""


PROJECT_KEYS = ("project", "health", "openIncidents", "recent", "lastScoreDay", "change", "reasons")
"""The fields of a project in a list."""


def projects_table(projects: Sequence[Project]) -> ListTable:
    """Show each project on a line; figures, and changes without an incident, cover its last days."""
    cells = [
        [
            project.project,
            project.health,
            grouped(project.open_incidents) if project.open_incidents else MISSING,
            grouped(project.recent.scores),
            grouped(project.recent.anomalies),
            grouped(project.recent.unsafe_runs),
            MISSING if project.last_score_day is None else f"{project.last_score_day}",
            MISSING if project.change is None else describe_change(project.change),
            ", ".join(project.reasons).replace("_", " ") or MISSING,
        ]
        for project in projects
    ]
    headers = ["project", "health", "open", "exchanges", "anomalies", "unsafe", "last day", "what changed", "why"]
    numbers = ["open", "exchanges", "anomalies", "unsafe"]
    return ListTable(
        headers, cells, right=numbers, whole=["health", "last day"], optional=["last day", "exchanges", "unsafe", "anomalies"]
    )


def describe_silent(projects: Sequence[Project]) -> str:
    """Name the projects that had scores before but have none lately, with the command that shows their last days; empty without any."""
    silent = {project.project: project.recent.last_until for project in projects if project.recent.last_until is not None}
    if not silent:
        return ""
    names = ", ".join(list(silent)[:MAX_SILENT_NAMES])
    if len(silent) > MAX_SILENT_NAMES:
        names += f" and {len(silent) - MAX_SILENT_NAMES} more"
    return (
        f"No exchanges in the {RECENT_DAYS} days to {projects[0].recent.until}: {names}. "
        f"The last {RECENT_DAYS} days with data: driftline projects --until {max(silent.values())}"
    )


def describe_change(change: Change) -> str:
    """Describe a change, as in `Answer quality 0.90 → 0.61 since 28 Oct`."""
    before, after = (format_level(change.series, value) for value in (change.before, change.after))
    since = "" if change.since is None else f" since {change.since.day} {change.since:%b}"
    return f"{change.name} {before} → {after}{since}"


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
        warn_if_unknown(workspace, project)
        settings = workspace.policy.for_project(project).settings
        answer = read_project(workspace.store.cursor(), workspace.policy, workspace.now(), project)
        judge = describe_judge(workspace.settings, workspace.policy).name
        text = format_banner(settings, answer.open_incidents, judge, describe_check(answer))
    if as_json:
        print_json({"project": project, "banner": text})
    else:
        out.say(text)


def warn_if_unknown(workspace: Workspace, project: str) -> None:
    """Warn if a project is unknown, which may be a typing error. Its banner is shown anyway, because it may have no records yet."""
    try:
        require_known(workspace, project, place="PROJECT")
    except InputError as error:
        err.say(f"note: {error}. {error.hint}", style="yellow")
