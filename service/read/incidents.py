"""Incidents: answers about them, people's actions on them, the findings of a check, and the inbox of all projects.

An `IncidentAnswer` is built from the record `Incident` and its evidence. The filters and the order of the inbox are part of its address,
so that people can share and save a view. An incident can be assigned to any operator who may see its project and has a live token.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Meta
from msgspec.structs import asdict, replace

from analytics.queries import query_records, query_rows
from audit.drift.incident_evidence import ChangedSeries, evidence_of, members_of
from schemas.bounds import MAX_ID, NAME
from schemas.codec.single_object import record_from
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Incident
from schemas.registry import schema_of
from service.read.project import describe_blind_spot, describe_notices
from service.read.scores import ProjectBaseline, project_baseline
from service.read.why import Why, why
from service.setup.access import AccessStore
from service.text.answers import Answer, Moment, NextCursor, Place
from service.text.formats import plain
from service.text.window import ALL, LENGTHS, kept_of, moment_of
from service.text.zone import find_zone
from streams.watch.checking import CheckResult
from streams.watch.findings import Finding
from streams.watch.lifecycle import LIVE, MAX_SNOOZE, STATUSES, assignee_of, confidence_of, current_status

IncidentType = Literal["drift", "anomaly_spike"]
IncidentStatus = Literal["open", "acknowledged", "resolved", "dismissed"]
Severity = Literal["notice", "warning", "critical"]
SeriesKind = Literal["mean", "spread", "further", "version"]
Decision = Literal["open", "acknowledged", "resolved", "dismissed", "accepted", "new_normal"]


class IncidentAnswer(Answer, frozen=True):
    """A detected change that may need action."""

    record_type = "Incident"

    id: str
    project: str
    type: IncidentType
    status: IncidentStatus
    severity: Severity
    title: str
    description: Annotated[str, Meta(description="The finding, with its numbers.")]
    why: Why
    metadata: Annotated[
        dict[str, Any],
        Meta(
            description="The evidence: findings of each rule by day, the baseline, the exchanges with the largest effect, the queries."
        ),
    ]
    detected_at: Moment
    resolved_at: Moment | None
    resolved_by: str | None
    tier: str | None
    direction: str | None
    rule: Annotated[str, Meta(examples=["sequential", "consecutive_days", "rate_ratio"])]
    cause: str | None
    confidence: Literal["suspected", "confirmed"]
    confirmed_at: Moment | None
    resolution: str | None
    acknowledged_at: Moment | None
    acknowledged_by: str | None
    assignee: Annotated[
        str | None,
        Meta(description="Assignee; null if unassigned. Acknowledging an unassigned incident assigns it."),
    ]
    assigned_at: Moment | None
    snoozed_at: Annotated[Moment | None, Meta(description="Time at which it was last snoozed; null since the last decision.")]
    snoozed_by: str | None
    snoozed_until: Annotated[Moment | None, Meta(description="End of the snooze; null: only when it gets worse.")]
    woken_at: Annotated[Moment | None, Meta(description="Time at which the snooze ended early.")]
    woken_because: Annotated[str | None, Meta(description="Why the snooze ended early, in one sentence.")]
    agent: str | None
    first_day: Annotated[date | None, Meta(description="First day of the change.")]
    last_day: Annotated[date | None, Meta(description="Last day of the change, once it is over.")]
    moved: Annotated[list[ChangedSeries], Meta(description="Series that changed, the leading one first.")]
    baseline_id: str | None
    checked_at: Moment | None
    revision: int


class Incidents(Answer, frozen=True):
    """Incidents, newest first."""

    incidents: list[IncidentAnswer]
    count: int
    next_cursor: NextCursor = None


class IncidentDecision(Answer, frozen=True):
    """A decision on an incident: its author, time and reason."""

    status: Decision
    by: str
    comment: str | None
    at: Moment


class IncidentEvent(Answer, frozen=True):
    """A person's action on an incident: its author and time."""

    kind: Literal["decision", "assignment", "snooze", "comment"]
    by: str
    at: Moment
    status: Annotated[Decision | None, Meta(description="The new status, for a decision.")]
    assignee: Annotated[str | None, Meta(description="The new assignee of an assignment; null: unassigned.")]
    until: Annotated[
        Moment | None, Meta(description="The end of a snooze; null: until it gets worse; not after `at`: the snooze was ended.")
    ]
    comment: str | None


class OneIncident(Answer, frozen=True):
    """An incident with its decisions and the history of people's actions, oldest first."""

    incident: IncidentAnswer
    decisions: list[IncidentDecision]
    history: Annotated[list[IncidentEvent], Meta(description="Decisions, assignments, snoozes and comments.")]


