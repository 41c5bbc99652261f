"""Fitting thresholds to the runs of an agent in a database: see `audit.detectors.tuning`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from analytics.queries import query_rows, run_query
from audit.detectors.thresholds import PROFILES, Profile, ProfileName, profile_name, source_of
from audit.detectors.tuning import Tuned, tune
from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from audit.policy.policy import Policy
from schemas.lazy.duckdb import duckdb
from service.imports.call_payloads import with_payloads

RUNS_AT_ONCE = 500
"""Runs whose events are in memory together."""
RUNS_NAMED = 5
"""Runs that are named for each threshold."""


class ProfileTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of one profile, compared with an agent's runs from that kind of source."""

    profile: Profile
    runs: int
    rows: tuple[Tuned, ...]


def tune_agent(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str,
    agent: str | None,
    *,
    since: datetime,
    limit: int,
    share: float,
) -> list[ProfileTuning]:
    """Compare the thresholds in force with the newest runs of an agent; one tuning per kind of source.

    `share` is the part of the runs, 0 to 1, that a proposed threshold may flag.
    """
    wanted = {"project": project, "agent": agent, "since": since, "limit": limit}
    places = query_rows(cursor, "agent_run_places", wanted)
    detectors = policy.for_project(project).settings.detectors
    profiles = {name: detectors.profile(name, agent) for name in PROFILES}
    folded: dict[ProfileName, list[tuple[int, SessionEvidence]]] = {name: [] for name in PROFILES}
    for start in range(0, len(places), RUNS_AT_ONCE):
        for name, number, evidence in _folded(cursor, places[start : start + RUNS_AT_ONCE], profiles):
            folded[name].append((number, evidence))
    return [
        ProfileTuning(
            profile=profiles[name], runs=len(runs), rows=tuple(tune(runs, profiles[name], share=share, named=RUNS_NAMED))
        )
        for name, runs in folded.items()
        if runs
    ]


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
