# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Kept sums: materialized sums of records by day, with their sources, their outdated days and their recomputation.

1. There are seven families: scores by UTC day and hour, scores by session and day, judgements by session and hour, exchanges by day,
   behaviour by hour, descriptions of tools by day, failures by day. Each has one definition, for kept sums and for sums computed on demand.
2. Billionths are added as integers, so sums depend neither on the order nor on the grouping of scores. A sum that may exceed 64 bits is
   stored as a rounded double; sums of these are added as integers again.
3. A judgement never changes, but the hour in which it counts can: that of its exchange, which on Kafka may arrive later, or that of the
   answer if there is no exchange. A row therefore records whether its exchanges were found (`is_placed`). Days are recomputed if
   judgements were added or deleted, or if new exchanges arrived for sessions with missing ones.
4. The FROM clause lets a scan start at the new rows of a topic, or at the first requested day.
5. The sums of a cold day, whose details are in the lake only, stay as they are: they are neither recomputed nor replaced by single records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from analytics.store.views import CURRENT_EXCHANGES
from analytics.sums.failures import IS_NOT_READY, RUN_AT, assign_groups, daily_failures_sql
from analytics.sums.failures import KEY as FAILURE_KEY
from audit.drift.watched_series import OTHER_TOOLS, SIZES, TOOL_ERRORS
from schemas.lazy import duckdb

Day = tuple[str, date]
"""A project and a UTC day."""
MAX_ROWS = 200_000
"""Maximum number of records of consecutive days that one statement adds up. For a small project, planning takes longer than adding months."""
_SELECTED_DAYS = "SELECT unnest($projects::VARCHAR[]), unnest($days::TIMESTAMP[])"
_NO_POSITION = "'' AS _topic, 0 AS _partition, 0 AS _offset"

SCORE_SUMS = "scores by day, hour, agent and stratum"
"""Consumer of the score sums. Rename it when the sums change, so that all days are recomputed."""
COST_SUMS = "judgements by session and hour"
"""Consumer of the judgement sums."""
EXCHANGE_SUMS = "exchanges by day"
"""Consumer of the exchange counts."""
SESSION_SUMS = "scores by session and day"
"""Consumer of the session sums."""
BEHAVIOUR_SUMS = "behaviour by hour"
"""Consumer of the sums of behaviour."""
DESCRIPTION_SUMS = "descriptions of tools by day"
"""Consumer of the descriptions of tools."""
FAILURE_SUMS = "failures by day"
"""Consumer of the failures. Rename it when failures are told apart differently, so that all days are recomputed."""
RETENTION = "retention"
"""Consumer whose watermarks are, by project, the start of its complete history in microseconds since 1970, UTC."""
COLD = "cold"
"""Consumer whose watermarks are, by project, the time before which details are in the lake only, in microseconds since 1970, UTC."""


def is_before_sql(consumers: Iterable[str], project: str, day: str) -> str:
    """Return the condition that a day is before a project's watermark of one of these consumers."""
    names = ", ".join(f"'{consumer}'" for consumer in consumers)
    return (
        f"EXISTS (SELECT 1 FROM log.watermarks AS marks WHERE marks.consumer IN ({names})"
        f" AND marks.topic = {project} AND epoch_us({day}) < marks.next_position)"
    )


def hot_days_sql(changed: str) -> str:
    """Return the rows of a query of projects and days without cold days, whose sums stay as they are."""
    return f"SELECT project, day FROM ({changed}) AS c WHERE NOT {is_before_sql([COLD], 'c.project', 'c.day')}"


TABLES = {
    "scores": "log.scores",
    "judgements": "log.judgements",
    "exchanges": "log.exchanges",
    "agent-events": "log.agent_events",
    "diagnoses": "log.diagnoses",
}
"""The table of each source topic."""
CURRENT_ROWS = TABLES | {"exchanges": CURRENT_EXCHANGES}
"""The current rows of each source topic. Scores include all revisions; their sums select the latest."""
PROJECT_MATCHES = "(in_project IS NULL OR project = in_project)"
"""Condition of macros for the project `in_project`, or for all projects if it is NULL."""