class RuleFinding(Answer, frozen=True):
    """A finding of a rule, whether or not it already has an incident."""

    rule: str
    type: IncidentType
    tier: str | None
    direction: str | None
    severity: Severity
    agent: str | None
    kind: SeriesKind
    confirmed: bool
    interval: tuple[date, date]
    since: date
    until: date
    title: str
    description: str


class DriftCheck(Answer, frozen=True):
    """The findings of a check, and the incidents that it opened and updated."""

    project: str
    as_of: Moment
    exchanges: Annotated[int, Meta(description="Number of exchanges checked; 0 if the last days had none.")]
    notices: Annotated[list[str], Meta(description="What changed in the traffic and says nothing about quality.")]
    not_compared: Annotated[
        list[str], Meta(description="Traffic that is not compared, since when and why, in one sentence each.")
    ]
    baseline: Annotated[ProjectBaseline | None, Meta(description="As in `GET /api/audit/{project}/baseline`.")]
    findings: list[RuleFinding]
    incidents: list[IncidentAnswer]
    opened: list[str]


def incident_answer(incident: Incident, *, with_sql: bool = True) -> IncidentAnswer:
    """Return the answer about an incident. Without `with_sql`, the texts of its queries are omitted."""
    evidence = evidence_of(incident)
    if not with_sql:
        evidence = replace(evidence, queries=[replace(query, sql="") for query in evidence.queries])
    first_day = incident.first_day.date() if incident.first_day else None
    if first_day is None and evidence.moved:
        # Records of earlier versions have the first day only in the evidence.
        first_day = evidence.moved[0].since
    return IncidentAnswer.of(
        asdict(incident),
        id=incident.incident_id,
        assignee=assignee_of(incident),
        why=why(incident),
        metadata=members_of(evidence),
        first_day=first_day,
        last_day=incident.last_day and incident.last_day.date(),
        moved=[replace(moved, rules={}) for moved in evidence.moved],
    )


def find_incident(cursor: duckdb.DuckDBPyConnection, beginning: str, *, project: str | None = None, hint: str) -> Incident:
    """Return the only incident whose id begins with this text, of one project or any.

    Raises InputError with the hint if there is none, or several, or if the text is empty, which begins every id.
    """
    values = {"project": project, "incident": beginning}
    matches = list(query_records(cursor, "incident_by_id", Incident, values)) if beginning else []
    if len(matches) != 1:
        number = f"the ids of {len(matches)} incidents begin" if matches else "no incident id begins"
        raise InputError(f"{number} with {plain(beginning, 64)!r}" if beginning else "the incident's id is empty", hint=hint)
    return matches[0]


def incident_records(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    *,
    statuses: Collection[str] = (),
    kind: str | None = None,
    confidence: str | None = None,
    before: tuple[datetime, str] | None = None,
    between: tuple[datetime | None, datetime | None] = (None, None),
    limit: int = 100,
    outlined: bool = False,
) -> list[Incident]:
    """Return a page of incidents of one project or all, in some states or any, newest first.

    `between` selects incidents that were open at some time between two moments; None is no bound. With `outlined`, the evidence contains
    only the changed series and the rules' observations, which is enough for lists and charts.
    """
    before_at, before_id = before or (None, None)
    values = {
        "project": project,
        "statuses": list(statuses) or None,
        "type": kind,
        "confidence": confidence,
        "before_at": before_at,
        "before_id": before_id,
        "from": between[0],
        "to": between[1],
        "limit": limit,
        "outlined": outlined,
    }
    return list(query_records(cursor, "project_incidents", Incident, values))


def history_of(cursor: duckdb.DuckDBPyConnection, incident_id: str) -> list[IncidentEvent]:
    """Return the history of an incident, oldest first: decisions, assignments and comments, with author and time."""
    return [
        IncidentEvent.of(row, kind=row["kind"].removeprefix("incident_"), by=row["reviewer"], at=row["occurred_at"])
        for row in query_rows(cursor, "incident_history", {"incident": incident_id})
    ]


def one_incident(incident: Incident, history: Sequence[IncidentEvent]) -> OneIncident:
    """Return an incident with its history of people's actions."""
    decisions = [
        IncidentDecision(event.status, event.by, event.comment, event.at)
        for event in history
        if event.kind == "decision" and event.status is not None
    ]
    return OneIncident(incident_answer(incident), decisions, list(history))


