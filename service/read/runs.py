"""Finished runs: their verdicts and records. `service.read.run_diagnoses` has what the detectors say of their events."""

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
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.records import Diagnosis
from service.text.answers import Answer, Moment, NextCursor, Place

Row = dict[str, Any]
Between = tuple[datetime | None, datetime | None]
"""The first moment of a time, and the first one after it; None for no bound."""
ANY_TIME: Between = (None, None)
EXCHANGES_ONLY = "No runtime events: only exchanges were received"
"""What is said of a run that has `exchanges_only`."""
_NO_TRUST = -1.0
"""Stands for a missing trust score, which has a place in an order, too."""
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
    threshold_changes: Annotated[str | None, Meta(description="What the policy changes of them.")]

    @property
    def last_at(self) -> datetime:
        """When it ended, or was closed if that is not known."""
        return self.ended_at or self.closed_at

    @property
    def place(self) -> Place:
        """Its place among the runs of its project, the one that ended last first."""
        return Place(self.last_at, "", _number_of(self.run_id))


class Runs(Answer, frozen=True):
    """Runs, the one that ended last first."""

    runs: list[Run]
    count: int
    next_cursor: NextCursor


class RecordedRun(NamedTuple):
    """A run and its diagnosis as it was recorded."""

    run: Run
    diagnosis: Diagnosis


def runs_of(store: Store, project: str | None, *, newest: int | None = None) -> list[Run]:
    """Return the runs of a project, or of all, in the order in which they were finished.

    `newest`: so many of them, those that ended last.
    """
    values = {"project": project, "since": None, "newest": newest}
    return [Run.of(row) for row in query_rows(store.cursor(), "runs", values)]


def run_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    before: tuple[datetime, int] | None,
    limit: int,
    readiness: str | None = None,
    *,
    between: Between = ANY_TIME,
) -> list[Run]:
    """Return runs of a project, the one that ended last first: those before a place (time, number), or the newest.

    Of one readiness level, or of all; of those that ended in a time, or of all.
    """
    at, number = before or (None, None)
    values = {"project": project, "before_at": at, "before": number, "readiness": readiness, "limit": limit}
    rows = query_rows(cursor, "project_runs", {**values, "from": between[0], "to": between[1]})
    return [Run.of(row) for row in rows]


def with_run_ids(cursor: duckdb.DuckDBPyConnection, project: str, sessions: Sequence[Row]) -> list[Row]:
    """Return rows of sessions (`connection`, `session_id`) of a project, each with the `run_id` of its run and `closed_at`.

    Both are None while it has never ended; `run_id` also if its end has not been diagnosed yet.
    """
    named = {"connections": [one["connection"] for one in sessions], "sessions": [one["session_id"] for one in sessions]}
    asked = {"project": project, **named}
    ended = {(row["connection"], row["session_id"]): row for row in query_rows(cursor, "runs_of_sessions", asked)}
    never = {"run_id": None, "closed_at": None}
    found = [(one, ended.get((one["connection"], one["session_id"]), never)) for one in sessions]
    return [{**one, "run_id": end["run_id"], "closed_at": end["closed_at"]} for one, end in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The runs of a project to show; None is any."""

    readiness: str | None = None
    agents: Sequence[str] | None = None
    since: date | None = None
    until: date | None = None
    """The last day, UTC, on which a run ended."""
    between: Between = ANY_TIME
    """When a run ended, where no days are asked for."""


def worst_runs(
    cursor: duckdb.DuckDBPyConnection, project: str, wanted: Wanted, after: tuple[int, float | None, int] | None, limit: int
) -> list[Run]:
    """Return runs of a project, worst readiness first, then lowest trust: from the worst on, or after a given place."""
    level, trust, number = after or (None, None, None)
    asked = {
        "project": project,
        "readiness": wanted.readiness,
        "agents": list(wanted.agents) if wanted.agents else None,
        "since": wanted.since or wanted.between[0],
        "until": wanted.until + timedelta(days=1) if wanted.until else wanted.between[1],
        "after_level": level,
        "after_trust": _NO_TRUST if trust is None else trust,
        "after_number": number,
        "limit": limit,
    }
    return [Run.of(row) for row in query_rows(cursor, "worst_runs", asked)]


def find_run(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> RecordedRun | None:
    """Return one run of a project; None if it has none of that id."""
    if _RUN_ID.fullmatch(run_id) is None:
        return None
    by_session = dict.fromkeys(("connection", "session", "place"))
    return read_run(cursor, {"project": project, "number": _number_of(run_id), **by_session})


def read_run(cursor: duckdb.DuckDBPyConnection, named: Row) -> RecordedRun | None:
    """Return the run that the query `one_run` finds by these values; None without one."""
    for row in query_rows(cursor, "one_run", named):
        return RecordedRun(Run.of(row), record_from(Diagnosis, row))
    return None


def _number_of(run_id: str) -> int:
    return int(run_id.removeprefix("run_"))


QUERY = "call_payloads"


def with_payloads(
    cursor: duckdb.DuckDBPyConnection, events: pl.DataFrame, runs: Sequence[Mapping[str, Any]], *, wanted: bool
) -> pl.DataFrame:
    """Return the events of some runs with the column `payload`: of calls if wanted, else empty, because it may be large."""
    if not wanted:
        return events.with_columns(pl.lit(None, pl.String).alias("payload"))
    payloads = run_query(cursor, QUERY, {"runs": list(runs)})
    return events.join(payloads.unique(["run", "event_id"]), on=["run", "event_id"], how="left", maintain_order="left")
