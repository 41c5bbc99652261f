"""A whole session: turns with scores, events, the run with its findings, the end, and the incidents that name the session.

Reading is bounded for sessions of any size: some turns, and some events of each. The session is looked up once: its times, how
it ended, and whether it has events and a diagnosis. All other queries read only between these times, and are skipped if there
is nothing for them to find.

Findings, with the events and turns that each is about, are marked on the page, in the API and on the command line:

1. Findings come from the recorded diagnosis, which lists, alerts and gates also use. A record names only the first events of each
   finding, so the detectors run again over the diagnosed events, with the thresholds of the diagnosis, and the finding is about the
   events of the matching cause. That also holds for a diagnosis by older rules.
2. If no cause matches the recorded one (rules have changed since, events were deleted), no event is marked, and `note` says so.
3. A session of more than EVENTS_FOLDED events is not read again: if its rules are current, the events named in the record are
   marked.
4. A turn is marked if an event of the finding lies in it (`log.session_parts`). Events before the first turn are in turn 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count, repeat
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from analytics.queries import query_rows, run_query
from audit.detectors.registry import Cause
from audit.detectors.thresholds import default_profile, recorded_profile, source_of
from audit.diagnosis.diagnosis import diagnose, rule_version
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from schemas.lazy import duckdb, pl
from schemas.records import Diagnosis, FailureCause
from service.read.evaluations import EvaluatedRun, evaluation_page
from service.read.runs import RecordedRun, Run, read_run, with_payloads
from service.text.answers import Answer, Moment

EVENTS_FOLDED = 100_000
"""The largest diagnosis, in events, for which the detectors run again."""
TURNS_NAMED, EVENTS_NAMED = 100, 100
"""Turns listed per finding in an answer, and events per turn."""
NOT_MARKED = "No event is marked: the rules have changed since this diagnosis, or its events are no longer kept."
_PARTLY_MARKED = "{marked} of {count} events are marked: the others are no longer kept, or too many to be named."
_FOLDED = FOLD_COLUMNS[2:]


class FindingEvent(Answer, frozen=True):
    """An event that a finding is about."""

    event_id: str
    event: Annotated[str, Meta(description="Its type.", examples=["tool_call"])]
    tool: str | None


class TurnFinding(Answer, frozen=True):
    """The part of a finding that lies in a turn."""

    number: Annotated[int, Meta(description="The number of the finding in `session.findings`.")]
    type: Annotated[str, Meta(examples=["infinite_tool_loop"])]
    severity: Annotated[str, Meta(examples=["critical"])]
    event_count: Annotated[int, Meta(description="Events of the turn that the finding is about.")]
    events: Annotated[list[FindingEvent], Meta(description=f"The first {EVENTS_NAMED} of them.")]


class FindingTurn(Answer, frozen=True):
    """A turn in which a finding lies."""

    turn: Annotated[
        int,
        Meta(description="Its place in the session, from 1; 0: before the first turn, or in a session without turns."),
    ]
    event_count: int
    events: Annotated[list[FindingEvent], Meta(description=f"The first {EVENTS_NAMED} of them.")]


class SessionFinding(Answer, frozen=True):
    """A finding of the session's run, and where it lies in the session."""

    number: Annotated[int, Meta(description="From 1, in the order of the run's diagnosis.")]
    type: Annotated[str, Meta(examples=["infinite_tool_loop"])]
    severity: Annotated[str, Meta(examples=["critical"])]
    description: str
    event_count: Annotated[int, Meta(description="Events that it is about.")]
    marked_count: Annotated[int, Meta(description="Events of them that are found in the session.")]
    note: Annotated[str, Meta(description="Why some events are not marked; empty if all are.")]
    turn_count: int
    turns: Annotated[list[FindingTurn], Meta(description=f"The first {TURNS_NAMED} turns.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedEvent:
    """An event that a finding is about."""

    event_id: str
    event: str
    tool: str | None
    row: int
    """Its number among the events of its turn, from 1."""
    place: int
    """Its place in its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurn:
    """A turn in which events of a finding lie."""

    turn: int
    """Its place in the session, from 1; 0: before the first turn."""
    events: Sequence[MarkedEvent]

    @property
    def event_count(self) -> int:
        """Events of the finding in the turn."""
        return len(self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A recorded finding, and where it lies in the session."""

    number: int
    """Number of the finding in the record, from 1."""
    type: str
    severity: str
    description: str
    event_count: int
    """Number of events that the finding is about."""
    turns: Sequence[MarkedTurn]
    is_located: bool = True
    """False if the events it is about are unknown."""

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
    """Findings with smaller penalties that the record does not keep."""
    by_turn: Mapping[int, Sequence[tuple[Finding, MarkedTurn]]] = dataclasses.field(default_factory=dict)
    by_place: Mapping[int, Sequence[Finding]] = dataclasses.field(default_factory=dict)
    """Findings by the event's place in its topic."""


def session_findings(
    cursor: duckdb.DuckDBPyConnection,
    session: Mapping[str, Any],
    recorded: RecordedRun | None,
    located: Sequence[FindingEvents | None] | None = None,
) -> SessionFindings:
    """Return the findings of a session from its run; none without a run. `session` has the session's name and times as query parameters.

    `located` are the events of the findings, if already known.
    """
    if recorded is None or not recorded.diagnosis.failure_cause_count:
        return SessionFindings()
    run, diagnosis = recorded
    if located is None:
        located = finding_events(cursor, diagnosis)
    ids = sorted({event_id for events in located if events is not None for event_id in events.ids})
    placed = {row["event_id"]: row for row in query_rows(cursor, "marked_events", {**session, "events": ids})} if ids else {}
    findings = [
        _build_finding(number, cause, events, placed)
        for number, (cause, events) in enumerate(zip(diagnosis.failure_causes, located, strict=True), 1)
    ]
    by_turn: dict[int, list[tuple[Finding, MarkedTurn]]] = {}
    by_place: dict[int, list[Finding]] = {}
    for finding in findings:
        for turn in finding.turns:
            by_turn.setdefault(turn.turn, []).append((finding, turn))
            for event in turn.events:
                by_place.setdefault(event.place, []).append(finding)
    left_out = diagnosis.failure_cause_count - len(findings)
    return SessionFindings(run_id=run.run_id, findings=findings, left_out=left_out, by_turn=by_turn, by_place=by_place)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvents:
    """The events of a recorded finding: their number, and the known ids among them, in the order of the evidence."""

    count: int
    ids: Sequence[str]


def finding_events(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis) -> list[FindingEvents | None]:
    """Return the events of each recorded finding of a diagnosis; None for a finding whose events are unknown."""
    recorded = diagnosis.failure_causes
    if diagnosis.event_count > EVENTS_FOLDED:
        profile = recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes)
        is_current = profile is not None and rule_version(profile.thresholds) == diagnosis.rule_version
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
    evidence = SessionEvidence.held_to(profile.thresholds)
    numbered = frame.with_columns(pl.lit(0, pl.Int64).alias("run"))
    folded = with_payloads(cursor, numbered, [{"run": 0, **session}], wanted=evidence.reads_payloads)
    # Zip lists: iterating over the frame's rows takes half as long again.
    fold_columns({None: evidence}, zip(repeat(None), count(), *(folded[name].to_list() for name in _FOLDED), strict=False))
    return diagnose(evidence, profile.thresholds).causes


def _match_findings(recorded: Sequence[FailureCause], causes: Iterable[Cause]) -> list[Cause | None]:
    """Match recorded causes to detected ones: first by type and description, then by type if only one is left on both sides."""
    left = list(causes)
    matches: list[Cause | None] = []
    for record in recorded:
        same = next((cause for cause in left if (cause.type, cause.description) == (record.type, record.description)), None)
        matches.append(same)
        if same is not None:
            left.remove(same)
    for number, record in enumerate(recorded):
        if matches[number] is None:
            of_type = [cause for cause in left if cause.type == record.type]
            alike = sum(match is None and other.type == record.type for match, other in zip(matches, recorded, strict=True))
            if len(of_type) == alike == 1:
                matches[number] = of_type[0]
    return matches


def _build_finding(
    number: int, cause: FailureCause, events: FindingEvents | None, placed: Mapping[str, Mapping[str, Any]]
) -> Finding:
    by_turn: dict[int, list[MarkedEvent]] = {}
    for event_id in events.ids if events is not None else ():
        if event_id in placed:
            row = placed[event_id]
            marked = MarkedEvent(event_id=event_id, event=row["event"], tool=row["tool"], row=row["row"], place=row["place"])
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
    """Return the findings as answers, each with its first turns and their first events."""
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
                for turn in finding.turns[:TURNS_NAMED]
            ],
        )
        for finding in findings.findings
    ]


