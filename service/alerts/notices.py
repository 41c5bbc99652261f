"""Notices: the content of alerts, one per cause, before it is formatted for a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import quote

from msgspec.structs import asdict

from audit.fingerprints import stable_id
from schemas.records import Incident
from service.read.caps import SharedCap
from service.read.incidents import incident_answer
from service.read.judges import UnreadableJudge
from service.read.project import describe_notices
from service.read.telemetry import OpenSession
from service.text.answers import camel
from service.text.links import API
from streams.watch.lifecycle import DISMISSED, FIXED, NEW_NORMAL, OPEN, RECOVERED, SUSPECTED, VANISHED

Severity = Literal["warning", "critical"]
MAX_NAMED_SESSIONS = 10
"""Maximum number of sessions named in a notice."""
INCIDENT, RESOLVED, TELEMETRY, JUDGE = "incident", "resolved", "telemetry", "judge"
COST_CAP, TOOL, TEST = "cost_cap", "tool", "test"
_SILENCE_TEXTS = {
    "warning": "No heartbeat or record for {minutes:g} min ({missed} missed intervals of {interval:g} min).",
    "critical": "No heartbeat or record for {minutes:g} min ({missed} missed intervals of {interval:g} min): it has stopped.",
}
_ENDS = {
    RECOVERED: "It has been back to normal for two whole days.",
    VANISHED: "The change was not seen again, so the suspicion was not confirmed.",
    FIXED: "{who} marked it as fixed.",
    NEW_NORMAL: "{who} marked it as the new normal.",
}
_OMITTED_FIELDS = frozenset({"id", "project", "severity", "title", "description", "moved", "why", "metadata"})
"""Fields of an incident that its alert has elsewhere or in a shorter form, and the evidence, which is too long."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of an alert. Notices with the same kind, subject and cause are duplicates."""

    kind: str
    """incident, resolved, telemetry, judge, cost_cap, tool or test."""
    subject: str
    """The incident, session, model, cap or tools that it is about."""
    cause: str
    """The reason for another alert about the subject, such as a higher severity."""
    severity: Severity
    title: str
    text: str
    project: str | None = None
    path: str | None = None
    """The path of the subject's page on the server."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for programs."""
    confidence: str | None = None
    """Whether an incident is suspected or confirmed; None for other notices."""
    resolves: str | None = None
    """The id of the alert that is over."""

    def alert_id(self, channel: str) -> str:
        """Return the id of the notice's alert on a channel; duplicates have the same id."""
        return stable_id("alert", channel, self.kind, self.subject, self.cause)


def incident_notice(incident: Incident, traffic: Sequence[Mapping[str, Any]] = ()) -> Notice:
    """Return the notice about an incident.

    The incident gets another notice when it becomes critical, when a suspicion is confirmed, and when a person reopens it.

    `traffic` has the changes of its project's traffic, such as the mix of agents, as rows of the query `notices`.
    """
    is_suspected = incident.confidence == SUSPECTED
    answer = incident_answer(incident)
    explanation = answer.why.summary if answer.why.is_explained else None
    details = {name: value for name, value in asdict(answer).items() if name not in _OMITTED_FIELDS}
    cause = f"suspected {incident.severity}" if is_suspected else incident.severity
    if incident.status == OPEN and incident.decided_at is not None:
        cause += f" reopened {incident.decided_at.isoformat()}"
    return Notice(
        INCIDENT,
        incident.incident_id,
        cause,
        _parse_severity(incident.severity),
        f"Suspected: {incident.title}" if is_suspected else incident.title,
        "\n\n".join(text for text in (explanation, incident.description, *describe_notices(traffic)) if text),
        incident.project,
        f"{API}/{quote(incident.project, safe='')}/incidents/{quote(incident.incident_id, safe='')}",
        {
            **{camel(name): value.isoformat() if isinstance(value, date) else value for name, value in details.items()},
            "moved": [series.series_name for series in answer.moved],
            "why": explanation,
            "actions": [action.title for action in answer.why.actions],
        },
        incident.confidence,
    )


def resolved_notice(row: Mapping[str, Any]) -> Notice:
    """Return the notice that an incident has ended, from a row of the query `ended_alerts`; one for each alert that it closes."""
    is_dismissed = row["incident_status"] == DISMISSED
    who = row["resolved_by"] or "somebody"
    end = f"{who} dismissed it." if is_dismissed else _ENDS.get(row["resolution"], "{who} resolved it.").format(who=who)
    return Notice(
        RESOLVED,
        row["subject_id"],
        row["alert_id"],
        row["severity"],
        f"{'Dismissed' if is_dismissed else 'Resolved'}: {row['title']}",
        end,
        row["project"],
        f"{API}/{quote(row['project'], safe='')}/incidents/{quote(row['subject_id'], safe='')}",
        {"status": row["incident_status"], "resolution": row["resolution"], "resolvedAt": row["resolved_at"].isoformat()},
        resolves=row["alert_id"],
    )


