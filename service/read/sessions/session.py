"""A session whole: its turns with their scores, its events beside them, its run, its end, the incidents that name it.

Whatever a session holds, what is read is bounded: some turns, and some events of each. The session is looked up once: when it was, how
it ended, and whether it has events and a diagnosis. Every other query reads only what lies between these times, and none is asked for
what is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from service.read.evaluations import EvaluatedRun, evaluation_page
from service.read.runs import RecordedRun, Run, read_run
from service.read.sessions.findings import (
    SessionFinding,
    SessionFindings,
    TurnFinding,
    finding_answers,
    session_findings,
    turn_findings,
)
from service.text.answers import Answer, Moment

Row = dict[str, Any]
WHOLE = 2**31 - 1
"""Characters of a text that is not cut."""
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
"""The totals of a session of which only signs of life came."""
_HOURS = (6, 72, 1440)
"""How far sessions beside one are looked for: farther where there is none nearer."""
_SIDES = {"hours_before": False, "hours_after": True}
"""The parameters of `session_beside` that say so, and whether the session that they find is the one after it."""


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
    """A session: how it did, what it cost, what it belongs to."""

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
    """A turn: what was said, and how it was scored."""

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
    """The owner of a session: its project and connection, when it was, and whether it has ended."""

    project: str
    connection: str
    session_id: str
    first_at: datetime
    last_at: datetime
    """The event times between which it was."""
    has_turns: bool
    """Whether it has exchanges or scores."""
    events: int
    """How many it has."""
    diagnosis: int | None
    """Where its diagnosis is in its topic; None without one."""
    closed_at: datetime | None
    reason: str | None
    """When it last ended, and why; None if it never has."""
    is_open: bool
    """Whether something came of it since."""

    @property
    def named(self) -> Row:
        """Its name, as queries take it."""
        return {"project": self.project, "connection": self.connection, "session": self.session_id}

    @property
    def bounded(self) -> Row:
        """Its name and its times, as queries take them."""
        return {**self.named, "since": self.first_at, "until": self.last_at}

    @property
    def state(self) -> str:
        """Its state in one word: open or ended."""
        return "open" if self.is_open else "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The turns of a session to read: behind some, or those around an exchange."""

    skip: int = 0
    """Turns before them, of those asked for."""
    exchange: str | None = None
    limit: int = 20
    anomalies: bool = False
    """Only turns with an anomaly."""
    longest: int = WHOLE
    """Characters of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRead:
    """A session with everything but its turns and events."""

    place: SessionPlace
    session: Session
    findings: SessionFindings
    """Of its run, with the turns and events that each is about."""
    evaluations: Sequence[EvaluatedRun]


def session_places(
    cursor: duckdb.DuckDBPyConnection, session: str, projects: Sequence[str] | None = None, connection: str | None = None
) -> list[SessionPlace]:
    """Return whose session an id is, in some projects or in any, the one heard last first; ids are unique within a connection."""
    asked = {"session": session, "projects": None if projects is None else list(projects), "connection": connection}
    return [SessionPlace(session_id=session, **row) for row in query_rows(cursor, "session_places", asked)]


def read_session(cursor: duckdb.DuckDBPyConnection, place: SessionPlace) -> SessionRead:
    """Return everything about a session but its turns and events."""
    totals = next(iter(query_rows(cursor, "session_totals", place.bounded)), _NO_TOTALS)
    evaluations = evaluation_page(cursor, place.project, session=place.session_id, limit=_EVALUATIONS)
    before, after = _beside(cursor, place, totals["agents"][0] if totals["agents"] else None)
    recorded = _run(cursor, place)
    findings = session_findings(cursor, place.bounded, recorded)
    labels: dict[str, list[str]] = {}
    for label in totals["labels"]:
        labels.setdefault(label["name"], []).append(label["value"])
    session = Session.of(
        totals,
        project=place.project,
        connection=place.connection,
        session_id=place.session_id,
        state=place.state,
        first_at=place.first_at,
        last_at=place.last_at,
        closed_at=place.closed_at,
        closed_reason=place.reason,
        labels=labels,
        run=None if recorded is None else SessionRun.of(msgspec.structs.asdict(recorded.run)),
        findings=finding_answers(findings),
        findings_left_out=findings.left_out,
        incidents=[SessionIncident.of(row) for row in query_rows(cursor, "session_incidents", place.named)],
        previous=before,
        next=after,
    )
    return SessionRead(
        place=place,
        session=session,
        findings=findings,
        evaluations=[run for run in evaluations if run.connection == place.connection],
    )


def session_with_turns(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, part: Part) -> SessionWithTurns:
    """Return a session with some of its turns."""
    rows, read = session_turns(cursor, place, part), read_session(cursor, place)
    return SessionWithTurns(
        session=read.session,
        turns=[_turn(row, read.findings) for row in rows],
        next_turn=rows[-1]["row"] + 1 if rows and rows[-1]["row"] < rows[-1]["places"] else None,
    )


def _turn(row: Row, findings: SessionFindings) -> SessionTurn:
    return SessionTurn.of(
        row,
        labels={label["name"]: label["value"] for label in row["labels"] or ()},
        tier1_flags=row["tier1_flags"] or [],
        anomaly=bool(row["anomaly"]),
        anomaly_reasons=row["anomaly_reasons"] or [],
        findings=turn_findings(findings, row["place"]),
    )


def session_turns(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, part: Part) -> list[Row]:
    """Return some turns of a session, in order, as rows of the query of that name; none behind the last one."""
    asked = {
        **place.bounded,
        "anomalies": part.anomalies,
        "exchange": part.exchange,
        "skip": part.skip,
        "limit": part.limit,
        "longest": part.longest,
    }
    return query_rows(cursor, "session_turns", asked)


def session_steps(
    cursor: duckdb.DuckDBPyConnection, place: SessionPlace, parts: Collection[int], rows: tuple[int, int]
) -> dict[int, Row]:
    """Return the events of some parts of a session, by part: of each those of some rows, first to last.

    Part 0 is what happened before the first turn, and every event of a session without turns.
    """
    if not parts or not place.events:
        return {}
    asked = {**place.bounded, "parts": sorted(parts), "from_row": rows[0], "to_row": rows[1]}
    return {row["part"]: row for row in query_rows(cursor, "session_steps", asked)}


def run_findings(cursor: duckdb.DuckDBPyConnection, run: Run) -> SessionFindings:
    """Return the findings of a run: where each lies in the session."""
    for place in session_places(cursor, run.session_id, [run.project], run.connection):
        return session_findings(cursor, place.bounded, _run(cursor, place))
    return SessionFindings()


def _run(cursor: duckdb.DuckDBPyConnection, place: SessionPlace) -> RecordedRun | None:
    return None if place.diagnosis is None else read_run(cursor, {**place.named, "number": None, "place": place.diagnosis})


def _beside(
    cursor: duckdb.DuckDBPyConnection, place: SessionPlace, agent: str | None
) -> tuple[SessionNamed | None, SessionNamed | None]:
    """Return the sessions of an agent right before and right after one."""
    asked = {**place.named, "agent": agent, "start": place.first_at}
    sides: dict[bool, SessionNamed] = {}
    for hours in _HOURS:
        missing = {name: 0 if is_after in sides else hours for name, is_after in _SIDES.items()}
        sides |= {row["is_after"]: SessionNamed.of(row) for row in query_rows(cursor, "session_beside", {**asked, **missing})}
        if len(sides) == len(_SIDES):
            break
    return sides.get(False), sides.get(True)