KEY = "project, day, agent, sampling_reason, disposition, simulated, weight"
"""The key columns of the daily sums."""
_UNIT_DIMENSIONS = (
    "agent",
    "methodology",
    "methodology_version",
    "methodology_digest",
    "rule_version",
    "judge_model",
    "simulated",
    "policy_digest",
)
HOUR_KEY = ", ".join(("project", "hour", "labels", *_UNIT_DIMENSIONS))
"""The key columns of the hourly sums."""
_UNIT_KEY = ", ".join(("project", "day", '"connection"', "session_id", *_UNIT_DIMENSIONS))
_SCORE_COLUMNS = {"tier1": "tier1_score", "tier2": "tier2_score", "tier2_5": "tier2_5_alignment", "tier3": "tier3_score"}
"""The score column of each tier."""
TIERS = tuple(_SCORE_COLUMNS)
TIER_SCORES = {
    tier: column if tier == "tier1" else f"CASE WHEN {tier}_state = 'scored' THEN {column} END"
    for tier, column in _SCORE_COLUMNS.items()
}
"""The score of each tier, as an expression over the columns of scores. Tier 1 scores every exchange, so it has no state."""
UNSURE = (
    "tier3_score BETWEEN 2.5 AND 3.5 OR tier2_score BETWEEN 0.4 AND 0.6 OR tier2_5_alignment BETWEEN 0.4 AND 0.6"
    " OR abs(tier2_score - (tier3_score - 1) / 4) >= 0.4 OR (tier2_flagged AND tier3_score >= 4)"
)
"""Whether the judge was unsure of a score: a tier is near the middle of its scale, or tiers contradict each other."""
_STRATUM = f"CASE WHEN tier3_score IS NOT NULL THEN CASE WHEN anomaly THEN 'anomaly' WHEN {UNSURE} THEN 'unsure' ELSE 'routine' END END"
_STRATA = {"rated_anomalies": "anomaly", "rated_unsure": "unsure", "rated_routine": "routine"}
"""The columns that count Tier 3 scores, by stratum."""
_MIN_PROBABILITY = 1e-4
"""Lowest sampling probability that a policy allows. A lower one in an imported record must not break the sums of all projects."""
_CURRENT_COLUMNS = (
    "project",
    "date_trunc('day', exchange_at) AS day",
    "coalesce(agent, '') AS agent",
    "sampling_reason",
    "disposition",
    "simulated",
    "1 / coalesce(sampling_probability, 1) AS weight",
    "anomaly",
    "round(cost_usd * 1e9)::BIGINT AS nano_usd",
    *(f"round(({score}) * 1e9)::BIGINT AS {tier}" for tier, score in TIER_SCORES.items()),
    '"connection"',
    "session_id",
    "exchange_at",
    "coalesce(judge_model, '') AS judge_model",
    "methodology",
    "methodology_version",
    "methodology_digest",
    "rule_version",
    "policy_digest",
    f"round(1e6 / greatest(coalesce(sampling_probability, 1), {_MIN_PROBABILITY}))::BIGINT AS micro_weight",
    f"{_STRATUM} AS rated",
    "CASE WHEN len(labels) > 0 THEN to_json(map_from_entries(labels))::VARCHAR ELSE '' END AS labels",
)
"""The columns of `current_scores_sql`."""
# The time of an exchange never changes. Partitioning by this number first cuts the sorting time by a third.
_LATEST = "QUALIFY row_number() OVER (PARTITION BY exchange_at, project, score_id ORDER BY revision DESC, _offset DESC) = 1"
_ROUNDED = "::DOUBLE::HUGEINT"


def _daily_tier_columns(tier: str) -> tuple[str, ...]:
    return (
        f"count({tier}) AS {tier}_count",
        f"coalesce(sum({tier}), 0)::BIGINT AS {tier}_sum",
        f"coalesce(sum({tier}::HUGEINT * {tier}), 0){_ROUNDED} AS {tier}_squares",
    )


_DAILY_COLUMNS = (
    "count(*) AS exchanges",
    "count(*) FILTER (anomaly) AS anomalies",
    *(column for tier in TIERS for column in _daily_tier_columns(tier)),
    "coalesce(sum(nano_usd), 0)::BIGINT AS nano_usd",
    "count(*) - count(nano_usd) AS unknown_costs",
    *(f"count(*) FILTER (rated = '{stratum}') AS {column}" for column, stratum in _STRATA.items()),
)
"""The sums of a day's scores."""


def _unit_tier_columns(tier: str) -> tuple[str, ...]:
    # The weight of a score in millionths of an exchange. It is one exchange for Tier 1, which scores every exchange.
    weight = "1000000" if tier == "tier1" else "micro_weight"
    return (
        f"count({tier}) AS {tier}_count",
        f"sum({tier}) AS {tier}_sum",
        f"sum({tier}::HUGEINT * {tier}) AS {tier}_squares",
        f"(sum({weight}) FILTER ({tier} IS NOT NULL))::HUGEINT AS {tier}_weight",
        f"round(sum({weight}::HUGEINT * {tier}) / 1e6)::HUGEINT AS {tier}_total",
    )


_UNIT_COLUMNS = (
    "max(exchange_at) AS last_at",
    # A session is one unit, even if labels differ from turn to turn: its turns are not independent.
    "arg_max(labels, (exchange_at, labels)) AS labels",
    "count(*) AS exchanges",
    "count(*) FILTER (anomaly) AS anomalies",
    *(column for tier in TIERS for column in _unit_tier_columns(tier)),
)
"""The sums of a unit's scores; see `hourly_sums_sql`."""


class _HourSum(NamedTuple):
    """A sum over the units of an hour, one per tier."""

    name: str
    expression: str
    """Where `{tier}` stands for the tier."""
    cast: str
    scale: float
    """Divisor that converts the sum to the scale of scores and weights."""

    def column(self, tier: str) -> str:
        return f"coalesce({self.expression.format(tier=tier)}, 0){self.cast} AS {tier}_{self.name}"


_HOUR_SUMS = (
    _HourSum("count", "sum({tier}_count)", "::BIGINT", 1),
    _HourSum("sum", "sum({tier}_sum)", "::BIGINT", 1e9),
    _HourSum("squares", "sum({tier}_squares)", _ROUNDED, 1e18),
    _HourSum("units", "count({tier}_weight)", "", 1),
    _HourSum("weight", "sum({tier}_weight)", _ROUNDED, 1e6),
    _HourSum("total", "sum({tier}_total)", _ROUNDED, 1e9),
    _HourSum("unit_squares", "sum({tier}_weight * {tier}_weight)", _ROUNDED, 1e12),
    _HourSum("unit_mixed", "sum({tier}_weight * {tier}_total)", _ROUNDED, 1e15),
    _HourSum("unit_totals", "sum({tier}_total * {tier}_total)", _ROUNDED, 1e18),
)


