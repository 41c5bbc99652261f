"""Times of the exchanges whose scores people have opened: read once, and kept.

An id says nothing of where a score lies among millions, its time does; and the time of an exchange never changes. So what a page
remembers of a few hundred scores spares it reading the ids of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import duckdb

from analytics.queries import query_rows


class ScoreTimes:
    """Times of exchanges by project and score. It can be shared between threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], datetime] = {}

    def of_people(self, cursor: duckdb.DuckDBPyConnection, project: str) -> list[datetime]:
        """Return the times of a project's exchanges that people have scored, each once."""
        scored = [row["score_id"] for row in query_rows(cursor, "people_scores", {"project": project})]
        unknown = [one for one in scored if (project, one) not in self._known]
        if unknown:
            for row in query_rows(cursor, "score_times", {"project": project, "scores": unknown}):
                self.learn(project, row["score_id"], row["exchange_at"])
        found = (self._known.get((project, one)) for one in scored)
        return sorted({at for at in found if at is not None})

    def time_of(self, project: str, score_id: str) -> datetime | None:
        """Return the time of a score's exchange; None if it is not known yet."""
        return self._known.get((project, score_id))

    def learn(self, project: str, score_id: str, at: datetime) -> None:
        """Keep the time of a score that was read anyway."""
        self._known[project, score_id] = at


def known_times(times: ScoreTimes | None, cursor: duckdb.DuckDBPyConnection, project: str) -> Sequence[datetime] | None:
    """Return the times for a query that takes them; None, which such a query reads as unknown, if there are none."""
    return None if times is None else times.of_people(cursor, project)
