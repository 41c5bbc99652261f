"""`driftline check-drift` and `driftline incidents`: find drift, list incidents, show one, decide on it."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from analytics.queries import query_records, query_rows
from analytics.sums.daily import refresh_daily
from audit.drift.consecutive_days import DAYS
from schemas.errors import InputError
from schemas.records import Incident
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    Project,
    clock_of,
    print_json,
    settings_of,
    show_rows,
)
from service.cli.commands.runs.listing import of_project, opened_to_show
from service.cli.incident_views import check_view, incident_view, incidents_table, state_words
from service.cli.terminal import out, plain
from service.documents.incidents import check_document, decisions_on, incident_document, incident_records
from service.documents.project_checks import Row, check_row, check_rows, moment_words, unchecked_words
from service.known_projects import require_known
from service.workspace import Workspace, open_workspace
from streams.upkeep.reviewing import MAX_COMMENT
from streams.watch.checking import Checked
from streams.watch.incidents.states import (
    ACKNOWLEDGED,
    DISMISSED,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    STATUSES,
    confidence_of,
    current_status,
    shows,
)
from streams.watch.watching import Watch

incidents_app = typer.Typer(no_args_is_help=True, help="Incidents of drift and anomaly spikes: list, show, decide.")
IncidentId = Annotated[str, typer.Argument(metavar="INCIDENT", help="Id of the incident, or its beginning.")]
Who = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the person who decides; your account by default.")
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", "--comment", metavar="TEXT", help="Reason. Required; asked for on a terminal."),
]
SAY_WHY = 'Give the reason in a few words: --reason "new prompt". It is shown with the incident.'


def check_drift(
    project: Project = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: Annotated[str | None, typer.Option("--as-of", metavar="TIME", help="Take this time as the present.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check for drift and anomaly spikes: compute baselines that are due, apply the rules, and record incidents.

    A server does this on its own.
    """
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        require_known(workspace, project)
        as_of_now = workspace.now()
        checked = check_projects(workspace, None if project is None else [project])
    if as_json:
        for one in checked:
            print_json(check_document(one, workspace.policy.for_project(one.project).methodology.version))
    elif checked:
        out.print(check_view(checked))
    else:
        out.say(
            f"No project was checked: none has exchanges or runs in the {DAYS} days before {moment_words(as_of_now)}. "
            "--as-of TIME checks as of another time."
        )


def check_projects(workspace: Workspace, projects: Sequence[str] | None = None) -> list[Checked]:
    """Check some projects of a database, or all with recent exchanges, as of the workspace's present."""
    if workspace.server is None:
        refresh_daily(workspace.store)
    else:
        workspace.server.call("add_up_days")
    if projects is None:
        since = workspace.now() - timedelta(days=DAYS)
        projects = [row["project"] for row in query_rows(workspace.store.cursor(), "watched_projects", {"since": since})]
    if workspace.server is None:
        return asyncio.run(_watch(workspace).check(projects))
    checked: list[Checked] = workspace.server.call("check", projects, workspace.now())
    return checked


