# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Macros that the queries share: what scores add up to by project and UTC day or hour, the statistics of such sums, which evaluations count.

Queries read `log.score_days` and `log.score_hours`, never the kept sums themselves. Where scores came since the sums of their day were made,
where a window cuts a day in two, and where nothing is kept yet, the macro goes back to the single scores: its answer is at any
time that of the scores, and keeping the sums only makes it fast.
"""

from __future__ import annotations

from collections.abc import Iterator

from analytics.current import FINISHED_FIRST
from analytics.sums import SCORES, WHOLE_DAYS, WHOLE_HOURS, current_of, days_of, hours_of
from audit.comparison import CONFIDENCE, t_quantile

CONSUMER = "scores by day and hour"
"""Name under which the watermarks of the kept sums stand. With other sums it is another name: then all days are added up again."""
RETENTION = "retention"
"""Consumer whose watermarks say, by project, from when on its history is whole: microseconds since 1970, UTC."""
_FIRST_DAY = "date_trunc('day', first + INTERVAL 1 DAY - INTERVAL 1 MICROSECOND)"
_END_DAY = "date_trunc('day', until)"
_ASKED = "(asked IS NULL OR project = asked)"
_EXACT = 30
"""Degrees of freedom up to which the quantiles of Student's t are written out; beyond, a series is right to four digits."""
_QUANTILES = ", ".join(f"{t_quantile((1 + CONFIDENCE) / 2, freedom):.12f}" for freedom in range(1, _EXACT + 1))
_T_QUANTILE = (
    f"(CASE WHEN freedom > {_EXACT} THEN 1.959963985 + 2.372271 / freedom + 2.822501 / freedom ** 2"
    f" WHEN freedom >= 1 THEN list_extract([{_QUANTILES}], floor(freedom + 1e-9)::INTEGER) END)"
)
_SCORE_COLUMNS = "tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state, tier3_score"
_WHEN = " ".join(f"WHEN tier = '{tier}' THEN ({score})" for tier, score in SCORES.items())
_SCORE_OF = f"CASE WHEN tier IS NULL THEN anomaly::INTEGER::DOUBLE {_WHEN} END"
_RUN_VALUE = (
    "(CASE series WHEN 'trust' THEN trust_score WHEN 'unsafe' THEN (readiness_level = 'unsafe_for_production')::INTEGER"
    " ELSE list_contains(failures, substr(series, 9))::INTEGER END::DOUBLE)"
)
# Of what came to be evaluated again, because there was more of it or it was read otherwise, the newest counts. What failed counts
# only if nothing finished.
_COUNTED = f"""
    SELECT * FROM (
        SELECT * FROM log.evaluations WHERE {_ASKED}
        QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY {FINISHED_FIRST}, revision DESC, _offset DESC) = 1
    )
    QUALIFY row_number() OVER (
        PARTITION BY "connection", session_id, case_id, yardstick
        ORDER BY {FINISHED_FIRST}, evaluated_at DESC, evaluation_id DESC
    ) = 1"""
# An inner join tells the scan where to begin: then only new rows are read. So a partition without a mark gets one at 0; which there are
# is told by the largest, which is known without reading. A day that retention has emptied keeps its sums, whatever comes late.
_MARKS = f"""(
    SELECT p.partition, coalesce(w.next_position, 0) AS next_position
    FROM (SELECT unnest(range((SELECT max(_partition) + 1 FROM log.scores)))::INTEGER AS partition) AS p
    LEFT JOIN log.watermarks AS w ON p.partition = w.partition AND w.consumer = '{CONSUMER}' AND w.topic = 'scores'
)"""
_CHANGED = f"""
    SELECT project, date_trunc('day', exchange_at) AS day, s._partition AS partition, s._offset + 1 AS next_position
    FROM log.scores AS s JOIN {_MARKS} AS m ON s._partition = m.partition AND s._offset >= m.next_position
    WHERE NOT EXISTS (
        SELECT 1 FROM log.watermarks AS kept
        WHERE kept.consumer = '{RETENTION}' AND kept.topic = project AND epoch_us(date_trunc('day', exchange_at)) < kept.next_position
    )"""

_MARKED = f"(SELECT partition, next_position FROM log.watermarks WHERE consumer = '{CONSUMER}' AND topic = 'scores')"
BEHIND = (
    f"SELECT (SELECT max(_partition) + 1 FROM log.scores) > (SELECT count(*) FROM {_MARKED})",
    f"SELECT count(*) > 0 FROM log.scores AS s JOIN {_MARKED} AS m ON s._partition = m.partition AND s._offset >= m.next_position",
)
"""Statements one of which is true where `log.changed_scores()` has any: together they take a third of the time."""


def _days_of_scores(scores: str) -> str:
    return days_of(f"({current_of(scores)})")


