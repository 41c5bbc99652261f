"""Rows out of a log that goes on being written: some at a time, each lot in a transaction of its own."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

from analytics.store.positions import RETENTION
from analytics.store.store import Store
from analytics.sums.daily import recompute_days
from schemas.lazy.polars import pl

IN_ONE_COMMIT = 100_000
"""Rows that are deleted in one transaction: that takes one or two tenths of a second, with the sums that are made again."""
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


def remove(store: Store, name: str, places: pl.DataFrame) -> int:
    """Delete the rows of a record type at these places; answers how many there still were."""
    removed = 0
    for part in places.sort("_offset").iter_slices(IN_ONE_COMMIT):
        with store.transaction() as transaction:
            removed += transaction.remove(name, part)
    return removed


def remove_scores(store: Store, places: pl.DataFrame) -> int:
    """Delete the scores at these places, which have `project` and `exchange_at`, too, and add up their days again; answers how many."""
    since, removed = whole_since(store), 0
    for part in places.sort("_offset").iter_slices(IN_ONE_COMMIT):
        days = {(project, at.date()) for project, at in part.select("project", "exchange_at").iter_rows()}
        with store.transaction() as transaction:
            removed += transaction.remove("Score", part)
            recompute_days(transaction, (one for one in days if _midnight(one[1]) >= since.get(one[0], _EVER)))
    return removed


def whole_since(store: Store) -> dict[str, datetime]:
    """From when on the history of a project is whole, for those of which retention has deleted anything or would have."""
    with store.transaction() as transaction:
        starts = transaction.watermarks(RETENTION)
    return {project: datetime.fromtimestamp(at / 1_000_000, UTC) for (project, _), at in starts.items()}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
