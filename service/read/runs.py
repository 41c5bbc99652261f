"""Finished runs: their verdicts and records. The detectors' findings about their events are in `service.read.run_diagnoses`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from analytics.queries import query_rows, run_query
from analytics.store.store import Store
from schemas.codec.single_object import record_from
from schemas.lazy import duckdb, pl
from schemas.records import Diagnosis
from service.text.answers import Answer, Moment, NextCursor, Place

Row = dict[str, Any]
Between = tuple[datetime | None, datetime | None]
"""The start of a period (inclusive) and its end (exclusive); None for no bound."""
ANY_TIME: Between = (None, None)
EXCHANGES_ONLY = "No runtime events: only exchanges were received"
"""The remark about a run that has `exchanges_only`."""
_NO_TRUST = -1.0
"""Stands for a missing trust score in an order by trust."""
_RUN_ID = re.compile(r"run_0{0,2}([1-9][0-9]{0,17})")


class Run(Answer, frozen=True):
    """A finished run: a session that has ended."""

    run_id: Annotated[str, Meta(examples=["run_001"])]
    project: str
    agent: str | None
    connection: str
    session_id: str
    started_at: Annotated[Moment | None, Meta(description="Time of the first runtime event; null without any.")]
    ended_at: Annotated[
        Moment | None,
        Meta(description="Time of the last runtime event, without any that of the last exchange; null if not known."),
    ]
    closed_at: Moment
    readiness_level: Annotated[str, Meta(description="The verdict: look at it first.", examples=["unsafe_for_production"])]
    trust_score: Annotated[
        float | None,
        Meta(
            description="Up to 100, and never near 0, because penalties are limited; null if `exchanges_only`. It ranks runs of the same readiness."
        ),
    ]
    primary_failure_type: str | None
    primary_severity: str | None
    tool_calls: int
    event_count: int
    exchanges_only: Annotated[
        bool,
        Meta(description="True if only exchanges were received: without runtime events, readiness is `insufficient_evidence`."),
    ]
    threshold_profile: Annotated[
        str | None, Meta(description="The thresholds that it was diagnosed with.", examples=["transcripts"])
    ]
    threshold_changes: Annotated[str | None, Meta(description="What the policy changes of them, with its rules for tools.")]

    @property
    def last_at(self) -> datetime:
        """The time of the run's end, or of its closing if the end is unknown."""
        return self.ended_at or self.closed_at

    @property
    def place(self) -> Place:
        """Its place in the list of its project's runs, newest end first."""
        return Place(self.last_at, "", run_number(self.run_id) or 0)


class Runs(Answer, frozen=True):
    """Runs, most recently ended first."""

    runs: list[Run]
    count: int
    next_cursor: NextCursor


class RecordedRun(NamedTuple):
    """A run and its recorded diagnosis."""

    run: Run
    diagnosis: Diagnosis


def runs_of(
    store: Store,
    project: str | None,
    *,
    newest: int | None = None,
    between: Between = ANY_TIME,
    agent: str | None = None,
    failure: str | None = None,
    tool: str | None = None,
    version: str | None = None,
    tool_error: bool = False,
) -> list[Run]:
    """Return the runs of one project or all, in the order in which they ended.

    `between` applies to the end of a run, `failure` to its primary failure ('' for none), `tool` to the tools that it called, `version`
    to the agent's version in its exchanges, and `tool_error` to their calls, of the tool if one is named. With `newest`, return only this many runs, those that ended last.
    """
    filters = {
        "since": between[0],
        "until": between[1],
        "agent": agent,
        "failure": failure,
        "tool": tool,
        "version": version,
        "tool_error": tool_error or None,
    }
    return [Run.of(row) for row in query_rows(store.cursor(), "runs", {"project": project, **filters, "newest": newest})]


