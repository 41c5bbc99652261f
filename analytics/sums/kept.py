# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""The families of kept sums: what each is made from, which days of it are out of date, and how days are made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from analytics.sums.costs import COST_KEY, costs_of
from analytics.sums.exchanges import exchanges_of
from analytics.sums.marks import COST_SUMS, COUNTED, EXCHANGE_SUMS, SCORE_SUMS, SESSION_SUMS, TABLES, new_rows
from analytics.sums.sessions import SESSION_KEY, sessions_of
from analytics.sums.sums import HOUR_KEY, KEY, current_of, days_of, hours_of
from schemas.lazy.duckdb import duckdb

Day = tuple[str, date]
"""A project and a UTC day."""
ROWS_AT_ONCE = 200_000
"""Records of days in a row that are added up together: statements take longer to plan than a small project's months to add up."""
_WANTED = "SELECT unnest($projects::VARCHAR[]), unnest($days::TIMESTAMP[])"
_PLACE = "'' AS _topic, 0 AS _partition, 0 AS _offset"


@dataclass(frozen=True, eq=False)
class KeptSums:
    """Sums of records by day, which are made again for whole days.

    `changed` answers a row for each new record, or whatever else puts a day out of date: `project` and `day`. `replace` are the statements
    that make some days again: of `$projects` and `$days`, all within `$first` and `$end`.
    """

    consumer: str
    """Name under which their watermarks stand."""
    topics: tuple[str, ...]
    """The topics they are made from."""
    rows: str
    """The statement that answers a row for each day within `$first` and `$end` that has records: day, and how many it has."""
    tables: dict[str, str]
    """The record types that hold them, with the day of a row as an expression."""
    changed: str
    replace: tuple[str, ...]
    deleted: dict[str, str] = field(default_factory=dict)
    """The record types whose deletion makes their days again at once, with their time; others' sums outlive what retention deletes."""

    @property
    def ends(self) -> str:
        """The statement that answers topic, partition and the position behind what came since, for partitions to which any came."""
        return " UNION ALL ".join(
            f"SELECT '{topic}', r._partition, max(r._offset) + 1 FROM {new_rows(self.consumer, topic)} GROUP BY r._partition"
            for topic in self.topics
        )

    def add_up(self, connection: duckdb.DuckDBPyConnection, days: Iterable[Day]) -> None:
        """Make the sums of these days again, within the caller's transaction; a day without any records has no sums."""
        ordered = sorted(days, key=lambda one: one[::-1])
        if not ordered:
            return
        sizes = dict(connection.execute(self.rows, _span(ordered)).fetchall())
        for run in _runs(ordered, sizes):
            values = _span(run) | {
                "projects": [project for project, _ in run],
                "days": [_midnight(day) for _, day in run],
            }
            for statement in self.replace:
                connection.execute(statement, {name: value for name, value in values.items() if f"${name}" in statement})


def _runs(days: Iterable[Day], sizes: Mapping[date, int]) -> Iterator[Sequence[Day]]:
    """Days, in order, in parts of days in a row with ROWS_AT_ONCE records at most, or one day; `sizes` are the records of each."""
    run: list[Day] = []
    rows = 0
    for one in days:
        is_next = bool(run) and one[1] > run[-1][1]
        if run and (one[1] > run[-1][1] + timedelta(days=1) or (is_next and rows + sizes.get(one[1], 0) > ROWS_AT_ONCE)):
            yield run
            run, rows = [], 0
        if not run or is_next:
            rows += sizes.get(one[1], 0)
        run.append(one)
    if run:
        yield run


def _span(days: Sequence[Day]) -> dict[str, Any]:
    """The first moment of days in order, and the end of the last."""
    return {"first": _midnight(days[0][1]), "end": _midnight(days[-1][1] + timedelta(days=1))}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _rows_of(topic: str, time: str) -> str:
    return f"SELECT {time}::DATE, count(*) FROM {TABLES[topic]} WHERE {time} >= $first AND {time} < $end GROUP BY ALL"


def _on_days(topic: str, time: str) -> str:
    table = COUNTED[topic]
    return f"{table} WHERE {time} >= $first AND {time} < $end AND (project, date_trunc('day', {time})) IN ({_WANTED})"


def _forget_days(table: str, column: str, day: str) -> str:
    return f"DELETE FROM {table} WHERE {column} >= $first AND {column} < $end AND (project, {day}) IN ({_WANTED})"


def _made_again(table: str, sums: str, key: str) -> tuple[str, ...]:
    """The statements that make some days of a table again, whose rows are in the order of their key."""
    return (
        _forget_days(table, "day", "day"),
        f"INSERT INTO {table} BY NAME SELECT {_PLACE}, * FROM ({sums}) ORDER BY {key}",
    )


OF_SCORES = KeptSums(
    consumer=SCORE_SUMS,
    topics=("scores",),
    rows=_rows_of("scores", "exchange_at"),
    tables={"DailyScores": "day", "HourlyScores": "date_trunc('day', hour)"},
    changed="log.changed_scores()",
    replace=(
        # The scores are read once. Rows are in the order of their whole key, so that what adds them up as doubles always does it alike.
        f"CREATE OR REPLACE TEMP TABLE added_up AS {current_of(_on_days('scores', 'exchange_at'))}",
        _forget_days("log.daily_scores", "day", "day"),
        _forget_days("log.hourly_scores", "hour", "date_trunc('day', hour)"),
        f"INSERT INTO log.daily_scores BY NAME SELECT {_PLACE}, * FROM ({days_of('added_up')}) ORDER BY {KEY}",
        f"INSERT INTO log.hourly_scores BY NAME SELECT {_PLACE}, * FROM ({hours_of('added_up')}) ORDER BY {HOUR_KEY}",
        "DROP TABLE added_up",
    ),
)
"""What scores add up to, by the day and the hour of their exchanges."""
OF_JUDGEMENTS = KeptSums(
    consumer=COST_SUMS,
    topics=("judgements", "exchanges"),
    rows=_rows_of("judgements", "judged_at"),
    tables={"SessionCosts": "day"},
    changed="log.changed_judgements()",
    replace=_made_again("log.session_costs", costs_of(_on_days("judgements", "judged_at")), COST_KEY),
    deleted={"Judgement": "judged_at"},
)
"""What judgements add up to, by session and by the day of the answer. They name sessions, so they go with what they were made from."""
OF_EXCHANGES = KeptSums(
    consumer=EXCHANGE_SUMS,
    topics=("exchanges",),
    rows=_rows_of("exchanges", "occurred_at"),
    tables={"DailyExchanges": "day"},
    changed="log.changed_exchanges()",
    replace=_made_again("log.daily_exchanges", exchanges_of(_on_days("exchanges", "occurred_at")), "project, day"),
    deleted={"Exchange": "occurred_at"},
)
"""How many exchanges there are, by day."""
OF_SESSIONS = KeptSums(
    consumer=SESSION_SUMS,
    topics=("scores",),
    rows=_rows_of("scores", "exchange_at"),
    tables={"SessionScores": "day"},
    changed="log.changed_sessions()",
    replace=_made_again("log.session_scores", sessions_of(_on_days("scores", "exchange_at")), SESSION_KEY),
    deleted={"Score": "exchange_at"},
)
"""What scores add up to, by session and day. They name sessions, so they go with what they were made from."""
KEPT = (OF_SCORES, OF_JUDGEMENTS, OF_EXCHANGES, OF_SESSIONS)
