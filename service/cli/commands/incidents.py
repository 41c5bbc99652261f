"""`driftline incidents` and `driftline check-drift`: list, show and decide on incidents, find new ones, and gate a build on them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from analytics.queries import query_records
from analytics.sums.daily import refresh_daily
from audit.drift.consecutive_days import DAYS
from audit.drift.watched_series import CRITICAL
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.cli.commands.listing import of_project, opened_to_show
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    AsOf,
    Database,
    Limit,
    PolicyFile,
    Project,
    Since,
    clock_of,
    print_json,
    settings_of,
    show_rows,
    since_of,
    with_option_group,
)
from service.cli.completion import completed
from service.cli.exit_codes import fails_when, leave
from service.cli.incident_views import check_view, incident_view, incidents_table, state_words
from service.cli.progress import counting, working
from service.cli.terminal import err, out
from service.read.incidents import (
    ME,
    NOBODY,
    SEVERITIES,
    SORTS,
    TYPES,
    InboxFilter,
    assignee_problem,
    drift_check,
    history_of,
    inbox,
    incident_answer,
    incident_records,
    one_incident,
    people_of,
)
from service.read.known_projects import require_known
from service.read.project import Project as ProjectAnswer
from service.read.project import moment_words, read_project, read_projects, unchecked_words
from service.setup.access import AccessStore, access_file
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.text.formats import plain
from service.write.importing import resume_histories
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.checking import Checked
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    CONFIRMED,
    DISMISSED,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    STATUSES,
    assignee_of,
    confidence_of,
    current_status,
)
from streams.watch.rounds import recent_projects
from streams.watch.watching import AT_ONCE, PROBLEMS, Change, Changed, Person, Watch, change

incidents_app = typer.Typer(
    no_args_is_help=True, help="List, show, decide, assign and comment on incidents of drift and anomaly spikes."
)
IncidentId = Annotated[str, typer.Argument(metavar="INCIDENT", help="Id of the incident, or its unique beginning.")]
Who = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the person who makes the change; your account by default.")
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", "--comment", metavar="TEXT", help="Reason. Required; a terminal prompts for it."),
]
GIVE_REASON = 'Give the reason in a few words: --reason "new prompt". It is shown with the incident.'
SEARCHED = 100_000
"""Maximum number of incidents to search."""
NAMED = 10
"""Incidents that a failing_incidents gate names."""
FAIL_ON_HELP = (
    "Fail if there is an incident of this kind, new or old; may be repeated. open: not acknowledged. live: open or acknowledged. "
    "confirmed: live and confirmed. critical: live and critical."
)


@dataclass(frozen=True)
class Filters:
    """Narrow the list, and order it."""

    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATE",
            help=f"Only incidents in this state: {', '.join(STATUSES)}; may be repeated.",
            autocompletion=completed(STATUSES),
        ),
    ] = None
    confirmed: Annotated[
        bool | None, typer.Option("--confirmed/--suspected", help="Only confirmed or only suspected incidents.")
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help=f"Only incidents of this type: {' or '.join(TYPES)}.",
            autocompletion=completed(TYPES),
        ),
    ] = None
    severity: Annotated[
        str | None,
        typer.Option(
            "--severity",
            metavar="LEVEL",
            help=f"Only incidents of this severity: {' or '.join(SEVERITIES)}.",
            autocompletion=completed(SEVERITIES),
        ),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Only incidents whose leading series or evidence names this agent."),
    ] = None
    assignee: Annotated[
        str | None,
        typer.Option("--assignee", metavar="NAME", help="Only incidents assigned to this person, to me, or to nobody."),
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Only incidents with this text in the title or description.")
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
def list_incidents(project: Project = None, *, filters: Filters) -> None:
    """List the incidents of one project or all, newest first or in another order."""
    wanted = _build_filter(project, filters)
    with opened_to_show(filters.database, project) as workspace:
        listed = inbox(workspace.store.cursor(), wanted, None, filters.limit + 1).listed
        checks = [] if listed else _read_checks(workspace, project)
    rows = [incident_answer(item.incident, with_sql=False) for item in listed]
    state = "".join(f"{part} " for part in [" or ".join(wanted.statuses), confidence_of(confirmed=filters.confirmed)] if part)
    other = (filters.kind, filters.severity, filters.agent, filters.assignee, filters.text, filters.since)
    matching = "" if other == (None,) * len(other) else " that matches"
    none = f"no {state}incident{of_project(project)}{matching}. {unchecked_words(checks)}"
    show_rows(rows, incidents_table, as_json=filters.as_json, none=none, limit=filters.limit, document=document)


@incidents_app.command("show")
def show_incident(incident: IncidentId, database: Database = None, as_json: AsJson = False) -> None:
    """Show an incident with its evidence: days, numbers, the exchanges with the largest effect, and queries to reproduce it."""
    with opened_to_show(database) as workspace:
        record = _find_incident(workspace, incident)
        history = history_of(workspace.store.cursor(), record.incident_id)
    if as_json:
        print_json(document(one_incident(record, history)))
    else:
        out.print(incident_view(record, history))


def _add_decision(name: str, decision: str, summary: str, *, hidden: bool = False) -> None:
    @incidents_app.command(name, help=summary, hidden=hidden)
    def decide(
        incident: IncidentId,
        by: Who = None,
        reason: Reason = None,
        database: Database = None,
        as_of: AsOf = None,
        as_json: AsJson = False,
    ) -> None:
        made = _decide(incident, decision, by, reason, database, as_of)
        _show_result(made, f"is {state_words(made)}", as_json=as_json)


_add_decision(
    "acknowledge",
    ACKNOWLEDGED,
    "Acknowledge an incident. It is assigned to you if it is unassigned. It stays red, and the baseline does not change.",
)
_add_decision(
    "resolve",
    RESOLVED,
    "Resolve a fixed incident. Its days do not count as normal. If the change persists, it is detected again.",
)
_add_decision(
    "new-normal",
    NEW_NORMAL,
    "Resolve an incident as the new normal. Later comparisons start at the first day of the change.",
)
_add_decision("accept", NEW_NORMAL, "Resolve an incident as the new normal (the name in earlier versions).", hidden=True)
_add_decision("dismiss", DISMISSED, "Dismiss an unimportant incident. The same change opens no new incident.")
_add_decision("reopen", OPEN, "Reopen an incident.")


@incidents_app.command("assign")
def assign(
    incident: IncidentId,
    assignee: Annotated[str, typer.Argument(metavar="NAME", help="An operator who may see the project, or me, or nobody.")],
    by: Who = None,
    reason: Annotated[
        str | None, typer.Option("--reason", "--comment", metavar="TEXT", help="Reason, which is shown with the incident.")
    ] = None,
    database: Database = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Assign an incident to a person, or to nobody. Its state does not change."""
    reason_text = None if reason is None else _require_reason(reason)
    with _open_to_write(database, as_of) as workspace:
        record, who = _find_incident(workspace, incident), by or getpass.getuser()
        person = {ME: who, NOBODY: None}.get(assignee, assignee)
        _require_operator(workspace, record.project, person, who)
        made = _apply_change(workspace, record, Change(assigns=True, assignee=person, comment=reason_text), who)
    _show_result(made, f"has {plain(assignee_of(made) or NOBODY, 64)} as its assignee", as_json=as_json)


