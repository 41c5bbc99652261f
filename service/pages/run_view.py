"""Data of a run's page: the recorded diagnosis, its events without their payloads, the requested part of them, and the template's values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from analytics.queries import query_rows, run_query
from audit.detectors.detectors import FAILURE_TYPES
from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST, SAFE_TRUST
from audit.diagnosis.events import raw_event
from audit.evaluation.run import FAILED_STATUSES, has_failed
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Diagnosis, FailureCause
from service.pages.charts import Chart, Mark, Point, line, marks_between
from service.pages.graph import Addresses, GraphEvents, Reinforcing, draw, layout
from service.pages.rendering import number
from service.read.evaluations import EvaluatedRun, evaluation_page
from service.read.runs import RecordedRun, Row, Run
from service.read.sessions import (
    Finding,
    FindingEvents,
    MarkedEvent,
    MarkedTurn,
    SessionPlace,
    session_findings,
    session_places,
)
from service.text.links import Links
from service.text.words import TERMS

STEPS = 12
"""Maximum number of a turn's events in the conversation; the others are on a separate page."""
TURNS_NAMED = 20
"""Maximum number of turns that a finding names."""
_links = Links()


def finding_links(session: SessionPlace, finding: Finding) -> list[tuple[int, str, int]]:
    """Return the first turns of a finding: place, address, and number of the finding's events."""
    return [(turn.turn, _link_turn(session, turn), turn.event_count) for turn in finding.turns[:TURNS_NAMED]]


def _link_turn(session: SessionPlace, turn: MarkedTurn) -> str:
    """Return the address of a marked turn, or of its first marked event for events outside of turns."""
    if not turn.turn:
        return event_link(session, 0, turn.events[0])
    return _links.session(
        session.project, session.session_id, session.connection, fragment=f"turn-title-{turn.turn}", turn=turn.turn
    )


def event_link(session: SessionPlace, turn: int, event: MarkedEvent) -> str:
    """Return the address of an event: in the conversation, or on the page of its turn's events if there are many."""
    params = {"turn": turn or 1} if session.has_turns and event.row <= STEPS else {"part": turn, "step": event.row}
    return _links.session(session.project, session.session_id, session.connection, fragment=f"step-{event.place}", **params)


