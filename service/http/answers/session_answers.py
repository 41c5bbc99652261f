"""Answers about a session, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from service.http.answers.project_answers import Moment
from service.read.sessions.findings import EVENTS_NAMED, TURNS_NAMED, SessionFindings, findings_documents, turn_document
from service.read.sessions.session import SessionRead
from service.text.members import camel
from service.web.response_models import Answer

Row = Mapping[str, Any]


class SessionAnswerPart(Answer):
    """The base of the parts of a session: it names the fields."""

    model_config = Answer.model_config | {"alias_generator": camel}


class SessionNamed(SessionAnswerPart):
    """A session by its name."""

    connection: str
    session_id: str


class SessionIncident(SessionAnswerPart):
    """An incident whose evidence names the session."""

    id: str
    title: str
    status: str
    severity: str
    confidence: str
    detected_at: Moment


class SessionRun(SessionAnswerPart):
    """The run that the session became."""

    run_id: str
    readiness_level: str
    trust_score: float | None
    primary_failure_type: str | None
    primary_severity: str | None


class SessionAnswer(SessionNamed):
    """A session: how it did, what it cost, what it belongs to."""

    project: str
    state: str = Field(description="open, or ended: nothing came since its last end.", examples=["open", "ended"])
    first_at: Moment = Field(description="Event time of its first record.")
    last_at: Moment = Field(description="Event time of its last record.")
    closed_at: Moment | None
    closed_reason: str | None = Field(examples=["explicit", "idle", "session_end"])
    agents: list[str]
    models: list[str] = Field(description="Models that answered, where the sender tells them.")
    labels: dict[str, list[str]] = Field(description="The values of each label of its exchanges and events.")
    exchanges: int
    scores: int
    anomalies: int
    events: int
    tool_calls: int
    tier1: float | None = Field(description="Mean of its turns, as of the other tiers; null if none is scored.")
    tier2: float | None
    tier2_5: float | None
    tier3: float | None
    judge_cost_usd: float | None = Field(description="Known costs of its current scores.")
    unknown_costs: int = Field(description="Scores whose cost is not known.")
    input_tokens: int | None = Field(description="Tokens that the agent read, of the exchanges that tell them.")
    output_tokens: int | None
    event_tokens: int | None = Field(description="Tokens by its token_usage events.")
    agent_cost_usd: float | None = Field(description="What its token_usage events say the agent cost.")
    run: SessionRun | None
    findings: list[SessionFinding] = Field(description="What its run found, as of its last end.")
    findings_left_out: int = Field(description="Findings with smaller penalties, which are not marked.")
    incidents: list[SessionIncident]
    previous: SessionNamed | None = Field(description="The session of the same agent that began right before it.")
    next: SessionNamed | None


class MarkedEventAnswer(SessionAnswerPart):
    """An event that a finding is about."""

    event_id: str
    event: str = Field(description="Its type.", examples=["tool_call"])
    tool: str | None


class TurnFinding(SessionAnswerPart):
    """The part of a finding that lies in a turn."""

    number: int = Field(description="The number of the finding in `session.findings`.")
    type: str = Field(examples=["infinite_tool_loop"])
    severity: str = Field(examples=["critical"])
    event_count: int = Field(description="Events of the turn that the finding is about.")
    events: list[MarkedEventAnswer] = Field(description=f"The first {EVENTS_NAMED} of them.")


class FindingTurn(SessionAnswerPart):
    """A turn in which a finding lies."""

    turn: int = Field(description="Its place in the session, from 1; 0: before the first turn, or in a session without turns.")
    event_count: int
    events: list[MarkedEventAnswer] = Field(description=f"The first {EVENTS_NAMED} of them.")


class SessionFinding(SessionAnswerPart):
    """A finding of the session's run, and where it lies in the session."""

    number: int = Field(description="From 1, in the order of the run's diagnosis.")
    type: str = Field(examples=["infinite_tool_loop"])
    severity: str = Field(examples=["critical"])
    description: str
    event_count: int = Field(description="Events that it is about.")
    marked_count: int = Field(description="Events of them that are found in the session.")
    note: str = Field(description="Why some events are not marked; empty if all are.")
    turn_count: int
    turns: list[FindingTurn] = Field(description=f"The first {TURNS_NAMED} turns.")


class TurnAnswer(SessionAnswerPart):
    """A turn: what was said, and how it was scored."""

    turn: int = Field(description="Its place in the session, from 1.")
    turn_number: int | None = Field(description="The number that its sender or its score gives.")
    exchange_id: str
    timestamp: Moment
    score_id: str | None = Field(description="Null until there is a score.")
    user_message: str | None = Field(description="Null if the texts were deleted.")
    agent_response: str | None
    agent_thinking: str | None
    outcome: str | None
    agent_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    labels: dict[str, str]
    disposition: str | None
    tier1: float | None
    tier1_flags: list[str]
    tier2: float | None
    tier2_5: float | None
    tier3: float | None
    anomaly: bool
    anomaly_reasons: list[str]
    cost_usd: float | None
    findings: list[TurnFinding] = Field(description="What the session's run found in the events of this turn.")


class OneSessionAnswer(Answer):
    """A session, and some of its turns."""

    session: SessionAnswer
    turns: list[TurnAnswer]
    next_turn: int | None = Field(description="The `turn` of the next page; null on the last one.")


def session_answer(read: SessionRead) -> SessionAnswer:
    """Return the answer about a session."""
    totals, place = read.totals, read.place
    labels: dict[str, list[str]] = {}
    for one in totals["labels"]:
        labels.setdefault(one["name"], []).append(one["value"])
    made = {
        **{name: totals[name] for name in _TOTALS},
        "project": place.project,
        "connection": place.connection,
        "session_id": place.session_id,
        "first_at": place.first_at,
        "last_at": place.last_at,
        "state": place.state,
        "closed_at": place.closed_at,
        "closed_reason": place.reason,
        "labels": labels,
        "judge_cost_usd": totals["judge_usd"],
        "agent_cost_usd": totals["agent_usd"],
        "run": read.run,
        "findings": findings_documents(read.findings),
        "findings_left_out": read.findings.left_out,
        "incidents": [{**one, "id": one["incident_id"]} for one in read.incidents],
        "previous": read.before,
        "next": read.after,
    }
    return SessionAnswer.model_validate(made)


_TOTALS = [
    "agents",
    "models",
    "exchanges",
    "scores",
    "anomalies",
    "events",
    "tool_calls",
    "tier1",
    "tier2",
    "tier2_5",
    "tier3",
    "unknown_costs",
    "input_tokens",
    "output_tokens",
    "event_tokens",
]


def turn_answer(row: Row, findings: SessionFindings) -> TurnAnswer:
    """Return the answer about a turn of a session with these findings."""
    tiers = {"tier1": row["tier1_score"], "tier2": row["tier2_score"], "tier2_5": row["tier2_5_alignment"]}
    made = {
        **tiers,
        "tier3": row["tier3_score"],
        "turn": row["place"],
        "timestamp": row["said_at"],
        "labels": {one["name"]: one["value"] for one in row["labels"] or ()},
        "anomaly": bool(row["anomaly"]),
        "tier1_flags": row["tier1_flags"] or [],
        "anomaly_reasons": row["anomaly_reasons"] or [],
        "findings": [
            {"number": finding.number, "type": finding.type, "severity": finding.severity, **turn_document(turn)}
            for finding, turn in findings.by_turn.get(row["place"], ())
        ],
    }
    return TurnAnswer.model_validate({**row, **made})
