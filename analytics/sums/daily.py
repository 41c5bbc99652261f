# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Keeps what the scores of each project and UTC day add up to, and by the hour, so that no query has to add up millions of scores.

The sums are made from the latest revisions of a whole day at a time: a score that is made again changes the day of its exchange, and a
late one lands on its own. `log.score_days` and `log.score_hours` (`analytics/sums/macros.py`) read them and know which still hold.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta

from analytics.store.store import Store
from analytics.store.transaction import Partition, Transaction
from analytics.sums.macros import CONSUMER, RETENTION
from analytics.sums.sums import current_of, days_of, hours_of

Day = tuple[str, date]
"""A project and a UTC day."""
AT_ONCE = 100_000
"""New scores that a transaction takes up."""
DAYS_AT_ONCE = 7
"""Days in a row that are added up together, for statements take longer to plan than a small project's day to add up."""
_WANTED = "SELECT unnest($projects::VARCHAR[]), unnest($days::TIMESTAMP[])"
_ON_DAYS = f"log.scores WHERE exchange_at >= $first AND exchange_at < $end AND (project, date_trunc('day', exchange_at)) IN ({_WANTED})"
_READ = f"CREATE OR REPLACE TEMP TABLE added_up AS {current_of(_ON_DAYS)}"
_PLACE = "'' AS _topic, 0 AS _partition, 0 AS _offset"
_REPLACE = (
    f"DELETE FROM log.daily_scores WHERE day >= $first AND day < $end AND (project, day) IN ({_WANTED})",
    f"DELETE FROM log.hourly_scores WHERE hour >= $first AND hour < $end AND (project, date_trunc('day', hour)) IN ({_WANTED})",
    f"INSERT INTO log.daily_scores BY NAME SELECT {_PLACE}, * FROM ({days_of('added_up')}) ORDER BY project, day",
    f"INSERT INTO log.hourly_scores BY NAME SELECT {_PLACE}, * FROM ({hours_of('added_up')}) ORDER BY project, hour",
    "DROP TABLE added_up",
)
"""The sums of some days, after their scores were read once."""
_FORGET = """
    DELETE FROM log.hourly_scores AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS wanted, log.watermarks AS marks
    WHERE kept.project = wanted.project AND hour < first
        AND marks.consumer = $consumer AND marks.topic = kept.project AND hour < make_timestamp(next_position)
"""
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, partition, max(next_position), count(*) FROM log.changed_scores() GROUP BY day, project, partition ORDER BY ALL"
_TOPIC = "scores"


def refresh_daily(store: Store) -> set[Day]:
    """Add up the days that scores came to since the last time; answers them. Any thread may call it at any time.

    A transaction takes up to AT_ONCE new scores, or one project's day, so that intake does not wait for long. Cut
    short, the next call begins again.
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
    for run in _runs(sorted(days, key=lambda one: one[::-1])):
        _add_up(transaction, run)


def _runs(days: Iterable[Day]) -> Iterator[list[Day]]:
    """Days, in order, in parts of days in a row, DAYS_AT_ONCE of them at most."""
    run: list[Day] = []
    for one in days:
        if run and (one[1] > run[-1][1] + timedelta(days=1) or (one[1] - run[0][1]).days >= DAYS_AT_ONCE):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


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


def _add_up(transaction: Transaction, days: Sequence[Day]) -> None:
    """Replace the sums of some days, in order and close to each other."""
    values = {
        "projects": [project for project, _ in days],
        "days": [_midnight(day) for _, day in days],
        "first": _midnight(days[0][1]),
        "end": _midnight(days[-1][1] + timedelta(days=1)),
    }
    for statement in (_READ, *_REPLACE):
        transaction.connection.execute(statement, {name: value for name, value in values.items() if f"${name}" in statement})


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())
