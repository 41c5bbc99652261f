"""Keeps what scores, judgements and exchanges of each project and UTC day add up to, so that no query has to add up millions of them.

The sums are made of a whole day at a time (`analytics/sums/kept.py`): a score that is made again changes the day of its exchange, and a
late one lands on its own. `log.score_days`, `log.score_hours`, `log.cost_hours` and `log.exchange_days` (`analytics/sums/macros.py`)
read them and know which still hold.
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
"""New records that a transaction takes up."""
_FORGET = """
    DELETE FROM log.hourly_scores AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS wanted, log.watermarks AS marks
    WHERE kept.project = wanted.project AND hour < first
        AND marks.consumer = $consumer AND marks.topic = kept.project AND hour < make_timestamp(next_position)
"""
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, count(*) FROM {changed} GROUP BY day, project ORDER BY ALL"


def refresh_daily(store: Store) -> set[Day]:
    """Add up the days that records came to since the last time; answers those of scores. Any thread may call it at any time.

    A transaction takes up to AT_ONCE new records, or one project's day, so that intake does not wait for long. Cut
    short, the next call begins again.
    """
    return {kept: _refresh(store, kept) for kept in KEPT}[OF_SCORES]


def _refresh(store: Store, kept: KeptSums) -> set[Day]:
    before, ends, changed = _changed(store, kept)
    for days in _batches(changed):
        with store.transaction() as transaction:
            kept.add_up(transaction.connection, days)
    if changed:
        with store.transaction() as transaction:
            # Where everything was dropped meanwhile, these positions will be given again.
            if transaction.watermarks(kept.consumer) == before:
                transaction.set_watermarks(kept.consumer, ends)
    return set(changed)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Add up these days of scores again, for some were deleted in the same transaction; a day without any has no sums."""
    OF_SCORES.add_up(transaction.connection, days)


def forget_hours(store: Store, kept_from: Callable[[str], datetime]) -> int:
    """Delete the hourly sums of each project from before a moment, of days whose scores retention has deleted; answers how many rows."""
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
    """Watermarks, the positions behind what came since, and how many records came to which days, by day: all of one moment."""
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
    """The days in runs that records came to, up to AT_ONCE of these, or more where it is one project's day."""
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
