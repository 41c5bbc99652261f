# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Macros that the queries share: sums of scores by project and UTC day or hour, statistics of such sums, and the evaluations that count.

Queries read `log.score_days` and `log.score_hours`, never the kept sums themselves; `projects`, which needs days twice, combines kept
days and `log.fresh_score_days`. For a day with newer scores, a day that a window cuts, and a day without kept sums, the macro adds up
single scores. Its answer is always that of the scores themselves; kept sums only make it fast.
"""

from __future__ import annotations

from collections.abc import Iterator

from analytics.store.views import FINISHED_FIRST
from analytics.sums.kept import (
    ASKED,
    CHANGED_EXCHANGES,
    CHANGED_JUDGEMENTS,
    CHANGED_SESSIONS,
    COST_HOURS,
    EXCHANGE_DAYS,
    KEPT_COST_HOURS,
    KEPT_EXCHANGE_DAYS,
    SCORE_SUMS,
    SCORES,
    SESSION_DAYS,
    UNSURE,
    WHOLE_DAYS,
    WHOLE_HOURS,
    current_of,
    days_of,
    hours_of,
    new_rows,
    rows_on,
)
from audit.exchanges.wrap_quality import PATTERNS

RETENTION = "retention"
"""Consumer whose watermarks hold, by project, the start of its complete history in microseconds since 1970, UTC."""
_FIRST_DAY = "date_trunc('day', first + INTERVAL 1 DAY - INTERVAL 1 MICROSECOND)"
_END_DAY = "date_trunc('day', until)"
QUANTILES = (
    "12.706204736175, 4.302652729749, 3.182446305284, 2.776445105198, 2.570581835636, 2.446911851145, "
    "2.364624251593, 2.306004135204, 2.262157162798, 2.228138851986, 2.200985160092, 2.178812829667, "
    "2.160368656463, 2.144786687918, 2.131449545560, 2.119905299221, 2.109815577833, 2.100922040241, "
    "2.093024054408, 2.085963447266, 2.079613844728, 2.073873067904, 2.068657610419, 2.063898561628, "
    "2.059538552753, 2.055529438643, 2.051830516480, 2.048407141795, 2.045229642133, 2.042272456301"
)
"""`audit.comparison.t_quantile` by degrees of freedom from 1 on, for its `CONFIDENCE`, stored here because computing them takes 25 ms of every start."""
_EXACT = QUANTILES.count(",") + 1
"""The last degrees of freedom in the table; beyond it, a series is exact to four digits."""
_T_QUANTILE = (
    f"(CASE WHEN freedom > {_EXACT} THEN 1.959963985 + 2.372271 / freedom + 2.822501 / freedom ** 2"
    f" WHEN freedom >= 1 THEN list_extract([{QUANTILES}], floor(freedom + 1e-9)::INTEGER) END)"
)
_SCORE_COLUMNS = "tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state, tier3_score"
_WHEN = " ".join(f"WHEN tier = '{tier}' THEN ({score})" for tier, score in SCORES.items())
_SCORE_OF = f"CASE WHEN tier IS NULL THEN anomaly::INTEGER::DOUBLE {_WHEN} END"
_RUN_VALUE = (
    "(CASE series WHEN 'trust' THEN trust_score WHEN 'unsafe' THEN (readiness_level = 'unsafe_for_production')::INTEGER"
    " ELSE list_contains(failures, substr(series, 9))::INTEGER END::DOUBLE)"
)
# A run can be evaluated again, because it grew or was read differently: the newest evaluation counts. A failed one counts only if none
# finished.
_COUNTED = f"""
    SELECT * FROM (
        SELECT * FROM log.evaluations WHERE {ASKED}
        QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY {FINISHED_FIRST}, revision DESC, _offset DESC) = 1
    )
    QUALIFY row_number() OVER (
        PARTITION BY "connection", session_id, case_id, yardstick
        ORDER BY {FINISHED_FIRST}, evaluated_at DESC, evaluation_id DESC
    ) = 1"""
# A day that retention has emptied keeps its sums, even if late records arrive.
_CHANGED = f"""
    SELECT project, date_trunc('day', exchange_at) AS day
    FROM {new_rows(SCORE_SUMS, "scores")}
    WHERE NOT EXISTS (
        SELECT 1 FROM log.watermarks AS kept
        WHERE kept.consumer = '{RETENTION}' AND kept.topic = project AND epoch_us(date_trunc('day', exchange_at)) < kept.next_position
    )"""


def _days_of_scores(scores: str) -> str:
    return days_of(f"({current_of(scores)})")


# Only days with scores newer than their sums. Together with the kept sums of all other days they cover everything.
_FRESH_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_scores() WHERE {ASKED}
    )
    {_days_of_scores(rows_on("changed", "scores", "exchange_at"))}"""
