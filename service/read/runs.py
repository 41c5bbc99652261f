"""Finished runs: their verdicts and records, and thresholds fitted to an agent's runs. Findings about their events: `service.read.run_diagnoses`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from analytics.queries import query_records, query_rows, run_query
from analytics.store.store import Store
from audit.detectors.thresholds import PROFILES, Profile, ProfileName, profile_name, source_of
from audit.detectors.tuning import Tuned, tune
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.policy import Policy
from schemas.codec.single_object import record_from
from schemas.lazy import duckdb, pl
from schemas.records import Diagnosis, Incident
from service.text.answers import Answer, Moment, NextCursor, Place
from streams.watch.lifecycle import CONFIRMED, DISMISSED, NEW_NORMAL

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
    threshold_changes: Annotated[str | None, Meta(description="What the policy changes of them.")]

    @property
    def last_at(self) -> datetime:
        """The time of the run's end, or of its closing if the end is unknown."""
        return self.ended_at or self.closed_at

    @property
    def place(self) -> Place:
        """Its place in the list of its project's runs, newest end first."""
        return Place(self.last_at, "", _number_of(self.run_id))


class Runs(Answer, frozen=True):
    """Runs, the one that ended last first."""

    runs: list[Run]
    count: int
    next_cursor: NextCursor


class RecordedRun(NamedTuple):
    """A run and its recorded diagnosis."""

    run: Run
    diagnosis: Diagnosis


def runs_of(store: Store, project: str | None, *, newest: int | None = None) -> list[Run]:
    """Return the runs of one project or all, in the order in which they ended.

    With `newest`, return only this many runs, those that ended last.
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
    """Return a page of a project's runs by readiness, worst first, then by trust, lowest first; from the start or after a place."""
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
    """Return one run of a project; None if the project has no run of that id."""
    if _RUN_ID.fullmatch(run_id) is None:
        return None
    by_session = dict.fromkeys(("connection", "session", "place"))
    return read_run(cursor, {"project": project, "number": _number_of(run_id), **by_session})


def read_run(cursor: duckdb.DuckDBPyConnection, named: Row) -> RecordedRun | None:
    """Return the run found by the query `one_run` with these parameters; None if there is none."""
    for row in query_rows(cursor, "one_run", named):
        return RecordedRun(Run.of(row), record_from(Diagnosis, row))
    return None


def _number_of(run_id: str) -> int:
    return int(run_id.removeprefix("run_"))


QUERY = "call_payloads"


def with_payloads(
    cursor: duckdb.DuckDBPyConnection, events: pl.DataFrame, runs: Sequence[Mapping[str, Any]], *, wanted: bool
) -> pl.DataFrame:
    """Return the events of some runs with a column `payload`, filled for calls if `wanted` and otherwise empty, because payloads may be large."""
    if not wanted:
        return events.with_columns(pl.lit(None, pl.String).alias("payload"))
    payloads = run_query(cursor, QUERY, {"runs": list(runs)})
    return events.join(payloads.unique(["run", "event_id"]), on=["run", "event_id"], how="left", maintain_order="left")


RUNS_AT_ONCE = 500
"""Runs whose events are in memory together."""
RUNS_NAMED = 5
"""Runs that are named for each threshold."""


class RunsLeftOut(msgspec.Struct, frozen=True):
    """The runs left out of a tuning because of an incident: its change must not become normal."""

    incident_id: str
    first: date
    last: date | None
    """None while it goes on."""
    runs: int


class ProfileTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of one profile, compared with an agent's runs from that kind of source."""

    profile: Profile
    runs: int
    rows: tuple[Tuned, ...]


class AgentTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The tunings of an agent, one per kind of source, and the runs that were left out."""

    profiles: list[ProfileTuning]
    left_out: tuple[RunsLeftOut, ...]


def tune_agent(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str,
    agent: str | None,
    *,
    since: datetime,
    limit: int,
    share: float,
) -> AgentTuning:
    """Compare the thresholds in force with the newest runs of an agent; one tuning per kind of source.

    `share` is the part of the runs, 0 to 1, that a proposed threshold may flag. Runs on days of confirmed incidents of the agent or its
    project are left out, unless a person dismissed the incident or called it the new normal.
    """
    wanted = {"project": project, "agent": agent, "since": since, "limit": limit}
    places, left_out = _without_incidents(query_rows(cursor, "agent_run_places", wanted), _incidents_of(cursor, project, agent))
    detectors = policy.for_project(project).settings.detectors
    profiles = {name: detectors.profile(name, agent) for name in PROFILES}
    folded: dict[ProfileName, list[tuple[int, SessionEvidence]]] = {name: [] for name in PROFILES}
    for start in range(0, len(places), RUNS_AT_ONCE):
        for name, number, evidence in _folded(cursor, places[start : start + RUNS_AT_ONCE], profiles):
            folded[name].append((number, evidence))
    tunings = [
        ProfileTuning(
            profile=profiles[name], runs=len(runs), rows=tuple(tune(runs, profiles[name], share=share, named=RUNS_NAMED))
        )
        for name, runs in folded.items()
        if runs
    ]
    return AgentTuning(profiles=tunings, left_out=left_out)


def _incidents_of(cursor: duckdb.DuckDBPyConnection, project: str, agent: str | None) -> list[Incident]:
    """The confirmed incidents of an agent or its whole project, without dismissed ones and new normals."""
    return [
        incident
        for incident in query_records(cursor, "watched_incidents", Incident, {"projects": [project]})
        if incident.confidence == CONFIRMED
        and incident.agent in {None, agent}
        and incident.status != DISMISSED
        and incident.resolution != NEW_NORMAL
    ]


def _without_incidents(
    places: Sequence[dict[str, Any]], incidents: Sequence[Incident]
) -> tuple[list[dict[str, Any]], tuple[RunsLeftOut, ...]]:
    """Return the runs outside the days of incidents, and the number each incident leaves out; a run counts for the first incident only."""
    kept, left_out = list(places), []
    for incident in incidents:
        first = (incident.first_day or incident.detected_at).date()
        last = None if incident.last_day is None else incident.last_day.date()
        outside = [place for place in kept if not first <= place["last_at"].date() <= (last or date.max)]
        if len(outside) < len(kept):
            left_out.append(RunsLeftOut(incident.incident_id, first, last, len(kept) - len(outside)))
        kept = outside
    return kept, tuple(left_out)


def _folded(
    cursor: duckdb.DuckDBPyConnection, places: Sequence[dict[str, Any]], profiles: dict[ProfileName, Profile]
) -> Iterator[tuple[ProfileName, int, SessionEvidence]]:
    """Yield the evidence of some runs in order, each with its profile."""
    runs = [{"run": place["number"], "connection": place["connection"], "session_id": place["session_id"]} for place in places]
    compared = any(SessionEvidence.held_to(profile.thresholds).reads_payloads for profile in profiles.values())
    frame = with_payloads(cursor, run_query(cursor, "run_evidence", {"runs": runs}), runs, wanted=compared)
    parts = frame.partition_by("run", as_dict=True, maintain_order=True)
    for place in places:
        events = parts.get((place["number"],))
        if events is None:
            continue
        name = profile_name(source_of(events["source"]))
        evidence = SessionEvidence.held_to(profiles[name].thresholds, reference_limit=0)
        rows = events.select("run", *FOLD_COLUMNS[1:]).iter_rows()
        fold_columns({place["number"]: evidence}, rows)
        yield name, place["number"], evidence