@incidents_app.command("comment")
def comment(
    incident: IncidentId,
    by: Who = None,
    reason: Annotated[
        str | None,
        typer.Option("--comment", "--reason", metavar="TEXT", help="The comment. Required; a terminal prompts for it."),
    ] = None,
    database: Database = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Comment on an incident without changing it."""
    reason_text = _require_reason(reason)
    with _open_to_write(database, as_of) as workspace:
        record, who = _find_incident(workspace, incident), by or getpass.getuser()
        made = _apply_change(workspace, record, Change(comment=reason_text), who)
    _show_result(made, "has your comment", as_json=as_json)


class FailOn(StrEnum):
    """Kinds of incidents that can fail a check; all of them wait for a decision."""

    OPEN = "open"
    LIVE = "live"
    CONFIRMED = "confirmed"
    CRITICAL = "critical"


FAILING: Mapping[FailOn, Callable[[Incident], bool]] = {
    FailOn.OPEN: lambda incident: incident.status == OPEN,
    FailOn.LIVE: lambda _: True,
    FailOn.CONFIRMED: lambda incident: incident.confidence == CONFIRMED,
    FailOn.CRITICAL: lambda incident: incident.severity == CRITICAL,
}
"""Which open or acknowledged incidents each kind means."""


@fails_when("--fail-on matches an incident")
def check_drift(
    project: Project = None,
    fail_on: Annotated[list[FailOn] | None, typer.Option("--fail-on", metavar="KIND", help=FAIL_ON_HELP)] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Check for drift and anomaly spikes: compute baselines that are due, apply the rules, and record incidents.

    A running server does this by itself. With --fail-on, the command gates a build.
    """
    kinds = fail_on or []
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        require_known(workspace, project)
        as_of_now = workspace.now()
        if as_of is None and workspace.server is None:
            with counting("checking days") as bar:
                resume_histories(workspace, bar)
        checked = check_projects(workspace, None if project is None else [project])
        failed = failing_incidents(workspace.store.cursor(), project, kinds)
    if as_json:
        for check in checked:
            print_json(document(drift_check(check, workspace.policy.for_project(check.project).methodology.version)))
    elif checked:
        out.print(check_view(checked))
    else:
        out.say(
            f"No project was checked: none has exchanges or runs in the {DAYS} days before {moment_words(as_of_now)}. "
            "--as-of TIME checks as of another time."
        )
    if failed:
        for line in gate_lines(failed, kinds):
            err.say(line)
    leave(failed=bool(failed))


def check_projects(workspace: Workspace, projects: Sequence[str] | None = None) -> list[Checked]:
    """Check some projects of a database, or all with recent exchanges, as of the workspace's current time."""
    now = workspace.now()
    if workspace.server is not None:
        with working("the server checks"):
            return workspace.server.call("check", list[Checked], projects, now)
    with working("summing days"):
        refresh_daily(workspace.store)
    wanted = recent_projects(workspace.store, now) if projects is None else projects
    return asyncio.run(_check_in_batches(watch_over(workspace), wanted))


def watch_over(workspace: Workspace) -> Watch:
    """Return the watch over a database that this process has."""
    return Watch(workspace.publisher)


def failing_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None, kinds: Collection[FailOn]) -> list[Incident]:
    """Return the incidents of one project or all that fail a check, newest first."""
    if not kinds:
        return []
    live = incident_records(cursor, project, statuses=(OPEN, ACKNOWLEDGED), limit=SEARCHED)
    return [incident for incident in live if any(FAILING[kind](incident) for kind in kinds)]