def _hourly_tier_columns(tier: str) -> tuple[str, ...]:
    return (
        *(hour_sum.column(tier) for hour_sum in _HOUR_SUMS),
        f"min({tier}_total / {tier}_weight) / 1e3 AS {tier}_low",
        f"max({tier}_total / {tier}_weight) / 1e3 AS {tier}_high",
    )


_HOURLY_COLUMNS = (
    "max(last_at) AS last_at",
    "sum(exchanges)::BIGINT AS exchanges",
    "sum(anomalies)::BIGINT AS anomalies",
    *(column for tier in TIERS for column in _hourly_tier_columns(tier)),
)
"""The sums of an hour's units."""
EXACT_DAY_COLUMNS = ", ".join(f"{tier}_squares::HUGEINT AS {tier}_squares" for tier in TIERS)
"""Columns of kept daily sums to add as integers."""
EXACT_HOUR_COLUMNS = ", ".join(
    f"{tier}_{hour_sum.name}::HUGEINT AS {tier}_{hour_sum.name}"
    for tier in TIERS
    for hour_sum in _HOUR_SUMS
    if hour_sum.cast == _ROUNDED
)
"""Columns of kept hourly sums to add as integers."""
HOUR_SCALES = {f"{tier}_{hour_sum.name}": hour_sum.scale for tier in TIERS for hour_sum in _HOUR_SUMS if hour_sum.scale != 1}
"""Divisors that convert columns of kept hourly sums to the scale of scores and weights."""

COST_KEY = 'project, day, hour, "connection", session_id, model, is_placed'
"""The key columns of the judgement sums."""
_TOKENS = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
_JUDGEMENT_COLUMNS = f'project, "connection", session_id, subject_id, requested_model, attempts, {", ".join(_TOKENS)}, cost_usd, simulated, judged_at'
_COST_COLUMNS = (
    "max(agent) AS agent",
    "count(*) AS judgements",
    "coalesce(sum(attempts), 0)::BIGINT AS calls",
    *(f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in _TOKENS),
    "coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd",
    "count(*) FILTER (cost_usd IS NULL) AS unknown_costs",
    "count(*) FILTER (simulated) AS simulated",
)
_FIRST_REVISIONS = "(SELECT * FROM log.exchanges WHERE revision = 0)"
"""First revisions of exchanges. No revision changes the time, and judging a withdrawn exchange costs money too."""
_SAME_EXCHANGE = 'e.project = a.project AND e."connection" = a."connection" AND e.exchange_id = a.subject_id'
_EXCHANGE_COLUMNS = 'e.project, e."connection", e.exchange_id AS subject_id, e.occurred_at, e.agent'
_USING_SUBJECT = 'USING (project, "connection", subject_id)'
_SAME_SESSION = 'k.project = r.project AND k."connection" = r."connection" AND k.session_id = r.session_id'
# No answer precedes its exchange. Hours that the period cuts are computed from single judgements.
_COSTS_SINCE = "day >= date_trunc('day', first)"
_IS_CUT_HOUR = "(hour > first - INTERVAL 1 HOUR AND hour < first OR hour > until - INTERVAL 1 HOUR AND hour < until)"
KEPT_COST_HOURS = f"""
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs
    WHERE {PROJECT_MATCHES} AND {_COSTS_SINCE} AND hour >= first AND hour < until"""
"""`COST_HOURS` for periods of complete hours without new records."""
KEPT_EXCHANGE_DAYS = f"SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges WHERE {PROJECT_MATCHES}"
"""`EXCHANGE_DAYS` for days without new records."""

SESSION_KEY = 'project, day, "connection", session_id'
"""The key columns of the session sums."""


def _session_tier_columns(tier: str, score: str) -> tuple[str, ...]:
    return (
        f"count({score}) AS {tier}_count",
        f"coalesce(sum(round({score} * 1e9)::BIGINT), 0)::BIGINT AS {tier}_sum",
    )


_SESSION_COLUMNS = (
    "max(agent) AS agent",
    "min(exchange_at) AS first_at",
    "max(exchange_at) AS last_at",
    "count(*) AS exchanges",
    "count(*) FILTER (anomaly) AS anomalies",
    "count(*) FILTER (simulated) AS simulated",
    *(column for tier, score in _SCORE_COLUMNS.items() for column in _session_tier_columns(tier, score)),
    "coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd",
    "count(*) FILTER (cost_usd IS NULL) AS unknown_costs",
)
_SESSIONS_SINCE = "day >= date_trunc('day', first) AND day < until"

BEHAVIOUR_KEY = "project, hour, agent, version, series"
"""The key columns of the sums of behaviour."""
_MAX_TOOLS = 50
"""Tools of an agent and day with sums of their own: those with most calls. A source may invent a name per call."""
# Stop reasons by which a model or its guard refuses to answer.
_IS_REFUSAL = "lower(stop_reason) IN ('refusal', 'content_filter', 'content_filtered', 'guardrail_intervened', 'safety', 'prohibited_content')"
_CALLS = "len(tool_calls) + coalesce(omitted_tool_calls, 0)"
# Arguments that the source does not record cannot be compared.
_HAS_REPEAT = "len(list_distinct([(c.name, c.arguments) FOR c IN tool_calls IF c.arguments IS NOT NULL])) < len([c FOR c IN tool_calls IF c.arguments IS NOT NULL])"
_SHARES = {
    "failed": ("true", "outcome = 'error'"),
    "empty": ("true", "outcome = 'no_response'"),
    "abandoned": ("true", "outcome = 'aborted' OR list_contains(tags, 'abandoned')"),
    "refusals": ("stop_reason IS NOT NULL", _IS_REFUSAL),
    "repeats": (f"{_CALLS} > 0", _HAS_REPEAT),
}
"""The shares of turns: which turns count, and which of them have the property."""
_SIZES = {size: _CALLS if size == "tool_calls" else size for size in SIZES}
"""The sizes of turns. Sizes span orders of magnitude, so their logarithms are added: a change is a factor."""
_IS_DESCRIBED = "event = 'tool_definitions'"
_DESCRIPTION_KEY = "project, day, agent, tool, description"
_MAX_DESCRIPTIONS = 500
"""Descriptions of an agent and day that are kept: those of most sessions. A source may invent a tool per call."""


