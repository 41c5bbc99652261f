"""Proposes thresholds that fit the stored runs of an agent (see `audit.detectors.tuning`), and compares the diagnoses of two policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from analytics.queries import query_records, query_rows, run_query
from audit.detectors.thresholds import PROFILES, Detectors, Profile, ProfileName, profile_name, source_of
from audit.detectors.tuning import Tuned, tune
from audit.diagnosis.diagnosis import SessionDiagnosis, diagnose
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.policy import Policy
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.runs import format_run_id, with_payloads
from service.text.answers import Answer
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
    params = {"project": project, "agent": agent, "every_agent": False, "since": since, "limit": limit}
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


class ChangedRun(Answer, frozen=True):
    """A run whose diagnosis would differ."""

    run_id: str
    agent: str | None
    readiness_before: str
    readiness_after: str
    new_failures: Annotated[list[str], Meta(description="Types of failure that are found only after the change.")]
    lost_failures: Annotated[list[str], Meta(description="Types of failure that are no longer found.")]


class DiagnosisEffect(Answer, frozen=True):
    """How the newest runs of a project would be diagnosed differently. Stored diagnoses stay as they are."""

    project: str
    runs: Annotated[int, Meta(description="Runs that were diagnosed with both policies.")]
    changed: Annotated[int, Meta(description="Those whose readiness or types of failure differ.")]
    examples: Annotated[list[ChangedRun], Meta(description=f"The newest of them, {MAX_NAMED_RUNS} at most.")]


def compare_diagnoses(
    cursor: duckdb.DuckDBPyConnection, project: str, before: Detectors, after: Detectors, *, since: datetime, limit: int
) -> DiagnosisEffect | None:
    """Diagnose the newest runs of a project, `limit` at most, with two settings of the detectors; None without runs that have events."""
    params = {"project": project, "agent": None, "every_agent": True, "since": since, "limit": limit}
    runs = query_rows(cursor, "agent_run_places", params)
    agents = {run["number"]: run["agent"] for run in runs}
    diagnosed = [_diagnose_runs(cursor, runs, detectors) for detectors in (before, after)]
    changed = [
        ChangedRun(
            run_id=format_run_id(number),
            agent=agents[number],
            readiness_before=old.readiness_level,
            readiness_after=new.readiness_level,
            new_failures=sorted(_list_failures(new) - _list_failures(old)),
            lost_failures=sorted(_list_failures(old) - _list_failures(new)),
        )
        for number, old in diagnosed[0].items()
        if (new := diagnosed[1][number]).readiness_level != old.readiness_level or _list_failures(new) != _list_failures(old)
    ]
    if not diagnosed[0]:
        return None
    return DiagnosisEffect(project, len(diagnosed[0]), len(changed), changed[::-1][:MAX_NAMED_RUNS])


def _diagnose_runs(
    cursor: duckdb.DuckDBPyConnection, runs: Sequence[dict[str, Any]], detectors: Detectors
) -> dict[int, SessionDiagnosis]:
    """Return the diagnosis of each run that has events, by number, oldest first."""
    diagnoses = {}
    for agent in {run["agent"] for run in runs}:
        profiles = {name: detectors.profile(name, agent) for name in PROFILES}
        for name, number, evidence in _read_evidence(cursor, [run for run in runs if run["agent"] == agent], profiles):
            diagnoses[number] = diagnose(evidence, profiles[name].thresholds)
    return dict(sorted(diagnoses.items()))


def _list_failures(diagnosis: SessionDiagnosis) -> set[str]:
    return {cause.type for cause in diagnosis.causes}


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
