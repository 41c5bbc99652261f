"""The findings of a session's run, and the events and turns that each is about: what the page, the API and the command line mark.

1. The findings are those of the recorded diagnosis, which lists, alerts and gates go by. A record names only the first events of each, so
   the detectors look at the diagnosed events again, by the thresholds of the diagnosis, and a finding is about the events of the cause
   that they report in its stead. That also holds for a diagnosis by older rules.
2. Where no cause can be told to be the recorded one (rules have changed since, events were deleted), no event is marked, and `note` says so.
3. A session of more than EVENTS_FOLDED events is not read again: its marks are the events that the record names, if its rules are today's.
4. A turn is marked where an event lies in it, as `log.session_parts` has it. What came before the first turn is turn 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Annotated, Any

from msgspec import Meta

from analytics.queries import query_rows, run_query
from audit.detectors.registry import Cause
from audit.detectors.thresholds import default_profile, recorded_profile, source_of
from audit.diagnosis.diagnosis import diagnose, rule_version
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.records import Diagnosis, FailureCause
from service.read.call_payloads import with_payloads
from service.read.runs import RecordedRun
from service.text.answers import Answer

EVENTS_FOLDED = 100_000
"""Events of a diagnosis up to which the detectors look again."""
TURNS_NAMED, EVENTS_NAMED = 100, 100
"""Turns of a finding in a document, and events of a turn."""
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
    """From 1, in the order of the record."""
    type: str
    severity: str
    description: str
    event_count: int
    """Events that it is about."""
    turns: Sequence[MarkedTurn]
    is_located: bool = True
    """False where it is not known which events it is about."""

    @property
    def marked_count(self) -> int:
        """Events that are marked."""
        return sum(turn.event_count for turn in self.turns)

    @property
    def note(self) -> str:
        """Why some events are not marked; empty if all are."""
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
    by_turn: Mapping[int, Sequence[tuple[Finding, MarkedTurn]]] = field(default_factory=dict)
    by_place: Mapping[int, Sequence[Finding]] = field(default_factory=dict)
    """By the event's place in its topic."""


def session_findings(
    cursor: duckdb.DuckDBPyConnection,
    session: Mapping[str, Any],
    recorded: RecordedRun | None,
    located: Sequence[FindingEvents | None] | None = None,
) -> SessionFindings:
    """Return the findings of a session, which is named and bounded as queries take it, by its run; none without a run.

    `located` are the events of the findings, if they are known already.
    """
    if recorded is None or not recorded.diagnosis.failure_cause_count:
        return SessionFindings()
    run, diagnosis = recorded
    if located is None:
        located = finding_events(cursor, diagnosis)
    ids = sorted({event_id for events in located if events is not None for event_id in events.ids})
    placed = {row["event_id"]: row for row in query_rows(cursor, "marked_events", {**session, "events": ids})} if ids else {}
    findings = [
        _finding(number, cause, events, placed)
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
    """The events that a recorded finding is about: their number, and the ids of those that can be named, in the order of evidence."""

    count: int
    ids: Sequence[str]


def finding_events(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis) -> list[FindingEvents | None]:
    """Return the events that each recorded finding of a diagnosis is about; None where that is not known."""
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
    causes = _detected(cursor, diagnosis) if recorded else []
    return [
        None if cause is None else FindingEvents(count=cause.evidence_count, ids=[event_id for _, event_id in cause.evidence])
        for cause in _matched(recorded, causes)
    ]


def _detected(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis) -> Sequence[Cause]:
    """Return the causes that the detectors report for the events that were diagnosed."""
    session = {"connection": diagnosis.connection, "session_id": diagnosis.session_id}
    asked = {"connection": diagnosis.connection, "session": diagnosis.session_id, "limit": diagnosis.event_count}
    frame = run_query(cursor, "session_timeline", asked)
    recorded = recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes)
    profile = recorded or default_profile(source_of(frame["source"]))
    evidence = SessionEvidence.held_to(profile.thresholds)
    numbered = frame.with_columns(pl.lit(0, pl.Int64).alias("run"))
    folded = with_payloads(cursor, numbered, [{"run": 0, **session}], wanted=evidence.reads_payloads)
    # Rows of a frame take half as long again as rows of lists.
    fold_columns({None: evidence}, zip(repeat(None), count(), *(folded[name].to_list() for name in _FOLDED), strict=False))
    return diagnose(evidence, profile.thresholds).causes


def _matched(recorded: Sequence[FailureCause], causes: Iterable[Cause]) -> list[Cause | None]:
    """Return the cause that is each recorded one: the next of the same words, else the only one of its type that is left on both sides."""
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


def _finding(
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
    """Return the findings, each with the first turns in which it lies, and the first of its events in each."""
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
                FindingTurn(turn=turn.turn, event_count=turn.event_count, events=_first_events(turn))
                for turn in finding.turns[:TURNS_NAMED]
            ],
        )
        for finding in findings.findings
    ]


def turn_findings(findings: SessionFindings, turn: int) -> list[TurnFinding]:
    """Return the parts of the findings that lie in a turn."""
    return [
        TurnFinding(
            number=finding.number,
            type=finding.type,
            severity=finding.severity,
            event_count=marked.event_count,
            events=_first_events(marked),
        )
        for finding, marked in findings.by_turn.get(turn, ())
    ]


def _first_events(turn: MarkedTurn) -> list[FindingEvent]:
    return [FindingEvent(event.event_id, event.event, event.tool) for event in turn.events[:EVENTS_NAMED]]
