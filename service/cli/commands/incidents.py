"""`driftline incidents` and `driftline check-drift`: list, show and change incidents, detect new ones, and gate a build on them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from analytics.sums.daily import refresh_daily
from audit.drift.consecutive_days import DAYS
from audit.drift.watched_series import CRITICAL, NOTICE, lower_first
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.cli.commands.listing import of_project
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    Project,
    ViewOptions,
    clock_of,
    print_json,
    settings_of,
    with_option_group,
)
from service.cli.completion import completed
from service.cli.exit_codes import fails_when, leave
from service.cli.incident_views import INCIDENT_KEYS, check_view, describe_state, incident_view, incidents_table
from service.cli.list_views import ListView, open_for_display, printed
from service.cli.progress import counting, working
from service.cli.terminal import err, out
from service.read.incidents import (
    LIVE_STATES,
    ME,
    NOBODY,
    SEVERITIES,
    SORTS,
    TYPES,
    WORSE,
    InboxFilter,
    IncidentAnswer,
    assignee_problem,
    drift_check,
    find_incident,
    history_of,
    inbox,
    incident_answer,
    incident_records,
    one_incident,
    people_of,
    read_snooze_end,
)
from service.read.known_projects import require_known
from service.read.project import Project as ProjectAnswer
from service.read.project import describe_unchecked, format_minute, read_project, read_projects
from service.setup.access import AccessStore, access_file
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.text.formats import plain
from service.write.importing import resume_histories
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.checking import CheckResult
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
    describe_snooze,
)
from streams.watch.rounds import read_recent_projects
from streams.watch.watching import PROBLEMS, PROJECT_BATCH_SIZE, Change, ChangeResult, Person, Watch, apply_change

incidents_app = typer.Typer(
    no_args_is_help=True, help="List, show, decide, assign and comment on incidents of drift and anomaly spikes."
)
IncidentId = Annotated[str, typer.Argument(metavar="INCIDENT", help="Id of the incident, or its unique beginning.")]
Author = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the person who makes the change; your account by default.")
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", "--comment", metavar="TEXT", help="Reason. Required; a terminal prompts for it."),
]
REASON_HINT = 'Give the reason in a few words: --reason "new prompt". It is shown with the incident.'
MAX_SEARCHED = 100_000
"""Maximum number of incidents that a gate examines."""
MAX_LISTED = 10
"""Maximum number of incidents that a failed gate lists."""
FAIL_ON_HELP = (
    "Fail if there is an incident of this kind, new or old; may be repeated. open: not acknowledged. live: open or acknowledged. "
    "confirmed: live and confirmed. critical: live and critical. A notice, for which only the judge changed, never fails."
)


@dataclass(frozen=True)
class Filters:
    """Options that select and order the incidents of a list."""

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
            help=f"Only incidents of this severity: {', '.join(SEVERITIES)}.",
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
    snoozed: Annotated[
        bool | None, typer.Option("--snoozed/--awake", help="Only snoozed incidents, or only those that are not.")
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Only incidents with this text in the title or description.")
    ] = None
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="ORDER", help=f"Order: {', '.join(SORTS)}.", autocompletion=completed(SORTS)),
    ] = "newest"


@with_option_group
def incident_list(project: Project = None, *, filters: Filters, options: ViewOptions) -> ListView[IncidentAnswer]:
    """List the incidents, newest first by default."""
    inbox_filter = _build_filter(project, filters, options)

    def read(workspace: Workspace, start: datetime | None) -> list[IncidentAnswer]:
        listed = inbox(
            workspace.store.cursor(), replace(inbox_filter, since=start), None, options.limit + 1, now=workspace.now()
        ).listed
        return [incident_answer(item.incident, with_sql=False) for item in listed]

    return ListView(
        read=read,
        table=incidents_table,
        keys=INCIDENT_KEYS,
        identify=lambda incident: incident.id,
        options=options,
        none=_describe_no_match(project, filters, options, inbox_filter),
        describe_none=lambda workspace: describe_unchecked(_read_checks(workspace, project)),
        project=project,
        time_of=lambda incident: incident.detected_at,
    )


incidents_app.command("list")(printed(incident_list))


def _describe_no_match(project: str | None, filters: Filters, options: ViewOptions, inbox_filter: InboxFilter) -> str:
    states = [" or ".join(inbox_filter.statuses), confidence_of(confirmed=filters.confirmed)]
    state = "".join(f"{part} " for part in states if part)
    selected = (filters.kind, filters.severity, filters.agent, filters.assignee, filters.snoozed, filters.text)
    matching = "" if all(value is None for value in (*selected, options.since, options.until)) else " matches"
    return f"no {state}incident{of_project(project)}{matching}"


@incidents_app.command("show")
def show_incident(incident: IncidentId, database: Database = None, as_json: AsJson = False) -> None:
    """Show an incident with its evidence: days, numbers, the exchanges with the largest effect, and queries to reproduce it."""
    with open_for_display(database) as workspace:
        record = require_incident(workspace, incident)
        history = history_of(workspace.store.cursor(), record.incident_id)
        now = workspace.now()
    if as_json:
        print_json(document(one_incident(record, history)))
    else:
        out.print(incident_view(record, history, now))


def _add_decision(name: str, decision: str, summary: str, *, hidden: bool = False) -> None:
    @incidents_app.command(name, help=summary, hidden=hidden)
    def decide(
        incident: IncidentId,
        by: Author = None,
        reason: Reason = None,
        database: Database = None,
        as_of: AsOf = None,
        as_json: AsJson = False,
    ) -> None:
        changed = _decide(incident, decision, by, reason, database, as_of)
        _print_change(changed, f"is {describe_state(changed)}", as_json=as_json)


_add_decision(
    "acknowledge",
    ACKNOWLEDGED,
    "Acknowledge an incident. It is assigned to you if it is unassigned. It stays open, and the baseline does not change.",
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


@dataclass(frozen=True)
class ChangeOptions:
    """Options of a change that needs no reason."""

    by: Author = None
    reason: Annotated[
        str | None, typer.Option("--reason", "--comment", metavar="TEXT", help="Reason, which is shown with the incident.")
    ] = None
    database: Database = None
    as_of: AsOf = None
    as_json: AsJson = False

    @property
    def author(self) -> str:
        """The person who makes the change."""
        return self.by or getpass.getuser()

    @property
    def comment(self) -> str | None:
        """The reason. Raises InputError if it is blank or too long."""
        return None if self.reason is None else _require_reason(self.reason)


@incidents_app.command("assign")
@with_option_group
def assign(
    incident: IncidentId,
    assignee: Annotated[str, typer.Argument(metavar="NAME", help="An operator who may see the project, or me, or nobody.")],
    options: ChangeOptions,
) -> None:
    """Assign an incident to a person, or to nobody. Its state does not change."""
    author, comment = options.author, options.comment
    person = {ME: author, NOBODY: None}.get(assignee, assignee)
    with _open_for_writing(options.database, options.as_of) as workspace:
        record = require_incident(workspace, incident)
        require_operator(workspace, record.project, person, author)
        changed = _apply_change(workspace, record, Change(assigns=True, assignee=person, comment=comment), author)
    _print_change(changed, f"is assigned to {plain(assignee_of(changed) or NOBODY, 64)}", as_json=options.as_json)


@incidents_app.command("snooze")
@with_option_group
def snooze(
    incident: IncidentId,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="End of the snooze, such as 2026-12-01 or 3d; by default only when it gets worse."
        ),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the snooze now.")] = False,
    *,
    options: ChangeOptions,
) -> None:
    """Snooze a live incident until a time or until it gets worse. It stays red, but leaves the inbox, and no alert is sent."""
    if end and until:
        raise InputError("--end: cannot be combined with --until", hint="Give one of them.")
    comment = options.comment
    with _open_for_writing(options.database, options.as_of) as workspace:
        now = workspace.now()
        record = require_incident(workspace, incident)
        snooze_end = now if end else read_snooze_end(until or WORSE, now)
        change = Change(snoozes=True, until=snooze_end, comment=comment)
        changed = _apply_change(workspace, record, change, options.author)
    state = lower_first(describe_snooze(changed, now)).rstrip(".") or "is not snoozed"
    _print_change(changed, state, as_json=options.as_json)


@incidents_app.command("comment")
def comment(
    incident: IncidentId,
    by: Author = None,
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
    with _open_for_writing(database, as_of) as workspace:
        record = require_incident(workspace, incident)
        changed = _apply_change(workspace, record, Change(comment=reason_text), by or getpass.getuser())
    _print_change(changed, "has your comment", as_json=as_json)


class FailOn(StrEnum):
    """Kinds of unresolved incidents that can fail a check."""

    OPEN = "open"
    LIVE = "live"
    CONFIRMED = "confirmed"
    CRITICAL = "critical"


FAIL_CONDITIONS: Mapping[FailOn, Callable[[Incident], bool]] = {
    FailOn.OPEN: lambda incident: incident.status == OPEN,
    FailOn.LIVE: lambda _: True,
    FailOn.CONFIRMED: lambda incident: incident.confidence == CONFIRMED,
    FailOn.CRITICAL: lambda incident: incident.severity == CRITICAL,
}
"""The open or acknowledged incidents of each kind."""


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

    A running server does this periodically. With --fail-on, the command gates a build.
    """
    kinds = fail_on or []
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        require_known(workspace, project)
        checked_as_of = workspace.now()
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
            f"No project was checked: none has exchanges or runs in the {DAYS} days before {format_minute(checked_as_of)}. "
            "Use --as-of TIME to check as of another time."
        )
    if failed:
        for line in gate_lines(failed, kinds):
            err.say(line)
    leave(failed=bool(failed))