EVENTS_READ = 20_000
"""Maximum number of events that a page reads, from the first on; the files have all of them."""
PAYLOAD_SHOWN = 1_500
"""Characters of a payload on the page."""
EXCHANGES_SHOWN, EVALUATIONS_SHOWN, HISTORY = 100, 20, 30
_NEAR = timedelta(days=3)
"""The first search range for neighbouring runs, on either side."""
_LOOKED_AT = 8_000
"""Maximum length of a payload that is searched for a report of failure."""
_DOUBTFUL = 2_000
"""Maximum number of payloads that are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """The events of a run by their places, from 0: columns of equal length, and findings about some of them."""

    ids: Sequence[str]
    types: Sequence[str]
    tools: Sequence[str | None]
    statuses: Sequence[str | None]
    times: Sequence[datetime]
    offsets: Sequence[int]
    """The place of each event in its topic."""
    evidence: Mapping[int, tuple[str, ...]]
    """The failure types that have an event as evidence."""
    failed: frozenset[int]
    """Events that report a failure."""
    reinforcing: tuple[Reinforcing, ...]
    failures: tuple[str, ...]
    """Every failure type in the diagnosis, in the order of the record."""

    def told(self, position: int) -> str:
        """Describe an event in a few words: its type, and its tool if any."""
        tool = self.tools[position]
        return f"{self.types[position]}: {tool}" if tool else self.types[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The context of a run on its page."""

    previous: str | None
    following: str | None
    history: Sequence[Row]
    """The runs of its agent up to this one, the latest first."""
    marks: Sequence[Mark]
    """The marks between these runs."""
    exchanges: Sequence[Row]
    """The last exchanges with their scores, in the order of their turns."""
    evaluations: Sequence[EvaluatedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRead:
    """A run with all data of its page except payloads."""

    run: Run
    diagnosis: Diagnosis
    context: RunContext
    events: RunEvents
    turns: Mapping[int, Sequence[tuple[int, str, int]]]
    """The turns in which each finding lies, by its number: place, address, events of the finding."""


def read_context(cursor: duckdb.DuckDBPyConnection, run: Run) -> RunContext:
    """Return the context of a run."""
    project, connection, session = run.project, run.connection, run.session_id
    around = _read_neighbours(cursor, run)
    history = [one for one in around if one["of_agent"]]
    named = {"project": project, "connection": connection, "session": session, "limit": EXCHANGES_SHOWN + 1}
    evaluations = evaluation_page(cursor, project, session=session, limit=EVALUATIONS_SHOWN)
    return RunContext(
        previous=_find_neighbour(around, "is_previous"),
        following=_find_neighbour(around, "is_following"),
        history=history,
        marks=marks_between(cursor, project, [one["ended_at"] for one in history]),
        exchanges=query_rows(cursor, "session_scores", named)[::-1],
        evaluations=[run for run in evaluations if run.connection == connection],
    )


def _read_neighbours(cursor: duckdb.DuckDBPyConnection, run: Run) -> list[Row]:
    """Return the runs around one, searching within days of its end first, and farther if some are missing."""
    at = run.last_at
    params = {"project": run.project, "number": run.place.number, "agent": run.agent, "at": at, "limit": HISTORY}
    rows = query_rows(cursor, "runs_around", {**params, "since": at - _NEAR, "until": at + _NEAR})
    is_whole_before = _find_neighbour(rows, "is_previous") and sum(one["of_agent"] for one in rows) == HISTORY
    if is_whole_before and _find_neighbour(rows, "is_following"):
        return rows
    return query_rows(cursor, "runs_around", {**params, "since": at - _NEAR if is_whole_before else None, "until": None})


def _find_neighbour(around: Sequence[Row], role: str) -> str | None:
    return next((one["run_id"] for one in around if one[role]), None)


def read_events(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis, located: Sequence[FindingEvents | None]) -> RunEvents:
    """Return the events of a diagnosed session, with marks on evidence and on events that report a failure."""
    params = {"connection": diagnosis.connection, "session": diagnosis.session_id}
    frame = run_query(cursor, "session_timeline", {**params, "limit": EVENTS_READ})
    shown = {name: frame[name].to_list() for name in ("event_id", "event", "tool", "status", "occurred_at", "place")}
    place_of = {event_id: position for position, event_id in enumerate(shown["event_id"])}
    marks: dict[int, dict[str, None]] = {}
    reinforcing: dict[Reinforcing, None] = {}
    for cause, events in zip(diagnosis.failure_causes, located, strict=True):
        places = [place_of[event_id] for event_id in (events.ids if events else ()) if event_id in place_of]
        for position in places:
            marks.setdefault(position, {})[cause.type] = None
        reinforcing.update(dict.fromkeys(Reinforcing(*pair, cause.type) for pair in pairwise(places)))
    return RunEvents(
        ids=shown["event_id"],
        types=shown["event"],
        tools=shown["tool"],
        statuses=shown["status"],
        times=shown["occurred_at"],
        offsets=shown["place"],
        evidence={position: tuple(names) for position, names in sorted(marks.items())},
        failed=_find_failed(cursor, params, shown["place"]),
        reinforcing=tuple(reinforcing),
        failures=tuple(dict.fromkeys(cause.type for cause in diagnosis.failure_causes)),
    )


def read_findings(
    cursor: duckdb.DuckDBPyConnection, recorded: RecordedRun, located: Sequence[FindingEvents | None]
) -> dict[int, list[tuple[int, str, int]]]:
    """Return the turns of each finding of a run by the finding's number: place, address, and number of its events."""
    run = recorded.run
    for session in session_places(cursor, run.session_id, [run.project], run.connection):
        findings = session_findings(cursor, session.bounded_params, recorded, located).findings
        return {finding.number: finding_links(session, finding) for finding in findings}
    return {}


def _find_failed(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, str], offsets: Sequence[int]) -> frozenset[int]:
    """Return the places of the events that report a failure."""
    if not offsets:
        return frozenset()
    limits = {"last": offsets[-1], "statuses": "|".join(sorted(FAILED_STATUSES)), "longest": _LOOKED_AT, "limit": _DOUBTFUL}
    failing = {row["place"] for row in query_rows(cursor, "doubtful_events", {**params, **limits}) if tells_of_failure(row)}
    return frozenset(place for place, offset in enumerate(offsets) if offset in failing) if failing else frozenset()


