# ruff: noqa: S608 - statements are made of the names of our own tables; values are always parameters
"""Words after FROM that tell a scan where to begin: at the new rows of a topic, or at the first of the days that are to be read."""

from __future__ import annotations

from analytics.store.current import CURRENT_EXCHANGES

SCORE_SUMS = "scores by day, hour and stratum"
"""Name under which the watermarks of the sums of scores stand. With other sums it is another name: then all days are added up again."""
COST_SUMS = "judgements by session and hour"
"""The same of the sums of judgements."""
EXCHANGE_SUMS = "exchanges by day"
"""The same of the numbers of exchanges."""
SESSION_SUMS = "scores by session and day"
"""The same of the sums of sessions."""
TABLES = {"scores": "log.scores", "judgements": "log.judgements", "exchanges": "log.exchanges"}
"""The table of each topic that sums are made from."""
COUNTED = TABLES | {"exchanges": CURRENT_EXCHANGES}
"""The rows of each topic that count: of scores, which are many and revised often, the sums themselves leave earlier revisions out."""

ASKED = "(asked IS NULL OR project = asked)"
"""The condition of macros that answer for the project `asked`, or for all."""


def marks_of(consumer: str, topic: str) -> str:
    """The words after FROM that read how far `consumer` has added up a topic: `partition` and `next_position` of each partition there is.

    An inner join with it tells the scan where to begin: then only new rows are read. So a partition without a mark gets one at 0; which
    there are is told by the largest, which is known without reading.
    """
    return f"""(
    SELECT p.partition, coalesce(w.next_position, 0) AS next_position
    FROM (SELECT unnest(range((SELECT max(_partition) + 1 FROM {TABLES[topic]})))::INTEGER AS partition) AS p
    LEFT JOIN log.watermarks AS w ON p.partition = w.partition AND w.consumer = '{consumer}' AND w.topic = '{topic}'
)"""


def new_rows(consumer: str, topic: str) -> str:
    """The words after FROM that read the rows of a topic that `consumer` has not added up, as `r`."""
    return f"{TABLES[topic]} AS r JOIN {marks_of(consumer, topic)} AS m ON r._partition = m.partition AND r._offset >= m.next_position"


def rows_on(days: str, topic: str, time: str, where: str = "true") -> str:
    """The words after FROM that read the rows of a topic whose `time` is on one of some days, each a `project` and a `day`.

    An inner join tells the scan where to begin: the days of a project are its last ones, most of the time.
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
    """The statements one of which is true where `consumer` has not added up all of a topic.

    Together they take a third of the time of asking which rows it has not.
    """
    marked = f"(SELECT partition, next_position FROM log.watermarks WHERE consumer = '{consumer}' AND topic = '{topic}')"
    return (
        f"SELECT (SELECT max(_partition) + 1 FROM {TABLES[topic]}) > (SELECT count(*) FROM {marked})",
        f"SELECT count(*) > 0 FROM {TABLES[topic]} AS s JOIN {marked} AS m ON s._partition = m.partition AND s._offset >= m.next_position",
    )
