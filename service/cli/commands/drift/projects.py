"""`driftline projects`: the fleet, the worst first."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import typer

from analytics.sums.whole_days import query_days
from schemas.errors import SettingsError
from service.cli.commands.options import SHOWN, AsJson, Database, Limit, PolicyFile, show_rows
from service.cli.commands.runs.listing import opened_to_show
from service.cli.project_views import projects_table, silent_words
from service.cli.terminal import err
from service.read.fleet.changes import with_changes, worst_incidents
from service.read.fleet.order import WORST, standings, worst_first
from service.read.fleet.rows import rows_of_fleet
from service.read.known_projects import IMPORT_FIRST
from service.read.project_checks import asked_of_projects, last_until
from service.setup.access.access import AccessStore, access_file
from service.setup.workspace import Workspace
from service.text.window import read_day, recent_window

_SAID = ("project", "health", "reasons", "open_incidents", "exchanges", "scores", "runs", "last_exchange_at", "last_run_at")
"""What JSON says of a project beside its last days, as `GET /api/audit/projects` calls it."""
_RECENT = ("until", "scores", "anomalies", "unscored", "unsafe_runs", "cost_usd")


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
        found = [row for row in _fleet(workspace, last) if health in (None, row["health"])]
    none = f"no projects yet. {IMPORT_FIRST}" if health is None else f"no project is {health}"
    show_rows(found, projects_table, as_json=as_json, none=none, limit=limit, document=_document)
    if not as_json and (words := silent_words(found[:limit])):
        err.say(words, style="yellow")


def _fleet(workspace: Workspace, until: date | None) -> list[dict[str, Any]]:
    """Return every project with its health and its change, the worst first; its figures are of the days up to one, today by default."""
    cursor = workspace.store.cursor()
    now = workspace.now()
    found = query_days(cursor, "projects", asked_of_projects(None, now, until))
    rows = rows_of_fleet(found, _connected(workspace), workspace.policy, recent_window(now, until).last)
    worst = worst_incidents(cursor, None)
    return with_changes(worst_first(rows, standings(rows, worst)), worst)


def _connected(workspace: Workspace) -> set[str]:
    """Return the projects that a connection may send records of."""
    file = access_file(workspace.settings.database)
    if not file.exists():
        return set()
    with AccessStore(file, workspace.now) as access:
        return access.connected_projects()


def _document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a project as JSON says it."""
    change = row["change"]
    told = None if change is None else {name: getattr(change, name) for name in ("series", "name", "before", "after", "since")}
    recent = {name: row[f"recent_{name}"] for name in _RECENT}
    return {name: row[name] for name in _SAID} | {"recent": {**recent, "last_until": last_until(row)}, "change": told}