def drift_check(checked: CheckResult, schema_version: str) -> DriftCheck:
    """Return the findings of a check and the incidents it opened. `schema_version` is that of the methodology."""
    spots = checked.project_check.blind_spots if checked.project_check else ()
    return DriftCheck(
        project=checked.project,
        as_of=checked.as_of,
        exchanges=checked.project_check.exchanges if checked.project_check else 0,
        notices=describe_notices([asdict(notice) for notice in checked.project_check.notices] if checked.project_check else []),
        not_compared=[describe_blind_spot(asdict(spot)) for spot in spots],
        baseline=None if checked.baseline is None else project_baseline(checked.baseline, schema_version),
        findings=[_build_finding(finding) for finding in checked.findings],
        incidents=[incident_answer(incident, with_sql=False) for incident in checked.incidents],
        opened=[incident.incident_id for incident in checked.opened],
    )


def _build_finding(finding: Finding) -> RuleFinding:
    return RuleFinding(
        rule=finding.rule,
        type=cast(IncidentType, finding.key.type),
        tier=finding.key.tier,
        direction=finding.key.direction,
        severity=cast(Severity, finding.severity),
        agent=finding.key.agent,
        kind=cast(SeriesKind, finding.kind),
        confirmed=finding.confirmed,
        interval=finding.first_days,
        since=finding.since,
        until=finding.until,
        title=finding.title,
        description=finding.description,
    )


Sort = Literal["worst", "newest", "oldest", "since", "project", "state", "assignee"]
SORTS: tuple[Sort, ...] = get_args(Sort)
"""Sort orders of the inbox. `worst` puts live, confirmed, critical and unacknowledged incidents first, then larger changes before smaller ones
(`log.incident_worst`, which also sorts the fleet)."""
ME, NOBODY = "me", "nobody"
"""Special assignees: the caller, and no one. These names are reserved."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)[::-1]
TYPES = ("drift", "anomaly_spike")
ANY = "any"
"""Matches every state in lists that by default show only undecided incidents."""
MAX_TEXT = 200
"""Maximum length of a search text, in characters."""
LIVE_STATES = tuple(status for status in STATUSES if status in LIVE)
_SEPARATOR = "\n"
"""Separates the sort text from the id in a cursor. Names of projects and people cannot contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Filters of the inbox. None or an empty filter matches any incident."""

    project: str | None = None
    statuses: Sequence[str] = ()
    kind: str | None = None
    confirmed: bool | None = None
    severity: str | None = None
    agent: str | None = None
    assignee: str | None = None
    """A person's name, or `nobody`."""
    text: str | None = None
    since: datetime | None = None
    """Only incidents detected at or after this time."""
    until: datetime | None = None
    """Only incidents detected before this time."""
    snoozed: bool | None = None
    change: str | None = None
    """Only incidents of the same change, by the key of a listed one."""
    sort: Sort = "worst"


_OWN_PARTS = re.compile(r" \([^)]*\)| since \d{1,2} [A-Z][a-z]+(?: \d{4})?")


class ListedIncident(NamedTuple):
    """An incident in a list, with its position in the sort order."""

    incident: Incident
    place: Place
    change: str
    """The key of the change that it has in common with incidents of other projects and agents."""
    alike: int
    """The number of matching incidents of that change."""


class Inbox(NamedTuple):
    """A page of incidents, and the number of matching incidents on all pages."""

    listed: list[ListedIncident]
    total: int


class OpenIncidents(NamedTuple):
    """The number of open or acknowledged incidents, and how many of them are confirmed."""

    total: int
    confirmed: int


class Choices(NamedTuple):
    """The values of each filter, with their numbers of undecided incidents."""

    projects: Mapping[str, int]
    agents: Mapping[str, int]
    assignees: Mapping[str, int]


def inbox(
    cursor: duckdb.DuckDBPyConnection,
    filters: InboxFilter,
    after: Place | None,
    limit: int,
    *,
    now: datetime | None = None,
    outlined: bool = False,
    grouped: bool = False,
) -> Inbox:
    """Return up to `limit` matching incidents after a position. The total is 0 if none is left after it. A filter by snooze needs `now`.

    With `grouped`, `limit` counts changes: the first 100 incidents of each follow each other and have the position of the first.

    With `outlined`, the evidence contains only the changed series and the rules' observations, which is enough for lists and charts.
    """
    after_text, after_id = _split_cursor(after)
    values = {
        "project": filters.project,
        "statuses": list(filters.statuses) or None,
        "type": filters.kind,
        "confidence": confidence_of(confirmed=filters.confirmed),
        "severity": filters.severity,
        "agent": filters.agent,
        "assignee": "" if filters.assignee == NOBODY else filters.assignee,
        "text": filters.text.lower() if filters.text else None,
        "since": filters.since,
        "until": filters.until,
        "sort": filters.sort,
        "after_number": None if after is None else after.number,
        "after_text": after_text,
        "after_at": None if after is None else after.at,
        "after_id": after_id,
        "limit": limit,
        "outlined": outlined,
        "snoozed": filters.snoozed,
        "now": now,
        "change": filters.change,
        "grouped": grouped,
    }
    rows = query_rows(cursor, "inbox", values)
    return Inbox(
        [ListedIncident(_build_record(row), _build_place(row), row["change"], row["alike"]) for row in rows],
        rows[0]["total"] if rows else 0,
    )


