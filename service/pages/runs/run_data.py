"""Data of a run's page: the recorded diagnosis, and its events without their payloads.

The verdict is the recorded one, which lists, alerts and gates also use. `service.read.sessions` finds the events of its findings.
Reading is bounded for sessions of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from analytics.queries import query_rows, run_query
from audit.diagnosis.events import raw_event
from audit.evaluation.run import FAILED_STATUSES, has_failed
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Diagnosis
from service.pages.charts.graph_layout import Reinforcing
from service.pages.charts.marks import Mark, marks_between
from service.pages.sessions.finding_links import finding_links
from service.read.evaluations import EvaluatedRun, evaluation_page
from service.read.runs import RecordedRun, Row, Run
from service.read.sessions import FindingEvents, session_findings, session_places

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
    """The place of each in its topic."""
    evidence: Mapping[int, tuple[str, ...]]
    """The failure types that have an event as evidence."""
    failed: frozenset[int]
    """Events that report a failure."""
    reinforcing: tuple[Reinforcing, ...]
    failures: tuple[str, ...]
    """Every failure type in the diagnosis, in the order of the record."""

    def told(self, place: int) -> str:
        """Describe an event in a few words: its type, and its tool if any."""
        tool = self.tools[place]
        return f"{self.types[place]}: {tool}" if tool else self.types[place]


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
    """Their scores, in the order of their turns: the last ones."""
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
    around = _around(cursor, run)
    history = [one for one in around if one["of_agent"]]
    named = {"project": project, "connection": connection, "session": session, "limit": EXCHANGES_SHOWN + 1}
    evaluations = evaluation_page(cursor, project, session=session, limit=EVALUATIONS_SHOWN)
    return RunContext(
        previous=_id_of(around, "is_previous"),
        following=_id_of(around, "is_following"),
        history=history,
        marks=marks_between(cursor, project, [one["ended_at"] for one in history]),
        exchanges=query_rows(cursor, "session_scores", named)[::-1],
        evaluations=[run for run in evaluations if run.connection == connection],
    )


def _around(cursor: duckdb.DuckDBPyConnection, run: Run) -> list[Row]:
    """Return the runs around one, searching within days of its end first, and farther if some are missing."""
    at = run.last_at
    asked = {"project": run.project, "number": run.place.number, "agent": run.agent, "at": at, "limit": HISTORY}
    found = query_rows(cursor, "runs_around", {**asked, "since": at - _NEAR, "until": at + _NEAR})
    is_whole_before = _id_of(found, "is_previous") and sum(one["of_agent"] for one in found) == HISTORY
    if is_whole_before and _id_of(found, "is_following"):
        return found
    return query_rows(cursor, "runs_around", {**asked, "since": at - _NEAR if is_whole_before else None, "until": None})


def _id_of(around: Sequence[Row], role: str) -> str | None:
    return next((one["run_id"] for one in around if one[role]), None)


def read_events(cursor: duckdb.DuckDBPyConnection, diagnosis: Diagnosis, located: Sequence[FindingEvents | None]) -> RunEvents:
    """Return the events of a diagnosed session, with marks on evidence and on events that report a failure."""
    asked = {"connection": diagnosis.connection, "session": diagnosis.session_id}
    frame = run_query(cursor, "session_timeline", {**asked, "limit": EVENTS_READ})
    shown = {name: frame[name].to_list() for name in ("event_id", "event", "tool", "status", "occurred_at", "place")}
    place_of = {event_id: place for place, event_id in enumerate(shown["event_id"])}
    marks: dict[int, dict[str, None]] = {}
    reinforcing: dict[Reinforcing, None] = {}
    for cause, events in zip(diagnosis.failure_causes, located, strict=True):
        places = [place_of[event_id] for event_id in (events.ids if events else ()) if event_id in place_of]
        for place in places:
            marks.setdefault(place, {})[cause.type] = None
        reinforcing.update(dict.fromkeys(Reinforcing(*pair, cause.type) for pair in pairwise(places)))
    return RunEvents(
        ids=shown["event_id"],
        types=shown["event"],
        tools=shown["tool"],
        statuses=shown["status"],
        times=shown["occurred_at"],
        offsets=shown["place"],
        evidence={place: tuple(names) for place, names in sorted(marks.items())},
        failed=_failed(cursor, asked, shown["place"]),
        reinforcing=tuple(reinforcing),
        failures=tuple(dict.fromkeys(cause.type for cause in diagnosis.failure_causes)),
    )


def read_findings(
    cursor: duckdb.DuckDBPyConnection, recorded: RecordedRun, located: Sequence[FindingEvents | None]
) -> dict[int, list[tuple[int, str, int]]]:
    """Return the turns of each finding of a run by the finding's number: place, address, and number of its events."""
    run = recorded.run
    for place in session_places(cursor, run.session_id, [run.project], run.connection):
        findings = session_findings(cursor, place.bounded, recorded, located).findings
        return {finding.number: finding_links(place, finding) for finding in findings}
    return {}


def _failed(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, str], offsets: Sequence[int]) -> frozenset[int]:
    """Return the places of the events that report a failure."""
    if not offsets:
        return frozenset()
    limits = {"last": offsets[-1], "statuses": "|".join(sorted(FAILED_STATUSES)), "longest": _LOOKED_AT, "limit": _DOUBTFUL}
    found = {row["place"] for row in query_rows(cursor, "doubtful_events", {**asked, **limits}) if tells_of_failure(row)}
    return frozenset(place for place, offset in enumerate(offsets) if offset in found) if found else frozenset()


def tells_of_failure(row: Mapping[str, Any]) -> bool:
    """Tell whether an event reports a failure, by its type and payload; a payload that is not a JSON object does not."""
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
    asked = {"connection": connection, "session": session_id, "places": list(offsets), "longest": longest}
    return {one["place"]: one for one in query_rows(cursor, "event_payloads", asked)}