def tells_of_failure(row: Mapping[str, Any]) -> bool:
    """Return whether an event reports a failure, by its type and payload; a payload that is not a JSON object does not."""
    try:
        return row["event"] == "error_event" or has_failed(raw_event(row["payload"]))
    except InputError:
        return False


def payloads_of(
    cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str, offsets: Sequence[int], longest: int
) -> dict[int, Row]:
    """Return the payloads of some events of a session by their place in the topic, each cut to `longest` characters."""
    if not offsets:
        return {}
    params = {"connection": connection, "session": session_id, "places": list(offsets), "longest": longest}
    return {one["place"]: one for one in query_rows(cursor, "event_payloads", params)}


PAGE = 50
"""Events per page."""
EVIDENCE, FAILED = "evidence", "failed"
ONLY = (EVIDENCE, FAILED)
"""The filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """The requested events."""

    type: str | None = None
    """Only events of a type."""
    only: str | None = None
    """One of ONLY."""
    at: int = 1
    """Number of an event, from 1: its page, or that of the first match after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A page of the timeline."""

    places: tuple[int, ...]
    """The events by their places."""
    total: int
    """Number of matching events on all pages."""
    start: int
    """Number of matching events before this page."""
    previous_at: int | None
    """Number of the first event of the previous page; None on the first page."""
    next_at: int | None
    """Number of the first event of the next page; None on the last page."""


def timeline(events: RunEvents, selection: EventSelection, page: int = PAGE) -> Timeline:
    """Return the page of the matching events that contains the event `at`."""
    fitting = [
        place
        for place in _select_events(events, selection.only)
        if selection.type is None or events.types[place] == selection.type
    ]
    before = sum(place < selection.at - 1 for place in fitting)
    start = min(before, max(0, len(fitting) - 1)) // page * page
    shown = fitting[start : start + page]
    return Timeline(
        places=tuple(shown),
        total=len(fitting),
        start=start,
        previous_at=fitting[start - page] + 1 if start else None,
        next_at=fitting[start + page] + 1 if start + page < len(fitting) else None,
    )


def _select_events(events: RunEvents, only: str | None) -> range | list[int]:
    if only == EVIDENCE:
        return sorted(events.evidence)
    if only == FAILED:
        return sorted(events.failed)
    return range(len(events.ids))


LISTED = 100
"""Evidence events of a failure that the text beside the graph names."""
GIST_SHOWN = 120
"""Characters of an event's summary in a line."""
_IN_COLUMNS = frozenset({"event", "type", "event_id", "timestamp", "tool", "tool_name", "name", "session_id", "status"})
"""Fields of an event that the timeline has in columns of their own."""
_IN_COLUMNS_WRITTEN = re.compile(rf'"(?:{"|".join(sorted(_IN_COLUMNS))})":\s*"[^"]*",?\s*')
_LARGE = re.compile(r"(?<![\w.])\d{4,}(?= (?:new )?tokens?\b)")
_NO_TOKENS = re.compile(r"^(?:Session used|An exchange took up to) 0 (?:new )?tokens with (.*)$")
_DEPTH = 2
_COUNTED = {6: "six", 7: "seven", 8: "eight", 9: "nine"}
links = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a session that the graph shows: the numbers of its first and last event, from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        """Format the window for an address."""
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parameters of the page's address."""

    project: str
    run_id: str
    asked: EventSelection
    graph: Window | None

    def to(self, part: str = "", **changed: str | None) -> str:
        """Return the same page with changed parameters, None to drop one."""
        params = {
            "type": self.asked.type,
            "only": self.asked.only,
            "at": str(self.asked.at) if self.asked.at > 1 else None,
            "graph": str(self.graph) if self.graph else None,
        }
        return links.run(self.project, self.run_id, part, **(params | changed))