def turn_findings(findings: SessionFindings, turn: int) -> list[TurnFinding]:
    """Return the findings with events in a turn, limited to that turn."""
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
    return [FindingEvent(event.event_id, event.event, event.tool) for event in turn.events[:EVENTS_NAMED]]


Row = dict[str, Any]
WHOLE = 2**31 - 1
"""A text limit that cuts nothing."""
_EVALUATIONS = 20
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
        ]
    ),
    **dict.fromkeys(["models", "agents", "labels"], ()),
}
"""The totals of a session that only sent heartbeats."""
_HOURS = (6, 72, 1440)
"""The search ranges for neighbouring sessions, widened until one is found."""
_SIDES = {"hours_before": False, "hours_after": True}
"""The range parameters of `session_beside`, each with whether it finds the later session."""


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
    state: Annotated[str, Meta(description="open, or ended: nothing came since its last end.", examples=["open", "ended"])]
    first_at: Annotated[Moment, Meta(description="Event time of its first record.")]
    last_at: Annotated[Moment, Meta(description="Event time of its last record.")]
    closed_at: Moment | None
    closed_reason: Annotated[str | None, Meta(examples=["explicit", "idle", "session_end"])]
    agents: list[str]
    models: Annotated[list[str], Meta(description="Models that answered, where the sender tells them.")]
    labels: Annotated[dict[str, list[str]], Meta(description="The values of each label of its exchanges and events.")]
    exchanges: int
    unanswered: Annotated[int, Meta(description="Exchanges without an answer of the agent.")]
    multi_user: Annotated[bool | None, Meta(description="Whether several users took part; null if no exchange tells.")]
    scores: int
    scored: Annotated[int, Meta(description="Scores of the judge.")]
    simulated: Annotated[int, Meta(description="Scores that rest on a simulated judge.")]
    anomalies: int
    flagged: Annotated[int, Meta(description="Exchanges in which Tier 1 found something.")]
    events: int
    tool_calls: int
    tier1: Annotated[float | None, Meta(description="Mean of its turns, as of the other tiers; null if none is scored.")]
    tier2: float | None
    tier2_5: float | None
    tier3: float | None
    judge_usd: Annotated[float | None, Meta(description="Known costs of its current scores.")] = field(name="judgeCostUsd")
    unknown_costs: Annotated[int, Meta(description="Scores whose cost is not known.")]
    input_tokens: Annotated[int | None, Meta(description="Tokens that the agent read, of the exchanges that tell them.")]
    output_tokens: int | None
    event_tokens: Annotated[int | None, Meta(description="Tokens by its token_usage events.")]
    agent_usd: Annotated[float | None, Meta(description="What its token_usage events say the agent cost.")] = field(
        name="agentCostUsd"
    )
    run: SessionRun | None
    findings: Annotated[list[SessionFinding], Meta(description="What its run found, as of its last end.")]
    findings_left_out: Annotated[int, Meta(description="Findings with smaller penalties, which are not marked.")]
    incidents: list[SessionIncident]
    previous: Annotated[SessionNamed | None, Meta(description="The session of the same agent that began right before it.")]
    next: SessionNamed | None


