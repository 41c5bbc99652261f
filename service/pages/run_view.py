"""Data of a run's page: the recorded diagnosis, its events without their payloads, a page of its timeline, and the template's values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from analytics.queries import query_rows, run_query
from audit.detectors.detectors import FAILURE_TYPES
from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST, SAFE_TRUST
from audit.diagnosis.events import raw_event
from audit.evaluation.run import has_failed
from audit.failures import FAILED_STATUSES
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Diagnosis, FailureCause
from service.pages.charts import Chart, Mark, Point, line, marks_between
from service.pages.graph import GraphEvents, GraphLinks, ReinforcingEdge, draw_graph, lay_out_graph
from service.pages.rendering import number
from service.read.evaluations import EvaluatedRun, evaluation_page
from service.read.review_queues import ReviewQueue, read_queues
from service.read.runs import RecordedRun, Row, Run
from service.read.sessions import (
    Finding,
    FindingEvents,
    MarkedEvent,
    MarkedTurn,
    SessionHeader,
    find_sessions,
    session_findings,
    session_question,
)
from service.text.links import Links
from service.text.words import TERMS

MAX_EVENTS = 20_000
"""The page reads only this many events, from the start of the session. The downloads have all of them."""
MAX_PAYLOAD_LENGTH = 1_500
"""Characters of a payload on the page."""
MAX_EXCHANGES = 100
MAX_EVALUATIONS = 20
MAX_HISTORY_RUNS = 30
MAX_STEPS_PER_TURN = 12
"""Events of a turn within the conversation. A turn with more has a page of its own for them."""
MAX_LINKED_TURNS = 20
"""Turns linked from a finding."""
MAX_LISTED_EVIDENCE = 100
"""Evidence events per failure in the text beside the graph."""
MAX_GIST_LENGTH = 120
"""Characters of a payload's summary."""
EVENTS_PER_PAGE = 50
EVIDENCE, FAILED = "evidence", "failed"
EVENT_FILTERS = (EVIDENCE, FAILED)
READINESS_RULES = (("unsafe_for_production", SAFE_TRUST, "critical"), ("review_recommended", READY_TRUST, "high"))
"""A readiness level, the trust below which a run gets it, and the severity of a failure that also leads to it."""
_NEIGHBOUR_WINDOW = timedelta(days=3)
"""Time on either side of a run that is searched for its neighbours first."""
_MAX_CHECKED_LENGTH = 8_000
"""Longer payloads are not checked for a failure."""
_MAX_CHECKED_PAYLOADS = 2_000
_COLUMN_FIELDS = frozenset({"event", "type", "event_id", "timestamp", "tool", "tool_name", "name", "session_id", "status"})
"""Event fields that the timeline shows in columns of their own."""
_COLUMN_FIELD_JSON = re.compile(rf'"(?:{"|".join(sorted(_COLUMN_FIELDS))})":\s*"[^"]*",?\s*')
_TOKEN_COUNT = re.compile(r"(?<![\w.])\d{4,}(?= (?:new )?tokens?\b)")
_ZERO_TOKENS = re.compile(r"^(?:Session used|An exchange took up to) 0 (?:new )?tokens with (.*)$")
_JSON_INDENT = 2
_NUMBER_WORDS = {6: "six", 7: "seven", 8: "eight", 9: "nine"}
_SEVERITY_CLAUSES = {
    "critical": ("a failure is critical", "{} failures are critical"),
    "high": ("a failure has high severity", "{} failures have high severity"),
}
"""Clauses for one failure of a severity and for several."""
_links = Links()


