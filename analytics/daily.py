# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Keeps what the scores of each project and UTC day add up to, so that nobody has to add up millions of scores to ask.

The sums are made from the latest revisions of a whole day at a time: a score that is made again changes the day of its
exchange, and a late one lands on its own. `log.score_days` (`analytics/macros.py`) reads them and knows which still hold.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta

from analytics.macros import CONSUMER, sums_of
from analytics.store import Store
from analytics.transaction import Partition, Transaction

Day = tuple[str, date]
"""A project and a UTC day."""
AT_ONCE = 100_000
"""New scores that a transaction takes up."""
_ON_DAY = "log.scores WHERE exchange_at >= $day AND exchange_at < $end AND project IN (SELECT unnest($projects))"
_ADD = f"INSERT INTO log.daily_scores BY NAME SELECT '' AS _topic, 0 AS _partition, 0 AS _offset, * FROM ({sums_of(_ON_DAY)})"
_REMOVE = "DELETE FROM log.daily_scores WHERE day = $day AND project IN (SELECT unnest($projects))"
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, partition, max(next_position), count(*) FROM log.changed_scores() GROUP BY day, project, partition ORDER BY ALL"
_TOPIC = "scores"


def refresh_daily(store: Store) -> set[Day]:
    """Add up the days that scores came to since the last time; answers them. Any thread may call it at any time.

    A transaction takes up to AT_ONCE new scores, or one project's day, so that whoever takes exchanges in does not wait for long. Cut
    short, the next call begins anew.
    """
    before, ends, changed = _changed(store)
    for days in _batches(changed):
        with store.transaction() as transaction:
            recompute_days(transaction, days)
    if changed:
        with store.transaction() as transaction:
            # Where everything was dropped meanwhile, these positions will be given again.
            if transaction.watermarks(CONSUMER) == before:
                transaction.set_watermarks(CONSUMER, ends)
    return set(changed)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Add up these days again, for scores came to them, or were deleted in the same transaction; a day without any has no sums."""
    for day, found in itertools.groupby(sorted(days, key=lambda one: one[::-1]), key=lambda one: one[1]):
        _add_up(transaction, day, [project for project, _ in found])


def _changed(store: Store) -> tuple[dict[Partition, int], dict[Partition, int], dict[Day, int]]:
    """Watermarks, the positions behind what came since, and how many scores came to which days, by day: all of one moment."""
    with contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        marks = cursor.execute(_MARKS, {"consumer": CONSUMER}).fetchall()
        rows = cursor.execute(_CHANGED).fetchall()
    ends: dict[Partition, int] = {}
    days: Counter[Day] = Counter()
    for day, project, partition, end, count in rows:
        ends[_TOPIC, partition] = max(end, ends.get((_TOPIC, partition), 0))
        days[project, day] += count
    return {(topic, partition): position for topic, partition, position in marks}, ends, days


def _batches(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
    """The days in runs that scores came to, up to AT_ONCE of them, or more where it is one project's day."""
    batch: list[Day] = []
    scores = 0
    for day, count in changed.items():
        if batch and scores + count > AT_ONCE:
            yield batch
            batch, scores = [], 0
        batch.append(day)
        scores += count
    if batch:
        yield batch


def _add_up(transaction: Transaction, day: date, projects: list[str]) -> None:
    start = datetime.combine(day, time())
    values = {"day": start, "projects": projects}
    transaction.connection.execute(_REMOVE, values)
    transaction.connection.execute(_ADD, values | {"end": start + timedelta(days=1)})