@dataclass(frozen=True, eq=False)
class KeptSums:
    """A family of sums by day, recomputed for complete days.

    `changed` is a query with one row (`project`, `day`) per new record or other change that outdates a day. `replacement` holds the
    statements that recompute the days `$projects` and `$days`, all between `$first` and `$end`.
    """

    consumer: str
    """The consumer of their watermarks."""
    topics: tuple[str, ...]
    """The source topics."""
    row_counts: str
    """The statement that returns the number of records of each day between `$first` and `$end`."""
    tables: dict[str, str]
    """The record types of the sums, each with the SQL expression of a row's day."""
    changed: str
    replacement: tuple[str, ...]
    deleted: dict[str, str] = field(default_factory=dict)
    """The record types whose deletion recomputes the days immediately, with their time column. Other sums outlive deleted records."""
    outlived: dict[str, str] = field(default_factory=dict)
    """The record types whose deletion recomputes only days that retention has not reached, with their time column."""
    finish: Callable[[duckdb.DuckDBPyConnection, Sequence[str]], None] | None = None
    """Completes the sums of the projects whose days were recomputed."""

    @property
    def ends(self) -> str:
        """The statement that returns topic, partition and end of each partition with new records."""
        return " UNION ALL ".join(
            f"SELECT '{topic}', r._partition, max(r._offset) + 1 FROM {new_rows_sql(self.consumer, topic)} GROUP BY r._partition"
            for topic in self.topics
        )

    def recompute(self, connection: duckdb.DuckDBPyConnection, days: Iterable[Day]) -> None:
        """Recompute the sums of these days in the caller's transaction. A day without records has no sums."""
        ordered = sorted(days, key=itemgetter(1, 0))
        if not ordered:
            return
        sizes = dict(connection.execute(self.row_counts, _day_bounds(ordered)).fetchall())
        for batch in _split_consecutive(ordered, sizes):
            parameters = _day_bounds(batch) | {
                "projects": [project for project, _ in batch],
                "days": [_midnight(day) for _, day in batch],
            }
            for statement in self.replacement:
                used = {name: value for name, value in parameters.items() if f"${name}" in statement}
                connection.execute(statement, used)
        if self.finish is not None:
            self.finish(connection, sorted({project for project, _ in ordered}))


def new_rows_sql(consumer: str, topic: str) -> str:
    """Return a FROM clause with the rows of a topic that `consumer` has not read, as `r`."""
    return f"{TABLES[topic]} AS r JOIN {watermarks_sql(consumer, topic)} AS m ON r._partition = m.partition AND r._offset >= m.next_position"


def watermarks_sql(consumer: str, topic: str) -> str:
    """Return a FROM clause with `consumer`'s watermarks in a topic: `partition` and `next_position` of every partition.

    An inner join with it makes the scan read only new rows, so a partition without a watermark gets position 0. DuckDB knows the
    largest partition number, and thus all partitions, without reading rows.
    """
    return f"""(
    SELECT p.partition, coalesce(w.next_position, 0) AS next_position
    FROM (SELECT unnest(range((SELECT max(_partition) + 1 FROM {TABLES[topic]})))::INTEGER AS partition) AS p
    LEFT JOIN log.watermarks AS w ON p.partition = w.partition AND w.consumer = '{consumer}' AND w.topic = '{topic}'
)"""


def _day_bounds(days: Sequence[Day]) -> dict[str, Any]:
    """Return the start of the first and the end of the last of these ordered days."""
    return {"first": _midnight(days[0][1]), "end": _midnight(days[-1][1] + timedelta(days=1))}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _split_consecutive(days: Iterable[Day], sizes: Mapping[date, int]) -> Iterator[Sequence[Day]]:
    """Yield batches of consecutive days with at most MAX_ROWS records, or of one day. `sizes` are the numbers of records per day."""
    batch: list[Day] = []
    rows = 0
    for day, project_days in groupby(days, key=itemgetter(1)):
        day_rows = sizes.get(day, 0)
        follows_a_gap = bool(batch) and day > batch[-1][1] + timedelta(days=1)
        if batch and (follows_a_gap or rows + day_rows > MAX_ROWS):
            yield batch
            batch = []
            rows = 0
        batch += project_days
        rows += day_rows
    if batch:
        yield batch


def rows_on_days_sql(days: str, topic: str, time: str, where: str = "true") -> str:
    """Return a FROM clause with the rows of a topic whose `time` falls on the given days (relation of `project` and `day`).

    The days are mostly a project's last ones, and the inner join lets the scan start there.
    """
    return f"""(
        SELECT r.*
        FROM {CURRENT_ROWS[topic]} AS r
        JOIN (SELECT project, min(day) AS first_day, max(day) + INTERVAL 1 DAY AS end_day FROM {days} GROUP BY project) AS bounds
        ON r.project = bounds.project AND r.{time} >= bounds.first_day AND r.{time} < bounds.end_day
        SEMI JOIN {days} AS d ON r.project = d.project AND date_trunc('day', r.{time}) = d.day
        WHERE {where}
    )"""


