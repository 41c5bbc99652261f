# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Sums of judgements by session and hour: one definition for kept sums and for those added up on request.

A judgement never changes, but for where it counts: by the time of its exchange, which on Kafka may come after it, or by its own where
there is none. So a row says whether the exchanges were there, and the days of answers are what is made again: those to which judgements
came or from which some were deleted, and those that wait for exchanges of a session to which some came.
"""

from __future__ import annotations

from analytics.sums.marks import ASKED, COST_SUMS, new_rows, rows_on

COST_KEY = 'project, day, hour, "connection", session_id, model, is_placed'
"""The columns that tell the rows of the sums of judgements apart."""
_TOKENS = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
_READ = f'project, "connection", session_id, subject_id, requested_model, attempts, {", ".join(_TOKENS)}, cost_usd, simulated, judged_at'
_SUMS = ", ".join(
    (
        "max(agent) AS agent, count(*) AS judgements, coalesce(sum(attempts), 0)::BIGINT AS calls",
        *(f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in _TOKENS),
        "coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd",
        "count(*) FILTER (cost_usd IS NULL) AS unknown_costs, count(*) FILTER (simulated) AS simulated",
    )
)
_FIRST = "(SELECT * FROM log.exchanges WHERE revision = 0)"
"""The first revision stands for all: none changes the time of an exchange, and what one that was withdrawn has cost was paid."""
_SUBJECT = 'e.project = a.project AND e."connection" = a."connection" AND e.exchange_id = a.subject_id'
_HEARD = 'e.project, e."connection", e.exchange_id AS subject_id, e.occurred_at, e.agent'
_SAME = 'USING (project, "connection", subject_id)'


def costs_of(judgements: str, where: str = "true") -> str:
    """The statement that adds up judgements, given as what follows FROM; `where` is about `counted_at`, the time by which one counts.

    Most answers come within a day of their exchange. Only what is not found there is looked for among all exchanges.
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
        requested_model AS model, is_placed, {_SUMS}
    FROM placed
    WHERE {where}
    GROUP BY ALL"""


_NEW = new_rows(COST_SUMS, "judgements")
_WAITING = 'k.project = r.project AND k."connection" = r."connection" AND k.session_id = r.session_id'
CHANGED_JUDGEMENTS = f"""
    SELECT project, date_trunc('day', judged_at) AS day FROM {_NEW}
    UNION ALL
    SELECT k.project, k.day
    FROM {new_rows(COST_SUMS, "exchanges")} JOIN log.session_costs AS k ON {_WAITING}
    WHERE NOT k.is_placed"""
"""A row for each judgement that nobody has added up, and for each sum that waits for what came since."""
# No judge answers before there is something to judge. An hour that the window cuts is read from its judgements.
_SINCE = "day >= date_trunc('day', first)"
_CUT = "(hour > first - INTERVAL 1 HOUR AND hour < first OR hour > until - INTERVAL 1 HOUR AND hour < until)"
KEPT_COST_HOURS = f"""
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs
    WHERE {ASKED} AND {_SINCE} AND hour >= first AND hour < until"""
"""The same as `COST_HOURS`, of hours that nothing cuts and of days to which nothing came since."""
COST_HOURS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_judgements() WHERE {ASKED} AND {_SINCE}
        UNION
        SELECT project, day FROM log.session_costs WHERE {ASKED} AND {_SINCE} AND {_CUT}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_costs ANTI JOIN single USING (project, day)
    WHERE {ASKED} AND {_SINCE} AND hour >= first AND hour < until
    UNION ALL BY NAME
    SELECT * FROM ({costs_of(rows_on("single", "judgements", "judged_at"), "counted_at >= first AND counted_at < until")})"""
"""The sums of judgements whose exchanges happened from a moment on, until another; of a project, or of all."""
