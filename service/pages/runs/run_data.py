"""Data of a run's page: the recorded diagnosis, and its events without their payloads.

The verdict is the recorded one, which lists, alerts and gates go by. Which events are evidence is found by the detectors again, because a
record names only the first of them; where it names no cause, as of most runs, no event is evidence. What is read is bounded, whatever a
session holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, repeat
from typing import Any

from analytics.queries import query_rows, record_in, run_query
from audit.detectors.registry import Cause
from audit.detectors.thresholds import Profile, default_profile, recorded_profile, source_of
from audit.diagnosis.causal_graph import evidence_links
from audit.diagnosis.diagnosis import diagnose
from audit.diagnosis.events import raw_event
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.evaluation.view.trace import FAILED_STATUSES, has_failed
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.records import Diagnosis
from service.documents.evaluations import evaluation_page
from service.documents.members import Document
from service.documents.runs import Row, run_row
from service.imports.call_payloads import with_payloads
from service.pages.charts.graph_layout import Reinforcing
from service.pages.charts.marks import Mark, marks_between

EVENTS_READ = 20_000
"""Events of a session that a page reads: the first ones. All of them are in its files."""
PAYLOAD_SHOWN = 1_500
"""Characters of a payload on the page."""
EXCHANGES_SHOWN, EVALUATIONS_SHOWN, HISTORY = 100, 20, 30
_NEAR = timedelta(days=3)
"""How far the runs around one are looked for first, on either side."""
_LOOKED_AT = 8_000
"""Characters of the longest payload that is looked at for whether it tells of a failure, and"""
_DOUBTFUL = 2_000
"""the number of them."""
_FOLDED = FOLD_COLUMNS[2:]


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
    """Every failure type that was found, in order."""

    def told(self, place: int) -> str:
        """Describe an event in a few words: its type, and its tool if it has one."""
        tool = self.tools[place]
        return f"{self.types[place]}: {tool}" if tool else self.types[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The things around a run that its page shows."""

    previous: str | None
    following: str | None
    history: Sequence[Row]
    """The runs of its agent up to this one, the latest first."""
    marks: Sequence[Mark]
    """What happened between them."""
    exchanges: Sequence[Row]
    """Their scores, in the order of their turns: the last ones."""
    evaluations: Sequence[Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRead:
    """A run with everything on its page except the payloads."""

    row: Row
    diagnosis: Diagnosis
    context: RunContext
    events: RunEvents


def find_run(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> tuple[Row, Diagnosis] | None:
    """Return a run of a project, as a row of `one_run`, and its diagnosis; None if it has none of that id."""
    row = run_row(cursor, project, run_id)
    return None if row is None else (row, record_in(row, Diagnosis))


def read_context(cursor: duckdb.DuckDBPyConnection, row: Row) -> RunContext:
    """Return the things around a run, which is given as a row of `one_run`."""
    project, connection, session = row["project"], row["connection"], row["session_id"]
    around = _around(cursor, row)
    history = [one for one in around if one["of_agent"]]
    named = {"project": project, "connection": connection, "session": session, "limit": EXCHANGES_SHOWN + 1}
    evaluations = evaluation_page(cursor, project, session=session, limit=EVALUATIONS_SHOWN)
    return RunContext(
        previous=_id_of(around, "is_previous"),
        following=_id_of(around, "is_following"),
        history=history,
        marks=marks_between(cursor, project, [one["ended_at"] for one in history]),
        exchanges=query_rows(cursor, "session_scores", named)[::-1],
        evaluations=[one for one in evaluations if one["connection"] == connection],
    )


def _around(cursor: duckdb.DuckDBPyConnection, row: Row) -> list[Row]:
    """Return the runs around one: among those that ended within days of it, and farther where some are missing."""
    at = row["last_at"]
    asked = {**{name: row[name] for name in ("project", "number", "agent")}, "at": at, "limit": HISTORY}
    found = query_rows(cursor, "runs_around", {**asked, "since": at - _NEAR, "until": at + _NEAR})
    is_whole_before = _id_of(found, "is_previous") and sum(one["of_agent"] for one in found) == HISTORY
    if is_whole_before and _id_of(found, "is_following"):
        return found
    return query_rows(cursor, "runs_around", {**asked, "since": at - _NEAR if is_whole_before else None, "until": None})


def _id_of(around: Sequence[Row], role: str) -> str | None:
    return next((one["run_id"] for one in around if one[role]), None)


def read_events(
    cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str, diagnosis: Diagnosis | None = None
) -> RunEvents:
    """Return the events of a session, marking evidence of a failure and reports of one.

    Evidence is found by the thresholds of the diagnosis, or by the defaults without one; none where it found no cause in these events.
    """
    asked = {"connection": connection, "session": session_id}
    frame = run_query(cursor, "session_timeline", {**asked, "limit": EVENTS_READ})
    shown = {name: frame[name].to_list() for name in ("event_id", "event", "tool", "status", "occurred_at", "place")}
    is_clear = diagnosis is not None and not diagnosis.failure_cause_count and frame.height <= diagnosis.event_count
    run = {"run": 0, "connection": connection, "session_id": session_id}
    causes = [] if is_clear else _causes(cursor, frame, run, _profile_of(diagnosis, frame))
    place_of = {name: place for place, name in enumerate(shown["event_id"])} if causes else {}
    marks: dict[int, dict[str, None]] = {}
    reinforcing = []
    for cause in causes:
        for link in evidence_links(cause, dict(cause.evidence)):
            if link.relation == "causes":
                marks.setdefault(place_of[link.source], {})[cause.type] = None
            else:
                reinforcing.append(Reinforcing(place_of[link.source], place_of[link.target], cause.type))
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
        failures=tuple(dict.fromkeys(cause.type for cause in causes)),
    )


def _profile_of(diagnosis: Diagnosis | None, frame: pl.DataFrame) -> Profile:
    recorded = diagnosis and recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes)
    return recorded or default_profile(source_of(frame["source"]))


