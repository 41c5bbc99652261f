# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Sums of scores by session and UTC day: one definition for kept sums and for those added up on request."""

from __future__ import annotations

from analytics.sums.marks import ASKED, SESSION_SUMS, new_rows, rows_on

SESSION_KEY = 'project, day, "connection", session_id'
"""The columns that tell the rows of the sums of sessions apart."""
_TIERS = {"tier1": "tier1_score", "tier2": "tier2_score", "tier2_5": "tier2_5_alignment", "tier3": "tier3_score"}
_SUMS = ", ".join(
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


def sessions_of(scores: str) -> str:
    """The statement that adds up by session and day some rows of the log's scores, given as what follows FROM.

    Of an exchange the rows have all revisions or none; the latest counts.
    """
    return f"""
    SELECT project, date_trunc('day', exchange_at) AS day, "connection", session_id, {_SUMS}
    FROM (SELECT * FROM {scores} QUALIFY row_number() OVER (PARTITION BY project, score_id ORDER BY revision DESC, _offset DESC) = 1)
    GROUP BY ALL"""


CHANGED_SESSIONS = f"SELECT project, date_trunc('day', exchange_at) AS day FROM {new_rows(SESSION_SUMS, 'scores')}"
"""A row for each score that is in no sum of its session yet."""
_SINCE = "day >= date_trunc('day', first) AND day < until"
# A day that the end of the window cuts is whole as long as nothing has come behind the end.
SESSION_DAYS = f"""
    WITH single AS MATERIALIZED (
        SELECT project, day FROM log.changed_sessions() WHERE {ASKED} AND {_SINCE}
        UNION
        SELECT project, day FROM log.session_scores WHERE {ASKED} AND {_SINCE} AND (first_at < first OR last_at >= until)
    )
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.session_scores ANTI JOIN single USING (project, day)
    WHERE {ASKED} AND {_SINCE}
    UNION ALL BY NAME
    SELECT * FROM ({sessions_of(rows_on("single", "scores", "exchange_at", "r.exchange_at >= first AND r.exchange_at < until"))})"""
"""The sums of the sessions that had exchanges from a moment on, until another, by day; of a project, or of all."""