def lag_sql(consumer: str, topic: str) -> tuple[str, str]:
    """Return two statements, of which at least one returns true if `consumer` has not read a topic to its end.

    Together they take a third of the time of listing the new rows.
    """
    marked = f"(SELECT partition, next_position FROM log.watermarks WHERE consumer = '{consumer}' AND topic = '{topic}')"
    return (
        f"SELECT (SELECT max(_partition) + 1 FROM {TABLES[topic]}) > (SELECT count(*) FROM {marked})",
        f"SELECT count(*) > 0 FROM {TABLES[topic]} AS s JOIN {marked} AS m ON s._partition = m.partition AND s._offset >= m.next_position",
    )


def current_scores_sql(scores: str) -> str:
    """Return the statement that selects the latest revisions of scores with the columns to add up; `scores` is a FROM clause.

    The rows must include all revisions of an exchange or none.
    """
    return f"SELECT {', '.join(_CURRENT_COLUMNS)} FROM {scores} {_LATEST}"


def daily_sums_sql(current: str) -> str:
    """Return the statement that sums rows of `current_scores_sql` by day; `current` is a FROM clause."""
    return f"SELECT {KEY}, {', '.join(_DAILY_COLUMNS)} FROM {current} GROUP BY {KEY}"


def hourly_sums_sql(current: str) -> str:
    """Return the statement that sums rows of `current_scores_sql` by hour; `current` is a FROM clause.

    The scores of a session on one day with the same agent, methodology, rules, judge and policy form one unit, which counts in the hour and under the labels of
    its last exchange.
    """
    units = f"SELECT {_UNIT_KEY}, {', '.join(_UNIT_COLUMNS)} FROM {current} GROUP BY {_UNIT_KEY}"
    units_by_hour = f"SELECT *, date_trunc('hour', last_at) AS hour FROM ({units})"
    return f"SELECT {HOUR_KEY}, {', '.join(_HOURLY_COLUMNS)} FROM ({units_by_hour}) GROUP BY {HOUR_KEY}"


def cost_sums_sql(judgements: str, where: str = "true") -> str:
    """Return the statement that sums judgements; `judgements` is a FROM clause, `where` a condition on the counted time `counted_at`.

    Most answers come within a day of their exchange. All exchanges are searched only for the others.
    """
    return f"""
    WITH judged AS MATERIALIZED (
        SELECT {_JUDGEMENT_COLUMNS} FROM {judgements}
    ), near AS MATERIALIZED (
        SELECT {_EXCHANGE_COLUMNS}
        FROM {_FIRST_REVISIONS} AS e
        JOIN (
            SELECT project, min(judged_at) - INTERVAL 1 DAY AS low, max(judged_at) + INTERVAL 1 DAY AS high FROM judged GROUP BY project
        ) AS times
        ON e.project = times.project AND e.occurred_at >= low AND e.occurred_at <= high
        SEMI JOIN judged AS a ON {_SAME_EXCHANGE}
    ), unmatched AS MATERIALIZED (
        SELECT * FROM judged ANTI JOIN near {_USING_SUBJECT}
    ), far AS MATERIALIZED (
        SELECT {_EXCHANGE_COLUMNS} FROM {_FIRST_REVISIONS} AS e SEMI JOIN unmatched AS a ON {_SAME_EXCHANGE}
    ), counted AS (
        SELECT *, true AS is_placed, occurred_at AS counted_at FROM judged JOIN near {_USING_SUBJECT}
        UNION ALL
        SELECT *, occurred_at IS NOT NULL AS is_placed, coalesce(occurred_at, judged_at) AS counted_at
        FROM unmatched LEFT JOIN far {_USING_SUBJECT}
    )
    SELECT
        project, date_trunc('day', judged_at) AS day, date_trunc('hour', counted_at) AS hour, "connection", session_id,
        requested_model AS model, is_placed, {", ".join(_COST_COLUMNS)}
    FROM counted
    WHERE {where}
    GROUP BY ALL"""


def exchange_counts_sql(exchanges: str) -> str:
    """Return the statement that counts exchanges by day; `exchanges` is a FROM clause."""
    return f"""
    SELECT project, date_trunc('day', occurred_at) AS day, count(*) AS exchanges, max(occurred_at) AS last_at
    FROM {exchanges}
    GROUP BY ALL"""


def session_sums_sql(scores: str) -> str:
    """Return the statement that sums the latest revisions of scores by session and day; `scores` is a FROM clause.

    The rows must include all revisions of an exchange or none.
    """
    return f"""
    SELECT project, date_trunc('day', exchange_at) AS day, "connection", session_id, {", ".join(_SESSION_COLUMNS)}
    FROM (SELECT * FROM {scores} QUALIFY row_number() OVER (PARTITION BY project, score_id ORDER BY revision DESC, _offset DESC) = 1)
    GROUP BY ALL"""


