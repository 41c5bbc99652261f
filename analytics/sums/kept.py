# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Kept sums, family by family: their sources, their outdated days, and how days are recomputed.

1. Each family has one definition, for kept sums and for sums computed on request: scores by UTC day and hour, scores by session and
   day, judgements by session and hour, exchanges by day.
2. Billionths are added as integers, so sums depend neither on the order of scores nor on how they are split. A sum that may be too
   large for 64 bits is rounded to a double when it is kept; adding such sums adds integers again.
3. A judgement never changes, but the hour in which it counts can: that of its exchange, which on Kafka may arrive later, or its own
   if there is no exchange. So a row records whether its exchanges were found. Days of answers are recomputed if judgements were added
   or deleted, and if they wait for exchanges of a session that has new ones.
4. A scan begins at the new rows of a topic, or at the first day to read; the FROM clause says where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from analytics.store.views import CURRENT_EXCHANGES
from schemas.lazy import duckdb

Day = tuple[str, date]
"""A project and a UTC day."""
ROWS_AT_ONCE = 200_000
"""Maximum number of records of consecutive days added up together. Planning a statement takes longer than adding up months of a small project."""
_WANTED = "SELECT unnest($projects::VARCHAR[]), unnest($days::TIMESTAMP[])"
_PLACE = "'' AS _topic, 0 AS _partition, 0 AS _offset"

SCORE_SUMS = "scores by day, hour and stratum"
"""The consumer name of the score sums' watermarks. Change it when the sums change: then all days are recomputed."""
COST_SUMS = "judgements by session and hour"
"""The consumer name of the judgement sums' watermarks."""
EXCHANGE_SUMS = "exchanges by day"
"""The consumer name of the exchange counts' watermarks."""
SESSION_SUMS = "scores by session and day"
"""The consumer name of the session sums' watermarks."""
TABLES = {"scores": "log.scores", "judgements": "log.judgements", "exchanges": "log.exchanges"}
"""The table of each topic that sums are computed from."""
COUNTED = TABLES | {"exchanges": CURRENT_EXCHANGES}
"""The rows of each topic that count. Scores are many and often revised, so their sums themselves leave earlier revisions out."""
ASKED = "(asked IS NULL OR project = asked)"
"""The condition of macros that answer for the project `asked`, or for all."""

