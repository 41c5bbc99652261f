"""Proposes thresholds that fit the stored runs of an agent. See `audit.detectors.tuning`."""

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
"""Maximum number of runs whose events are in memory at once."""
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
    incidents = _read_incidents(cursor, project, agent)
    runs, left_out = _leave_out_incident_days(query_rows(cursor, "agent_run_places", params), incidents)
    detectors = policy.for_project(project).settings.detectors
    profiles = {name: detectors.profile(name, agent) for name in PROFILES}
    evidence_by_profile: dict[ProfileName, list[tuple[int, SessionEvidence]]] = {name: [] for name in PROFILES}
    for start in range(0, len(runs), RUN_BATCH_SIZE):
        for name, number, evidence in _read_evidence(cursor, runs[start : start + RUN_BATCH_SIZE], profiles):
            evidence_by_profile[name].append((number, evidence))
    tunings = []
    for name, evidence_by_run in evidence_by_profile.items():
        if evidence_by_run:
            rows = tune(evidence_by_run, profiles[name], share=share, max_runs=MAX_NAMED_RUNS)
            tunings.append(ProfileTuning(profile=profiles[name], runs=len(evidence_by_run), rows=tuple(rows)))
    return AgentTuning(profiles=tunings, left_out=left_out)


def _read_incidents(cursor: duckdb.DuckDBPyConnection, project: str, agent: str | None) -> list[Incident]:
    """Return the confirmed incidents of an agent or its whole project, except those dismissed or resolved as the new normal."""
    return [
        incident
        for incident in query_records(cursor, "watched_incidents", Incident, {"projects": [project]})
        if incident.confidence == CONFIRMED
        and incident.agent in {None, agent}
        and incident.status != DISMISSED
        and incident.resolution != NEW_NORMAL
    ]


def _leave_out_incident_days(
    runs: Sequence[dict[str, Any]], incidents: Sequence[Incident]
) -> tuple[list[dict[str, Any]], tuple[RunsLeftOut, ...]]:
    """Return the runs outside the days of incidents, and how many each incident leaves out. A run counts only for the first incident."""
    remaining = list(runs)
    left_out = []
    for incident in incidents:
        first = (incident.first_day or incident.detected_at).date()
        last = None if incident.last_day is None else incident.last_day.date()
        outside = [run for run in remaining if not first <= run["last_at"].date() <= (last or date.max)]
        if len(outside) < len(remaining):
            left_out.append(RunsLeftOut(incident.incident_id, first, last, len(remaining) - len(outside)))
        remaining = outside
    return remaining, tuple(left_out)


def _read_evidence(
    cursor: duckdb.DuckDBPyConnection, runs: Sequence[dict[str, Any]], profiles: dict[ProfileName, Profile]
) -> Iterator[tuple[ProfileName, int, SessionEvidence]]:
    """Yield the profile, number and evidence of each run that has events, in order."""
    run_keys = [{"run": run["number"], "connection": run["connection"], "session_id": run["session_id"]} for run in runs]
    needs_payloads = any(SessionEvidence.held_to(profile).reads_payloads for profile in profiles.values())
    frame = with_payloads(cursor, run_query(cursor, "run_evidence", {"runs": run_keys}), run_keys, wanted=needs_payloads)
    events_by_run = frame.partition_by("run", as_dict=True, maintain_order=True)
    for run in runs:
        number = run["number"]
        events = events_by_run.get((number,))
        if events is None:
            continue
        name = profile_name(source_of(events["source"]))
        evidence = SessionEvidence.held_to(profiles[name], reference_limit=0)
        fold_columns({number: evidence}, events.select("run", *FOLD_COLUMNS[1:]).iter_rows())
        yield name, number, evidence