_SCORE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_scores() WHERE {_ASKED} AND day >= {_FIRST_DAY} AND day < {_END_DAY}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({WHOLE_DAYS})
    FROM log.daily_scores ANTI JOIN changed USING (project, day)
    WHERE {_ASKED} AND day >= {_FIRST_DAY} AND day < {_END_DAY}
    UNION ALL BY NAME
    {
    _days_of_scores(
        f'''(
            SELECT * FROM log.scores
            WHERE {_ASKED} AND exchange_at >= first AND exchange_at < least({_FIRST_DAY}, until)
            UNION ALL
            SELECT * FROM log.scores
            WHERE {_ASKED} AND exchange_at >= greatest({_FIRST_DAY}, {_END_DAY}) AND exchange_at < until
            UNION ALL
            SELECT * FROM log.scores
            SEMI JOIN changed ON scores.project = changed.project AND date_trunc('day', exchange_at) = changed.day
            WHERE {_ASKED} AND exchange_at >= {_FIRST_DAY} AND exchange_at < {_END_DAY}
        )'''
    )
}"""
_WANTED = "project IN (SELECT unnest(projects))"
_HOUR_DAY = "date_trunc('day', hour)"
# As above, an inner join tells the scan where to begin: the days of a project are its last ones, most of the time.
_SINGLE = """(
    SELECT s.*
    FROM log.scores AS s
    JOIN (SELECT project, min(day) AS first_day, max(day) + INTERVAL 1 DAY AS end_day FROM single GROUP BY project) AS days
    ON s.project = days.project AND s.exchange_at >= days.first_day AND s.exchange_at < days.end_day
    SEMI JOIN single ON s.project = single.project AND date_trunc('day', s.exchange_at) = single.day
    WHERE s.exchange_at >= first AND s.exchange_at < until
)"""
# A day that the end of the window cuts is whole as long as nothing has come behind the end: so the present day is read from the sums, too.
_SCORE_HOURS = f"""
    WITH kept AS MATERIALIZED (
        SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({WHOLE_HOURS}), {_HOUR_DAY} AS day
        FROM log.hourly_scores
        WHERE {_WANTED} AND hour >= date_trunc('day', first) AND hour < until
    ), single AS MATERIALIZED (
        SELECT project, day FROM log.changed_scores() WHERE {_WANTED} AND day >= date_trunc('day', first) AND day < until
        UNION
        SELECT project, {_HOUR_DAY} AS day FROM log.hourly_scores
        WHERE {_WANTED} AND hour >= {_END_DAY} AND hour < {_END_DAY} + INTERVAL 1 DAY AND last_at >= until
        UNION
        SELECT project, day FROM kept WHERE day < first
    )
    SELECT * FROM kept ANTI JOIN single USING (project, day)
    UNION ALL BY NAME
    SELECT *, {_HOUR_DAY} AS day FROM ({hours_of(f"({current_of(_SINGLE)})")})"""


def reading_statements() -> Iterator[str]:
    """The statements that make the macros by which views read words of versions before."""
    accepted = "status = 'accepted'"
    macros = {
        "incident_status(status)": f"(CASE WHEN {accepted} THEN 'resolved' ELSE status END)",
        "incident_resolution(status, resolution)": f"coalesce(resolution, CASE WHEN {accepted} THEN 'new_normal' END)",
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"


def macro_statements() -> Iterator[str]:
    """The statements that make the macros, or make them again."""
    macros = {
        "is_asked(project, asked)": "(CASE WHEN asked IS NULL THEN NOT starts_with(project, 'anchors.') ELSE project = asked END)",
        "mean_of(n, total)": "(total / nullif(n, 0) / 1e9)",
        "deviation_of(n, total, squares)": (
            "(sqrt(greatest(0, n::HUGEINT * squares - total::HUGEINT * total)::DOUBLE) / nullif(n, 0) / 1e9)"
        ),
        "weighted_deviation_of(n, total, squares)": (
            "(CASE WHEN n > 0 THEN sqrt(greatest(0, squares / n - (total / n) ** 2)) / 1e9 END)"
        ),
        "first_day_of(until, days)": ("(date_trunc('day', until - INTERVAL 1 MICROSECOND) - to_days(days::INTEGER - 1))"),
        f"score_of(tier, anomaly, {_SCORE_COLUMNS})": f"({_SCORE_OF})",
        "weight_of(tier, sampling_probability)": (
            "(CASE WHEN coalesce(tier, 'tier1') = 'tier1' THEN 1.0 ELSE 1 / coalesce(sampling_probability, 1) END)"
        ),
        "run_value(series, trust_score, readiness_level, failures)": _RUN_VALUE,
        "changed_scores()": f"TABLE {_CHANGED}",
        "t_quantile(freedom)": _T_QUANTILE,
        "counted_evaluations(asked)": f"TABLE {_COUNTED}",
        "score_days(asked, first, until)": f"TABLE {_SCORE_DAYS}",
        "score_hours(projects, first, until)": f"TABLE {_SCORE_HOURS}",
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"