def gate_lines(incidents: Collection[Incident], kinds: Collection[FailOn]) -> Iterator[str]:
    """Describe the incidents that fail the check, and what to do about them."""
    kind_names = " or ".join(kinds)
    for incident in list(incidents)[:NAMED]:
        yield f"FAIL {plain(incident.project, 64)} {incident.incident_id}: {plain(incident.title)} ({incident.status})"
    if len(incidents) > NAMED:
        yield f"… and {len(incidents) - NAMED} more"
    number = "1 incident is" if len(incidents) == 1 else f"{len(incidents)} incidents are"
    yield f"{number} {kind_names}. `driftline incidents show ID` says why; `driftline incidents resolve ID` closes one."


def _build_filter(project: str | None, filters: Filters) -> InboxFilter:
    """Return the filter from the options; InputError names a wrong one."""
    statuses = [current_status(name) for name in filters.status or ()]
    for name in statuses:
        if name not in STATUSES:
            raise InputError(f"--status {plain(name, 40)} is not a state", hint=f"Use one of {', '.join(STATUSES)}.")
    for option, value, choices in (
        ("--type", filters.kind, TYPES),
        ("--severity", filters.severity, SEVERITIES),
        ("--sort", filters.sort, SORTS),
    ):
        if value is not None and value not in choices:
            raise InputError(f"{option}: {plain(value, 40)} is none of them", hint=f"Use one of {', '.join(choices)}.")
    return InboxFilter(
        project=project,
        statuses=statuses,
        kind=filters.kind,
        confirmed=filters.confirmed,
        severity=filters.severity,
        agent=filters.agent,
        assignee=getpass.getuser() if filters.assignee == ME else filters.assignee,
        text=filters.text,
        since=since_of(filters.since),
        sort=next(name for name in SORTS if name == filters.sort),
    )


