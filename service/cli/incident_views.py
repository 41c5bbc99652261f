"""Incidents and checks for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.text import Text

from audit.drift.consecutive_days import DAYS
from audit.drift.incident_evidence import ChangedSeries, Day, Exchange, Run, SamplingCount, SliceFindings, evidence_of
from audit.times import iso_time
from schemas.records import Incident
from service.cli.terminal import SEVERITY_STYLES, ListTable, table
from service.read.incident_actions import COMMAND_NOTES, describe_slices, format_slice_counts, format_slice_means
from service.read.incidents import IncidentAnswer, IncidentEvent, incident_answer
from service.read.project import describe_blind_spot, describe_notices
from service.read.why import Why
from service.text.formats import MISSING, counted, plain
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import ACKNOWLEDGED, CONFIRMED, describe_snooze

_ID_LENGTH = 8
"""Characters of an id that are shown. Commands accept an id of this length."""


INCIDENT_KEYS = (
    *("id", "detectedAt", "project", "agent", "severity", "confidence", "status", "resolution", "assignee", "cause", "rule"),
    *("title", "firstDay"),
)
"""The fields of an incident in a list."""


def incidents_table(incidents: Sequence[IncidentAnswer]) -> ListTable:
    """Show incidents, one per line."""
    cells = [
        [
            incident.id[:_ID_LENGTH],
            f"{incident.detected_at:%Y-%m-%d %H:%M}",
            incident.project,
            incident.severity if incident.confidence == CONFIRMED else f"{incident.severity}?",
            describe_state(incident),
            plain(incident.assignee, 64) if incident.assignee else MISSING,
            incident.cause or MISSING,
            incident.rule,
            incident.title,
        ]
        for incident in incidents
    ]
    headers = ["incident", "found", "project", "severity", "state", "assignee", "cause", "rule", "what"]
    return ListTable(headers, cells, whole=["incident", "found"], optional=["rule", "cause", "assignee", "state", "project"])


def check_view(checked: Sequence[CheckResult]) -> RenderableType:
    """Show the findings of a check, project by project."""
    findings = [(check, finding) for check in checked for finding in check.findings]
    examined = [check for check in checked if check.project_check]
    quiet = [check for check in examined if not check.findings]
    cells = [
        [check.project, finding.severity, finding.rule, f"{finding.since:%m-%d} to {finding.until:%m-%d}", finding.title]
        for check, finding in findings
    ]
    opened = sum(len(check.opened) for check in checked)
    summary = f"{counted(len(examined), 'project')} checked, nothing found in {len(quiet)}; {counted(opened, 'new incident')}"
    findings_table = [table(["project", "severity", "rule", "days", "what"], cells)] if cells else []
    return Group(*findings_table, Text("\n".join([summary, *check_limits(checked)]), style="dim"))


def check_limits(checked: Sequence[CheckResult]) -> list[str]:
    """Describe the limits of a check, one per line: projects without data, short baselines and series without a check."""
    unchecked = ", ".join(plain(check.project, 64) for check in checked if not check.project_check)
    short = [
        check.project_check
        for check in checked
        if check.project_check and check.project_check.days < check.project_check.baseline_days
    ]
    learning = ", ".join(f"{plain(check.project, 64)} ({check.days} of {check.baseline_days} days)" for check in short)
    blind = [
        f"{plain(check.project, 64)}: {plain(describe_blind_spot(asdict(spot)), 500)}"
        for check in checked
        if check.project_check
        for spot in check.project_check.blind_spots
    ]
    notices = [
        f"{plain(check.project, 64)}: {plain(sentence, 500)}"
        for check in checked
        if check.project_check
        for sentence in describe_notices([asdict(notice) for notice in check.project_check.notices])
    ]
    lines = {
        f"Not checked (no exchanges or runs in the {DAYS} days before): {unchecked}": unchecked,
        f"No full baseline yet: {learning}": learning,
    }
    return [line for line, names in lines.items() if names] + notices + blind


def incident_view(incident: Incident, history: Sequence[IncidentEvent], now: datetime) -> RenderableType:
    """Show one incident with its evidence and its history of people's actions."""
    return Group(*_incident_parts(incident, history, now))


def _incident_parts(incident: Incident, history: Sequence[IncidentEvent], now: datetime) -> Iterator[RenderableType]:
    answer = incident_answer(incident)
    evidence = evidence_of(incident)
    yield Text(plain(answer.title), style=SEVERITY_STYLES.get(answer.severity, "") or "bold")
    yield Text(
        f"{answer.id}  project {answer.project}  {answer.confidence} {answer.severity}  {describe_state(answer)}"
        f"  found {iso_time(answer.detected_at)} by {answer.rule}"
    )
    yield from _explain(answer.why)
    yield Text(f"\n{plain(answer.description, 2000)}")
    snooze = describe_snooze(incident, now)
    if snooze:
        yield Text(plain(snooze, 300))
    if answer.assignee:
        yield Text(f"assigned to {plain(answer.assignee, 64)}")
    for event in history:
        comment = f": {plain(event.comment, 300)}" if event.comment else ""
        yield Text(f"{iso_time(event.at)}  {_describe_event(event)} by {plain(event.by, 64)}{comment}")
    if len(evidence.moved) > 1:
        yield Text("\nWhat moved", style="bold")
        yield _moved_table(evidence.moved)
    for rule, rule_evidence in evidence.rules.items():
        yield Text(f"\n{rule}: {plain(rule_evidence.title, 300)}", style="bold")
        yield _days_table(rule_evidence.days or ())
    if evidence.slices is not None:
        yield Text("\nWhich part changed", style="bold")
        yield Text(plain(describe_slices(evidence.slices), 2000))
        if evidence.slices.slices:
            yield _slices_table(evidence.slices)
    for deployment in evidence.deployments:
        yield Text(
            f"Deployed around the start of the change: {plain(deployment.name, 600)} at {plain(deployment.at, 32)} by {plain(deployment.by, 64)}"
        )
    if evidence.sampling_mix:
        yield Text("\nSampling before and after", style="bold")
        yield _mix_table(evidence.sampling_mix)
    if evidence.exchanges:
        yield Text("\nExchanges with the largest effect", style="bold")
        yield _exchanges_table(evidence.exchanges)
    if evidence.runs:
        yield Text("\nRuns with the largest effect", style="bold")
        yield _runs_table(evidence.runs)
    if evidence.queries:
        names = ", ".join(query.name for query in evidence.queries)
        yield Text(f"\nReproduce with the queries {names}; --json shows their parameters.", style="dim")