KEY = "project, day, agent, sampling_reason, disposition, simulated, weight"
"""The key columns of the daily sums."""
HOUR_KEY = (
    "project, hour, methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest"
)
"""The key columns of the hourly sums."""
SCORES = {
    "tier1": "tier1_score",
    "tier2": "CASE WHEN tier2_state = 'scored' THEN tier2_score END",
    "tier2_5": "CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END",
    "tier3": "CASE WHEN tier3_state = 'scored' THEN tier3_score END",
}
"""The score of each tier, as an expression over the columns of scores."""
UNSURE = (
    "tier3_score BETWEEN 2.5 AND 3.5 OR tier2_score BETWEEN 0.4 AND 0.6 OR tier2_5_alignment BETWEEN 0.4 AND 0.6"
    " OR abs(tier2_score - (tier3_score - 1) / 4) >= 0.4 OR (tier2_flagged AND tier3_score >= 4)"
)
"""Whether the judge was unsure of a score: a tier is near its middle, or tiers contradict each other."""
_RATED = f"CASE WHEN tier3_score IS NOT NULL THEN CASE WHEN anomaly THEN 'anomaly' WHEN {UNSURE} THEN 'unsure' ELSE 'routine' END END"
_STRATA = {"rated_anomalies": "anomaly", "rated_unsure": "unsure", "rated_routine": "routine"}
"""The columns that count Tier 3 scores, by stratum."""
_LEAST = 1e-4
"""The lowest sampling probability a policy allows. A record from elsewhere with a lower one must not break the sums of all projects."""
_COLUMNS = ", ".join(
    (
        "project, date_trunc('day', exchange_at) AS day, coalesce(agent, '') AS agent, sampling_reason, disposition, simulated",
        "1 / coalesce(sampling_probability, 1) AS weight, anomaly, round(cost_usd * 1e9)::BIGINT AS nano_usd",
        *(f"round(({score}) * 1e9)::BIGINT AS {tier}" for tier, score in SCORES.items()),
        "\"connection\", session_id, exchange_at, coalesce(judge_model, '') AS judge_model",
        "methodology, methodology_version, methodology_digest, rule_version, policy_digest",
        f"round(1e6 / greatest(coalesce(sampling_probability, 1), {_LEAST}))::BIGINT AS micro_weight, {_RATED} AS rated",
    )
)
# The time of an exchange never changes. Partitioning by it first, a number, cuts the sorting time by a third.
_LATEST = "QUALIFY row_number() OVER (PARTITION BY exchange_at, project, score_id ORDER BY revision DESC, _offset DESC) = 1"
_ROUNDED = "::DOUBLE::HUGEINT"
_SUMS = ", ".join(
    (
        "count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies",
        *(
            f"count({tier}) AS {tier}_count, coalesce(sum({tier}), 0)::BIGINT AS {tier}_sum,"
            f" coalesce(sum({tier}::HUGEINT * {tier}), 0){_ROUNDED} AS {tier}_squares"
            for tier in SCORES
        ),
        "coalesce(sum(nano_usd), 0)::BIGINT AS nano_usd, count(*) - count(nano_usd) AS unknown_costs",
        *(f"count(*) FILTER (rated = '{stratum}') AS {column}" for column, stratum in _STRATA.items()),
    )
)
_WEIGHTS = {tier: "1000000" if tier == "tier1" else "micro_weight" for tier in SCORES}
"""The weight of a score in millionths of an exchange; always one exchange for Tier 1, which scores every exchange."""
_UNIT_SUMS = ", ".join(
    (
        "max(exchange_at) AS last_at, count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies",
        *(
            f"count({tier}) AS {tier}_count, sum({tier}) AS {tier}_sum, sum({tier}::HUGEINT * {tier}) AS {tier}_squares,"
            f" (sum({weight}) FILTER ({tier} IS NOT NULL))::HUGEINT AS {tier}_weight,"
            f" round(sum({weight}::HUGEINT * {tier}) / 1e6)::HUGEINT AS {tier}_total"
            for tier, weight in _WEIGHTS.items()
        ),
    )
)
_UNIT_KEY = HOUR_KEY.replace("hour", 'day, "connection", session_id', 1)
_EXACT = {
    "count": ("sum({tier}_count)", "::BIGINT", 1),
    "sum": ("sum({tier}_sum)", "::BIGINT", 1e9),
    "squares": ("sum({tier}_squares)", _ROUNDED, 1e18),
    "units": ("count({tier}_weight)", "", 1),
    "weight": ("sum({tier}_weight)", _ROUNDED, 1e6),
    "total": ("sum({tier}_total)", _ROUNDED, 1e9),
    "unit_squares": ("sum({tier}_weight * {tier}_weight)", _ROUNDED, 1e12),
    "unit_mixed": ("sum({tier}_weight * {tier}_total)", _ROUNDED, 1e15),
    "unit_totals": ("sum({tier}_total * {tier}_total)", _ROUNDED, 1e18),
}
"""The sums over the units of an hour: expression, stored type, and the divisor to the scale of scores and weights."""
_HOUR_SUMS = ", ".join(
    (
        "max(last_at) AS last_at, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies",
        *(
            ", ".join(
                f"coalesce({text.format(tier=tier)}, 0){form} AS {tier}_{name}" for name, (text, form, _) in _EXACT.items()
            )
            + f", min({tier}_total / {tier}_weight) / 1e3 AS {tier}_low, max({tier}_total / {tier}_weight) / 1e3 AS {tier}_high"
            for tier in SCORES
        ),
    )
)
WHOLE_DAYS = ", ".join(f"{tier}_squares::HUGEINT AS {tier}_squares" for tier in SCORES)
"""Columns of kept daily sums that are added as whole numbers."""
WHOLE_HOURS = ", ".join(
    f"{tier}_{name}::HUGEINT AS {tier}_{name}" for tier in SCORES for name, (_, form, _) in _EXACT.items() if form == _ROUNDED
)
"""Columns of kept hourly sums that are added as whole numbers."""
HOUR_SCALES = {f"{tier}_{name}": scale for tier in SCORES for name, (*_, scale) in _EXACT.items() if scale != 1}
"""The divisors that bring the columns of kept hourly sums to the scale of scores and weights."""