class TurnLink(NamedTuple):
    """A link from a finding to a turn that it is about."""

    turn: int
    address: str
    event_count: int
    """Number of the finding's events in the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """The events of a run in columns of equal length. An event's index is its position in the session, from 0."""

    ids: Sequence[str]
    types: Sequence[str]
    tools: Sequence[str | None]
    statuses: Sequence[str | None]
    times: Sequence[datetime]
    offsets: Sequence[int]
    """The offset of each event in its topic."""
    evidence: Mapping[int, tuple[str, ...]]
    """Failure types by the index of an event that is evidence of them."""
    failed: frozenset[int]
    """Indexes of events that report a failure."""
    reinforcing_edges: tuple[ReinforcingEdge, ...]
    failures: tuple[str, ...]
    """All failure types of the diagnosis, in the order of the record."""

    def describe(self, index: int) -> str:
        """Return the type of an event, and its tool if it has one."""
        tool = self.tools[index]
        return f"{self.types[index]}: {tool}" if tool else self.types[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Records related to a run: its neighbours, its agent's earlier runs, its exchanges and its evaluations."""

    previous: str | None
    following: str | None
    history: Sequence[Row]
    """The agent's runs up to this one, newest first."""
    marks: Sequence[Mark]
    """Chart marks within the time of the history."""
    exchanges: Sequence[Row]
    """The last exchanges with their scores, in the order of their turns."""
    evaluations: Sequence[EvaluatedRun]
    session_question: str | None
    """The beginning of the first question of its session."""
    queues: Sequence[ReviewQueue]
    """The open review queues of the project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """Everything that a run's page shows, except payloads."""

    run: Run
    diagnosis: Diagnosis
    context: RunContext
    events: RunEvents
    finding_turns: Mapping[int, Sequence[TurnLink]]
    """Links to the turns of each finding, by the finding's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """The filters and the page of the timeline that a request selects."""

    type: str | None = None
    only: str | None = None
    """One of EVENT_FILTERS."""
    number: int = 1
    """Number of an event, from 1. The page starts with it, or with the first match after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A page of the timeline."""

    indexes: tuple[int, ...]
    """Indexes of the events on the page."""
    total: int
    """Number of matching events on all pages."""
    start: int
    """Number of matching events on earlier pages."""
    previous_number: int | None
    """Number of the first event of the previous page; None on the first page."""
    next_number: int | None
    """Number of the first event of the next page; None on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a session that the graph shows: the numbers of its first and last event, from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        """Format the window for an address."""
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAddress:
    """The address of a run's page with its parameters."""

    project: str
    run_id: str
    selection: EventSelection
    graph: Window | None

    def link(self, fragment: str = "", **changed: str | None) -> str:
        """Return the address with changed parameters. None removes a parameter."""
        params = {
            "type": self.selection.type,
            "only": self.selection.only,
            "at": str(self.selection.number) if self.selection.number > 1 else None,
            "graph": str(self.graph) if self.graph else None,
        }
        return _links.run(self.project, self.run_id, fragment, **(params | changed))


def read_context(cursor: duckdb.DuckDBPyConnection, run: Run) -> RunContext:
    """Return the records related to a run."""
    neighbours = _read_neighbours(cursor, run)
    history = [row for row in neighbours if row["of_agent"]]
    params = {"project": run.project, "connection": run.connection, "session": run.session_id, "limit": MAX_EXCHANGES + 1}
    evaluations = evaluation_page(cursor, run.project, session=run.session_id, limit=MAX_EVALUATIONS)
    return RunContext(
        previous=_find_neighbour(neighbours, "is_previous"),
        following=_find_neighbour(neighbours, "is_following"),
        history=history,
        marks=marks_between(cursor, run.project, [row["ended_at"] for row in history]),
        exchanges=query_rows(cursor, "session_scores", params)[::-1],
        evaluations=[evaluation for evaluation in evaluations if evaluation.connection == run.connection],
        queues=read_queues(cursor, run.project),
        session_question=session_question(cursor, run.project, run.connection, run.session_id),
    )


def _read_neighbours(cursor: duckdb.DuckDBPyConnection, run: Run) -> list[Row]:
    """Return the runs before and after a run. Search the days around its end first, and widen the search if some are missing."""
    since = run.last_at - _NEIGHBOUR_WINDOW
    until = run.last_at + _NEIGHBOUR_WINDOW
    params = {
        "project": run.project,
        "number": run.place.number,
        "agent": run.agent,
        "at": run.last_at,
        "limit": MAX_HISTORY_RUNS,
    }
    rows = query_rows(cursor, "runs_around", {**params, "since": since, "until": until})
    has_full_history = sum(row["of_agent"] for row in rows) == MAX_HISTORY_RUNS
    is_complete_before = _find_neighbour(rows, "is_previous") is not None and has_full_history
    if is_complete_before and _find_neighbour(rows, "is_following"):
        return rows
    return query_rows(cursor, "runs_around", {**params, "since": since if is_complete_before else None, "until": None})


def _find_neighbour(rows: Sequence[Row], role: str) -> str | None:
    return next((row["run_id"] for row in rows if row[role]), None)


def read_events(
    cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis, finding_events: Sequence[FindingEvents | None]
) -> RunEvents:
    """Return the events of a diagnosed session, with marks on evidence and on events that report a failure."""
    params = {"connection": diagnosis.connection, "session": diagnosis.session_id}
    frame = run_query(cursor, "session_timeline", {**params, "limit": MAX_EVENTS})
    columns = {name: frame[name].to_list() for name in ("event_id", "event", "tool", "status", "occurred_at", "place")}
    index_of = {event_id: index for index, event_id in enumerate(columns["event_id"])}
    # Dictionaries serve as sets that keep their order.
    evidence: dict[int, dict[str, None]] = {}
    edges: dict[ReinforcingEdge, None] = {}
    for cause, events in zip(diagnosis.failure_causes, finding_events, strict=True):
        event_ids = events.ids if events else ()
        indexes = [index_of[event_id] for event_id in event_ids if event_id in index_of]
        for index in indexes:
            evidence.setdefault(index, {})[cause.type] = None
        edges.update(dict.fromkeys(ReinforcingEdge(*pair, cause.type) for pair in pairwise(indexes)))
    return RunEvents(
        ids=columns["event_id"],
        types=columns["event"],
        tools=columns["tool"],
        statuses=columns["status"],
        times=columns["occurred_at"],
        offsets=columns["place"],
        evidence={index: tuple(names) for index, names in sorted(evidence.items())},
        failed=_find_failed(cursor, params, columns["place"]),
        reinforcing_edges=tuple(edges),
        failures=tuple(dict.fromkeys(cause.type for cause in diagnosis.failure_causes)),
    )


def _find_failed(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, str], offsets: Sequence[int]) -> frozenset[int]:
    """Return the indexes of the events that report a failure."""
    if not offsets:
        return frozenset()
    limits = {
        "last": offsets[-1],
        "statuses": "|".join(sorted(FAILED_STATUSES)),
        "longest": _MAX_CHECKED_LENGTH,
        "limit": _MAX_CHECKED_PAYLOADS,
    }
    rows = query_rows(cursor, "doubtful_events", {**params, **limits})
    failed_offsets = {row["place"] for row in rows if reports_failure(row)}
    return frozenset(index for index, offset in enumerate(offsets) if offset in failed_offsets)