def behaviour_units_sql(exchanges: str) -> str:
    """Return the statement that sums current exchanges by session, UTC day and series; `exchanges` is a FROM clause.

    Totals are in billionths. Calls of turns that omit some are left out of the shares of tools, because the calls that failed are kept.
    """
    key = 'project, day, agent, version, "connection", session_id'
    sums = [
        f"count(*) FILTER ({counts}) AS {name}_weight, 1000000000 * count(*) FILTER (({counts}) AND ({has})) AS {name}_total"
        for name, (counts, has) in _SHARES.items()
    ] + [
        f"count({size}) AS {name}_weight, sum(round(ln(1 + {size}) * 1e9)::BIGINT) AS {name}_total"
        for name, size in _SIZES.items()
    ]
    measures = ", ".join(
        f"{{'series': '{name}', 'weight': {name}_weight, 'total': {name}_total::BIGINT}}" for name in (*_SHARES, *_SIZES)
    )
    return f"""
    WITH turns AS MATERIALIZED (
        SELECT
            project, date_trunc('day', occurred_at) AS day, coalesce(agent, '') AS agent,
            coalesce(list_extract([l.value FOR l IN labels IF l.name = 'agent_version'], 1), '') AS version, "connection", session_id,
            occurred_at, outcome, tags, stop_reason, input_tokens, output_tokens, omitted_tool_calls, coalesce(tool_calls, []) AS tool_calls
        FROM {exchanges}
    ), sessions AS (
        SELECT {key}, max(occurred_at) AS last_at, {", ".join(sums)} FROM turns GROUP BY {key}
    ), tools AS (
        SELECT {key}, call.name AS tool, max(occurred_at) AS last_at, count(*) AS weight, count(*) FILTER (call.outcome = 'error') AS errors
        FROM (SELECT * EXCLUDE (tool_calls), unnest(tool_calls) AS call FROM turns WHERE coalesce(omitted_tool_calls, 0) = 0)
        GROUP BY ALL
    ), ranked AS (
        SELECT project, day, agent, tool
        FROM tools
        GROUP BY project, day, agent, tool
        QUALIFY row_number() OVER (PARTITION BY project, day, agent ORDER BY sum(weight) DESC, tool) <= {_MAX_TOOLS}
    )
    SELECT {key}, last_at, measure.series AS series, measure.weight AS weight, measure.total AS total
    FROM (SELECT {key}, last_at, unnest([{measures}]) AS measure FROM sessions)
    WHERE measure.weight > 0
    UNION ALL
    SELECT
        {", ".join(f"t.{name}" for name in key.split(", "))}, max(last_at), '{TOOL_ERRORS}' || coalesce(r.tool, '{OTHER_TOOLS}') AS series,
        sum(weight)::BIGINT, sum(errors)::BIGINT * 1000000000
    FROM tools AS t
    LEFT JOIN ranked AS r USING (project, day, agent, tool)
    GROUP BY ALL"""


def behaviour_sums_sql(exchanges: str) -> str:
    """Return the statement that sums the behaviour of current exchanges by hour; `exchanges` is a FROM clause.

    The turns of a session on one day form one unit, which counts in the hour of its last exchange.
    """
    return f"""
    SELECT
        project, date_trunc('hour', last_at) AS hour, agent, version, series, max(last_at) AS last_at, count(*) AS units,
        sum(weight)::BIGINT AS weight, sum(total)::BIGINT AS total, sum(weight * weight)::BIGINT AS squares,
        sum(weight::HUGEINT * total)::DOUBLE AS mixed, sum(total::HUGEINT * total)::DOUBLE AS totals,
        min(total / weight) / 1e9 AS low, max(total / weight) / 1e9 AS high
    FROM ({behaviour_units_sql(exchanges)})
    GROUP BY ALL"""


def tool_descriptions_sql(events: str) -> str:
    """Return the statement that lists the descriptions of tools by day; `events` is a FROM clause with a WHERE clause.

    Traces have digests of descriptions in place of their texts, with spaces that do not count (`streams.sources.otlp.reading`).
    """
    text = "definition.value ->> '$'"
    return f"""
    WITH described AS (
        SELECT
            project, date_trunc('day', occurred_at) AS day, coalesce(e.payload ->> '$.agent', agent, '') AS agent, definition.key AS tool,
            CASE WHEN source = 'otlp' THEN {text} ELSE left(sha256(trim(regexp_replace({text}, '[[:space:]]+', ' ', 'g'))), 16) END AS description,
            occurred_at, "connection", session_id
        FROM (FROM {events} AND {_IS_DESCRIBED}) AS e, json_each(e.payload, '$.tools') AS definition
        WHERE json_type(e.payload, '$.tools') = 'OBJECT' AND definition.type = 'VARCHAR'
    )
    SELECT
        {_DESCRIPTION_KEY}, count(DISTINCT ("connection", session_id)) AS sessions, min(occurred_at) AS first_at, max(occurred_at) AS last_at,
        unnest(arg_min({{'connection': "connection", 'session_id': session_id}}, (occurred_at, "connection", session_id)))
    FROM described
    GROUP BY {_DESCRIPTION_KEY}
    QUALIFY row_number() OVER (PARTITION BY project, day, agent ORDER BY sessions DESC, tool, description) <= {_MAX_DESCRIPTIONS}"""


def _in_brackets(query: str) -> str:
    return f"({query})"


def _count_rows_sql(topic: str, time: str) -> str:
    return f"SELECT {time}::DATE, count(*) FROM {TABLES[topic]} WHERE {time} >= $first AND {time} < $end GROUP BY ALL"


def _select_days_sql(topic: str, time: str) -> str:
    table = CURRENT_ROWS[topic]
    return f"{table} WHERE {time} >= $first AND {time} < $end AND (project, date_trunc('day', {time})) IN ({_SELECTED_DAYS})"


def _delete_days_sql(table: str, column: str, day: str) -> str:
    return f"DELETE FROM {table} WHERE {column} >= $first AND {column} < $end AND (project, {day}) IN ({_SELECTED_DAYS})"