def _read_checks(workspace: Workspace, project: str | None) -> Sequence[ProjectAnswer]:
    """Tell whether a project, or each of them, was checked."""
    cursor, policy, now = workspace.store.cursor(), workspace.policy, workspace.now()
    return read_projects(cursor, policy, now) if project is None else [read_project(cursor, policy, now, project)]


def _decide(
    incident: str, decision: str, by: str | None, reason: str | None, database: Path | None, as_of: str | None
) -> Incident:
    """Record a decision and return the updated incident. InputError if the decision is not possible."""
    why = _require_reason(reason)  # ask before the database is opened
    with _open_to_write(database, as_of) as workspace:
        record = _find_incident(workspace, incident)
        return _apply_change(workspace, record, Change(decision=decision, comment=why), by or getpass.getuser())


def _apply_change(workspace: Workspace, incident: Incident, wanted: Change, who: str) -> Incident:
    """Change an incident, in this process or through the server that has the database; InputError if the change is not possible."""
    which, comment_text = (incident.project, incident.incident_id), wanted.comment
    redacted = Change(
        decision=wanted.decision,
        assigns=wanted.assigns,
        assignee=wanted.assignee,
        comment=None if comment_text is None else workspace.redactor.redact(comment_text)[0],
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


def _require_operator(workspace: Workspace, project: str, name: str | None, who: str) -> None:
    """Raise an InputError if the assignee is not an operator; without any operators, every name is accepted."""
    file = access_file(workspace.settings.database)
    if name in {None, who} or not file.exists():
        return
    with AccessStore(file, workspace.now) as access:
        people = people_of(access, project)
    if people and (problem := assignee_problem(name or "", people, project)) is not None:
        raise InputError(problem, hint="`driftline operators list` shows them.")


def _require_reason(typed_reason: str | None) -> str:
    """Return the reason of a decision, from the option or asked for on a terminal. InputError if it is blank or too long."""
    if typed_reason is None and sys.stdin.isatty():
        typed_reason = typer.prompt("Reason", err=True)
    reason_text = (typed_reason or "").strip()
    if not reason_text:
        raise InputError(f"--reason: {'is missing' if typed_reason is None else 'is blank'}", hint=GIVE_REASON)
    if len(reason_text) > MAX_COMMENT:
        raise InputError(f"--reason: has {len(reason_text)} characters; at most {MAX_COMMENT} are taken", hint=GIVE_REASON)
    return reason_text


def _find_incident(workspace: Workspace, incident: str) -> Incident:
    """Return the only incident whose id begins with this text; InputError if there is none, or several."""
    values = {"project": None, "incident": incident}
    matches = list(query_records(workspace.store.cursor(), "incident_by_id", Incident, values))
    if len(matches) != 1:
        many = f"{len(matches)} incidents begin with" if matches else "no incident begins with"
        raise InputError(f"{many} {plain(incident, 64)!r}", hint="`driftline incidents list` lists them.")
    return matches[0]


@contextlib.contextmanager
def _open_to_write(database: Path | None, as_of: str | None) -> Iterator[Workspace]:
    with open_workspace(settings_of(database), now=clock_of(as_of), writes=True) as workspace:
        yield workspace


def _show_result(made: Incident, result: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document(incident_answer(made, with_sql=False)))
    else:
        out.say(f"{made.incident_id} {result}: {made.title}")


async def _check_in_batches(watch: Watch, projects: Sequence[str]) -> list[Checked]:
    checked: list[Checked] = []
    with counting("checking projects", len(projects)) as bar:
        for start in range(0, len(projects), AT_ONCE):
            batch = projects[start : start + AT_ONCE]
            checked += await watch.check(batch)
            bar(start + len(batch))
    return checked