COST_KEY = 'project, day, hour, "connection", session_id, model, is_placed'
"""The key columns of the judgement sums."""
_TOKENS = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
_READ = f'project, "connection", session_id, subject_id, requested_model, attempts, {", ".join(_TOKENS)}, cost_usd, simulated, judged_at'
_COST_SUMS = ", ".join(
    (
        "max(agent) AS agent, count(*) AS judgements, coalesce(sum(attempts), 0)::BIGINT AS calls",
        *(f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in _TOKENS),
        "coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd",
        "count(*) FILTER (cost_usd IS NULL) AS unknown_costs, count(*) FILTER (simulated) AS simulated",
    )
)
_FIRST = "(SELECT * FROM log.exchanges WHERE revision = 0)"
"""The first revisions of exchanges are enough: no revision changes the time, and judging a withdrawn exchange was paid for too."""
_SUBJECT = 'e.project = a.project AND e."connection" = a."connection" AND e.exchange_id = a.subject_id'
_HEARD = 'e.project, e."connection", e.exchange_id AS subject_id, e.occurred_at, e.agent'
_SAME = 'USING (project, "connection", subject_id)'
_WAITING = 'k.project = r.project AND k."connection" = r."connection" AND k.session_id = r.session_id'
# No judge answers before there is something to judge. Hours that the window cuts are computed from their judgements.
_COSTS_SINCE = "day >= date_trunc('day', first)"
_CUT = "(hour > first - INTERVAL 1 HOUR AND hour < first OR hour > until - INTERVAL 1 HOUR AND hour < until)"
KEPT_COST_HOURS = f"""
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs
    WHERE {ASKED} AND {_COSTS_SINCE} AND hour >= first AND hour < until"""
"""`COST_HOURS` for whole hours of days without new records."""
KEPT_EXCHANGE_DAYS = f"SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges WHERE {ASKED}"
"""The exchange counts of days without new records."""

SESSION_KEY = 'project, day, "connection", session_id'
"""The key columns of the session sums."""
_TIERS = {"tier1": "tier1_score", "tier2": "tier2_score", "tier2_5": "tier2_5_alignment", "tier3": "tier3_score"}
_SESSION_SUMS = ", ".join(
    (
        "max(agent) AS agent, min(exchange_at) AS first_at, max(exchange_at) AS last_at, count(*) AS exchanges",
        "count(*) FILTER (anomaly) AS anomalies, count(*) FILTER (simulated) AS simulated",
        *(
            f"count({score}) AS {tier}_count, coalesce(sum(round({score} * 1e9)::BIGINT), 0)::BIGINT AS {tier}_sum"
            for tier, score in _TIERS.items()
        ),
        "coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd, count(*) FILTER (cost_usd IS NULL) AS unknown_costs",
    )
)
_SESSIONS_SINCE = "day >= date_trunc('day', first) AND day < until"


@dataclass(frozen=True, eq=False)
class KeptSums:
    """Sums of records by day, recomputed for whole days.

    `changed` is a query with one row (`project`, `day`) per new record or other change that outdates a day. `replace` are the statements
    that recompute some days: `$projects` and `$days`, all within `$first` and `$end`.
    """

    consumer: str
    """The consumer name of their watermarks."""
    topics: tuple[str, ...]
    """The topics they are computed from."""
    rows: str
    """The statement that returns each day within `$first` and `$end` that has records, with their number."""
    tables: dict[str, str]
    """The record types that hold the sums, each with the SQL expression of a row's day."""
    changed: str
    replace: tuple[str, ...]
    deleted: dict[str, str] = field(default_factory=dict)
    """The record types, with their time column, whose deletion recomputes the days at once. Other sums outlive their deleted records."""

    @property
    def ends(self) -> str:
        """The statement that returns topic, partition and end of the new records, for partitions that have any."""
        return " UNION ALL ".join(
            f"SELECT '{topic}', r._partition, max(r._offset) + 1 FROM {new_rows(self.consumer, topic)} GROUP BY r._partition"
            for topic in self.topics
        )

    def add_up(self, connection: duckdb.DuckDBPyConnection, days: Iterable[Day]) -> None:
        """Recompute the sums of these days within the caller's transaction; a day without records has no sums."""
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


