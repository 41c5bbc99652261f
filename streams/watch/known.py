"""Known baselines and incidents: those in the tables, and those published and not yet in the tables."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analytics.queries import query_records
from schemas.lazy.duckdb import duckdb
from schemas.records import Baseline, Incident


@dataclass(frozen=True, slots=True)
class Known:
    """The latest baseline of each project, and its incidents in their latest revisions, oldest first."""

    baselines: Mapping[str, Baseline]
    incidents: Mapping[str, Sequence[Incident]]
    unlanded: frozenset[str] = frozenset()
    """Ids of incidents that the tables show in an earlier revision: what they show beside them may be as old."""


class Published:
    """The records that were published lately.

    Over Kafka, the tables show a record only once it has landed; then it is forgotten here.
    """

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
        """Read what is known of some projects; baselines that were computed after `as_of` are left out."""
        shown = {one.incident_id: one for one in query_records(cursor, "watched_incidents", Incident, {"projects": projects})}
        with self._lock:
            own = [one for one in self._incidents.values() if one.project in projects]
        newer = {one.incident_id: one for one in own if self._newer(one, shown.get(one.incident_id))}
        by_project: dict[str, list[Incident]] = defaultdict(list)
        for one in sorted((shown | newer).values(), key=lambda one: (one.detected_at, one.incident_id)):
            by_project[one.project].append(one)
        return Known(self.baselines(cursor, projects, as_of), by_project, frozenset(newer))

    def baselines(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None
    ) -> dict[str, Baseline]:
        """The latest baseline of each of some projects; those computed after `as_of` are left out."""
        latest = query_records(cursor, "latest_baselines", Baseline, {"projects": projects, "as_of": as_of})
        baselines = {one.project: one for one in latest}
        with self._lock:
            for made in [one for one in self._baselines.values() if one.project in projects]:
                if as_of is not None and made.computed_at > as_of:
                    continue
                landed = baselines.get(made.project)
                if landed is not None and landed.computed_at >= made.computed_at:
                    del self._baselines[made.project]
                else:
                    baselines[made.project] = made
        return baselines

    def incident(self, cursor: duckdb.DuckDBPyConnection, project: str, incident_id: str) -> Incident | None:
        """One incident of a project in its latest revision; None where there is none of this id."""
        values = {"project": project, "incident": incident_id}
        named = query_records(cursor, "incident_by_id", Incident, values)
        shown = next((one for one in named if one.incident_id == incident_id), None)
        with self._lock:
            own = self._incidents.get(incident_id)
        return own if own is not None and own.project == project and self._newer(own, shown) else shown

    def _newer(self, own: Incident, shown: Incident | None) -> bool:
        """Tell whether a published record is newer than the tables show; it is forgotten if it has landed."""
        if shown is None or shown.revision < own.revision:
            return True
        with self._lock:
            if self._incidents.get(own.incident_id) is own:
                del self._incidents[own.incident_id]
        return False
