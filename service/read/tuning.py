"""Proposes thresholds that fit the runs of an agent in a database. See `audit.detectors.tuning`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from analytics.queries import query_records, query_rows, run_query
from audit.detectors.thresholds import PROFILES, Profile, ProfileName, profile_name, source_of
from audit.detectors.tuning import Tuned, tune
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.policy import Policy
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.runs import with_payloads
from streams.watch.lifecycle import CONFIRMED, DISMISSED, NEW_NORMAL

RUN_BATCH_SIZE = 500
"""Number of runs whose events are in memory at once."""
MAX_NAMED_RUNS = 5
"""Maximum number of runs named for each threshold."""


class RunsLeftOut(msgspec.Struct, frozen=True):
    """Runs left out of a tuning because of an incident, whose change must not become normal."""

    incident_id: str
    first: date
    last: date | None
    """None while the incident continues."""
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

    `share` is the part of the runs, 0 to 1, that a proposed threshold may flag. Runs on days of confirmed incidents of the
    agent or its project are left out, unless a person dismissed the incident or called it the new normal.
    """
    params = {"project": project, "agent": agent, "since": since, "limit": limit}
    places, left_out = _drop_incidents(query_rows(cursor, "agent_run_places", params), _read_incidents(cursor, project, agent))
    detectors = policy.for_project(project).settings.detectors
    profiles = {name: detectors.profile(name, agent) for name in PROFILES}
    folded: dict[ProfileName, list[tuple[int, SessionEvidence]]] = {name: [] for name in PROFILES}
    for start in range(0, len(places), RUN_BATCH_SIZE):
        for name, number, evidence in _fold_run(cursor, places[start : start + RUN_BATCH_SIZE], profiles):
            folded[name].append((number, evidence))
    tunings = [
        ProfileTuning(
            profile=profiles[name], runs=len(runs), rows=tuple(tune(runs, profiles[name], share=share, named=MAX_NAMED_RUNS))
        )
        for name, runs in folded.items()
        if runs
    ]
    return AgentTuning(profiles=tunings, left_out=left_out)


def _read_incidents(cursor: duckdb.DuckDBPyConnection, project: str, agent: str | None) -> list[Incident]:
    """Return the confirmed incidents of an agent or its whole project, without dismissed ones and new normals."""
    return [
        incident
        for incident in query_records(cursor, "watched_incidents", Incident, {"projects": [project]})
        if incident.confidence == CONFIRMED
        and incident.agent in {None, agent}
        and incident.status != DISMISSED
        and incident.resolution != NEW_NORMAL
    ]


def _drop_incidents(
    places: Sequence[dict[str, Any]], incidents: Sequence[Incident]
) -> tuple[list[dict[str, Any]], tuple[RunsLeftOut, ...]]:
    """Return the runs outside the days of incidents, and how many each incident leaves out. A run counts only for the first incident."""
    kept = list(places)
    left_out = []
    for incident in incidents:
        first = (incident.first_day or incident.detected_at).date()
        last = None if incident.last_day is None else incident.last_day.date()
        outside = [position for position in kept if not first <= position["last_at"].date() <= (last or date.max)]
        if len(outside) < len(kept):
            left_out.append(RunsLeftOut(incident.incident_id, first, last, len(kept) - len(outside)))
        kept = outside
    return kept, tuple(left_out)


def _fold_run(
    cursor: duckdb.DuckDBPyConnection, places: Sequence[dict[str, Any]], profiles: dict[ProfileName, Profile]
) -> Iterator[tuple[ProfileName, int, SessionEvidence]]:
    """Yield the evidence of some runs in order, each with its profile."""
    runs = [
        {"run": position["number"], "connection": position["connection"], "session_id": position["session_id"]}
        for position in places
    ]
    compared = any(SessionEvidence.held_to(profile.thresholds).reads_payloads for profile in profiles.values())
    frame = with_payloads(cursor, run_query(cursor, "run_evidence", {"runs": runs}), runs, wanted=compared)
    parts = frame.partition_by("run", as_dict=True, maintain_order=True)
    for position in places:
        events = parts.get((position["number"],))
        if events is None:
            continue
        name = profile_name(source_of(events["source"]))
        evidence = SessionEvidence.held_to(profiles[name].thresholds, reference_limit=0)
        rows = events.select("run", *FOLD_COLUMNS[1:]).iter_rows()
        fold_columns({position["number"]: evidence}, rows)
        yield name, position["number"], evidence