def reports_failure(row: Mapping[str, Any]) -> bool:
    """Return whether an event reports a failure by its type or payload. A payload that is not a JSON object reports none."""
    try:
        return row["event"] == "error_event" or has_failed(raw_event(row["payload"]))
    except InputError:
        return False


def read_payloads(
    cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str, offsets: Sequence[int], max_length: int
) -> dict[int, Row]:
    """Return the payloads of events by their topic offset, each cut to `max_length` characters."""
    if not offsets:
        return {}
    params = {"connection": connection, "session": session_id, "places": list(offsets), "longest": max_length}
    return {row["place"]: row for row in query_rows(cursor, "event_payloads", params)}


def read_finding_turns(
    cursor: duckdb.DuckDBPyConnection, recorded: RecordedRun, finding_events: Sequence[FindingEvents | None]
) -> dict[int, list[TurnLink]]:
    """Return links to the turns of each finding of a run, by the finding's number."""
    run = recorded.run
    for session in find_sessions(cursor, run.session_id, [run.project], run.connection):
        findings = session_findings(cursor, session.bounded_params, recorded, finding_events).findings
        return {finding.number: link_turns(session, finding) for finding in findings}
    return {}


def link_turns(session: SessionHeader, finding: Finding) -> list[TurnLink]:
    """Return links to the first turns of a finding."""
    return [TurnLink(turn.turn, _link_turn(session, turn), turn.event_count) for turn in finding.turns[:MAX_LINKED_TURNS]]