def new_rows(consumer: str, topic: str) -> str:
    """A FROM clause with the rows of a topic that `consumer` has not added up, as `r`."""
    return f"{TABLES[topic]} AS r JOIN {marks_of(consumer, topic)} AS m ON r._partition = m.partition AND r._offset >= m.next_position"


def marks_of(consumer: str, topic: str) -> str:
    """A FROM clause with `consumer`'s watermarks in a topic: `partition` and `next_position` of every partition.

    An inner join with it makes the scan read only new rows, so a partition without a watermark gets one at 0. DuckDB knows the
    largest partition number, and so all partitions, without reading rows.
    """
    return f"""(
    SELECT p.partition, coalesce(w.next_position, 0) AS next_position
    FROM (SELECT unnest(range((SELECT max(_partition) + 1 FROM {TABLES[topic]})))::INTEGER AS partition) AS p
    LEFT JOIN log.watermarks AS w ON p.partition = w.partition AND w.consumer = '{consumer}' AND w.topic = '{topic}'
)"""


def _span(days: Sequence[Day]) -> dict[str, Any]:
    """The start of the first of these ordered days, and the end of the last."""
    return {"first": _midnight(days[0][1]), "end": _midnight(days[-1][1] + timedelta(days=1))}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _runs(days: Iterable[Day], sizes: Mapping[date, int]) -> Iterator[Sequence[Day]]:
    """Batches of consecutive days with at most ROWS_AT_ONCE records, or of one day; `sizes` are the records of each day."""
    run: list[Day] = []
    rows = 0
    for day in days:
        is_next = bool(run) and day[1] > run[-1][1]
        if run and (day[1] > run[-1][1] + timedelta(days=1) or (is_next and rows + sizes.get(day[1], 0) > ROWS_AT_ONCE)):
            yield run
            run, rows = [], 0
        if not run or is_next:
            rows += sizes.get(day[1], 0)
        run.append(day)
    if run:
        yield run


def rows_on(days: str, topic: str, time: str, where: str = "true") -> str:
    """A FROM clause with the rows of a topic whose `time` falls on one of some days, each a `project` and a `day`.

    An inner join tells the scan where to begin: most of the time these are a project's last days.
    """
    return f"""(
        SELECT r.*
        FROM {COUNTED[topic]} AS r
        JOIN (SELECT project, min(day) AS first_day, max(day) + INTERVAL 1 DAY AS end_day FROM {days} GROUP BY project) AS found
        ON r.project = found.project AND r.{time} >= found.first_day AND r.{time} < found.end_day
        SEMI JOIN {days} AS d ON r.project = d.project AND date_trunc('day', r.{time}) = d.day
        WHERE {where}
    )"""


def behind(consumer: str, topic: str) -> tuple[str, str]:
    """Two statements, of which at least one is true if `consumer` has not added up all of a topic.

    Together they take a third of the time of listing the missing rows.
    """
    marked = f"(SELECT partition, next_position FROM log.watermarks WHERE consumer = '{consumer}' AND topic = '{topic}')"
    return (
        f"SELECT (SELECT max(_partition) + 1 FROM {TABLES[topic]}) > (SELECT count(*) FROM {marked})",
        f"SELECT count(*) > 0 FROM {TABLES[topic]} AS s JOIN {marked} AS m ON s._partition = m.partition AND s._offset >= m.next_position",
    )


def current_of(scores: str) -> str:
    """The statement that selects the latest revisions of scores, in the form in which they are added up; `scores` is a FROM clause.

    The rows must have all revisions of an exchange or none.
    """
    return f"SELECT {_COLUMNS} FROM {scores} {_LATEST}"


def days_of(current: str) -> str:
    """The statement that adds up the rows of `current_of` by day; `current` is a FROM clause."""
    return f"SELECT {KEY}, {_SUMS} FROM {current} GROUP BY {KEY}"


def hours_of(current: str) -> str:
    """The statement that adds up the rows of `current_of` by hour; `current` is a FROM clause.

    A session's scores of one day by the same methodology, rules, judge and policy form one unit, which counts in the hour of its last
    exchange.
    """
    units = f"SELECT {_UNIT_KEY}, {_UNIT_SUMS} FROM {current} GROUP BY {_UNIT_KEY}"
    placed = f"SELECT *, date_trunc('hour', last_at) AS hour FROM ({units})"
    return f"SELECT {HOUR_KEY}, {_HOUR_SUMS} FROM ({placed}) GROUP BY {HOUR_KEY}"