def silence_notice(session: OpenSession) -> Notice:
    """Return the notice about a silent session, one for each level of each silence."""
    level = _parse_severity(session.level or "")
    minutes = round(session.elapsed_ms / 60_000, 1)
    interval = round(session.interval_ms / 60_000, 2)
    details = {
        "connection": session.connection,
        "sessionId": session.session_id,
        "lastReceived": session.last_received.isoformat(),
        "missedIntervals": session.missed_intervals,
        "intervalMs": session.interval_ms,
        "status": session.status,
    }
    return Notice(
        TELEMETRY,
        f"{session.connection}/{session.session_id}",
        f"{session.last_received.isoformat()} {level}",
        level,
        f"Session {session.session_id} {'has stopped' if level == 'critical' else 'is silent'}",
        _SILENCE_TEXTS[level].format(minutes=minutes, missed=session.missed_intervals, interval=interval),
        session.project,
        f"{API}/telemetry?project={quote(session.project, safe='')}",
        details,
    )


def fleet_notice(sessions: Sequence[OpenSession]) -> Notice:
    """Return the notice about many silent sessions of a project with the same level."""
    first = sessions[0]
    level = _parse_severity(first.level or "")
    newest = max(session.last_received for session in sessions)
    named = sessions[:MAX_NAMED_SESSIONS]
    names = ", ".join(session.session_id for session in named)
    details = {
        "count": len(sessions),
        "sessions": [{"connection": session.connection, "sessionId": session.session_id} for session in named],
        "lastReceived": newest.isoformat(),
        "status": first.status,
    }
    return Notice(
        TELEMETRY,
        f"{first.project}: many sessions",
        f"{newest.isoformat()} {level}",
        level,
        f"{len(sessions)} sessions of {first.project} {'have stopped' if level == 'critical' else 'are silent'}",
        f"None has sent a heartbeat or record since {newest:%Y-%m-%d %H:%M:%S} UTC. The longest silent: {names}.",
        first.project,
        f"{API}/telemetry?project={quote(first.project, safe='')}",
        details,
    )


def judge_notice(judge: UnreadableJudge) -> Notice:
    """Return the notice about a model with unreadable answers, one for each period of them."""
    details = {
        "model": judge.model,
        "questions": judge.questions,
        "since": judge.since.isoformat(),
        "lastAt": judge.last_at.isoformat(),
        "error": judge.error,
    }
    return Notice(
        JUDGE,
        judge.model,
        judge.since.isoformat(),
        "warning",
        f"The answers of judge {judge.model} are unreadable",
        f"{judge.summary}.\n\n{judge.consequence}.",
        details=details,
    )


def cap_notice(cap: SharedCap) -> Notice:
    """Return the notice about a shared cap that was reached, one for each day or month."""
    return Notice(
        COST_CAP,
        cap.cap if cap.project is None else f"{cap.cap} {cap.project}",
        cap.period,
        "warning",
        f"The cost cap for {cap.period} {'of the installation' if cap.project is None else f'of {cap.project}'} was reached",
        f"{cap.summary}.\n\n{cap.consequence}.",
        cap.project,
        f"{API}/costs" if cap.project is None else f"{API}/{quote(cap.project, safe='')}/costs",
        {
            "cap": cap.cap,
            "period": cap.period,
            "capUsd": cap.cap_usd,
            "reachedAt": cap.reached_at and cap.reached_at.isoformat(),
        },
    )


def description_notice(row: Mapping[str, Any]) -> Notice:
    """Return the notice about tools with other descriptions, from a row of the query `notices`; one for each new description."""
    return Notice(
        TOOL,
        f"{row['project']}: {row['subject']}",
        row["since"].isoformat(),
        "warning",
        f"{row['subject']}: another description",
        describe_notices([row])[0],
        row["project"],
        f"{API}/{quote(row['project'], safe='')}/behaviour",
        {"tools": row["subject"], "since": row["since"].isoformat(), "sessions": round(row["after"])},
    )


def trial_notice(now: datetime) -> Notice:
    """Return a test message for a channel."""
    text = "This is a test. Alerts on incidents and silent sessions arrive here."
    return Notice(TEST, "test", now.isoformat(), "warning", "Driftline can reach this receiver", text)


def _parse_severity(severity_name: str) -> Severity:
    return "critical" if severity_name == "critical" else "warning"