def _link_turn(session: SessionHeader, turn: MarkedTurn) -> str:
    """Return the address of a turn. Events before the first turn have no turn, so the first of them is linked."""
    if not turn.turn:
        return link_event(session, 0, turn.events[0])
    return _links.session(
        session.project, session.session_id, session.connection, fragment=f"turn-title-{turn.turn}", turn=turn.turn
    )


def link_event(session: SessionHeader, turn: int, event: MarkedEvent) -> str:
    """Return the address of an event: in the conversation, or on the page of its turn's events if the turn has too many."""
    params = {"turn": turn or 1} if session.has_turns and event.row <= MAX_STEPS_PER_TURN else {"part": turn, "step": event.row}
    return _links.session(session.project, session.session_id, session.connection, fragment=f"step-{event.offset}", **params)


def timeline(events: RunEvents, selection: EventSelection, page_size: int = EVENTS_PER_PAGE) -> Timeline:
    """Return the page of the matching events that has the selected event."""
    matches = [
        index
        for index in _filter_events(events, selection.only)
        if selection.type is None or events.types[index] == selection.type
    ]
    earlier = sum(index < selection.number - 1 for index in matches)
    start = min(earlier, max(0, len(matches) - 1)) // page_size * page_size
    end = start + page_size
    return Timeline(
        indexes=tuple(matches[start:end]),
        total=len(matches),
        start=start,
        previous_number=matches[start - page_size] + 1 if start else None,
        next_number=matches[end] + 1 if end < len(matches) else None,
    )


def _filter_events(events: RunEvents, only: str | None) -> range | list[int]:
    if only == EVIDENCE:
        return sorted(events.evidence)
    if only == FAILED:
        return sorted(events.failed)
    return range(len(events.ids))


def run_values(
    details: RunDetails, address: RunAddress, timeline_page: Timeline, payloads: Mapping[int, Row]
) -> dict[str, Any]:
    """Return every value of the template."""
    diagnosis = details.diagnosis
    context = details.context
    events = details.events
    return {
        "run": details.run,
        "diagnosis": diagnosis,
        "has_only_exchanges": details.run.exchanges_only,
        "readiness_reason": explain_readiness(diagnosis),
        "has_tokens": has_tokens(diagnosis),
        "format_cause": format_cause,
        "lowest_trust": LOWEST_TRUST,
        "primary": _find_primary_cause(diagnosis),
        "causes": _sort_by_impact(diagnosis),
        "finding_turns": details.finding_turns,
        "dimensions": _list_dimensions(diagnosis),
        "dimension_count": _NUMBER_WORDS.get(len(diagnosis.dimensions), str(len(diagnosis.dimensions))),
        "dimension_of": {failure.name: failure.dimension for failure in FAILURE_TYPES.values()},
        "previous": context.previous,
        "following": context.following,
        "history": _build_history(address.project, context.history, context.marks),
        "has_more_exchanges": len(context.exchanges) > MAX_EXCHANGES,
        "evaluations": context.evaluations,
        "session_question": context.session_question,
        "queues": context.queues,
        "simulated": any(exchange["simulated"] for exchange in context.exchanges)
        or any(evaluation.simulated for evaluation in context.evaluations),
        "address": address,
        "timeline": timeline_page,
        "types": sorted(Counter(events.types).items()),
        "rows": [_build_row(events, index, payloads) for index in timeline_page.indexes],
        "evidence_total": len(events.evidence),
        "failed_total": len(events.failed),
        "read_count": len(events.ids),
        "is_cut": len(events.ids) == MAX_EVENTS < diagnosis.event_count,
        "is_changed": len(events.ids) != min(MAX_EVENTS, diagnosis.event_count),
        "graph": _build_graph(events, address),
    }