def run_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    before: tuple[datetime, int] | None,
    limit: int,
    readiness: str | None = None,
    *,
    between: Between = ANY_TIME,
) -> list[Run]:
    """Return a page of a project's runs, newest end first: the runs before a place (time, number), or the newest ones.

    They can be limited to one readiness level, and to runs that ended within a period.
    """
    at, number = before or (None, None)
    values = {"project": project, "before_at": at, "before": number, "readiness": readiness, "limit": limit}
    rows = query_rows(cursor, "project_runs", {**values, "from": between[0], "to": between[1]})
    return [Run.of(row) for row in rows]


def with_run_ids(cursor: duckdb.DuckDBPyConnection, project: str, sessions: Sequence[Row]) -> list[Row]:
    """Return rows of a project's sessions (`connection`, `session_id`) with the `run_id` of their run and `closed_at`.

    Both are None for a session that has never ended; `run_id` also until the end has been diagnosed.
    """
    params = {
        "project": project,
        "connections": [session["connection"] for session in sessions],
        "sessions": [session["session_id"] for session in sessions],
    }
    ended = {(row["connection"], row["session_id"]): row for row in query_rows(cursor, "runs_of_sessions", params)}
    never_ended = {"run_id": None, "closed_at": None}
    rows = []
    for session in sessions:
        end = ended.get((session["connection"], session["session_id"]), never_ended)
        rows.append({**session, "run_id": end["run_id"], "closed_at": end["closed_at"]})
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter for the runs of a project; None matches any."""

    readiness: str | None = None
    agents: Sequence[str] | None = None
    since: date | None = None
    until: date | None = None
    """The last day, UTC, on which a run ended."""
    between: Between = ANY_TIME
    """When a run ended; used if no days are given."""


def worst_runs(
    cursor: duckdb.DuckDBPyConnection, project: str, filters: RunFilter, after: tuple[int, float | None, int] | None, limit: int
) -> list[Run]:
    """Return a page of a project's runs by readiness, worst first, then by trust, lowest first; from the start or after a place."""
    level, trust, number = after or (None, None, None)
    params = {
        "project": project,
        "readiness": filters.readiness,
        "agents": list(filters.agents) if filters.agents else None,
        "since": filters.since or filters.between[0],
        "until": filters.until + timedelta(days=1) if filters.until else filters.between[1],
        "after_level": level,
        "after_trust": _NO_TRUST if trust is None else trust,
        "after_number": number,
        "limit": limit,
    }
    return [Run.of(row) for row in query_rows(cursor, "worst_runs", params)]


def find_run(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> RecordedRun | None:
    """Return one run of a project; None if the project has no run of that id."""
    number = run_number(run_id)
    if number is None:
        return None
    by_session = dict.fromkeys(("connection", "session", "place"))
    return read_run(cursor, {"project": project, "number": number, **by_session})


def read_run(cursor: duckdb.DuckDBPyConnection, named: Row) -> RecordedRun | None:
    """Return the run found by the query `one_run` with these parameters; None if no run matches."""
    for row in query_rows(cursor, "one_run", named):
        return RecordedRun(Run.of(row), record_from(Diagnosis, row))
    return None


def format_run_id(number: int) -> str:
    """Return the id of a project's run from its number."""
    return f"run_{number:03d}"


def run_number(run_id: str) -> int | None:
    """Return the number of a run from its id; None if this is no id of a run."""
    matched = _RUN_ID.fullmatch(run_id)
    return None if matched is None else int(matched[1])


QUERY = "call_payloads"


def with_payloads(
    cursor: duckdb.DuckDBPyConnection, events: pl.DataFrame, runs: Sequence[Mapping[str, Any]], *, wanted: bool
) -> pl.DataFrame:
    """Return the events of some runs with a column `payload`, filled for calls and descriptions of tools if `wanted` and otherwise empty, because payloads may be large."""
    if not wanted:
        return events.with_columns(pl.lit(None, pl.String).alias("payload"))
    payloads = run_query(cursor, QUERY, {"runs": list(runs)})
    return events.join(payloads.unique(["run", "event_id"]), on=["run", "event_id"], how="left", maintain_order="left")
