# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Keeps what the scores of each project and UTC day add up to, so that nobody has to add up millions of scores to ask.

The sums are made from the latest revisions of a whole day at a time: a score that is made again changes the day of its
exchange, and a late one lands on its own. `log.score_days` (`analytics/daily_macros.py`) reads them and knows which still hold.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta

from analytics.daily_macros import CONSUMER, sums_of
from analytics.store import Store
from analytics.transaction import Partition, Transaction

Day = tuple[str, date]
"""A project and a UTC day."""
_ON_DAY = "log.scores WHERE exchange_at >= $day AND exchange_at < $end AND project IN (SELECT unnest($projects))"
_ADD = f"INSERT INTO log.daily_scores BY NAME SELECT '' AS _topic, 0 AS _partition, 0 AS _offset, * FROM ({sums_of(_ON_DAY)})"
_REMOVE = "DELETE FROM log.daily_scores WHERE day = $day AND project IN (SELECT unnest($projects))"
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, partition, max(next_position) FROM log.changed_scores() GROUP BY day, project, partition ORDER BY ALL"
_TOPIC = "scores"


def refresh_daily(store: Store) -> set[Day]:
    """Add up the days that scores came to since the last time; answers them. Any thread may call it at any time.

    Each day is a transaction of its own, so that whoever takes exchanges in waits for one day's scores only. Cut short, the
    next call begins anew.
    """
    before, ends, changed = _changed(store)
    for day, found in itertools.groupby(changed, key=lambda one: one[1]):
        with store.transaction() as transaction:
            _add_up(transaction, day, [project for project, _ in found])
    if changed:
        with store.transaction() as transaction:
            # Where everything was dropped meanwhile, these positions will be given again.
            if transaction.watermarks(CONSUMER) == before:
                transaction.set_watermarks(CONSUMER, ends)
    return set(changed)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Add up these days again, because scores of theirs were deleted in the same transaction; a day without any has no sums."""
    for day, found in itertools.groupby(sorted(days, key=lambda one: one[::-1]), key=lambda one: one[1]):
        _add_up(transaction, day, [project for project, _ in found])


def _changed(store: Store) -> tuple[dict[Partition, int], dict[Partition, int], list[Day]]:
    """Watermarks, the positions behind what came since, and the days it belongs to, by day: all of one moment."""
    with contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        marks = cursor.execute(_MARKS, {"consumer": CONSUMER}).fetchall()
        rows = cursor.execute(_CHANGED).fetchall()
    ends: dict[Partition, int] = {}
    for _, _, partition, end in rows:
        ends[_TOPIC, partition] = max(end, ends.get((_TOPIC, partition), 0))
    days = dict.fromkeys((project, day) for day, project, _, _ in rows)
    return {(topic, partition): position for topic, partition, position in marks}, ends, list(days)


def _add_up(transaction: Transaction, day: date, projects: list[str]) -> None:
    start = datetime.combine(day, time())
    values = {"day": start, "projects": projects}
    transaction.connection.execute(_REMOVE, values)
    transaction.connection.execute(_ADD, values | {"end": start + timedelta(days=1)})