def _causes(
    cursor: duckdb.DuckDBPyConnection, frame: pl.DataFrame, run: Mapping[str, Any], profile: Profile
) -> Sequence[Cause]:
    """Return the causes that the detectors find in the events of a run."""
    evidence = SessionEvidence.held_to(profile.thresholds)
    folded = _with_payloads(cursor, frame, run, evidence)
    # Rows of a frame take half as long again as rows of lists.
    rows = zip(repeat(None), count(), *(folded[name].to_list() for name in _FOLDED), strict=False)
    fold_columns({None: evidence}, rows)
    return diagnose(evidence, profile.thresholds).causes


def _with_payloads(
    cursor: duckdb.DuckDBPyConnection, frame: pl.DataFrame, run: Mapping[str, Any], evidence: SessionEvidence
) -> pl.DataFrame:
    """Return the events of a run with the payloads of its calls, if those are compared."""
    return with_payloads(cursor, frame.with_columns(pl.lit(0, pl.Int64).alias("run")), [run], wanted=evidence.reads_payloads)


def _failed(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, str], offsets: Sequence[int]) -> frozenset[int]:
    """Return the places of the events that report a failure."""
    if not offsets:
        return frozenset()
    limits = {"last": offsets[-1], "statuses": "|".join(sorted(FAILED_STATUSES)), "longest": _LOOKED_AT, "limit": _DOUBTFUL}
    found = {row["place"] for row in query_rows(cursor, "doubtful_events", {**asked, **limits}) if tells_of_failure(row)}
    return frozenset(place for place, offset in enumerate(offsets) if offset in found) if found else frozenset()


def tells_of_failure(row: Mapping[str, Any]) -> bool:
    """Tell whether an event, by its type and payload, reports a failure; a payload that is no JSON object does not."""
    try:
        return row["event"] == "error_event" or has_failed(raw_event(row["payload"]))
    except InputError:
        return False


def payloads_of(cursor: duckdb.DuckDBPyConnection, row: Row, offsets: Sequence[int], longest: int) -> dict[int, Row]:
    """Return the payloads of some events of a run by their place in the topic, each cut to `longest` characters."""
    if not offsets:
        return {}
    asked = {"connection": row["connection"], "session": row["session_id"], "places": list(offsets), "longest": longest}
    return {one["place"]: one for one in query_rows(cursor, "event_payloads", asked)}
