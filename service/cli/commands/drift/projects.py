"""`driftline projects`: the fleet, the worst first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from analytics.sums.whole_days import query_days
from service.access.access import AccessStore, access_file
from service.cli.commands.options import SHOWN, AsJson, Database, Limit, PolicyFile, show_rows
from service.cli.commands.runs.listing import opened_to_show
from service.cli.project_views import projects_table
from service.documents.fleet.changes import with_changes, worst_incidents
from service.documents.fleet.order import WORST, standings, worst_first
from service.documents.fleet.rows import rows_of_fleet
from service.documents.project_checks import RECENT_DAYS
from service.known_projects import IMPORT_FIRST
from service.workspace import Workspace

_SAID = ("project", "health", "reasons", "open_incidents", "exchanges", "scores", "runs", "last_exchange_at", "last_run_at")
"""What JSON says of a project beside its last days, as `GET /api/audit/projects` calls it."""
_RECENT = ("until", "scores", "anomalies", "unscored", "unsafe_runs", "cost_usd")


def projects(
    health: Annotated[
        str | None, typer.Option("--health", metavar="STATE", help=f"Only projects in this state: {', '.join(WORST)}.")
    ] = None,
    limit: Limit = SHOWN,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the projects, the worst first: their health and why, their last days, and what changed."""
    if health is not None and health not in WORST:
        raise typer.BadParameter(f"must be one of {', '.join(WORST)}", param_hint="--health")
    with opened_to_show(database, policy=policy) as workspace:
        found = [row for row in _fleet(workspace) if health in (None, row["health"])]
    none = f"no projects yet. {IMPORT_FIRST}" if health is None else f"no project is {health}"
    show_rows(found, projects_table, as_json=as_json, none=none, limit=limit, document=_document)


def _fleet(workspace: Workspace) -> list[dict[str, Any]]:
    """Return every project with its health and its change, the worst first."""
    cursor = workspace.store.cursor()
    found = query_days(cursor, "projects", {"project": None, "as_of": workspace.now(), "days": RECENT_DAYS})
    rows = rows_of_fleet(found, _connected(workspace), workspace.policy)
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
    return {name: row[name] for name in _SAID} | {"recent": recent, "change": told}