def check_projects(workspace: Workspace, projects: Sequence[str] | None = None) -> list[CheckResult]:
    """Check the given projects, or all projects with recent exchanges, as of the workspace's clock."""
    now = workspace.now()
    if workspace.server is not None:
        with working("waiting for the server's checks"):
            return workspace.server.call("check", list[CheckResult], projects, now)
    with working("summing days"):
        refresh_daily(workspace.store)
    if projects is None:
        projects = read_recent_projects(workspace.store, now)
    return asyncio.run(_check_in_batches(Watch(workspace.publisher), projects))


def _is_failure(incident: Incident, kinds: Collection[FailOn]) -> bool:
    return incident.severity != NOTICE and any(FAIL_CONDITIONS[kind](incident) for kind in kinds)


def failing_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None, kinds: Collection[FailOn]) -> list[Incident]:
    """Return the incidents of one project, or of all, that fail a check, newest first."""
    if not kinds:
        return []
    live = incident_records(cursor, project, statuses=(OPEN, ACKNOWLEDGED), limit=MAX_SEARCHED)
    return [incident for incident in live if _is_failure(incident, kinds)]


def gate_lines(incidents: Collection[Incident], kinds: Collection[FailOn]) -> Iterator[str]:
    """Return lines that list the incidents that fail the check, and say how to resolve them."""
    kind_names = " or ".join(kinds)
    for incident in list(incidents)[:MAX_LISTED]:
        yield f"FAIL {plain(incident.project, 64)} {incident.incident_id}: {plain(incident.title)} ({incident.status})"
    if len(incidents) > MAX_LISTED:
        yield f"… and {len(incidents) - MAX_LISTED} more"
    number = "1 incident is" if len(incidents) == 1 else f"{len(incidents)} incidents are"
    yield f"{number} {kind_names}. `driftline incidents show ID` shows the reasons; `driftline incidents resolve ID` closes one."