def run_values(read: RunRead, address: Address, shown: Timeline, payloads: Mapping[int, Row]) -> dict[str, Any]:
    """Return every value of the template."""
    diagnosis, context, events = read.diagnosis, read.context, read.events
    return {
        "run": read.run,
        "diagnosis": diagnosis,
        "is_alone": read.run.exchanges_only,
        "because": because(diagnosis),
        "has_tokens": has_tokens(diagnosis),
        "told_cause": told_cause,
        "lowest_trust": LOWEST_TRUST,
        "primary": _primary_cause(diagnosis),
        "causes": _order_by_impact(diagnosis),
        "turns": read.turns,
        "dimensions": _list_dimensions(diagnosis),
        "dimension_count": _COUNTED.get(len(diagnosis.dimensions), str(len(diagnosis.dimensions))),
        "dimension_of": {one.name: one.dimension for one in FAILURE_TYPES.values()},
        "previous": context.previous,
        "following": context.following,
        "history": _draw_history(address.project, context.history, context.marks),
        "exchanges": context.exchanges[-EXCHANGES_SHOWN:],
        "has_more_exchanges": len(context.exchanges) > EXCHANGES_SHOWN,
        "evaluations": context.evaluations,
        "simulated": any(exchange["simulated"] for exchange in context.exchanges)
        or any(evaluation.simulated for evaluation in context.evaluations),
        "address": address,
        "timeline": shown,
        "only": ONLY,
        "types": sorted(Counter(events.types).items()),
        "rows": [_build_event(events, place, payloads) for place in shown.places],
        "evidence_total": len(events.evidence),
        "failed_total": len(events.failed),
        "read_count": len(events.ids),
        "is_cut": len(events.ids) == EVENTS_READ < diagnosis.event_count,
        "is_changed": len(events.ids) != min(EVENTS_READ, diagnosis.event_count),
        "graph": graph_values(events, address),
    }


def has_tokens(diagnosis: Diagnosis) -> bool:
    """Return whether the events report token counts; otherwise the sum is unknown and not 0."""
    return diagnosis.cost_analysis.total_tokens > 0


def told_cause(description: str) -> str:
    """Return a detector's description of a cause, with thin spaces in large counts, and without token counts that no event reports."""
    spaced = _LARGE.sub(lambda found: number(int(found[0])), description)
    return _NO_TOKENS.sub(lambda found: f"{found[1][:1].upper()}{found[1][1:]} The events report no tokens.", spaced)


def _primary_cause(diagnosis: Diagnosis) -> Any:
    """Return the cause with the largest penalty, the first among equals; None without causes."""
    return min(diagnosis.failure_causes, key=lambda cause: cause.impact_score, default=None)


def _order_by_impact(diagnosis: Diagnosis) -> list[tuple[int, FailureCause]]:
    """Return the causes by penalty, largest first, each with its number in the record."""
    return sorted(enumerate(diagnosis.failure_causes, 1), key=lambda numbered: numbered[1].impact_score)