def _recompute_sql(table: str, sums: str, key: str) -> tuple[str, ...]:
    """Return the statements that recompute days of a table, with rows in key order."""
    return (
        _delete_days_sql(table, "day", "day"),
        f"INSERT INTO {table} BY NAME SELECT {_NO_POSITION}, * FROM ({sums}) ORDER BY {key}",
    )


SCORES_BY_DAY = KeptSums(
    consumer=SCORE_SUMS,
    topics=("scores",),
    row_counts=_count_rows_sql("scores", "exchange_at"),
    tables={"DailyScores": "day", "HourlyScores": "date_trunc('day', hour)"},
    changed="log.changed_scores()",
    replacement=(
        # Read the scores only once. Store rows in key order, so that queries always add doubles in the same order.
        f"CREATE OR REPLACE TEMP TABLE added_up AS {current_scores_sql(_select_days_sql('scores', 'exchange_at'))}",
        _delete_days_sql("log.daily_scores", "day", "day"),
        _delete_days_sql("log.hourly_scores", "hour", "date_trunc('day', hour)"),
        f"INSERT INTO log.daily_scores BY NAME SELECT {_NO_POSITION}, * FROM ({daily_sums_sql('added_up')}) ORDER BY {KEY}",
        f"INSERT INTO log.hourly_scores BY NAME SELECT {_NO_POSITION}, * FROM ({hourly_sums_sql('added_up')}) ORDER BY {HOUR_KEY}",
        "DROP TABLE added_up",
    ),
)
"""Sums of scores, by the day and the hour of their exchanges."""
COSTS_BY_SESSION = KeptSums(
    consumer=COST_SUMS,
    topics=("judgements", "exchanges"),
    row_counts=_count_rows_sql("judgements", "judged_at"),
    tables={"SessionCosts": "day"},
    changed="log.changed_judgements()",
    replacement=_recompute_sql("log.session_costs", cost_sums_sql(_select_days_sql("judgements", "judged_at")), COST_KEY),
    deleted={"Judgement": "judged_at"},
)
"""Sums of judgements by session and day of the answer. They name sessions, so they are deleted with their judgements."""
EXCHANGES_BY_DAY = KeptSums(
    consumer=EXCHANGE_SUMS,
    topics=("exchanges",),
    row_counts=_count_rows_sql("exchanges", "occurred_at"),
    tables={"DailyExchanges": "day"},
    changed="log.changed_exchanges()",
    replacement=_recompute_sql(
        "log.daily_exchanges", exchange_counts_sql(_select_days_sql("exchanges", "occurred_at")), "project, day"
    ),
    deleted={"Exchange": "occurred_at"},
)
"""Numbers of exchanges by day."""
SCORES_BY_SESSION = KeptSums(
    consumer=SESSION_SUMS,
    topics=("scores",),
    row_counts=_count_rows_sql("scores", "exchange_at"),
    tables={"SessionScores": "day"},
    changed="log.changed_sessions()",
    replacement=_recompute_sql("log.session_scores", session_sums_sql(_select_days_sql("scores", "exchange_at")), SESSION_KEY),
    deleted={"Score": "exchange_at"},
)
"""Sums of scores, by session and day. They name sessions, so they are deleted with their scores."""
# The sums of a day whose records are gone stay unchanged, even if late records arrive.
_CHANGED_BEHAVIOUR = f"""(
    SELECT project, date_trunc('day', occurred_at) AS day
    FROM {new_rows_sql(BEHAVIOUR_SUMS, "exchanges")}
    WHERE NOT {is_before_sql([RETENTION, COLD], "project", "date_trunc('day', occurred_at)")}
)"""
_BEHAVIOUR_OF_DAYS = behaviour_sums_sql(_select_days_sql("exchanges", "occurred_at"))
BEHAVIOUR_BY_HOUR = KeptSums(
    consumer=BEHAVIOUR_SUMS,
    topics=("exchanges",),
    row_counts=_count_rows_sql("exchanges", "occurred_at"),
    tables={"HourlyBehaviour": "date_trunc('day', hour)"},
    changed=_CHANGED_BEHAVIOUR,
    replacement=(
        _delete_days_sql("log.hourly_behaviour", "hour", "date_trunc('day', hour)"),
        f"INSERT INTO log.hourly_behaviour BY NAME SELECT {_NO_POSITION}, * FROM ({_BEHAVIOUR_OF_DAYS}) ORDER BY {BEHAVIOUR_KEY}",
    ),
    outlived={"Exchange": "occurred_at"},
)
"""Sums of the behaviour of agents, by the hour of their exchanges."""
DESCRIPTIONS_BY_DAY = KeptSums(
    consumer=DESCRIPTION_SUMS,
    topics=("agent-events",),
    row_counts=_count_rows_sql("agent-events", "occurred_at"),
    tables={"ToolDescription": "day"},
    changed=_in_brackets(
        hot_days_sql(f"""
            SELECT project, date_trunc('day', occurred_at) AS day
            FROM {new_rows_sql(DESCRIPTION_SUMS, "agent-events")}
            WHERE {_IS_DESCRIBED}""")
    ),
    replacement=_recompute_sql(
        "log.tool_descriptions", tool_descriptions_sql(_select_days_sql("agent-events", "occurred_at")), _DESCRIPTION_KEY
    ),
    deleted={"AgentEvent": "occurred_at"},
)
"""The descriptions of tools that agents were sent. They name sessions, so they are deleted with their events."""
_DAY_OF_RUN = f"date_trunc('day', {RUN_AT})"
_SAME_RUN = 'd."connection" = r."connection" AND d.session_id = r.session_id'
FAILURES_BY_DAY = KeptSums(
    consumer=FAILURE_SUMS,
    topics=("scores", "exchanges", "diagnoses"),
    row_counts=_count_rows_sql("scores", "exchange_at"),
    tables={"DailyFailure": "day"},
    # A later revision may end a failure, and a later diagnosis may move the run to another day.
    changed=_in_brackets(
        hot_days_sql(f"""
        SELECT project, date_trunc('day', exchange_at) AS day
        FROM {new_rows_sql(FAILURE_SUMS, "scores")}
        WHERE anomaly OR revision > 0
        UNION ALL
        SELECT project, date_trunc('day', occurred_at)
        FROM {new_rows_sql(FAILURE_SUMS, "exchanges")}
        WHERE revision > 0 OR list_contains([c.outcome FOR c IN tool_calls], 'error')
        UNION ALL
        SELECT project, {_DAY_OF_RUN} FROM {new_rows_sql(FAILURE_SUMS, "diagnoses")} WHERE {IS_NOT_READY} OR revision > 0
        UNION ALL
        SELECT d.project, date_trunc('day', coalesce(d.ended_at, d.closed_at))
        FROM {new_rows_sql(FAILURE_SUMS, "diagnoses")} JOIN log.diagnoses AS d ON {_SAME_RUN}
        WHERE r.revision > 0 AND d.revision < r.revision""")
    ),
    replacement=_recompute_sql(
        "log.daily_failures",
        daily_failures_sql(
            _select_days_sql("scores", "exchange_at"),
            f"log.diagnoses WHERE {RUN_AT} >= $first AND {RUN_AT} < $end AND (project, {_DAY_OF_RUN}) IN ({_SELECTED_DAYS})",
        ),
        FAILURE_KEY,
    ),
    deleted={"Score": "exchange_at", "Exchange": "occurred_at", "Diagnosis": RUN_AT, "AgentEvent": "occurred_at"},
    finish=assign_groups,
)
"""The failures of runs and exchanges. They name sessions and have words of their errors, so they are deleted with their records."""
ALL_SUMS = (
    SCORES_BY_DAY,
    COSTS_BY_SESSION,
    EXCHANGES_BY_DAY,
    SCORES_BY_SESSION,
    BEHAVIOUR_BY_HOUR,
    DESCRIPTIONS_BY_DAY,
    FAILURES_BY_DAY,
)

