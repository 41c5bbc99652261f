"""What is known of baselines and incidents: what the tables show, and what was published and does not show there yet."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import duckdb

from analytics.queries import query_records
from schemas.records import Baseline, Incident


@dataclass(frozen=True, slots=True)
class Known:
    """The latest baseline of each project, and its incidents in their latest revisions, oldest first."""

    baselines: Mapping[str, Baseline]
    incidents: Mapping[str, Sequence[Incident]]


class Published:
    """What was published lately: over Kafka the tables show it only once it has landed, and then it is forgotten here."""

    def __init__(self) -> None:
        self._baselines: dict[str, Baseline] = {}
        self._incidents: dict[str, Incident] = {}
        self._lock = threading.Lock()

    def note(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        """Remember what was published."""
        with self._lock:
            self._baselines.update({one.project: one for one in baselines})
            self._incidents.update({one.incident_id: one for one in incidents})

    def read(self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None) -> Known:
        """What is known of some projects; baselines that were computed after `as_of` are left out."""
        values = {"projects": list(projects)}
        latest = query_records(cursor, "latest_baselines", Baseline, values | {"as_of": as_of})
        baselines = {one.project: one for one in latest}
        shown = {one.incident_id: one for one in query_records(cursor, "watched_incidents", Incident, values)}
        with self._lock:
            for made in [one for one in self._baselines.values() if one.project in projects]:
                landed = baselines.get(made.project)
                if landed is not None and landed.computed_at >= made.computed_at:
                    del self._baselines[made.project]
                else:
                    baselines[made.project] = made
            for own in [one for one in self._incidents.values() if one.project in projects]:
                seen = shown.get(own.incident_id)
                if seen is not None and seen.revision >= own.revision:
                    del self._incidents[own.incident_id]
                else:
                    shown[own.incident_id] = own
        by_project: dict[str, list[Incident]] = defaultdict(list)
        for one in sorted(shown.values(), key=lambda one: (one.detected_at, one.incident_id)):
            by_project[one.project].append(one)
        return Known(baselines, by_project)