def _list_dimensions(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return each dimension with its score, its weight in percent, and the failure type that lowers it."""
    scores = {one.dimension: one.score for one in diagnosis.dimensions}
    return [
        {"name": one.dimension, "score": scores[one.dimension], "weight": one.weight, "failure": one.name}
        for one in FAILURE_TYPES.values()
        if one.dimension in scores
    ]


def _draw_history(project: str, runs: Sequence[Row], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return the agent's history up to this run."""
    this, before = runs[0], runs[1:]
    last = before[0] if before else None
    scores = [run["trust_score"] for run in before if run["trust_score"] is not None]
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
    points = [run_point(project, run) for run in reversed(runs)]
    unsafe = {run["run_id"] for run in runs if run["readiness_level"] == "unsafe_for_production"}
    return {
        "last": last,
        "change": _describe_change(this["trust_score"], last["trust_score"] if last else None),
        "is_repeated": last is not None and this["primary_failure_type"] in {last["primary_failure_type"]} - {None},
        "mean": sum(scores) / len(scores) if scores else None,
        "runs": len(before),
        "is_cut": len(runs) == HISTORY,
        "chart": line(chart, points, marked=unsafe) if before else None,
    }  # fmt: skip


def run_point(project: str, run: Mapping[str, Any]) -> Point:
    """Return a run's point in a chart of trust, with a link to its page."""
    name, at = run["run_id"], run["ended_at"]
    return Point(name, run["trust_score"], name.removeprefix("run_"), at=at, link=links.run(project, name))


def _describe_change(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _build_event(events: RunEvents, position: int, payloads: Mapping[int, Row]) -> dict[str, Any]:
    """Return a row of the timeline."""
    kept = payloads.get(events.offsets[position], {"payload": "", "characters": 0})
    is_cut = kept["characters"] > PAYLOAD_SHOWN
    is_failed = position in events.failed or (not is_cut and tells_of_failure({"event": events.types[position], **kept}))
    return {
        "number": position + 1,
        "id": events.ids[position],
        "at": events.times[position],
        "type": events.types[position],
        "tool": events.tools[position],
        "status": events.statuses[position],
        "failures": events.evidence.get(position, ()),
        "is_failed": is_failed,
        "payload": kept["payload"] if is_cut else indented(kept["payload"]),
        "gist": gist(kept["payload"], is_cut=is_cut),
        "characters": kept["characters"],
        "is_cut": is_cut,
        "file": f"events/{events.offsets[position]}.json",
    }


def gist(payload: str, *, is_cut: bool) -> str:
    """Summarise a payload in a line, without the fields that the timeline's columns show; empty if nothing is left or it is not a JSON object."""
    if is_cut:
        text = _IN_COLUMNS_WRITTEN.sub("", payload)
    else:
        try:
            fields = {name: value for name, value in raw_event(payload).items() if name not in _IN_COLUMNS}
        except InputError:
            return ""
        text = json.dumps(fields, ensure_ascii=False)[:-1]
    text = text.removeprefix("{").replace('"', "")
    return text if len(text) <= GIST_SHOWN else f"{text[: GIST_SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"


def indented(payload: str) -> str:
    """Return a payload with one field per line; unchanged if it is not a JSON object."""
    try:
        return json.dumps(raw_event(payload), indent=_DEPTH, ensure_ascii=False)
    except InputError:
        return payload


def graph_values(events: RunEvents, address: Address) -> dict[str, Any]:
    """Return the graph of the requested part, with a text description."""
    count = len(events.ids)
    window = address.graph or Window(first=1, last=count)
    chosen = range(window.first - 1, window.last)
    evidence = {place: names for place, names in events.evidence.items() if place in chosen}
    placed = layout(
        GraphEvents(
            types=events.types[chosen.start : chosen.stop],
            first=chosen.start,
            evidence=evidence,
            failed=events.failed,
            reinforcing=events.reinforcing,
            failures=events.failures,
        )
    )
    addresses = Addresses(
        event=lambda place: _link_event(address, place),
        block=lambda first, last: address.to("graph", graph=str(Window(first=first + 1, last=last + 1))),
        failure=lambda name: f"#cause-{name}",
    )
    width = len(chosen)
    return {
        "window": window,
        "is_part": width < count,
        "before": _window_beside(window.first - width, width, count) if window.first > 1 else None,
        "after": _window_beside(window.last + 1, width, count) if window.last < count else None,
        "blocks": sum(column.is_block for column in placed.columns),
        "images": draw(placed, events.told, _describe_graph, addresses) if count else None,
        "evidence": {name: _list_evidence(evidence, name) for name in events.failures},
        "listed": LISTED,
        "to_event": partial(_link_event, address),
        "told": events.told,
    }


def _describe_graph(name: str) -> str:
    return TERMS.get(name, name)


def _link_event(address: Address, position: int) -> str:
    """Return the timeline at an event, without filters."""
    return address.to(f"event-{position + 1}", at=str(position + 1), type=None, only=None)


def _window_beside(first: int, width: int, count: int) -> str:
    start = max(1, first)
    return str(Window(first=start, last=min(count, start + width - 1)))


def _list_evidence(evidence: Mapping[int, Sequence[str]], name: str) -> list[int]:
    return [place for place, names in evidence.items() if name in names]


RULES = (("unsafe_for_production", SAFE_TRUST, "critical"), ("review_recommended", READY_TRUST, "high"))
"""A readiness level, the trust below which a run has it, and the severity of a failure that has the same effect."""
_FAILING = {
    "critical": ("a failure is critical", "{} failures are critical"),
    "high": ("a failure has high severity", "{} failures have high severity"),
}


def because(diagnosis: Diagnosis) -> str:
    """Return the reason of a run's readiness level as a clause; empty without a reason, or if it is not recorded."""
    rule = next((rule for rule in RULES if rule[0] == diagnosis.readiness_level), None)
    if rule is None or diagnosis.trust_score is None:
        return ""
    _, least, severity = rule
    failures = sum(cause.severity == severity for cause in diagnosis.failure_causes)
    low = [f"trust is below {least}"] if diagnosis.trust_score < least else []
    return " and ".join([*low, *([_FAILING[severity][failures > 1].format(failures)] if failures else [])])
