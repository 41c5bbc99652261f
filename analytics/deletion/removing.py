"""Rows out of a log that goes on being written: some at a time, each lot in a transaction of its own."""

from __future__ import annotations

from analytics.store.store import Store
from schemas.lazy.polars import pl

IN_ONE_COMMIT = 100_000
"""Rows that are deleted in one transaction: that takes one or two tenths of a second, with the sums that are made again."""


def remove(store: Store, name: str, places: pl.DataFrame) -> int:
    """Delete the rows of a record type at these places; answers how many there still were."""
    removed = 0
    for part in places.sort("_offset").iter_slices(IN_ONE_COMMIT):
        with store.transaction() as transaction:
            removed += transaction.remove(name, part)
    return removed