def explain_readiness(diagnosis: Diagnosis) -> str:
    """Return the reason for a run's readiness level as a clause; empty if there is none on record."""
    rule = next((rule for rule in READINESS_RULES if rule[0] == diagnosis.readiness_level), None)
    if rule is None or diagnosis.trust_score is None:
        return ""
    _, min_trust, severity = rule
    clauses = []
    if diagnosis.trust_score < min_trust:
        clauses.append(f"trust is below {min_trust}")
    failures = sum(cause.severity == severity for cause in diagnosis.failure_causes)
    if failures:
        singular, plural = _SEVERITY_CLAUSES[severity]
        clauses.append(plural.format(failures) if failures > 1 else singular)
    return " and ".join(clauses)


def has_tokens(diagnosis: Diagnosis) -> bool:
    """Return whether the events report token counts. Without them the total is unknown, not 0."""
    return diagnosis.cost_analysis.total_tokens > 0


def format_cause(description: str) -> str:
    """Format a detector's description of a cause: group the digits of large token counts, and drop a count of 0 that no event reports."""
    grouped = _TOKEN_COUNT.sub(lambda match: number(int(match[0])), description)
    return _ZERO_TOKENS.sub(lambda match: f"{match[1][:1].upper()}{match[1][1:]} The events report no tokens.", grouped)


def _find_primary_cause(diagnosis: Diagnosis) -> Any:
    """Return the cause with the largest penalty, the first of equals; None without causes."""
    return min(diagnosis.failure_causes, key=lambda cause: cause.impact_score, default=None)


def _sort_by_impact(diagnosis: Diagnosis) -> list[tuple[int, FailureCause]]:
    """Return the causes with their numbers in the record, largest penalty first."""
    return sorted(enumerate(diagnosis.failure_causes, 1), key=lambda numbered: numbered[1].impact_score)


