"""Keeps daily sums of scores, judgements and exchanges per project (UTC), so that no query has to add up millions of records.

Sums are computed for a whole day at a time (`analytics/sums/kept.py`): a recomputed or late score changes the day of its exchange.
`log.score_days`, `log.score_hours`, `log.cost_hours` and `log.exchange_days` (`analytics/sums/macros.py`) read the sums and know
which are still valid.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from analytics.store.store import Store
from analytics.store.transaction import Partition, Transaction
from analytics.sums.kept import KEPT, OF_SCORES, Day, KeptSums
from analytics.sums.macros import RETENTION

AT_ONCE = 100_000
"""New records that one transaction adds up."""
_FORGET = """
    DELETE FROM log.hourly_scores AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS wanted, log.watermarks AS marks
    WHERE kept.project = wanted.project AND hour < first
        AND marks.consumer = $consumer AND marks.topic = kept.project AND hour < make_timestamp(next_position)
"""
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, count(*) FROM {changed} GROUP BY day, project ORDER BY ALL"


def refresh_daily(store: Store) -> set[Day]:
    """Recompute the days with new records since the last call; return the days with new scores. Any thread may call it at any time.

    A transaction takes up to AT_ONCE new records, or one project's day, so that intake does not wait for long. If a call is
    interrupted, the next one starts over.
    """
    return {kept: _refresh(store, kept) for kept in KEPT}[OF_SCORES]


def _refresh(store: Store, kept: KeptSums) -> set[Day]:
    before, ends, changed = _changed(store, kept)
    for days in _batches(changed):
        with store.transaction() as transaction:
            kept.add_up(transaction.connection, days)
    if changed:
        with store.transaction() as transaction:
            # If the sums were dropped meanwhile, the watermarks changed, and the dropped days have to be added up again.
            if transaction.watermarks(kept.consumer) == before:
                transaction.set_watermarks(kept.consumer, ends)
    return set(changed)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Recompute the sums of these days after scores were deleted in the same transaction; a day without scores has no sums."""
    OF_SCORES.add_up(transaction.connection, days)


def forget_hours(store: Store, kept_from: Callable[[str], datetime]) -> int:
    """Delete each project's hourly sums from before a moment, for days whose scores retention has deleted; return the number of rows."""
    with store.transaction() as transaction:
        starts = transaction.watermarks(RETENTION)
        firsts = {project: kept_from(project) for project, _ in starts}
        values = {
            "projects": list(firsts),
            "firsts": [one.replace(tzinfo=None) for one in firsts.values()],
            "consumer": RETENTION,
        }
        ((deleted,),) = transaction.connection.execute(_FORGET, values).fetchall()
        return int(deleted)


def _changed(store: Store, kept: KeptSums) -> tuple[dict[Partition, int], dict[Partition, int], dict[Day, int]]:
    """The watermarks, the new ends after the records that came since, and the number of new records per day, all from one snapshot."""
    with contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        marks = cursor.execute(_MARKS, {"consumer": kept.consumer}).fetchall()
        rows = cursor.execute(_CHANGED.format(changed=kept.changed)).fetchall()
        ends = cursor.execute(kept.ends).fetchall() if rows else []
    days = Counter[Day]()
    for day, project, count in rows:
        days[project, day] = count
    return _positions(marks), _positions(ends), days


def _positions(rows: Iterable[tuple[str, int, int]]) -> dict[Partition, int]:
    return {(topic, partition): position for topic, partition, position in rows}


def _batches(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
    """Batches of the changed days, each with up to AT_ONCE new records, or a single project's day with more."""
    batch: list[Day] = []
    records = 0
    for day, count in changed.items():
        if batch and records + count > AT_ONCE:
            yield batch
            batch, records = [], 0
        batch.append(day)
        records += count
    if batch:
        yield batch