def name_alike(title: str) -> str:
    """Return what the titles of alike changes have in common: the first one's without its owner, numbers, day and other series."""
    first, _, _ = title.partition("; also ")
    shared = _OWN_PARTS.sub("", first.partition(": ")[2] or first)
    return shared[:1].upper() + shared[1:]


def choices(cursor: duckdb.DuckDBPyConnection, project: str | None) -> Choices:
    """Return the values of each filter that the incidents of one project or all have."""
    counts: dict[str, dict[str, int]] = {"project": {}, "agent": {}, "assignee": {}}
    for row in query_rows(cursor, "inbox_choices", {"project": project}):
        counts[row["kind"]][row["value"]] = row["live"]
    return Choices(counts["project"], counts["agent"], counts["assignee"])


def open_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None, now: datetime) -> OpenIncidents:
    """Return the number of open or acknowledged incidents of one project or all that are not snoozed. The inbox lists the same by default."""
    rows = query_rows(cursor, "open_incidents", {"project": project, "now": now})
    return OpenIncidents(sum(row["incidents"] for row in rows), sum(row["confirmed"] for row in rows))


def _build_record(row: Mapping[str, Any]) -> Incident:
    return record_from(Incident, {field["name"]: row[field["name"]] for field in schema_of("Incident").fields})


def _build_place(row: Mapping[str, Any]) -> Place:
    return Place(row["detected_at"], f"{row['sort_text']}{_SEPARATOR}{row['incident_id']}", row["sort_number"])


def _split_cursor(place: Place | None) -> tuple[str | None, str | None]:
    """Return the sort text and the incident id of a position."""
    if place is None:
        return None, None
    sort_text, _, incident_id = place.id.rpartition(_SEPARATOR)
    return sort_text, incident_id


AddressParams = dict[str, list[str]]
"""The fields of an address that have values."""
_CHOICES: Mapping[str, Collection[str]] = {
    "status": (*STATUSES, ANY),
    "type": TYPES,
    "confirmed": ("true", "false"),
    "snoozed": ("true", "false", ANY),
    "group": ("off",),
    "severity": SEVERITIES,
    "sort": SORTS,
    "window": (*LENGTHS, ALL),
}
"""Fields with a fixed set of values."""
_MAX_TIME_LENGTH = 40
_MAX_LENGTHS: Mapping[str, int] = {
    "project": 63,
    "agent": MAX_ID,
    "assignee": MAX_ID,
    "text": MAX_TEXT,
    "since": _MAX_TIME_LENGTH,
    "until": _MAX_TIME_LENGTH,
    "zone": _MAX_TIME_LENGTH,
    "change": 32,
}
"""Text fields with their maximum lengths in characters."""
FIELDS = (*_CHOICES, *_MAX_LENGTHS)
MAX_FIELDS = 50
"""Maximum number of parameters in an address."""


def read_address(pairs: Iterable[tuple[str, str]]) -> AddressParams:
    """Return the fields of an address, without blank, default and unknown ones.

    Several states can be repeated fields or a list with commas. Raises InputError with the name of an invalid field.
    """
    params: AddressParams = {}
    for name, value in pairs:
        stripped = value.strip()
        if name not in FIELDS or not stripped:
            continue
        if name == "status":
            states = [_check_value(name, current_status(state.strip())) for state in stripped.split(",")]
            params[name] = [*params.get(name, []), *states]
        elif name in params:
            raise InputError(f"{name}: given twice", hint="Give it once.")
        else:
            params[name] = [_check_value(name, stripped)]
    if "status" in params:
        selected = params["status"]
        params["status"] = [ANY] if ANY in selected else [status for status in STATUSES if status in selected]
    if "since" in params and not kept_of({name: values[0] for name, values in params.items()}).keys() & {"since", "window"}:
        raise InputError("since: must be before until, by at most a year", hint="Give another range.")
    defaults = {"status": list(LIVE_STATES), "sort": ["worst"], "window": [ALL]}
    return {name: params[name] for name in FIELDS if name in params and params[name] != defaults.get(name)}


