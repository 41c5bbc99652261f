"""A session: its turns with scores, its events, its run with findings, and the incidents that name it.

What is read is bounded for sessions of any size: some turns, and some events of each. The header of the session is read first: its times,
whether it has ended, and whether it has turns, events and a diagnosis. All other queries read only the time between its first and last
record, and queries without possible results are skipped.

The page, the API and the command line mark the events and turns that each finding is about:

1. Findings come from the recorded diagnosis, as in lists, alerts and gates. A record names only the first events of a finding. The detectors
   therefore run again over the diagnosed events, with the thresholds of the diagnosis, and the events of the matching cause are marked.
   Diagnoses by older rules are treated in the same way.
2. If no cause matches the recorded one, because the rules have changed or events were deleted, no event is marked and `note` says so.
3. For a session of more than MAX_REDIAGNOSED_EVENTS events, the detectors do not run again. If its rules are current, the events named in the
   record are marked.
4. A turn is marked if it has an event of the finding (`log.session_parts`). Events before the first turn are in turn 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from analytics.queries import query_rows, run_query
from audit.detectors.registry import Cause
from audit.detectors.thresholds import default_profile, recorded_profile, source_of
from audit.diagnosis.diagnosis import diagnose, rule_version
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.evaluation.cases import WHOLE_SESSION
from audit.evaluation.whole_sessions import MAX_AGE, evaluation_of_session, is_drawn
from schemas.lazy import duckdb, pl
from schemas.records import Diagnosis, FailureCause
from service.read.cold_days import ColdDays
from service.read.evaluations import EvaluatedRun, SessionJudgement, evaluation_page, evaluation_state
from service.read.runs import RecordedRun, Run, read_run, with_payloads
from service.text.answers import Answer, Moment, NextCursor, Place
from streams.engine.record_intake import RecordIntake
from streams.stage_batches import session_key

MAX_REDIAGNOSED_EVENTS = 100_000
"""The detectors run again only for diagnoses of at most this many events."""
MAX_LISTED_TURNS = 100
"""Turns of a finding in an answer."""
MAX_LISTED_EVENTS = 100
"""Events of a turn in an answer."""
NOT_MARKED = "No event is marked: the rules have changed since this diagnosis, or its events are no longer stored."
_PARTLY_MARKED = "{marked} of {count} events are marked. The others are no longer stored, or there are too many of them."
_FOLD_INPUTS = FOLD_COLUMNS[2:]


class FindingEvent(Answer, frozen=True):
    """An event that a finding is about."""

    event_id: str
    event: Annotated[str, Meta(description="Its type.", examples=["tool_call"])]
    tool: str | None


class TurnFinding(Answer, frozen=True):
    """A finding with its events in one turn."""

    number: Annotated[int, Meta(description="The number of the finding in `session.findings`.")]
    type: Annotated[str, Meta(examples=["infinite_tool_loop"])]
    severity: Annotated[str, Meta(examples=["critical"])]
    event_count: Annotated[int, Meta(description="Number of the turn's events that the finding is about.")]
    events: Annotated[list[FindingEvent], Meta(description=f"The first {MAX_LISTED_EVENTS} of them.")]


class FindingTurn(Answer, frozen=True):
    """A turn with events of a finding."""

    turn: Annotated[
        int,
        Meta(description="Number of the turn in the session, from 1; 0 before the first turn or in a session without turns."),
    ]
    event_count: int
    events: Annotated[list[FindingEvent], Meta(description=f"The first {MAX_LISTED_EVENTS} of them.")]


class SessionFinding(Answer, frozen=True):
    """A finding of the session's run, with the turns that it is about."""

    number: Annotated[int, Meta(description="From 1, in the order of the run's diagnosis.")]
    type: Annotated[str, Meta(examples=["infinite_tool_loop"])]
    severity: Annotated[str, Meta(examples=["critical"])]
    description: str
    event_count: Annotated[int, Meta(description="Number of events that it is about.")]
    marked_count: Annotated[int, Meta(description="Number of these events that were found in the session.")]
    note: Annotated[str, Meta(description="Why some events are not marked; empty if all are.")]
    turn_count: int
    turns: Annotated[list[FindingTurn], Meta(description=f"The first {MAX_LISTED_TURNS} turns.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedEvent:
    """An event that a finding is about."""

    event_id: str
    event: str
    tool: str | None
    row: int
    """Its number among the events of its turn, from 1."""
    offset: int
    """Its offset in the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurn:
    """A turn with marked events of a finding."""

    turn: int
    """Number of the turn in the session, from 1; 0 before the first turn."""
    events: Sequence[MarkedEvent]

    @property
    def event_count(self) -> int:
        """The number of marked events in the turn."""
        return len(self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A recorded finding, with the turns that it is about."""

    number: int
    """Number of the finding in the record, from 1."""
    type: str
    severity: str
    description: str
    event_count: int
    """Number of events that the finding is about."""
    turns: Sequence[MarkedTurn]
    is_located: bool = True
    """Whether the events that it is about are known."""

    @property
    def marked_count(self) -> int:
        """The number of marked events."""
        return sum(turn.event_count for turn in self.turns)

    @property
    def note(self) -> str:
        """The reason why some events are not marked; empty if all are."""
        if not self.is_located or not self.marked_count:
            return NOT_MARKED
        marked = self.marked_count
        return _PARTLY_MARKED.format(marked=marked, count=self.event_count) if marked < self.event_count else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFindings:
    """The findings of a session's run, by number, by turn and by event."""

    run_id: str | None = None
    findings: Sequence[Finding] = ()
    left_out: int = 0
    """Number of findings with smaller penalties that the record omits."""
    by_turn: Mapping[int, Sequence[tuple[Finding, MarkedTurn]]] = dataclasses.field(default_factory=dict)
    by_offset: Mapping[int, Sequence[Finding]] = dataclasses.field(default_factory=dict)
    """Findings by the topic offset of an event."""


def session_findings(
    cursor: duckdb.DuckDBPyConnection,
    session: Mapping[str, Any],
    recorded: RecordedRun | None,
    located: Sequence[FindingEvents | None] | None = None,
) -> SessionFindings:
    """Return the findings of a session's run; none without a run.

    `session` has the query parameters of the session's name and times. `located` are the events of the findings, if already known.
    """
    if recorded is None or not recorded.diagnosis.failure_cause_count:
        return SessionFindings()
    run, diagnosis = recorded
    if located is None:
        located = finding_events(cursor, diagnosis)
    ids = sorted({event_id for events in located if events is not None for event_id in events.ids})
    rows = query_rows(cursor, "marked_events", {**session, "events": ids}) if ids else []
    rows_by_id = {row["event_id"]: row for row in rows}
    findings = [
        _build_finding(number, cause, events, rows_by_id)
        for number, (cause, events) in enumerate(zip(diagnosis.failure_causes, located, strict=True), 1)
    ]
    by_turn: dict[int, list[tuple[Finding, MarkedTurn]]] = {}
    by_offset: dict[int, list[Finding]] = {}
    for finding in findings:
        for turn in finding.turns:
            by_turn.setdefault(turn.turn, []).append((finding, turn))
            for event in turn.events:
                by_offset.setdefault(event.offset, []).append(finding)
    left_out = diagnosis.failure_cause_count - len(findings)
    return SessionFindings(run_id=run.run_id, findings=findings, left_out=left_out, by_turn=by_turn, by_offset=by_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvents:
    """The events of a recorded finding: their number, and their ids as far as they are known, in the order of the evidence."""

    count: int
    ids: Sequence[str]


def finding_events(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis) -> list[FindingEvents | None]:
    """Return the events of each recorded finding of a diagnosis; None for a finding whose events are unknown."""
    recorded = diagnosis.failure_causes
    if diagnosis.event_count > MAX_REDIAGNOSED_EVENTS:
        profile = recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes)
        is_current = profile is not None and rule_version(profile) == diagnosis.rule_version
        return [
            FindingEvents(count=cause.evidence_count, ids=[reference.event_id for reference in cause.evidence])
            if is_current
            else None
            for cause in recorded
        ]
    causes = _detect_findings(cursor, diagnosis) if recorded else []
    return [
        None if cause is None else FindingEvents(count=cause.evidence_count, ids=[event_id for _, event_id in cause.evidence])
        for cause in _match_findings(recorded, causes)
    ]


def _detect_findings(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis) -> Sequence[Cause]:
    """Run the detectors over the diagnosed events and return the causes they report."""
    session = {"connection": diagnosis.connection, "session_id": diagnosis.session_id}
    params = {"connection": diagnosis.connection, "session": diagnosis.session_id, "limit": diagnosis.event_count}
    frame = run_query(cursor, "session_timeline", params)
    recorded = recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes)
    profile = recorded or default_profile(source_of(frame["source"]))
    evidence = SessionEvidence.held_to(profile)
    numbered = frame.with_columns(pl.lit(0, pl.Int64).alias("run"))
    folded = with_payloads(cursor, numbered, [{"run": 0, **session}], wanted=evidence.reads_payloads)
    # Zipping lists is a third faster than iterating over the rows of the frame.
    fold_columns({None: evidence}, zip(repeat(None), count(), *(folded[name].to_list() for name in _FOLD_INPUTS), strict=False))
    return diagnose(evidence, profile.thresholds).causes


def _match_findings(recorded: Sequence[FailureCause], causes: Iterable[Cause]) -> list[Cause | None]:
    """Match recorded causes to detected ones: by type and description, or by type if only one of that type is unmatched on each side."""
    unmatched = list(causes)
    matches: list[Cause | None] = []
    for record in recorded:
        same = next(
            (cause for cause in unmatched if (cause.type, cause.description) == (record.type, record.description)), None
        )
        matches.append(same)
        if same is not None:
            unmatched.remove(same)
    for number, record in enumerate(recorded):
        if matches[number] is None:
            candidates = [cause for cause in unmatched if cause.type == record.type]
            rivals = [
                other for match, other in zip(matches, recorded, strict=True) if match is None and other.type == record.type
            ]
            if len(candidates) == len(rivals) == 1:
                matches[number] = candidates[0]
    return matches


def _build_finding(
    number: int, cause: FailureCause, events: FindingEvents | None, rows_by_id: Mapping[str, Mapping[str, Any]]
) -> Finding:
    by_turn: dict[int, list[MarkedEvent]] = {}
    for event_id in events.ids if events is not None else ():
        row = rows_by_id.get(event_id)
        if row is not None:
            marked = MarkedEvent(event_id=event_id, event=row["event"], tool=row["tool"], row=row["row"], offset=row["place"])
            by_turn.setdefault(row["part"], []).append(marked)
    return Finding(
        number=number,
        type=cause.type,
        severity=cause.severity,
        description=cause.description,
        event_count=cause.evidence_count if events is None else events.count,
        turns=[
            MarkedTurn(turn=turn, events=sorted(marked, key=lambda event: event.row))
            for turn, marked in sorted(by_turn.items())
        ],
        is_located=events is not None,
    )


def finding_answers(findings: SessionFindings) -> list[SessionFinding]:
    """Return the findings as answers with their first turns and events."""
    return [
        SessionFinding(
            number=finding.number,
            type=finding.type,
            severity=finding.severity,
            description=finding.description,
            event_count=finding.event_count,
            marked_count=finding.marked_count,
            note=finding.note,
            turn_count=len(finding.turns),
            turns=[
                FindingTurn(turn=turn.turn, event_count=turn.event_count, events=_select_first_events(turn))
                for turn in finding.turns[:MAX_LISTED_TURNS]
            ],
        )
        for finding in findings.findings
    ]


def turn_findings(findings: SessionFindings, turn: int) -> list[TurnFinding]:
    """Return the findings of a turn, with only the events in that turn."""
    return [
        TurnFinding(
            number=finding.number,
            type=finding.type,
            severity=finding.severity,
            event_count=marked.event_count,
            events=_select_first_events(marked),
        )
        for finding, marked in findings.by_turn.get(turn, ())
    ]


def _select_first_events(turn: MarkedTurn) -> list[FindingEvent]:
    return [FindingEvent(event.event_id, event.event, event.tool) for event in turn.events[:MAX_LISTED_EVENTS]]


class ListedSession(Answer, frozen=True):
    """A session in a list. Counts, means and costs cover the period of the list."""

    session_id: str
    connection: str
    project: str
    agent: str | None
    question: Annotated[str | None, Meta(description="The beginning of its first question; null without one.")]
    first_at: Moment
    last_at: Moment
    turns: int
    events: int
    anomalies: int
    tier1: float | None
    tier2: float | None
    tier2_5: float | None
    tier3: float | None
    cost_usd: float | None
    simulated: Annotated[int, Meta(description="Turns scored by a simulated judge.")]
    run_id: str | None
    readiness_level: str | None
    trust_score: int | None
    primary_failure_type: str | None

    @property
    def place(self) -> Place:
        """The session's place in its list."""
        return Place(self.last_at, f"{self.connection}/{self.session_id}")


class SessionList(Answer, frozen=True):
    """Sessions, the one with the newest record first."""

    sessions: list[ListedSession]
    count: int
    next_cursor: NextCursor
    cold_days: Annotated[
        ColdDays | None,
        Meta(
            description="Days in the lake only, whose events and questions are missing, and which the filters version, tool and toolError leave out; null for none."
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """A filter for a list of sessions, and its page."""

    start: datetime
    end: datetime
    agent: str | None = None
    version: str | None = None
    """Only sessions with an exchange of this version of the agent."""
    tool: str | None = None
    """Only sessions with a call of this tool."""
    tool_error: bool = False
    """Only sessions with a failed call, of the tool if one is named."""
    failure: str | None = None
    """Only runs with this primary failure."""
    anomalies: bool = False
    """Only sessions with an anomaly."""
    limit: int = 100
    after: Place | None = None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def list_sessions(cursor: duckdb.DuckDBPyConnection, project: str | None, filters: SessionFilter) -> list[ListedSession]:
    """Return a page of the sessions of one project or all with a record in a period, the one with the newest record first."""
    after = filters.after
    values = {
        "project": project,
        "since": filters.start,
        "until": filters.end,
        "agent": filters.agent,
        "version": filters.version,
        "tool": filters.tool,
        "tool_error": filters.tool_error or None,
        "failure": filters.failure,
        "anomalies": filters.anomalies or None,
        **dict.fromkeys(("readiness", "turns", "ids", "least", "most", "last_text")),
        "tier": "tier2",
        "sort": "at",
        "down": True,
        "last_number": None if after is None else (after.at - _EPOCH) // timedelta(microseconds=1),
        "last_id": None if after is None else after.id,
        "limit": filters.limit,
    }
    return [ListedSession.of(row) for row in query_rows(cursor, "list_sessions", values)]


Row = dict[str, Any]
UNLIMITED = 2**31 - 1
"""A maximum length that no text reaches."""
_MAX_EVALUATIONS = 20
_NO_TOTALS: Row = {
    **dict.fromkeys(
        [
            "exchanges",
            "unanswered",
            "scores",
            "scored",
            "anomalies",
            "flagged",
            "unknown_costs",
            "simulated",
            "events",
            "tool_calls",
            "timed_calls",
        ],
        0,
    ),
    **dict.fromkeys(
        [
            "input_tokens",
            "output_tokens",
            "multi_user",
            "tier1",
            "tier2",
            "tier2_5",
            "tier3",
            "judge_usd",
            "event_tokens",
            "agent_usd",
            "question",
            "tool_ms",
        ]
    ),
    **dict.fromkeys(["models", "agents", "labels"], ()),
}
"""Totals of a session that sent only heartbeats."""
_SEARCH_HOURS = (6, 72, 1440)
"""Search ranges for neighbouring sessions, widened until both are found."""
_SIDES = {"hours_before": False, "hours_after": True}
"""Range parameters of the query `session_beside`, and whether each finds the later session."""


class SessionNamed(Answer, frozen=True):
    """A session by its name."""

    connection: str
    session_id: str


class SessionIncident(Answer, frozen=True):
    """An incident whose evidence names the session."""

    incident_id: str = field(name="id")
    title: str
    status: str
    severity: str
    confidence: str
    detected_at: Moment


class SessionRun(Answer, frozen=True):
    """The run that the session became."""

    run_id: str
    readiness_level: str
    trust_score: float | None
    primary_failure_type: str | None
    primary_severity: str | None


class Session(SessionNamed, frozen=True):
    """A session: its scores, its costs, and the names it belongs to."""

    project: str
    state: Annotated[str, Meta(description="open, or ended: no records since its last end.", examples=["open", "ended"])]
    first_at: Annotated[Moment, Meta(description="Event time of its first record.")]
    last_at: Annotated[Moment, Meta(description="Event time of its last record.")]
    closed_at: Moment | None
    closed_reason: Annotated[str | None, Meta(examples=["explicit", "idle", "session_end"])]
    agents: list[str]
    models: Annotated[list[str], Meta(description="Models that answered, if the sender reports them.")]
    labels: Annotated[dict[str, list[str]], Meta(description="Values of each label of its exchanges and events.")]
    exchanges: int
    unanswered: Annotated[int, Meta(description="Exchanges without an answer from the agent.")]
    multi_user: Annotated[bool | None, Meta(description="Whether several users took part; null if no exchange reports it.")]
    scores: int
    scored: Annotated[int, Meta(description="Scores of the judge.")]
    simulated: Annotated[int, Meta(description="Scores by a simulated judge.")]
    anomalies: int
    flagged: Annotated[int, Meta(description="Exchanges that Tier 1 flagged.")]
    events: int
    tool_calls: int
    tier1: Annotated[float | None, Meta(description="Mean of its turns, as for the other tiers; null if none is scored.")]
    tier2: float | None
    tier2_5: float | None
    tier3: float | None
    judge_usd: Annotated[float | None, Meta(description="Known costs of its current scores.")] = field(name="judgeCostUsd")
    unknown_costs: Annotated[int, Meta(description="Scores with unknown cost.")]
    input_tokens: Annotated[int | None, Meta(description="Input tokens of the agent, from exchanges that report them.")]
    output_tokens: int | None
    event_tokens: Annotated[int | None, Meta(description="Tokens from its token_usage events.")]
    agent_usd: Annotated[float | None, Meta(description="Cost of the agent from its token_usage events.")] = field(
        name="agentCostUsd"
    )
    run: SessionRun | None
    findings: Annotated[list[SessionFinding], Meta(description="Findings of its run, as of its last end.")]
    findings_left_out: Annotated[int, Meta(description="Number of findings with smaller penalties, which are not marked.")]
    incidents: list[SessionIncident]
    question: Annotated[str | None, Meta(description="The beginning of its first question; null without one.")]
    tool_ms: Annotated[
        float | None, Meta(description="Total of the durations of tool calls that are reported; null if none is.")
    ]
    timed_calls: Annotated[int, Meta(description="Tool calls with a reported duration.")]
    previous: Annotated[SessionNamed | None, Meta(description="The same agent's previous session.")]
    next: SessionNamed | None


class SessionTurn(Answer, frozen=True):
    """A turn: its texts and its score."""

    place: Annotated[int, Meta(description="Number of the turn in the session, from 1.")] = field(name="turn")
    turn_number: Annotated[int | None, Meta(description="Number given by its sender or its score.")]
    exchange_id: str
    said_at: Moment = field(name="timestamp")
    score_id: Annotated[str | None, Meta(description="Null before there is a score.")]
    user_message: Annotated[str | None, Meta(description="Null if the texts were deleted.")]
    agent_response: str | None
    agent_thinking: str | None
    outcome: str | None
    agent_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    labels: dict[str, str]
    disposition: str | None
    tier1_score: float | None = field(name="tier1")
    tier1_flags: list[str]
    tier2_score: float | None = field(name="tier2")
    tier2_5_alignment: float | None = field(name="tier2_5")
    tier3_score: float | None = field(name="tier3")
    anomaly: bool
    anomaly_reasons: list[str]
    cost_usd: float | None
    findings: Annotated[list[TurnFinding], Meta(description="Findings of the session's run in the events of this turn.")]


class SessionWithTurns(Answer, frozen=True):
    """A session, and some of its turns."""

    session: Session
    judgement: Annotated[SessionJudgement, Meta(description="The six-dimension judge on the session as a whole.")]
    turns: list[SessionTurn]
    next_turn: Annotated[int | None, Meta(description="The `turn` of the next page; null on the last page.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeader:
    """A session's name, project and times, and what records it has."""

    project: str
    connection: str
    session_id: str
    first_at: datetime
    """Event time of its first record."""
    last_at: datetime
    """Event time of its last record."""
    has_turns: bool
    """Whether it has exchanges or scores."""
    events: int
    """Number of its events."""
    diagnosis: int | None
    """Topic offset of its diagnosis; None without one."""
    closed_at: datetime | None
    """Time of its last end; None if it never ended."""
    reason: str | None
    """Reason of its last end."""
    is_open: bool
    """Whether it never ended, or has had records since its last end."""

    @property
    def name_params(self) -> Row:
        """Query parameters that identify the session."""
        return {"project": self.project, "connection": self.connection, "session": self.session_id}

    @property
    def bounded_params(self) -> Row:
        """Query parameters that identify the session, with its times."""
        return {**self.name_params, "since": self.first_at, "until": self.last_at}

    @property
    def state(self) -> str:
        """The state: open or ended."""
        return "open" if self.is_open else "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRange:
    """A selection of a session's turns: after `skip` turns, or around an exchange."""

    skip: int = 0
    """Number of matching turns to skip."""
    exchange: str | None = None
    limit: int = 20
    anomalies: bool = False
    """Only turns with an anomaly."""
    max_text_length: int = UNLIMITED
    """Maximum length of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetails:
    """A session without its turns and events."""

    header: SessionHeader
    session: Session
    findings: SessionFindings
    """The findings of its run, each with its turns and events."""
    evaluations: Sequence[EvaluatedRun]
    """Its evaluations against written cases."""


def find_sessions(
    cursor: duckdb.DuckDBPyConnection, session: str, projects: Sequence[str] | None = None, connection: str | None = None
) -> list[SessionHeader]:
    """Return the headers of the sessions with an id, in some projects or in any, most recently active first.

    There can be several, because ids are unique only within a connection.
    """
    params = {"session": session, "projects": None if projects is None else list(projects), "connection": connection}
    return [SessionHeader(session_id=session, **row) for row in query_rows(cursor, "session_places", params)]


def read_session(cursor: duckdb.DuckDBPyConnection, session: SessionHeader) -> SessionDetails:
    """Return a session without its turns and events."""
    totals = next(iter(query_rows(cursor, "session_totals", session.bounded_params)), _NO_TOTALS)
    evaluations = evaluation_page(cursor, session.project, session=session.session_id, limit=_MAX_EVALUATIONS)
    previous, following = _read_neighbours(cursor, session, totals["agents"][0] if totals["agents"] else None)
    recorded = _read_recorded_run(cursor, session)
    findings = session_findings(cursor, session.bounded_params, recorded)
    labels: dict[str, list[str]] = {}
    for label in totals["labels"]:
        labels.setdefault(label["name"], []).append(label["value"])
    answer = Session.of(
        totals,
        project=session.project,
        connection=session.connection,
        session_id=session.session_id,
        state=session.state,
        first_at=session.first_at,
        last_at=session.last_at,
        closed_at=session.closed_at,
        closed_reason=session.reason,
        labels=labels,
        run=None if recorded is None else SessionRun.of(msgspec.structs.asdict(recorded.run)),
        findings=finding_answers(findings),
        findings_left_out=findings.left_out,
        incidents=[SessionIncident.of(row) for row in query_rows(cursor, "session_incidents", session.name_params)],
        previous=previous,
        next=following,
    )
    return SessionDetails(
        header=session,
        session=answer,
        findings=findings,
        evaluations=[run for run in evaluations if run.connection == session.connection and run.case_id != WHOLE_SESSION],
    )


def judgement_of_session(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, engine: RecordIntake) -> SessionJudgement:
    """Return the judgement of a session as a whole. Why there is none follows from the present policy."""
    evaluation_id = evaluation_of_session(session.connection, session.session_id)
    requested = evaluation_state(cursor, evaluation_id)
    if requested is None or requested.project != session.project:
        return SessionJudgement(state=_find_unjudged_state(session, engine), evaluation_id=None)
    evaluation = requested.answer.evaluation
    if evaluation is None or evaluation.final_score is None:
        state: Literal["rejected", "pending", "failed"] = (
            "rejected" if requested.answer.set_aside else "pending" if requested.answer.pending else "failed"
        )
        iterations = evaluation.judge_result["iterations"] if evaluation is not None else []
        failure = requested.answer.set_aside or next((iteration["outcome"] for iteration in iterations), None)
        return SessionJudgement(state=state, evaluation_id=evaluation_id, failure=failure)
    result = evaluation.final_result
    judged = {"overall": result["judge_overall"], **result["judge_dimensions"]}
    return SessionJudgement(
        state="judged",
        evaluation_id=evaluation_id,
        overall=evaluation.final_score,
        dimensions={name: dimension.final for name, dimension in evaluation.dimensions.items()},
        evidence={name: list(assessment["evidence"]) for name, assessment in judged.items() if assessment is not None},
        sampling_probability=evaluation.sampling_probability,
        judge_model=evaluation.judge_model,
        cost_usd=evaluation.cost_usd,
        simulated=evaluation.simulated,
        evaluated_at=evaluation.evaluated_at,
    )


def _find_unjudged_state(
    session: SessionHeader, engine: RecordIntake
) -> Literal["off", "open", "not_drawn", "no_turns", "no_judge", "too_late", "due"]:
    settings = engine.policy.for_project(session.project).settings
    sample = settings.session_judging.sample
    if not settings.enabled or not sample:
        return "off"
    if not is_drawn(session_key(session.connection, session.session_id), sample):
        return "not_drawn"
    if session.is_open or session.closed_at is None:
        return "open"
    if not session.has_turns:
        return "no_turns"
    if not engine.has_judge:
        return "no_judge"
    return "too_late" if engine.now() - session.closed_at >= MAX_AGE else "due"


def session_with_turns(
    cursor: duckdb.DuckDBPyConnection, session: SessionHeader, turns: TurnRange, judgement: SessionJudgement
) -> SessionWithTurns:
    """Return a session with some of its turns and its judgement."""
    rows = session_turns(cursor, session, turns)
    read = read_session(cursor, session)
    return SessionWithTurns(
        session=read.session,
        judgement=judgement,
        turns=[_build_turn(row, read.findings) for row in rows],
        next_turn=rows[-1]["row"] + 1 if rows and rows[-1]["row"] < rows[-1]["places"] else None,
    )


def _build_turn(row: Row, findings: SessionFindings) -> SessionTurn:
    return SessionTurn.of(
        row,
        labels={label["name"]: label["value"] for label in row["labels"] or ()},
        tier1_flags=row["tier1_flags"] or [],
        anomaly=bool(row["anomaly"]),
        anomaly_reasons=row["anomaly_reasons"] or [],
        findings=turn_findings(findings, row["place"]),
    )


def session_turns(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, turns: TurnRange) -> list[Row]:
    """Return turns of a session in order, as rows of the query `session_turns`; empty after the last one."""
    params = {
        **session.bounded_params,
        "anomalies": turns.anomalies,
        "exchange": turns.exchange,
        "skip": turns.skip,
        "limit": turns.limit,
        "longest": turns.max_text_length,
    }
    return query_rows(cursor, "session_turns", params)


def turn_strip(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, limit: int) -> list[Row]:
    """Return the first turns of a session, as rows of the query `session_strip`."""
    return query_rows(cursor, "session_strip", {**session.bounded_params, "limit": limit})


MAX_MATCHES = 1_000
"""Matching turns of a session that a search returns. It counts them all."""


def matching_turns(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, text: str) -> list[Row]:
    """Return the first turns of a session that contain a text, as rows of the query `session_matches`."""
    return query_rows(cursor, "session_matches", {**session.bounded_params, "text": text, "limit": MAX_MATCHES})


def session_questions(
    cursor: duckdb.DuckDBPyConnection, project: str, sessions: Collection[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Return the beginning of the first question of sessions, by connection and session id. Sessions without a score have none."""
    if not sessions:
        return {}
    keys = [{"connection": connection, "session_id": session_id} for connection, session_id in sorted(sessions)]
    rows = query_rows(cursor, "session_questions", {"project": project, "sessions": keys})
    return {(row["connection"], row["session_id"]): row["question"] for row in rows if row["question"]}


def session_question(cursor: duckdb.DuckDBPyConnection, project: str, connection: str, session: str) -> str | None:
    """Return the beginning of the first question of a session; None without a score."""
    key = (connection, session)
    return session_questions(cursor, project, [key]).get(key)


def session_steps(
    cursor: duckdb.DuckDBPyConnection, session: SessionHeader, parts: Collection[int], rows: tuple[int, int]
) -> dict[int, Row]:
    """Return events of some parts of a session, by part. `rows` are the numbers of the first and last event within a part.

    Part 0 has the events before the first turn, or all events of a session without turns.
    """
    if not parts or not session.events:
        return {}
    params = {**session.bounded_params, "parts": sorted(parts), "from_row": rows[0], "to_row": rows[1]}
    return {row["part"]: row for row in query_rows(cursor, "session_steps", params)}


def run_findings(cursor: duckdb.DuckDBPyConnection, run: Run) -> SessionFindings:
    """Return the findings of a run, with the turns that they are about."""
    for session in find_sessions(cursor, run.session_id, [run.project], run.connection):
        return session_findings(cursor, session.bounded_params, _read_recorded_run(cursor, session))
    return SessionFindings()


def _read_recorded_run(cursor: duckdb.DuckDBPyConnection, session: SessionHeader) -> RecordedRun | None:
    if session.diagnosis is None:
        return None
    return read_run(cursor, {**session.name_params, "number": None, "place": session.diagnosis})


def _read_neighbours(
    cursor: duckdb.DuckDBPyConnection, session: SessionHeader, agent: str | None
) -> tuple[SessionNamed | None, SessionNamed | None]:
    """Return the agent's sessions directly before and after a session."""
    params = {**session.name_params, "agent": agent, "start": session.first_at}
    neighbours: dict[bool, SessionNamed] = {}
    for hours in _SEARCH_HOURS:
        ranges = {name: 0 if is_after in neighbours else hours for name, is_after in _SIDES.items()}
        rows = query_rows(cursor, "session_beside", {**params, **ranges})
        neighbours |= {row["is_after"]: SessionNamed.of(row) for row in rows}
        if len(neighbours) == len(_SIDES):
            break
    return neighbours.get(False), neighbours.get(True)


class OpenAnswers(NamedTuple):
    """Answers that do not count yet, because they have not ended."""

    answers: int
    sessions: int
    """Number of sessions that they are in."""
    counts_at: datetime
    """The time from which all of them count, if their sessions stay silent."""
    is_over: bool
    """Whether this time has passed, so that their transcripts have to be read again."""


def open_answers(
    cursor: duckdb.DuckDBPyConnection, project: str, now: datetime, gap: timedelta, session: SessionHeader | None = None
) -> OpenAnswers | None:
    """Return the open answers of a project's active sessions, or those of a session; None without one.

    `gap` is the silence that ends a session.
    """
    if session is None:
        values = {"project": project, "connection": None, "session": None, "since": now - gap}
    else:
        values = {**session.name_params, "since": session.first_at}
    rows = query_rows(cursor, "open_answers", values)
    if not rows:
        return None
    counts_at = rows[-1]["last_at"] + gap
    return OpenAnswers(sum(row["answers"] for row in rows), len(rows), counts_at, is_over=counts_at < now)


_SEARCH_DAYS = (1, 7, 30, 180, None)
"""Days before the end of a period that are searched for sessions, until there are enough; None: all."""


def recent_sessions(cursor: duckdb.DuckDBPyConnection, project: str | None, filters: SessionFilter) -> list[ListedSession]:
    """Return the first page of a list of sessions over a long period, of which the last days are read first."""
    sessions: list[ListedSession] = []
    for days in _SEARCH_DAYS:
        start = filters.start if days is None else max(filters.start, filters.end - timedelta(days=days))
        sessions = list_sessions(cursor, project, dataclasses.replace(filters, start=start))
        if len(sessions) >= filters.limit or start == filters.start:
            break
    return sessions