_SCORE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_scores() WHERE {ASKED} AND day >= {_FIRST_DAY} AND day < {_END_DAY}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({WHOLE_DAYS})
    FROM log.daily_scores ANTI JOIN changed USING (project, day)
    WHERE {ASKED} AND day >= {_FIRST_DAY} AND day < {_END_DAY}
    UNION ALL BY NAME
    {
    _days_of_scores(
        f'''(
            SELECT * FROM log.scores
            WHERE {ASKED} AND exchange_at >= first AND exchange_at < least({_FIRST_DAY}, until)
            UNION ALL
            SELECT * FROM log.scores
            WHERE {ASKED} AND exchange_at >= greatest({_FIRST_DAY}, {_END_DAY}) AND exchange_at < until
            UNION ALL
            SELECT * FROM {rows_on("changed", "scores", "exchange_at")}
        )'''
    )
}"""
# For windows of whole days without new scores (`analytics.sums.daily`); planning takes a third of the time.
_KEPT_SCORE_DAYS = f"""
    SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({WHOLE_DAYS})
    FROM log.daily_scores
    WHERE {ASKED} AND day >= first AND day < until"""
_WANTED = "project IN (SELECT unnest(projects))"
_HOUR_DAY = "date_trunc('day', hour)"
_SINGLE = rows_on("single", "scores", "exchange_at", "r.exchange_at >= first AND r.exchange_at < until")
# A day that the window's end cuts counts as whole while it has no scores after that end, so today is read from the sums too.
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

# A turn has texts, a score, or both: a score comes moments after its exchange, and may outlive it.
_SESSION_TURNS = """
    SELECT *, row_number() OVER (ORDER BY said_at, turn_number NULLS LAST, exchange_id) AS place
    FROM (
        SELECT
            coalesce(e.exchange_id, s.exchange_id) AS exchange_id, coalesce(e.said_at, s.said_at) AS said_at,
            coalesce(s.turn_number, e.turn_number) AS turn_number, e.exchange_id IS NOT NULL AS has_texts, s.score_id, s.version,
            coalesce(s.anomaly, false) AS anomaly
        FROM (
            SELECT exchange_id, occurred_at AS said_at, turn_number
            FROM log.current_exchanges
            WHERE session_id = in_session AND "connection" = in_connection AND project = in_project
                AND occurred_at >= first AND occurred_at <= last
        ) AS e
        FULL JOIN (
            SELECT
                exchange_id, score_id, any_value(exchange_at) AS said_at, any_value(turn_number) AS turn_number,
                max((revision, _offset)) AS version, arg_max(anomaly, (revision, _offset)) AS anomaly
            FROM log.scores
            WHERE session_id = in_session AND "connection" = in_connection AND project = in_project
                AND exchange_at >= first AND exchange_at <= last
            GROUP BY exchange_id, score_id
        ) AS s USING (exchange_id)
    )"""

# An event belongs to the turn of the exchange that it names; otherwise to the last turn begun before it, or to turn 0 before the first
# one. Turns are ordered by time; if several began at once, the event belongs to the last of them.
_SESSION_PARTS = """
    WITH turns AS MATERIALIZED (
        SELECT exchange_id, said_at, place FROM log.session_turns(in_project, in_connection, in_session, first, last)
    ), begun AS (
        SELECT said_at, max(place) AS place FROM turns GROUP BY said_at
    )
    SELECT e.event_id, e.event, e.tool, e.status, e.occurred_at, e._offset AS place, coalesce(n.place, b.place, 0) AS part
    FROM log.agent_events AS e
    LEFT JOIN turns AS n USING (exchange_id)
    ASOF LEFT JOIN begun AS b ON e.occurred_at >= b.said_at
    WHERE e.session_id = in_session AND e."connection" = in_connection AND e.project = in_project
        AND e.occurred_at >= first AND e.occurred_at <= last"""

# The latest revisions of a project's scores in the two periods that a change is measured between.
_SCORES_AROUND = """
    WITH latest AS (
        SELECT score_id, max((revision, _offset)) AS version
        FROM log.scores
        WHERE project = asked AND (
            (exchange_at >= before_since AND exchange_at < before_until) OR (exchange_at >= after_since AND exchange_at < after_until)
        )
        GROUP BY score_id
    )
    SELECT s.*, exchange_at >= after_since AS is_after
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE project = asked"""

# The current diagnosis of each run. Most runs have one revision, so it is cheaper to look for runs with more. Only then can a diagnosis
# name another project than the one that numbers the run.
_RUN_DIAGNOSES = """
    WITH later AS (
        SELECT "connection", session_id, any_value(n.project) AS project, max((d.revision, d._offset)) AS version
        FROM log.diagnoses AS d
        JOIN log.run_numbers AS n USING ("connection", session_id)
        WHERE d.revision > 0
        GROUP BY "connection", session_id
    )
    SELECT d.* REPLACE (coalesce(l.project, d.project) AS project)
    FROM log.diagnoses AS d
    LEFT JOIN later AS l USING ("connection", session_id)
    WHERE CASE
        WHEN l.version IS NULL THEN asked IS NULL OR d.project = asked
        ELSE (d.revision, d._offset) = l.version AND (asked IS NULL OR l.project = asked)
    END"""

# Nulls come last in both directions; ties are broken by the smaller id.
_LISTED_AFTER = """(
    last_id IS NULL
    OR (number IS NULL AND text IS NULL AND (last_number IS NOT NULL OR last_text IS NOT NULL OR id > last_id))
    OR coalesce(CASE WHEN down THEN number < last_number ELSE number > last_number END, false)
    OR coalesce(CASE WHEN down THEN text < last_text ELSE text > last_text END, false)
    OR coalesce(number = last_number OR text = last_text, false) AND id > last_id
)"""

# All revisions of the scores that match a list's filters, with their sort value. Time and turn are included as stored columns too,
# because only stored columns tell a scan for the first rows where to look.
_LISTING = "asked, first, until, of_agent, in_session, with_anomaly, for_reason, with_outcome, of_tier, least, most, sort"
_LISTED_SCORES = """
    SELECT
        s.rowid AS row, score_id, "connection", exchange_id, exchange_at, revision, _offset, turn_number,
        CASE sort
            WHEN 'at' THEN epoch_us(exchange_at)::DOUBLE WHEN 'turn' THEN turn_number::DOUBLE WHEN 'tier1' THEN tier1_score
            WHEN 'tier2' THEN tier2_score WHEN 'tier2_5' THEN tier2_5_alignment WHEN 'tier3' THEN tier3_score WHEN 'cost' THEN cost_usd
        END AS sort_number,
        CASE sort WHEN 'agent' THEN agent WHEN 'session' THEN session_id WHEN 'outcome' THEN disposition END AS sort_text
    FROM log.scores AS s
    WHERE project = asked AND (first IS NULL OR exchange_at >= first) AND (until IS NULL OR exchange_at < until)
        AND (of_agent IS NULL OR coalesce(agent, '') = of_agent) AND (in_session IS NULL OR session_id = in_session)
        AND (with_anomaly IS NULL OR anomaly = with_anomaly) AND (with_outcome IS NULL OR disposition = with_outcome)
        AND (for_reason IS NULL
            OR contains(lower(array_to_string(list_concat(anomaly_reasons, tier1_flags), chr(10))), lower(for_reason)))
        AND (
            least IS NULL AND most IS NULL
            OR CASE of_tier WHEN 'tier1' THEN tier1_score WHEN 'tier2' THEN tier2_score WHEN 'tier2_5' THEN tier2_5_alignment
                ELSE tier3_score END BETWEEN coalesce(least, '-infinity'::DOUBLE) AND coalesce(most, 'infinity'::DOUBLE)
        )"""

# How much the leading series changed for the worse, as a fraction of its scale. Evidence lists it first; older evidence has no levels.
_INCIDENT_SIZE = """(
    list_reduce(
        list_transform(
            TRY(json_extract_string(metadata, ['$.moved[0].to', '$.moved[0].from'])), lambda level: TRY_CAST(level AS DOUBLE)
        ),
        lambda after, before: after - before
    )
    / CASE tier WHEN 'tier3' THEN 4 WHEN 'trust' THEN 100 ELSE 1 END
    * CASE WHEN type = 'anomaly_spike' OR tier = 'unsafe' OR starts_with(tier, 'failure:') THEN 1 ELSE -1 END
)"""
# The one order of incidents by badness, for the inbox, the fleet and a project: first those that wait for a decision, then confirmed,
# critical and unacknowledged ones, a drift before the spike that came with it, and finally by the size of the change.
_INCIDENT_WORST = """(
    (16 * (status IN ('open', 'acknowledged'))::BIGINT + 8 * (confidence = 'confirmed')::BIGINT + 4 * (severity = 'critical')::BIGINT
        + 2 * (status = 'open')::BIGINT + (type = 'drift')::BIGINT) * 10000
    + 5000 + round(4999 * least(1, greatest(-1, coalesce(size, 0))))::BIGINT
)"""


# The steps of a wrap-up that a text shows. Patterns are constants, because DuckDB compiles any other pattern for every text.
_WRAP_PARTS = ", ".join(f"'{name}': regexp_matches(text, '{pattern}', 'i')" for name, pattern in PATTERNS.items())
_WRAP_STEPS = f"({{{_WRAP_PARTS}}})"


def reading_statements() -> Iterator[str]:
    """The statements that create the macros with which views translate values of earlier versions."""
    accepted = "status = 'accepted'"
    macros = {
        "incident_status(status)": f"(CASE WHEN {accepted} THEN 'resolved' ELSE status END)",
        "incident_resolution(status, resolution)": f"coalesce(resolution, CASE WHEN {accepted} THEN 'new_normal' END)",
        "incident_assignee(assignee, assigned_at, acknowledged_by)": (
            "(CASE WHEN assigned_at IS NULL THEN acknowledged_by ELSE assignee END)"
        ),
        "incident_size(type, tier, metadata)": _INCIDENT_SIZE,
        "incident_worst(status, confidence, severity, type, size)": _INCIDENT_WORST,
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"


def macro_statements() -> Iterator[str]:
    """The statements that create or replace the macros."""
    macros = {
        "is_asked(project, asked)": "(CASE WHEN asked IS NULL THEN NOT starts_with(project, 'anchors.') ELSE project = asked END)",
        "mean_of(n, total)": "(total / nullif(n, 0) / 1e9)",
        "known_usd(n, unknown, nano)": "(CASE WHEN n > unknown THEN nano / 1e9 END)",
        "deviation_of(n, total, squares)": (
            "(sqrt(greatest(0, n::HUGEINT * squares - total::HUGEINT * total)::DOUBLE) / nullif(n, 0) / 1e9)"
        ),
        "weighted_deviation_of(n, total, squares)": (
            "(CASE WHEN n > 0 THEN sqrt(greatest(0, squares / n - (total / n) ** 2)) / 1e9 END)"
        ),
        "first_day_of(until, days)": ("(date_trunc('day', until - INTERVAL 1 MICROSECOND) - to_days(days::INTEGER - 1))"),
        f"score_of(tier, anomaly, {_SCORE_COLUMNS})": f"({_SCORE_OF})",
        "is_unsure(tier2_score, tier2_5_alignment, tier2_flagged, tier3_score)": f"({UNSURE})",
        "weight_of(tier, sampling_probability)": (
            "(CASE WHEN coalesce(tier, 'tier1') = 'tier1' THEN 1.0 ELSE 1 / coalesce(sampling_probability, 1) END)"
        ),
        "run_value(series, trust_score, readiness_level, failures)": _RUN_VALUE,
        "changed_scores()": f"TABLE {_CHANGED}",
        "changed_exchanges()": f"TABLE {CHANGED_EXCHANGES}",
        "changed_judgements()": f"TABLE {CHANGED_JUDGEMENTS}",
        "changed_sessions()": f"TABLE {CHANGED_SESSIONS}",
        "t_quantile(freedom)": _T_QUANTILE,
        "counted_evaluations(asked)": f"TABLE {_COUNTED}",
        "fresh_score_days(asked)": f"TABLE {_FRESH_DAYS}",
        "score_days(asked, first, until)": f"TABLE {_SCORE_DAYS}",
        "kept_score_days(asked, first, until)": f"TABLE {_KEPT_SCORE_DAYS}",
        "score_hours(projects, first, until)": f"TABLE {_SCORE_HOURS}",
        "exchange_days(asked)": f"TABLE {EXCHANGE_DAYS}",
        "kept_exchange_days(asked)": f"TABLE {KEPT_EXCHANGE_DAYS}",
        "cost_hours(asked, first, until)": f"TABLE {COST_HOURS}",
        "kept_cost_hours(asked, first, until)": f"TABLE {KEPT_COST_HOURS}",
        "session_days(asked, first, until)": f"TABLE {SESSION_DAYS}",
        "scores_around(asked, before_since, before_until, after_since, after_until)": f"TABLE {_SCORES_AROUND}",
        "wrap_steps(text)": _WRAP_STEPS,
        f"listed_scores({_LISTING})": f"TABLE {_LISTED_SCORES}",
        "listed_after(down, number, text, id, last_number, last_text, last_id)": _LISTED_AFTER,
        "run_diagnoses(asked)": f"TABLE {_RUN_DIAGNOSES}",
        "session_turns(in_project, in_connection, in_session, first, last)": f"TABLE {_SESSION_TURNS}",
        "session_parts(in_project, in_connection, in_session, first, last)": f"TABLE {_SESSION_PARTS}",
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"