def _explain(why: Why) -> Iterator[RenderableType]:
    """Show the reasons for an incident, and the recommended actions with their commands."""
    yield Text("\nWhy", style="bold")
    yield Text("\n".join(plain(reason.text, 2000) for reason in why.reasons))
    if why.actions:
        yield Text("\nWhat to do", style="bold")
    for number, action in enumerate(why.actions, 1):
        yield Text(f"{number}. {plain(action.title, 600)}. {plain(action.because, 2000)}")
        commands = [
            (action.command, _command_note(action.id)),
            *((link.command, f"  # {plain(link.title)}") for link in action.links),
        ]
        for command, note in commands:
            if command:
                yield Text(f"   {plain(command, 2000)}", style="cyan", end="")
                yield Text(note, style="dim")


def _command_note(action: str) -> str:
    return f"  # {COMMAND_NOTES[action].rstrip(':')}" if action in COMMAND_NOTES else ""


def _describe_event(event: IncidentEvent) -> str:
    if event.kind == "assignment":
        return f"assigned to {plain(event.assignee or 'nobody', 64)}"
    if event.kind == "snooze":
        return (
            "snooze ended"
            if event.until and event.until <= event.at
            else f"snoozed until {iso_time(event.until) or 'it gets worse'}"
        )
    return event.status or "comment"


def describe_state(incident: Incident | IncidentAnswer) -> str:
    """Describe the state of an incident, with its assignee and its resolution."""
    person = incident.acknowledged_by if incident.status == ACKNOWLEDGED else incident.resolved_by
    resolution = "" if incident.resolution is None else f" ({incident.resolution.replace('_', ' ')})"
    return f"{incident.status}{resolution}" + (f" by {plain(person, 64)}" if person else "")


def _moved_table(moved: Sequence[ChangedSeries]) -> RenderableType:
    cells = [
        [
            change.name,
            change.direction or MISSING,
            MISSING if change.before is None else f"{change.before:.3f}",
            MISSING if change.after is None else f"{change.after:.3f}",
            f"{change.since}",
            f"{change.interval[0]} to {change.interval[1]}",
            "also changed" if change.fell_too else f"{'confirmed' if change.confirmed else 'suspected'} {change.severity}",
        ]
        for change in moved
    ]
    return table(["series", "went", "from", "to", "since", "first day within", "alarm"], cells, right=["from", "to"])


def _days_table(days: Sequence[Day]) -> RenderableType:
    numbers = [name for name in ("average", "anomalies", "count") if any(getattr(day, name) is not None for day in days)]
    cells = [[f"{day.day}", *(getattr(day, name) for name in numbers)] for day in days]
    return table(["day", *numbers], cells, right=numbers)


def _slices_table(findings: SliceFindings) -> RenderableType:
    cells = [
        [
            row.name,
            f"{row.explained:.0%}",
            row.shares,
            format_slice_counts(row),
            format_slice_means(row),
            row.mix.text,
            row.within.text,
        ]
        for row in findings.listed
    ]
    titles = ["slice", "explains", "share", "exchanges", "mean", "the mix moved", "inside it moved"]
    return table(titles, cells, right=["explains"])


def _mix_table(mix: Sequence[SamplingCount]) -> RenderableType:
    cells = [
        [row.sampling_reason, row.before, row.after, _format_share(row.share_before), _format_share(row.share_after)]
        for row in mix
    ]
    numbers = ["before", "after", "share before", "share after"]
    return table(["sampling", *numbers], cells, right=numbers)


def _exchanges_table(exchanges: Sequence[Exchange]) -> RenderableType:
    cells = [
        [
            row.exchange_timestamp[:16].replace("T", " "),
            row.agent or MISSING,
            row.session_id,
            row.turn_number,
            f"{row.score:.2f}",
            f"{row.moved:.2f}",
            row.reason,
        ]
        for row in exchanges
    ]
    numbers = ["turn", "score", "moved"]
    return table(["exchange at", "agent", "session", *numbers, "why"], cells, right=numbers)


def _runs_table(runs: Sequence[Run]) -> RenderableType:
    cells = [
        [
            (run.ended_at or MISSING)[:16].replace("T", " "),
            run.run_id,
            run.agent or MISSING,
            run.trust_score,
            run.readiness_level,
            ", ".join(run.failures) or MISSING,
        ]
        for run in runs
    ]
    return table(["ended at", "run", "agent", "trust", "readiness", "failures"], cells, right=["trust"])


def _format_share(share: float | None) -> str:
    return MISSING if share is None else f"{share:.0%}"
