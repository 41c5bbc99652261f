# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Numbers of exchanges by UTC day: one definition for those that are kept and those counted on request."""

from __future__ import annotations

from analytics.sums.marks import ASKED, EXCHANGE_SUMS, new_rows, rows_on


def exchanges_of(exchanges: str) -> str:
    """The statement that counts exchanges, given as what follows FROM."""
    return f"""
    SELECT project, date_trunc('day', occurred_at) AS day, count(*) AS exchanges, max(occurred_at) AS last_at
    FROM {exchanges}
    GROUP BY ALL"""


CHANGED_EXCHANGES = f"SELECT project, date_trunc('day', occurred_at) AS day FROM {new_rows(EXCHANGE_SUMS, 'exchanges')}"
"""A row for each exchange that nobody has counted."""
EXCHANGE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_exchanges() WHERE {ASKED}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges ANTI JOIN changed USING (project, day) WHERE {ASKED}
    UNION ALL BY NAME
    SELECT * FROM ({exchanges_of(rows_on("changed", "exchanges", "occurred_at"))})"""
"""The number of exchanges by day, of a project or of all."""
KEPT_EXCHANGE_DAYS = f"SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.daily_exchanges WHERE {ASKED}"
"""The same of days to which nothing came since."""
