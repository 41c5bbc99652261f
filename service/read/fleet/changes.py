"""The largest change of each project: the series of its worst incident since its first day, else its last days beside those before.

1. Of a project with a confirmed incident that is not over, the change is that of the series that leads it, with the levels that its
   evidence has, since its first day; and the level of the last days, if all of them are after it.
2. Of any other it is that of Tier 2, or of Tier 1 where no judge was asked: the mean of the last days, and of as many before them.
   Nothing says that this is more than chance; an incident would.
3. Levels by day go back four weeks from the last of these days. A series of runs has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from service.read.project_checks import RECENT_DAYS
from service.read.project_health import anomalous_share
from streams.watch.incidents.recovery import lies_back
from streams.watch.measured import TIERS
from streams.watch.rules.findings import DOWN, SPIKE, UP, Key, bounds_of

LEVEL_DAYS = 28
"""Days of the levels by day."""
_BY_DAY = frozenset({*TIERS, SPIKE})
"""The series that have levels by day; series of runs have none."""
Row = Mapping[str, Any]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one series of a project."""

    series: str
    """tier1, tier2, tier2_5, tier3, anomaly_spike, or of runs trust, unsafe or failure:<type>."""
    name: str
    before: float
    after: float
    since: date | None = None
    """The first day of an incident's change; None for the last days beside those before."""
    incident: str | None = None
    agent: str | None = None
    now: float | None = None
    """The level of the last days, for an incident that began before them; None for series of runs, which have none."""
    levels: list[float | None] = []
    """The levels of the last days, the newest last; None for a day without one."""

    @property
    def is_share(self) -> bool:
        """True if the levels are shares of exchanges or runs."""
        return self.series == SPIKE or self.series.startswith(("unsafe", "failure:"))

    @property
    def is_back(self) -> bool:
        """True if the last days lie back, by the measure that ends an incident: no check has seen it yet."""
        return self.incident is not None and self.now is not None and lies_back(self.now, self.before, self.after)

    @property
    def worse(self) -> float:
        """The size of its move for the worse, as a part of its scale; below 0 if for the better."""
        key = Key(SPIKE if self.series == SPIKE else "drift", self.series, UP if self.after > self.before else DOWN)
        low, high = bounds_of(self.series)
        size = abs(self.after - self.before) / (high - low)
        return size if key.is_worse else -size


class _Lead(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A series that moved, as evidence lists it."""

    name: str = ""
    before: float | None = None
    after: float | None = None


class _Evidence(msgspec.Struct, frozen=True):
    """The part of the evidence that says what moved: the leading series comes first. The rest, which is long, is not read."""

    moved: list[_Lead] = []


def worst_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None) -> dict[str, Row]:
    """Return the worst incident of each project, or of one, the worst first; of its evidence only the leading series is left."""
    found = query_rows(cursor, "worst_incidents", {"project": project})
    return {row["project"]: {**row, "metadata": _leading(row["metadata"])} for row in found}


def _leading(metadata: str) -> str:
    lead = _lead(metadata)
    return msgspec.json.encode(_Evidence([] if lead is None else [lead])).decode()


def with_changes(rows: Iterable[Row], worst: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return rows of the query `projects`, each with its `change`, without levels; None if nothing is known."""
    return [{**row, "change": change_of(row, worst.get(row["project"]))} for row in rows]


def with_levels(
    cursor: duckdb.DuckDBPyConnection, rows: Sequence[Mapping[str, Any]], project: str | None
) -> list[dict[str, Any]]:
    """Return rows with a `change`, each change with its levels by day."""
    changes = [(row["project"], row["change"].series) for row in rows if row.get("change")]
    wanted = [one for one in changes if one[1] in _BY_DAY]
    if not wanted:
        return [dict(row) for row in rows]
    last = min(row["recent_until"] for row in rows)
    values = {
        "project": project,
        "projects": [one for one, _ in wanted],
        "series": [series for _, series in wanted],
        "since": datetime.combine(last - timedelta(days=LEVEL_DAYS - 1), time(), UTC),
        "as_of": datetime.combine(last + timedelta(days=1), time(), UTC),
        "days": LEVEL_DAYS,
    }
    found = {(row["project"], row["series"]): _levels(row) for row in query_rows(cursor, "project_levels", values)}
    return [_with(row, found) for row in rows]


def change_of(row: Row, incident: Row | None) -> Change | None:
    """Return the change of a project from its row of the query `projects` and that of `worst_incidents`; None if nothing is known."""
    return (_of_incident(row, incident) if incident is not None else None) or _of_days(row)


def _of_incident(row: Row, incident: Row) -> Change | None:
    series = incident["tier"] or incident["type"]
    lead = _lead(incident["metadata"])
    before, after = (None, None) if lead is None else (lead.before, lead.after)
    if before is None or after is None:
        # Evidence of earlier versions has no levels: the last days are all that is known.
        before, after = row.get(f"before_{series}"), row.get(f"recent_{series}")
    if before is None or after is None:
        return None
    return Change(
        series=series,
        name=lead.name if lead is not None and lead.name else _name(series),
        before=before,
        after=after,
        since=incident["since"],
        incident=incident["incident_id"],
        agent=incident["agent"],
        now=_now(row, series, incident["since"]),
    )


def _now(row: Row, series: str, since: date | None) -> float | None:
    until = row["recent_until"]
    if since is None or series not in _BY_DAY or (until - since).days < RECENT_DAYS:
        return None
    level: float | None = anomalous_share(row) if series == SPIKE else row[f"recent_{series}"]
    return level


def _lead(metadata: str) -> _Lead | None:
    """Return the leading series of an incident's evidence; None if it has none that can be read."""
    try:
        return next(iter(msgspec.json.decode(metadata, type=_Evidence).moved), None)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _of_days(row: Row) -> Change | None:
    known = (series for series in ("tier2", "tier1") if row[f"recent_{series}"] is not None)
    series = next(known, None)
    if series is None or row[f"before_{series}"] is None:
        return None
    return Change(series=series, name=_name(series), before=row[f"before_{series}"], after=row[f"recent_{series}"])


def _name(series: str) -> str:
    return TIERS.get(series) or ("Anomalies" if series == SPIKE else series.replace("_", " "))


def _levels(row: Row) -> list[float | None]:
    levels: list[float | None] = [None] * LEVEL_DAYS
    for back, level in zip(row["back"], row["level"], strict=True):
        levels[LEVEL_DAYS - 1 - back] = level
    return levels


def _with(row: Row, found: Mapping[tuple[str, str], list[float | None]]) -> dict[str, Any]:
    change: Change | None = row.get("change")
    levels = None if change is None else found.get((row["project"], change.series))
    return dict(row) if change is None or levels is None else {**row, "change": msgspec.structs.replace(change, levels=levels)}