_NEW_JUDGEMENTS = new_rows_sql(COST_SUMS, "judgements")
CHANGED_JUDGEMENTS = hot_days_sql(f"""
    SELECT project, date_trunc('day', judged_at) AS day FROM {_NEW_JUDGEMENTS}
    UNION ALL
    SELECT k.project, k.day
    FROM {new_rows_sql(COST_SUMS, "exchanges")} JOIN log.session_costs AS k ON {_SAME_SESSION}
    WHERE NOT k.is_placed""")
"""One row per new judgement, and per sum with missing exchanges whose session has new ones."""
COST_HOURS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_judgements() WHERE {PROJECT_MATCHES} AND {_COSTS_SINCE}
        UNION
        {hot_days_sql(f"SELECT project, day FROM log.session_costs WHERE {PROJECT_MATCHES} AND {_COSTS_SINCE} AND {_IS_CUT_HOUR}")}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs ANTI JOIN single USING (project, day)
    WHERE {PROJECT_MATCHES} AND {_COSTS_SINCE} AND hour >= first AND hour < until
    UNION ALL BY NAME
    SELECT * FROM ({cost_sums_sql(rows_on_days_sql("single", "judgements", "judged_at"), "counted_at >= first AND counted_at < until")})"""
"""Sums of the judgements of exchanges in a period, for one project or all."""

CHANGED_EXCHANGES = hot_days_sql(
    f"SELECT project, date_trunc('day', occurred_at) AS day FROM {new_rows_sql(EXCHANGE_SUMS, 'exchanges')}"
)
"""One row per new exchange."""
EXCHANGE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_exchanges() WHERE {PROJECT_MATCHES}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges ANTI JOIN changed USING (project, day) WHERE {PROJECT_MATCHES}
    UNION ALL BY NAME
    SELECT * FROM ({exchange_counts_sql(rows_on_days_sql("changed", "exchanges", "occurred_at"))})"""
"""Number of exchanges by day, for one project or all."""

CHANGED_SESSIONS = hot_days_sql(
    f"SELECT project, date_trunc('day', exchange_at) AS day FROM {new_rows_sql(SESSION_SUMS, 'scores')}"
)
"""One row per new score."""
# A day that the end of the period cuts is read from the sums if it has no scores after that end. A session's sums of a cold day count if
# the session overlaps the period.
SESSION_DAYS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_sessions() WHERE {PROJECT_MATCHES} AND {_SESSIONS_SINCE}
        UNION
        {hot_days_sql(f"SELECT project, day FROM log.session_scores WHERE {PROJECT_MATCHES} AND {_SESSIONS_SINCE} AND (first_at < first OR last_at >= until)")}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_scores ANTI JOIN single USING (project, day)
    WHERE {PROJECT_MATCHES} AND {_SESSIONS_SINCE} AND last_at >= first AND first_at < until
    UNION ALL BY NAME
    SELECT * FROM ({session_sums_sql(rows_on_days_sql("single", "scores", "exchange_at", "r.exchange_at >= first AND r.exchange_at < until"))})"""
"""Sums of the sessions with exchanges in a period, by day, for one project or all."""
