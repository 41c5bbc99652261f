# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Reads what scores add up to by the hour, as the macro `log.score_hours` answers it, at the price of what is there to be read.

DuckDB plans a statement as it stands, whatever the number of rows: most of what the macro takes is the planning of how single scores are
added up, though there are none as soon as their days have been. So this asks first which projects have any, and gives the macro these
alone. Where scores come in between, the sums are those of a moment before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from analytics.store.connection import fetch
from analytics.sums.marks import SCORE_SUMS
from analytics.sums.sums import HOUR_KEY, HOUR_SCALES
from analytics.sums.whole_days import is_behind
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

_WANTED = "list_contains($projects::VARCHAR[], project)"
_CHANGED = f"SELECT DISTINCT project FROM log.changed_scores() WHERE {_WANTED} AND day >= $since AND day < $until"
_KEPT = f"FROM log.hourly_scores WHERE {_WANTED} AND hour >= $since AND hour < $until"
_EVERYTHING = "* EXCLUDE (_topic, _partition, _offset)"
_SINGLE = "SELECT * EXCLUDE (day) FROM log.score_hours($projects::VARCHAR[], $since::TIMESTAMP, $until::TIMESTAMP)"
_ORDER = [name.strip() for name in HOUR_KEY.split(",")]


def read_hours(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, until: datetime, columns: Sequence[str] = ()
) -> pl.DataFrame | None:
    """Return the sums of some projects' current scores from a day on, until a moment: a row for each `HOUR_KEY`, in that order.

    None if there are no scores at all.

    Columns are those of `log.hourly_scores`, or those of them that are named, in which case the order is theirs: most of the time goes
    into fetching columns. Sums are on the scale of the scores; times are UTC and naive.
    """
    first, moment = datetime.combine(since, time()), until.astimezone(UTC).replace(tzinfo=None)
    whole = datetime.combine((moment - timedelta(microseconds=1)).date() + timedelta(days=1), time())
    wanted = {"projects": list(projects), "since": first, "until": whole}
    single = _changed(cursor, wanted)
    if not single and cursor.execute(f"SELECT NOT EXISTS ({_KEPT})", wanted).fetchall()[0][0]:
        return None
    needed = list(dict.fromkeys(("project", "last_at", *columns)))
    kept = fetch(cursor, f"SELECT {', '.join(needed) if columns else _EVERYTHING} {_KEPT}", wanted)
    # The sums of the last day hold what has come behind the moment, too.
    single.update(kept["project"].filter(kept["last_at"] >= moment))
    if single:
        fresh = fetch(cursor, _SINGLE, {"projects": sorted(single), "since": first, "until": moment})
        others = kept.filter(~pl.col("project").is_in(single))
        kept = pl.concat([others, fresh.select(kept.columns).cast(kept.schema)])
    # Polars multiplies by the reciprocal in some cases and divides in others: the last bit would go by the number of rows.
    scaled = [pl.Series(name, kept[name].to_numpy() / scale) for name, scale in HOUR_SCALES.items() if name in kept.columns]
    if columns:
        return kept.with_columns(scaled).select(columns).sort(columns)
    return kept.with_columns(scaled).sort(_ORDER)


def _changed(cursor: duckdb.DuckDBPyConnection, wanted: Mapping[str, Any]) -> set[str]:
    """The projects to whose days scores came since these were added up."""
    if not is_behind(cursor, SCORE_SUMS, "scores"):
        return set()
    return {project for (project,) in cursor.execute(_CHANGED, dict(wanted)).fetchall()}
