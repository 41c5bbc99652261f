"""`driftline incidents`: list incidents of all projects, show one, decide on it, assign it, comment on it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from analytics.queries import query_records
from schemas.errors import InputError
from schemas.records import Incident
from service.cli.commands.drift.watching import watch_over
from service.cli.commands.option_groups import with_option_group
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    AsOf,
    Database,
    Limit,
    Project,
    Since,
    clock_of,
    print_json,
    settings_of,
    show_rows,
    since_of,
)
from service.cli.commands.runs.listing import of_project, opened_to_show
from service.cli.completion.values import completed
from service.cli.incident_views import incident_view, incidents_table, state_words
from service.cli.terminal import out
from service.read.inbox import ME, NOBODY, SEVERITIES, SORTS, TYPES, InboxFilter, assignee_problem, inbox, people_of
from service.read.incidents import history_of, incident_answer, one_incident
from service.read.project import Project as ProjectAnswer
from service.read.project import read_project, read_projects, unchecked_words
from service.setup.access.access import AccessStore, access_file
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.text.plain import plain
from streams.upkeep.reviewing import MAX_COMMENT
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    DISMISSED,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    STATUSES,
    assignee_of,
    confidence_of,
    current_status,
)
from streams.watch.watching import PROBLEMS, Change, Changed, Person, change

incidents_app = typer.Typer(
    no_args_is_help=True, help="Incidents of drift and anomaly spikes: list, show, decide, assign, comment."
)
IncidentId = Annotated[str, typer.Argument(metavar="INCIDENT", help="Id of the incident, or its beginning.")]
Who = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the person who decides; your account by default.")
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", "--comment", metavar="TEXT", help="Reason. Required; asked for on a terminal."),
]
SAY_WHY = 'Give the reason in a few words: --reason "new prompt". It is shown with the incident.'


@dataclass(frozen=True)
class Filters:
    """Narrow the list, and order it."""

    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATE",
            help=f"Only incidents in this state, may be repeated: {', '.join(STATUSES)}.",
            autocompletion=completed(STATUSES),
        ),
    ] = None
    confirmed: Annotated[
        bool | None, typer.Option("--confirmed/--suspected", help="Only confirmed or only suspected ones.")
    ] = None
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help=f"Only {' or '.join(TYPES)}.", autocompletion=completed(TYPES)),
    ] = None
    severity: Annotated[
        str | None,
        typer.Option(
            "--severity", metavar="LEVEL", help=f"Only {' or '.join(SEVERITIES)}.", autocompletion=completed(SEVERITIES)
        ),
    ] = None
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only those whose leading series or evidence names it.")
    ] = None
    assignee: Annotated[
        str | None, typer.Option("--assignee", metavar="NAME", help="Only those of this person; me, or nobody.")
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Only those with this text in the title or description.")
    ] = None
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="ORDER", help=f"Order: {', '.join(SORTS)}.", autocompletion=completed(SORTS)),
    ] = "newest"
    since: Since = None
    limit: Limit = SHOWN
    database: Database = None
    as_json: AsJson = False


@incidents_app.command("list")
@with_option_group
def list_incidents(project: Project = None, *, asked: Filters) -> None:
    """List the incidents of all projects, the one found last first, or in another order."""
    wanted = _filter(project, asked)
    with opened_to_show(asked.database, project) as workspace:
        found = inbox(workspace.store.cursor(), wanted, None, asked.limit + 1).listed
        checks = [] if found else _checks(workspace, project)
    rows = [incident_answer(one.incident, with_sql=False) for one in found]
    state = "".join(f"{one} " for one in [" or ".join(wanted.statuses), confidence_of(confirmed=asked.confirmed)] if one)
    other = (asked.kind, asked.severity, asked.agent, asked.assignee, asked.text, asked.since)
    matching = "" if other == (None,) * len(other) else " that matches"
    none = f"no {state}incident{of_project(project)}{matching}. {unchecked_words(checks)}"
    show_rows(rows, incidents_table, as_json=asked.as_json, none=none, limit=asked.limit, document=document)


def _filter(project: str | None, asked: Filters) -> InboxFilter:
    """Return the filter from the options; InputError names a wrong one."""
    statuses = [current_status(one) for one in asked.status or ()]
    for one in statuses:
        if one not in STATUSES:
            raise InputError(f"--status {plain(one, 40)} is not a state", hint=f"Use one of {', '.join(STATUSES)}.")
    for option, value, words in (
        ("--type", asked.kind, TYPES),
        ("--severity", asked.severity, SEVERITIES),
        ("--sort", asked.sort, SORTS),
    ):
        if value is not None and value not in words:
            raise InputError(f"{option}: {plain(value, 40)} is none of them", hint=f"Use one of {', '.join(words)}.")
    return InboxFilter(
        project=project,
        statuses=statuses,
        kind=asked.kind,
        confirmed=asked.confirmed,
        severity=asked.severity,
        agent=asked.agent,
        assignee=getpass.getuser() if asked.assignee == ME else asked.assignee,
        text=asked.text,
        since=since_of(asked.since),
        sort=next(one for one in SORTS if one == asked.sort),
    )


def _checks(workspace: Workspace, project: str | None) -> Sequence[ProjectAnswer]:
    """Tell whether a project, or each of them, was checked."""
    cursor, policy, now = workspace.store.cursor(), workspace.policy, workspace.now()
    return read_projects(cursor, policy, now) if project is None else [read_project(cursor, policy, now, project)]


@incidents_app.command("show")
def show_incident(incident: IncidentId, database: Database = None, as_json: AsJson = False) -> None:
    """Show an incident with its evidence: days, numbers, the exchanges that moved it most, queries to reproduce it."""
    with opened_to_show(database) as workspace:
        found = _found(workspace, incident)
        history = history_of(workspace.store.cursor(), found.incident_id)
    if as_json:
        print_json(document(one_incident(found, history)))
    else:
        out.print(incident_view(found, history))


def _add_decision(name: str, decision: str, words: str, *, hidden: bool = False) -> None:
    @incidents_app.command(name, help=words, hidden=hidden)
    def decide(
        incident: IncidentId,
        by: Who = None,
        reason: Reason = None,
        database: Database = None,
        as_of: AsOf = None,
        as_json: AsJson = False,
    ) -> None:
        made = _decide(incident, decision, by, reason, database, as_of)
        _show(made, f"is {state_words(made)}", as_json=as_json)


_add_decision(
    "acknowledge",
    ACKNOWLEDGED,
    "Take on an incident: it is yours if nobody has it, stays red, and does not change the baseline.",
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


@incidents_app.command("assign")
def assign(
    incident: IncidentId,
    assignee: Annotated[str, typer.Argument(metavar="NAME", help="An operator who may see the project; me, or nobody.")],
    by: Who = None,
    reason: Annotated[
        str | None, typer.Option("--reason", "--comment", metavar="TEXT", help="Why; shown with the incident.")
    ] = None,
    database: Database = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Assign an incident to a person, or to no one. Its state does not change."""
    said = None if reason is None else _reason(reason)
    with _writing(database, as_of) as workspace:
        found, who = _found(workspace, incident), by or getpass.getuser()
        given = {ME: who, NOBODY: None}.get(assignee, assignee)
        _require_person(workspace, found.project, given, who)
        made = _changed(workspace, found, Change(assigns=True, assignee=given, comment=said), who)
    _show(made, f"has {plain(assignee_of(made) or NOBODY, 64)} as its assignee", as_json=as_json)


