"""The order of projects, the worst first.

The worst come first by health. Of projects with an incident those come first whose worst one began within the last days, because that
is what no one has looked at yet; then those with more exchanges and unsafe runs in these days. An agent with two runs so does not stand
above one that has 40 % of the traffic, nor last month's change above yesterday's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from service.read.project_checks import RECENT_DAYS
from service.read.project_health import anomalous_share

Row = dict[str, Any]
WORST = {"critical": 4, "warning": 3, "unknown": 2, "ok": 1, "empty": 0}
"""How bad each health is; the worst comes first."""
_UNPLACED = (0, False, 0, float("-inf"))
"""Of a project without an incident."""
Standing = tuple[int, bool, int, float]
"""What decides between projects of one health: whether they have an incident, whether it is new, what it touches, its place in the inbox."""


def standings(rows: Sequence[Row], worst: Mapping[str, Mapping[str, Any]]) -> dict[str, Standing]:
    """Return the standing of each project with an incident; `worst` are the incidents of the query `worst_incidents`, the worst first."""
    until = max((row["recent_until"] for row in rows), default=None)
    touched = {row["project"]: row["recent_scores"] + row["recent_unsafe_runs"] for row in rows}
    return {
        project: (1, _is_new(incident["since"], until), touched.get(project, 0), -place)
        for place, (project, incident) in enumerate(worst.items())
    }


def _is_new(since: date | None, until: date | None) -> bool:
    """Tell whether a change began within the days of the fleet's figures; so does one without a first day."""
    return since is None or until is None or (until - since).days < RECENT_DAYS


def worst_first(rows: Sequence[Row], places: Mapping[str, Standing]) -> list[Row]:
    """Return rows, which are by name, the worst first."""
    return sorted(rows, key=partial(badness, places), reverse=True)


def badness(places: Mapping[str, Standing], row: Row) -> tuple[float, ...]:
    """Return what a project is put in order by:  health, then by `standings`, then by the number of reasons and the share of anomalies."""
    standing = places.get(row["project"], _UNPLACED)
    return WORST[row["health"]], *standing, len(row["reasons"]), anomalous_share(row) or 0.0