def costs_of(judgements: str, where: str = "true") -> str:
    """The statement that adds up judgements; `judgements` is a FROM clause, `where` a condition on `counted_at`, the time that counts.

    Most answers come within a day of their exchange. Only for the others are all exchanges searched.
    """
    return f"""
    WITH given AS MATERIALIZED (
        SELECT {_READ} FROM {judgements}
    ), near AS MATERIALIZED (
        SELECT {_HEARD}
        FROM {_FIRST} AS e
        JOIN (
            SELECT project, min(judged_at) - INTERVAL 1 DAY AS low, max(judged_at) + INTERVAL 1 DAY AS high FROM given GROUP BY project
        ) AS times
        ON e.project = times.project AND e.occurred_at >= low AND e.occurred_at <= high
        SEMI JOIN given AS a ON {_SUBJECT}
    ), elsewhere AS MATERIALIZED (
        SELECT * FROM given ANTI JOIN near {_SAME}
    ), far AS MATERIALIZED (
        SELECT {_HEARD} FROM {_FIRST} AS e SEMI JOIN elsewhere AS a ON {_SUBJECT}
    ), placed AS (
        SELECT *, true AS is_placed, occurred_at AS counted_at FROM given JOIN near {_SAME}
        UNION ALL
        SELECT *, occurred_at IS NOT NULL AS is_placed, coalesce(occurred_at, judged_at) AS counted_at
        FROM elsewhere LEFT JOIN far {_SAME}
    )
    SELECT
        project, date_trunc('day', judged_at) AS day, date_trunc('hour', counted_at) AS hour, "connection", session_id,
        requested_model AS model, is_placed, {_COST_SUMS}
    FROM placed
    WHERE {where}
    GROUP BY ALL"""


def exchanges_of(exchanges: str) -> str:
    """The statement that counts exchanges by day; `exchanges` is a FROM clause."""
    return f"""
    SELECT project, date_trunc('day', occurred_at) AS day, count(*) AS exchanges, max(occurred_at) AS last_at
    FROM {exchanges}
    GROUP BY ALL"""


def sessions_of(scores: str) -> str:
    """The statement that adds up scores by session and day; `scores` is a FROM clause.

    The rows must have all revisions of an exchange or none; the latest counts.
    """
    return f"""
    SELECT project, date_trunc('day', exchange_at) AS day, "connection", session_id, {_SESSION_SUMS}
    FROM (SELECT * FROM {scores} QUALIFY row_number() OVER (PARTITION BY project, score_id ORDER BY revision DESC, _offset DESC) = 1)
    GROUP BY ALL"""


def _rows_of(topic: str, time: str) -> str:
    return f"SELECT {time}::DATE, count(*) FROM {TABLES[topic]} WHERE {time} >= $first AND {time} < $end GROUP BY ALL"


def _on_days(topic: str, time: str) -> str:
    table = COUNTED[topic]
    return f"{table} WHERE {time} >= $first AND {time} < $end AND (project, date_trunc('day', {time})) IN ({_WANTED})"


def _forget_days(table: str, column: str, day: str) -> str:
    return f"DELETE FROM {table} WHERE {column} >= $first AND {column} < $end AND (project, {day}) IN ({_WANTED})"