def _list_dimensions(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return each dimension with its score, its weight in percent, and the failure type that lowers it."""
    scores = {dimension.dimension: dimension.score for dimension in diagnosis.dimensions}
    return [
        {"name": failure.dimension, "score": scores[failure.dimension], "weight": failure.weight, "failure": failure.name}
        for failure in FAILURE_TYPES.values()
        if failure.dimension in scores
    ]


def _build_history(project: str, runs: Sequence[Row], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return the comparison with the agent's earlier runs. `runs` starts with the run of the page."""
    current = runs[0]
    earlier = runs[1:]
    last = earlier[0] if earlier else None
    scores = [run["trust_score"] for run in earlier if run["trust_score"] is not None]
    failure = current["primary_failure_type"]
    return {
        "last": last,
        "change": _subtract_trust(current["trust_score"], last["trust_score"]) if last else None,
        "is_repeated": last is not None and failure is not None and failure == last["primary_failure_type"],
        "mean": sum(scores) / len(scores) if scores else None,
        "runs": len(earlier),
        "is_cut": len(runs) == MAX_HISTORY_RUNS,
        "chart": _draw_history(project, runs, marks) if earlier else None,
    }


def _subtract_trust(current: float | None, previous: float | None) -> float | None:
    return None if current is None or previous is None else current - previous


def _draw_history(project: str, runs: Sequence[Row], marks: Sequence[Mark]) -> Any:
    chart = Chart(
        key="trust",
        title="Trust of the agent's runs up to this one",
        words=f"The last {len(runs)} runs of the agent; the last point is this run.",
        column="Trust",
        first="Run",
        digits=0,
        limits=(0, 100),
        reaches=(0, 100),
        marked="unsafe for production",
        marks=marks,
    )
    unsafe = {run["run_id"] for run in runs if run["readiness_level"] == "unsafe_for_production"}
    return line(chart, [run_point(project, run) for run in reversed(runs)], marked=unsafe)


def run_point(project: str, run: Mapping[str, Any]) -> Point:
    """Return a run's point in a chart of trust, with a link to its page."""
    run_id = run["run_id"]
    return Point(run_id, run["trust_score"], run_id.removeprefix("run_"), at=run["ended_at"], link=_links.run(project, run_id))


def _build_row(events: RunEvents, index: int, payloads: Mapping[int, Row]) -> dict[str, Any]:
    """Return a row of the timeline."""
    stored = payloads.get(events.offsets[index], {"payload": "", "characters": 0})
    payload = stored["payload"]
    is_cut = stored["characters"] > MAX_PAYLOAD_LENGTH
    return {
        "number": index + 1,
        "id": events.ids[index],
        "at": events.times[index],
        "type": events.types[index],
        "tool": events.tools[index],
        "status": events.statuses[index],
        "failures": events.evidence.get(index, ()),
        "is_failed": index in events.failed
        or (not is_cut and reports_failure({"event": events.types[index], "payload": payload})),
        "payload": payload if is_cut else indent_payload(payload),
        "gist": summarize_payload(payload, is_cut=is_cut),
        "characters": stored["characters"],
        "is_cut": is_cut,
        "file": f"events/{events.offsets[index]}.json",
    }


def summarize_payload(payload: str, *, is_cut: bool) -> str:
    """Return a payload's fields in one line, without those in the timeline's columns; empty for a payload that is not a JSON object."""
    if is_cut:
        text = _COLUMN_FIELD_JSON.sub("", payload)
    else:
        try:
            fields = {name: value for name, value in raw_event(payload).items() if name not in _COLUMN_FIELDS}
        except InputError:
            return ""
        text = json.dumps(fields, ensure_ascii=False)[:-1]
    text = text.removeprefix("{").replace('"', "")
    return text if len(text) <= MAX_GIST_LENGTH else f"{text[: MAX_GIST_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}"


def indent_payload(payload: str) -> str:
    """Return a JSON object with one field per line; any other payload unchanged."""
    try:
        return json.dumps(raw_event(payload), indent=_JSON_INDENT, ensure_ascii=False)
    except InputError:
        return payload


def _build_graph(events: RunEvents, address: RunAddress) -> dict[str, Any]:
    """Return the causal graph of the requested window, with a text version."""
    count = len(events.ids)
    window = address.graph or Window(first=1, last=count)
    indexes = range(window.first - 1, window.last)
    evidence = {index: names for index, names in events.evidence.items() if index in indexes}
    layout = lay_out_graph(
        GraphEvents(
            types=events.types[indexes.start : indexes.stop],
            first=indexes.start,
            evidence=evidence,
            failed=events.failed,
            reinforcing_edges=events.reinforcing_edges,
            failures=events.failures,
        )
    )
    links = GraphLinks(
        event=lambda index: _link_timeline(address, index),
        block=lambda first, last: address.link("graph", graph=str(Window(first=first + 1, last=last + 1))),
        failure=lambda name: f"#cause-{name}",
    )
    size = len(indexes)
    return {
        "window": window,
        "is_part": size < count,
        "before": _build_window(window.first - size, size, count) if window.first > 1 else None,
        "after": _build_window(window.last + 1, size, count) if window.last < count else None,
        "blocks": sum(column.is_block for column in layout.columns),
        "images": draw_graph(layout, events.describe, lambda name: TERMS.get(name, name), links) if count else None,
        "evidence": {name: _list_evidence(evidence, name) for name in events.failures},
        "max_listed": MAX_LISTED_EVIDENCE,
        "link_event": partial(_link_timeline, address),
        "describe": events.describe,
    }


def _link_timeline(address: RunAddress, index: int) -> str:
    """Return the address of an event in the timeline, without filters."""
    return address.link(f"event-{index + 1}", at=str(index + 1), type=None, only=None)


def _build_window(first: int, size: int, count: int) -> str:
    """Return the window of `size` events that starts with `first`, limited to the `count` events of the session."""
    start = max(1, first)
    return str(Window(first=start, last=min(count, start + size - 1)))


def _list_evidence(evidence: Mapping[int, Sequence[str]], failure: str) -> list[int]:
    return [index for index, failures in evidence.items() if failure in failures]