def read_query(query: str) -> AddressParams:
    """Return the fields of a query string. Raises InputError as `read_address` does."""
    try:
        pairs = parse_qsl(query.removeprefix("?"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InputError(f"query: has more than {MAX_FIELDS} parameters", hint="Copy it from the inbox.") from None
    return read_address(pairs)


def query_of(params: Mapping[str, list[str]]) -> str:
    """Return the fields as a query string."""
    return urlencode(params, doseq=True, quote_via=quote)


def filter_of(params: Mapping[str, list[str]], own_project: str | None, caller: str) -> InboxFilter:
    """Return the filter of an address. Without a state it matches undecided incidents that are not snoozed.

    `own_project` is the only project that the caller may see; None for all.
    """
    single: dict[str, Any] = {name: values[0] for name, values in params.items()}
    statuses = params.get("status") or LIVE_STATES
    return InboxFilter(
        project=own_project or single.get("project"),
        statuses=() if ANY in statuses else tuple(statuses),
        kind=single.get("type"),
        confirmed={"true": True, "false": False}.get(single.get("confirmed", "")),
        severity=single.get("severity"),
        agent=single.get("agent"),
        assignee=caller if single.get("assignee") == ME else single.get("assignee"),
        text=single.get("text"),
        snoozed={"true": True, "false": False, ANY: None}[single.get("snoozed", ANY if ANY in statuses else "false")],
        change=single.get("change"),
        sort=single.get("sort", "worst"),
    )


def _check_value(name: str, value: str) -> str:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(f"{name}: must be one of {', '.join(_CHOICES[name])}", hint="Choose one in the list.")
    if name in _MAX_LENGTHS and len(value) > _MAX_LENGTHS[name]:
        raise InputError(f"{name}: has {len(value)} characters; at most {_MAX_LENGTHS[name]} are allowed", hint="Shorten it.")
    if name in {"since", "until"} and not kept_of({name: value}):
        raise InputError(f"{name}: is not a time", hint="Give a day such as 2026-11-26, or a time such as 2026-11-26T14:00Z.")
    if name == "zone" and find_zone(value) is None:
        raise InputError("zone: is not a time zone", hint="Give a name such as Europe/Berlin.")
    if name == "change" and not re.fullmatch("[0-9a-f]{32}", value):
        raise InputError("change: is not the key of a change", hint="Copy the address from the inbox.")
    if name == "project" and not re.fullmatch(NAME, value):
        raise InputError("project: is not a valid project name", hint="Use a-z, 0-9, _ . - and at most 63 characters.")
    return value


WORSE, NOW = "worse", "now"
"""Ends of a snooze other than a time: when the incident gets worse, and the present, which ends a snooze."""


def read_snooze_end(text: str, now: datetime) -> datetime | None:
    """Return the end of a snooze: a time, `3d` or `8h` from now, or `now`; None for `worse`. Raises DriftlineError for any other."""
    if text in {WORSE, NOW}:
        return None if text == WORSE else now
    end = moment_of(text, "snooze", now, lambda age, now: now + age)
    if not now < end <= now + MAX_SNOOZE:
        raise InputError("snooze: must end in the future, and at most a year from now", hint="Such as 3d, or a time.")
    return end


MAX_NAMED_PEOPLE = 10
"""Maximum number of people in a message."""


def people_of(access: AccessStore, project: str | None) -> list[str]:
    """Return the people who can be assigned incidents of a project, or of any project, by name."""
    return [
        operator.name
        for operator, tokens in access.holders("operator")
        if ((readable := operator.projects_with("read")) is None or (readable if project is None else project in readable))
        and any(token.state == "live" for token in tokens)
    ]


def assignee_problem(name: str, people: Collection[str], project: str) -> str | None:
    """Return why an incident of a project cannot be assigned to a person, with the nearest name; None if it can."""
    if name in people:
        return None
    near = difflib.get_close_matches(name, people, n=1)
    problem = f"assignee: no operator of this name may see project {project}"
    if near:
        return f"{problem}; did you mean {near[0]}?"
    names = ", ".join(sorted(people)[:MAX_NAMED_PEOPLE])
    more = f" and {len(people) - MAX_NAMED_PEOPLE} more" if len(people) > MAX_NAMED_PEOPLE else ""
    return f"{problem}; there are {names}{more}"