@incidents_app.command("comment")
def comment(
    incident: IncidentId,
    by: Who = None,
    reason: Annotated[
        str | None,
        typer.Option("--comment", "--reason", metavar="TEXT", help="The comment. Required; asked for on a terminal."),
    ] = None,
    database: Database = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Comment on an incident without changing it."""
    said = _reason(reason)
    with _writing(database, as_of) as workspace:
        found, who = _found(workspace, incident), by or getpass.getuser()
        made = _changed(workspace, found, Change(comment=said), who)
    _show(made, "has your comment", as_json=as_json)


def _decide(
    incident: str, decision: str, by: str | None, reason: str | None, database: Path | None, as_of: str | None
) -> Incident:
    """Record a decision and return the updated incident. InputError if the decision is not possible."""
    why = _reason(reason)  # ask before the database is opened
    with _writing(database, as_of) as workspace:
        found = _found(workspace, incident)
        return _changed(workspace, found, Change(decision=decision, comment=why), by or getpass.getuser())


def _changed(workspace: Workspace, incident: Incident, wanted: Change, who: str) -> Incident:
    """Change an incident, in this process or through the server that has the database; InputError if the change is not possible."""
    which, said = (incident.project, incident.incident_id), wanted.comment
    redacted = Change(
        decision=wanted.decision,
        assigns=wanted.assigns,
        assignee=wanted.assignee,
        comment=None if said is None else workspace.redactor.redact(said)[0],
    )
    made: Changed
    if workspace.server is None:
        made = asyncio.run(change(watch_over(workspace), which, redacted, Person(who)))
    else:
        made = workspace.server.call("change", Changed, which, redacted, Person(who), workspace.now())
    if made.problem is not None or made.incident is None:
        problem = made.problem or "not_found"
        raise InputError(
            f"incident {incident.incident_id} was not changed: {PROBLEMS[problem]}",
            hint="`driftline incidents list --status open --status acknowledged` lists what is live.",
        )
    return made.incident


def _require_person(workspace: Workspace, project: str, name: str | None, who: str) -> None:
    """Raise an InputError if the assignee is not an operator; without any operators, every name is accepted."""
    file = access_file(workspace.settings.database)
    if name in {None, who} or not file.exists():
        return
    with AccessStore(file, workspace.now) as access:
        people = people_of(access, project)
    if people and (problem := assignee_problem(name or "", people, project)) is not None:
        raise InputError(problem, hint="`driftline operators list` shows them.")


@contextlib.contextmanager
def _writing(database: Path | None, as_of: str | None) -> Iterator[Workspace]:
    with open_workspace(settings_of(database), now=clock_of(as_of), writes=True) as workspace:
        yield workspace


def _show(made: Incident, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document(incident_answer(made, with_sql=False)))
    else:
        out.say(f"{made.incident_id} {words}: {made.title}")


def _reason(given: str | None) -> str:
    """Return the reason of a decision, from the option or asked for on a terminal. InputError if it is blank or too long."""
    if given is None and sys.stdin.isatty():
        given = typer.prompt("Reason", err=True)
    said = (given or "").strip()
    if not said:
        raise InputError(f"--reason: {'is missing' if given is None else 'is blank'}", hint=SAY_WHY)
    if len(said) > MAX_COMMENT:
        raise InputError(f"--reason: has {len(said)} characters; at most {MAX_COMMENT} are taken", hint=SAY_WHY)
    return said


def _found(workspace: Workspace, incident: str) -> Incident:
    """Return the only incident whose id begins with this text; InputError if there is none, or several."""
    values = {"project": None, "incident": incident}
    found = list(query_records(workspace.store.cursor(), "incident_by_id", Incident, values))
    if len(found) != 1:
        many = f"{len(found)} incidents begin with" if found else "no incident begins with"
        raise InputError(f"{many} {plain(incident, 64)!r}", hint="`driftline incidents list` lists them.")
    return found[0]