def _build_filter(project: str | None, filters: Filters, options: ViewOptions) -> InboxFilter:
    """Return the filter from the options. Raises InputError for an unknown value."""
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
            raise InputError(f"{option}: unknown value {plain(value, 40)}", hint=f"Use one of {', '.join(choices)}.")
    return InboxFilter(
        project=project,
        statuses=statuses or (LIVE_STATES if filters.snoozed is not None else ()),
        kind=filters.kind,
        confirmed=filters.confirmed,
        severity=filters.severity,
        agent=filters.agent,
        assignee=getpass.getuser() if filters.assignee == ME else filters.assignee,
        text=filters.text,
        snoozed=filters.snoozed,
        since=options.start,
        until=options.end,
        sort=next(name for name in SORTS if name == filters.sort),
    )


def _read_checks(workspace: Workspace, project: str | None) -> Sequence[ProjectAnswer]:
    """Return the project, or all projects, with the time of their last check."""
    cursor = workspace.store.cursor()
    if project is None:
        return read_projects(cursor, workspace.policy, workspace.now())
    return [read_project(cursor, workspace.policy, workspace.now(), project)]


def _decide(
    incident: str, decision: str, by: str | None, reason: str | None, database: Path | None, as_of: str | None
) -> Incident:
    """Record a decision and return the updated incident. Raises InputError if the decision is not possible."""
    reason_text = _require_reason(reason)  # prompt before the database is opened
    with _open_for_writing(database, as_of) as workspace:
        record = require_incident(workspace, incident)
        return _apply_change(workspace, record, Change(decision=decision, comment=reason_text), by or getpass.getuser())