def _made_again(table: str, sums: str, key: str) -> tuple[str, ...]:
    """The statements that recompute some days of a table, with rows in key order."""
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
        # Read the scores once. Rows are stored in key order, so that queries which add them as doubles always add in the same order.
        f"CREATE OR REPLACE TEMP TABLE added_up AS {current_of(_on_days('scores', 'exchange_at'))}",
        _forget_days("log.daily_scores", "day", "day"),
        _forget_days("log.hourly_scores", "hour", "date_trunc('day', hour)"),
        f"INSERT INTO log.daily_scores BY NAME SELECT {_PLACE}, * FROM ({days_of('added_up')}) ORDER BY {KEY}",
        f"INSERT INTO log.hourly_scores BY NAME SELECT {_PLACE}, * FROM ({hours_of('added_up')}) ORDER BY {HOUR_KEY}",
        "DROP TABLE added_up",
    ),
)
"""Sums of scores, by the day and the hour of their exchanges."""
OF_JUDGEMENTS = KeptSums(
    consumer=COST_SUMS,
    topics=("judgements", "exchanges"),
    rows=_rows_of("judgements", "judged_at"),
    tables={"SessionCosts": "day"},
    changed="log.changed_judgements()",
    replace=_made_again("log.session_costs", costs_of(_on_days("judgements", "judged_at")), COST_KEY),
    deleted={"Judgement": "judged_at"},
)
"""Sums of judgements, by session and day of the answer. They name sessions, so they are deleted with their judgements."""
OF_EXCHANGES = KeptSums(
    consumer=EXCHANGE_SUMS,
    topics=("exchanges",),
    rows=_rows_of("exchanges", "occurred_at"),
    tables={"DailyExchanges": "day"},
    changed="log.changed_exchanges()",
    replace=_made_again("log.daily_exchanges", exchanges_of(_on_days("exchanges", "occurred_at")), "project, day"),
    deleted={"Exchange": "occurred_at"},
)
"""Numbers of exchanges by day."""
OF_SESSIONS = KeptSums(
    consumer=SESSION_SUMS,
    topics=("scores",),
    rows=_rows_of("scores", "exchange_at"),
    tables={"SessionScores": "day"},
    changed="log.changed_sessions()",
    replace=_made_again("log.session_scores", sessions_of(_on_days("scores", "exchange_at")), SESSION_KEY),
    deleted={"Score": "exchange_at"},
)
"""Sums of scores, by session and day. They name sessions, so they are deleted with their scores."""
KEPT = (OF_SCORES, OF_JUDGEMENTS, OF_EXCHANGES, OF_SESSIONS)

_NEW = new_rows(COST_SUMS, "judgements")
CHANGED_JUDGEMENTS = f"""
    SELECT project, date_trunc('day', judged_at) AS day FROM {_NEW}
    UNION ALL
    SELECT k.project, k.day
    FROM {new_rows(COST_SUMS, "exchanges")} JOIN log.session_costs AS k ON {_WAITING}
    WHERE NOT k.is_placed"""
"""A row for each judgement not added up yet, and for each sum that waits for exchanges which have arrived since."""
COST_HOURS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_judgements() WHERE {ASKED} AND {_COSTS_SINCE}
        UNION
        SELECT project, day FROM log.session_costs WHERE {ASKED} AND {_COSTS_SINCE} AND {_CUT}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs ANTI JOIN single USING (project, day)
    WHERE {ASKED} AND {_COSTS_SINCE} AND hour >= first AND hour < until
    UNION ALL BY NAME
    SELECT * FROM ({costs_of(rows_on("single", "judgements", "judged_at"), "counted_at >= first AND counted_at < until")})"""
"""The sums of judgements whose exchanges happened from a moment on, until another; of a project, or of all."""

CHANGED_EXCHANGES = f"SELECT project, date_trunc('day', occurred_at) AS day FROM {new_rows(EXCHANGE_SUMS, 'exchanges')}"
"""A row for each exchange not counted yet."""
EXCHANGE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_exchanges() WHERE {ASKED}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges ANTI JOIN changed USING (project, day) WHERE {ASKED}
    UNION ALL BY NAME
    SELECT * FROM ({exchanges_of(rows_on("changed", "exchanges", "occurred_at"))})"""
"""The number of exchanges by day, of a project or of all."""

CHANGED_SESSIONS = f"SELECT project, date_trunc('day', exchange_at) AS day FROM {new_rows(SESSION_SUMS, 'scores')}"
"""A row for each score not yet added to its session's sums."""
# A day that the window's end cuts counts as whole while it has no scores after that end.
SESSION_DAYS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_sessions() WHERE {ASKED} AND {_SESSIONS_SINCE}
        UNION
        SELECT project, day FROM log.session_scores WHERE {ASKED} AND {_SESSIONS_SINCE} AND (first_at < first OR last_at >= until)
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_scores ANTI JOIN single USING (project, day)
    WHERE {ASKED} AND {_SESSIONS_SINCE}
    UNION ALL BY NAME
    SELECT * FROM ({sessions_of(rows_on("single", "scores", "exchange_at", "r.exchange_at >= first AND r.exchange_at < until"))})"""
"""The sums of the sessions that had exchanges from a moment on, until another, by day; of a project, or of all."""