@incidents_app.command("list")
def list_incidents(
    project: Project = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATE", help=f"Only incidents in this state, may be repeated: {', '.join(STATUSES)}."
        ),
    ] = None,
    confirmed: Annotated[
        bool | None, typer.Option("--confirmed/--suspected", help="Only confirmed or only suspected ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number, newest first.")] = 50,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the incidents, newest first."""
    wanted = [current_status(one) for one in status or ()]
    for one in wanted:
        if one not in STATUSES:
            raise InputError(f"--status {plain(one, 40)} is not a state", hint=f"Use one of {', '.join(STATUSES)}.")
    confidence = confidence_of(confirmed=confirmed)
    with opened_to_show(database, project) as workspace:
        cursor = workspace.store.cursor()
        found = incident_records(cursor, project, statuses=wanted, confidence=confidence, limit=limit)
        checks = [] if found else _checks(workspace, project)
    rows = [incident_document(one, with_sql=False) for one in found]
    state = "".join(f"{one} " for one in [" or ".join(wanted), confidence] if one)
    none = f"no {state}incident{of_project(project)}. {unchecked_words(checks)}"
    show_rows(rows, incidents_table, as_json=as_json, none=none)


def _checks(workspace: Workspace, project: str | None) -> Sequence[Row]:
    """Tell whether a project, or each of them, was checked."""
    cursor, policy, now = workspace.store.cursor(), workspace.policy, workspace.now()
    return check_rows(cursor, policy, now) if project is None else [check_row(cursor, policy, now, project)]


@incidents_app.command("show")
def show_incident(incident: IncidentId, database: Database = None, as_json: AsJson = False) -> None:
    """Show an incident with its evidence: days, numbers, the exchanges that moved it most, queries to reproduce it."""
    with opened_to_show(database) as workspace:
        found = _found(workspace, incident)
        decisions = decisions_on(workspace.store.cursor(), found.incident_id)
    document = incident_document(found)
    if as_json:
        print_json({"incident": document, "decisions": decisions})
    else:
        out.print(incident_view(document, decisions))


def _add_decision(name: str, decision: str, words: str, *, hidden: bool = False) -> None:
    @incidents_app.command(name, help=words, hidden=hidden)
    def decide(
        incident: IncidentId, by: Who = None, reason: Reason = None, database: Database = None, as_of: AsOf = None
    ) -> None:
        _decide(incident, decision, by, reason, database, as_of)


_add_decision(
    "acknowledge", ACKNOWLEDGED, "Take on an incident: it gets your name, stays red, and does not change the baseline."
)
_add_decision(
    "resolve",
    RESOLVED,
    "Resolve an incident that is fixed. Its days do not count as normal; if the change persists, it is found again.",
)
_add_decision(
    "new-normal",
    NEW_NORMAL,
    "Resolve an incident as the new normal: comparisons begin with the first day of the change.",
)
_add_decision("accept", NEW_NORMAL, "Resolve an incident as the new normal (the name in earlier versions).", hidden=True)
_add_decision("dismiss", DISMISSED, "Dismiss an incident that does not matter. The same change opens no other incident.")
_add_decision("reopen", OPEN, "Reopen an incident.")


def _decide(incident: str, decision: str, by: str | None, reason: str | None, database: Path | None, as_of: str | None) -> None:
    why = _reason(reason)  # asked for before the database is held
    with open_workspace(settings_of(database), now=clock_of(as_of), writes=True) as workspace:
        found = _found(workspace, incident)
        said = workspace.redactor.redact(why)[0]
        who = by or getpass.getuser()
        decided = (found.project, found.incident_id, decision, who, said)
        if workspace.server is None:
            made = asyncio.run(_watch(workspace).decide(*decided))
        else:
            made = workspace.server.call("decide", decided, workspace.now())
    if made is None or not shows(made, decision):
        raise InputError(
            f"incident {found.incident_id} cannot be reopened: another one is live for the same tier and direction",
            hint="`driftline incidents list --status open --status acknowledged` lists it.",
        )
    out.say(f"{made.incident_id} is {state_words(made)}: {made.title}")


def _reason(given: str | None) -> str:
    """Return the reason of a decision, as given or as asked for on a terminal. InputError if it is blank or too long."""
    if given is None and sys.stdin.isatty():
        given = typer.prompt("Reason", err=True)
    said = (given or "").strip()
    if not said:
        raise InputError(f"--reason: {'is missing' if given is None else 'is blank'}", hint=SAY_WHY)
    if len(said) > MAX_COMMENT:
        raise InputError(f"--reason: has {len(said)} characters; at most {MAX_COMMENT} are taken", hint=SAY_WHY)
    return said


def _found(workspace: Workspace, incident: str) -> Incident:
    """Return the one incident whose id begins with this text; InputError if there is none, or several."""
    values = {"project": None, "incident": incident}
    found = list(query_records(workspace.store.cursor(), "incident_by_id", Incident, values))
    if len(found) != 1:
        many = f"{len(found)} incidents begin with" if found else "no incident begins with"
        raise InputError(f"{many} {plain(incident, 64)!r}", hint="`driftline incidents list` lists them.")
    return found[0]


def _watch(workspace: Workspace) -> Watch:
    return Watch(workspace.log)
