"""Data of a run's page: the recorded diagnosis, and its events without their payloads.

The verdict is the recorded one, which lists, alerts and gates go by. Which events are evidence is found by the detectors again, because a
record names only the first of them. What is read is bounded, whatever a session holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb

from analytics.queries import query_records, query_rows, run_query
from audit.detectors.thresholds import Profile, default_profile, recorded_profile, source_of
from audit.diagnosis.causal_graph import evidence_links
from audit.diagnosis.diagnosis import diagnose
from audit.diagnosis.events import raw_event
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.evaluation.view.trace import FAILED_STATUSES, has_failed
from schemas.errors import InputError
from schemas.lazy.polars import pl
from schemas.records import Diagnosis
from service.documents.evaluations import evaluation_page
from service.documents.members import Document
from service.documents.runs import Row, run_row
from service.documents.scores import Wanted, project_scores
from service.imports.call_payloads import with_payloads
from service.pages.charts.graph_layout import Reinforcing

EVENTS_READ = 20_000
"""Events of a session that a page reads: the first ones. All of them are in its files."""
PAYLOAD_SHOWN = 1_500
"""Characters of a payload on the page."""
EXCHANGES_SHOWN, EVALUATIONS_SHOWN, HISTORY = 100, 20, 30
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
class RunRead:
    """A run with everything on its page except the payloads."""

    row: Row
    diagnosis: Diagnosis
    events: RunEvents
    previous: str | None
    following: str | None
    history: Sequence[Row]
    """The runs of its agent up to this one, the latest first."""
    exchanges: Sequence[Document]
    """In the order of their turns: the last ones."""
    evaluations: Sequence[Document]


def read_run(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> RunRead | None:
    """Return a run of a project; None if it has none of that id."""
    row = run_row(cursor, project, run_id)
    if row is None:
        return None
    session = {"connection": row["connection"], "session_id": row["session_id"]}
    (diagnosis,) = query_records(cursor, "session_diagnoses", Diagnosis, {"sessions": [session]})
    place = {"project": project, "number": row["number"]}
    (beside,) = query_rows(cursor, "run_neighbours", place)
    scores = project_scores(cursor, project, Wanted(session=row["session_id"], limit=EXCHANGES_SHOWN + 1))
    evaluations = evaluation_page(cursor, project, session=row["session_id"], limit=EVALUATIONS_SHOWN)
    return RunRead(
        row=row,
        diagnosis=diagnosis,
        events=read_events(
            cursor, profile=recorded_profile(diagnosis.threshold_profile, diagnosis.threshold_changes), **session
        ),
        previous=beside["previous_id"],
        following=beside["following_id"],
        history=query_rows(cursor, "agent_runs", {**place, "agent": row["agent"], "limit": HISTORY}),
        exchanges=[one for one in reversed(scores) if one["connection"] == row["connection"]],
        evaluations=[one for one in evaluations if one["connection"] == row["connection"]],
    )


def read_events(
    cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str, *, profile: Profile | None = None
) -> RunEvents:
    """Return the events of a session, marking evidence of a failure by this profile and reports of one."""
    asked = {"connection": connection, "session": session_id}
    frame = run_query(cursor, "session_timeline", {**asked, "limit": EVENTS_READ})
    ids = frame["event_id"].to_list()
    thresholds = (profile or default_profile(source_of(frame["source"]))).thresholds
    evidence = SessionEvidence.held_to(thresholds)
    run = {"run": 0, "connection": connection, "session_id": session_id}
    rows = _with_payloads(cursor, frame, run, evidence).select(_FOLDED).iter_rows()
    fold_columns({None: evidence}, ((None, place, *row) for place, row in enumerate(rows)))
    place_of = {name: place for place, name in enumerate(ids)}
    marks: dict[int, dict[str, None]] = {}
    reinforcing = []
    causes = diagnose(evidence, thresholds).causes
    for cause in causes:
        for link in evidence_links(cause, dict(cause.evidence)):
            if link.relation == "causes":
                marks.setdefault(place_of[link.source], {})[cause.type] = None
            else:
                reinforcing.append(Reinforcing(place_of[link.source], place_of[link.target], cause.type))
    offsets = frame["place"].to_list()
    return RunEvents(
        ids=ids,
        types=frame["event"].to_list(),
        tools=frame["tool"].to_list(),
        statuses=frame["status"].to_list(),
        times=frame["occurred_at"].to_list(),
        offsets=offsets,
        evidence={place: tuple(names) for place, names in sorted(marks.items())},
        failed=_failed(cursor, asked, offsets),
        reinforcing=tuple(reinforcing),
        failures=tuple(dict.fromkeys(cause.type for cause in causes)),
    )


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
    asked = {"connection": row["connection"], "session": row["session_id"], "places": list(offsets), "longest": longest}
    return {one["place"]: one for one in query_rows(cursor, "event_payloads", asked)}