class SessionTurn(Answer, frozen=True):
    """A turn: its texts and its score."""

    place: Annotated[int, Meta(description="Its place in the session, from 1.")] = field(name="turn")
    turn_number: Annotated[int | None, Meta(description="The number that its sender or its score gives.")]
    exchange_id: str
    said_at: Moment = field(name="timestamp")
    score_id: Annotated[str | None, Meta(description="Null until there is a score.")]
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
    findings: Annotated[list[TurnFinding], Meta(description="What the session's run found in the events of this turn.")]


class SessionWithTurns(Answer, frozen=True):
    """A session, and some of its turns."""

    session: Session
    turns: list[SessionTurn]
    next_turn: Annotated[int | None, Meta(description="The `turn` of the next page; null on the last one.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlace:
    """A session's project and connection, its times, and whether it has ended."""

    project: str
    connection: str
    session_id: str
    first_at: datetime
    last_at: datetime
    """The event times of its first and last record."""
    has_turns: bool
    """Whether it has exchanges or scores."""
    events: int
    """The number of its events."""
    diagnosis: int | None
    """The position of its diagnosis in the topic; None without one."""
    closed_at: datetime | None
    reason: str | None
    """The time and reason of its last end; None if it never ended."""
    is_open: bool
    """Whether it has received records since."""

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
    """The turns of a session to read: after `skip` turns, or around an exchange."""

    skip: int = 0
    """Number of matching turns to skip."""
    exchange: str | None = None
    limit: int = 20
    anomalies: bool = False
    """Only turns with an anomaly."""
    longest: int = WHOLE
    """Maximum length of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRead:
    """A session without its turns and events."""

    place: SessionPlace
    session: Session
    findings: SessionFindings
    """The findings of its run, each with its turns and events."""
    evaluations: Sequence[EvaluatedRun]


def session_places(
    cursor: duckdb.DuckDBPyConnection, session: str, projects: Sequence[str] | None = None, connection: str | None = None
) -> list[SessionPlace]:
    """Return the sessions with an id, in some projects or in any, most recently active first.

    Ids are only unique within a connection.
    """
    params = {"session": session, "projects": None if projects is None else list(projects), "connection": connection}
    return [SessionPlace(session_id=session, **row) for row in query_rows(cursor, "session_places", params)]


def read_session(cursor: duckdb.DuckDBPyConnection, session: SessionPlace) -> SessionRead:
    """Return a session without its turns and events."""
    totals = next(iter(query_rows(cursor, "session_totals", session.bounded_params)), _NO_TOTALS)
    evaluations = evaluation_page(cursor, session.project, session=session.session_id, limit=_EVALUATIONS)
    before, after = _read_beside(cursor, session, totals["agents"][0] if totals["agents"] else None)
    recorded = _run(cursor, session)
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
        previous=before,
        next=after,
    )
    return SessionRead(
        place=session,
        session=answer,
        findings=findings,
        evaluations=[run for run in evaluations if run.connection == session.connection],
    )


def session_with_turns(cursor: duckdb.DuckDBPyConnection, session: SessionPlace, part: TurnRange) -> SessionWithTurns:
    """Return a session with some of its turns."""
    rows = session_turns(cursor, session, part)
    read = read_session(cursor, session)
    return SessionWithTurns(
        session=read.session,
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


def session_turns(cursor: duckdb.DuckDBPyConnection, session: SessionPlace, part: TurnRange) -> list[Row]:
    """Return some turns of a session, in order, as rows of the query `session_turns`; empty after the last one."""
    params = {
        **session.bounded_params,
        "anomalies": part.anomalies,
        "exchange": part.exchange,
        "skip": part.skip,
        "limit": part.limit,
        "longest": part.longest,
    }
    return query_rows(cursor, "session_turns", params)


def session_steps(
    cursor: duckdb.DuckDBPyConnection, session: SessionPlace, parts: Collection[int], rows: tuple[int, int]
) -> dict[int, Row]:
    """Return the events of some parts of a session, by part, within a range of rows (first and last inclusive).

    Part 0 has the events before the first turn, or all events of a session without turns.
    """
    if not parts or not session.events:
        return {}
    params = {**session.bounded_params, "parts": sorted(parts), "from_row": rows[0], "to_row": rows[1]}
    return {row["part"]: row for row in query_rows(cursor, "session_steps", params)}


def run_findings(cursor: duckdb.DuckDBPyConnection, run: Run) -> SessionFindings:
    """Return the findings of a run, with their places in the session."""
    for session in session_places(cursor, run.session_id, [run.project], run.connection):
        return session_findings(cursor, session.bounded_params, _run(cursor, session))
    return SessionFindings()


def _run(cursor: duckdb.DuckDBPyConnection, session: SessionPlace) -> RecordedRun | None:
    return (
        None
        if session.diagnosis is None
        else read_run(cursor, {**session.name_params, "number": None, "place": session.diagnosis})
    )


def _read_beside(
    cursor: duckdb.DuckDBPyConnection, session: SessionPlace, agent: str | None
) -> tuple[SessionNamed | None, SessionNamed | None]:
    """Return the agent's sessions directly before and after one."""
    params = {**session.name_params, "agent": agent, "start": session.first_at}
    sides: dict[bool, SessionNamed] = {}
    for hours in _HOURS:
        missing = {name: 0 if is_after in sides else hours for name, is_after in _SIDES.items()}
        sides |= {row["is_after"]: SessionNamed.of(row) for row in query_rows(cursor, "session_beside", {**params, **missing})}
        if len(sides) == len(_SIDES):
            break
    return sides.get(False), sides.get(True)