def _apply_change(workspace: Workspace, incident: Incident, requested: Change, author: str) -> Incident:
    """Change an incident, in this process or through the server that has the database.

    Raises InputError if the change is not possible.
    """
    key = (incident.project, incident.incident_id)
    comment_text = None if requested.comment is None else workspace.redactor.redact(requested.comment)[0]
    redacted = replace(requested, comment=comment_text)
    result: ChangeResult
    if workspace.server is None:
        result = asyncio.run(apply_change(Watch(workspace.publisher), key, redacted, Person(author)))
    else:
        result = workspace.server.call("apply_change", ChangeResult, key, redacted, Person(author), workspace.now())
    if result.problem is not None or result.incident is None:
        problem = result.problem or "not_found"
        raise InputError(
            f"incident {incident.incident_id} was not changed: {PROBLEMS[problem]}",
            hint="`driftline incidents list --status open --status acknowledged` lists live incidents.",
        )
    return result.incident


def require_operator(workspace: Workspace, project: str, assignee: str | None, author: str | None) -> None:
    """Raise an InputError if the assignee is not an operator. Without operators, every name is accepted."""
    file = access_file(workspace.settings.database)
    if assignee in {None, author} or not file.exists():
        return
    with AccessStore(file, workspace.now) as access:
        people = people_of(access, project)
    problem = assignee_problem(assignee or "", people, project) if people else None
    if problem is not None:
        raise InputError(problem, hint="`driftline operators list` shows the operators.")


def _require_reason(reason: str | None) -> str:
    """Return the reason from the option or from a prompt. Raises InputError if it is missing, blank or too long."""
    if reason is None and sys.stdin.isatty():
        reason = typer.prompt("Reason", err=True)
    if reason is None:
        raise InputError("--reason: is missing", hint=REASON_HINT)
    reason = reason.strip()
    if not reason:
        raise InputError("--reason: is blank", hint=REASON_HINT)
    if len(reason) > MAX_COMMENT:
        raise InputError(f"--reason: has {len(reason)} characters; the maximum is {MAX_COMMENT}", hint=REASON_HINT)
    return reason


def require_incident(workspace: Workspace, incident: str) -> Incident:
    """Return the only incident whose id begins with this text. Raises InputError if there is none, or several, or the text is empty."""
    return find_incident(workspace.store.cursor(), incident, hint="`driftline incidents list` lists the incidents.")


@contextlib.contextmanager
def _open_for_writing(database: Path | None, as_of: str | None) -> Iterator[Workspace]:
    with open_workspace(settings_of(database), now=clock_of(as_of), writes=True) as workspace:
        yield workspace


def _print_change(incident: Incident, result: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document(incident_answer(incident, with_sql=False)))
    else:
        out.say(f"{incident.incident_id} {result}: {incident.title}")


async def _check_in_batches(watch: Watch, projects: Sequence[str]) -> list[CheckResult]:
    checked: list[CheckResult] = []
    with counting("checking projects", len(projects)) as bar:
        for start in range(0, len(projects), PROJECT_BATCH_SIZE):
            batch = projects[start : start + PROJECT_BATCH_SIZE]
            checked += await watch.check(batch)
            bar(start + len(batch))
    return checked
