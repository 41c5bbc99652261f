# ruff: noqa: S608 - statements are built from our own table and column names; values are always parameters
"""SQL macros that the queries share: sums of scores by project and UTC day or hour, their statistics, and the current evaluations.

Queries read `log.score_days` and `log.score_hours`, never the kept sums directly. Only `projects`, which needs days twice, combines
the kept days with `log.fresh_score_days`. For a day with new scores, without kept sums, or cut by the period, a macro adds up single
scores. The result is therefore always that of the scores; the kept sums only make it faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from analytics.store.views import CURRENT_EXCHANGES, FINISHED_FIRST
from analytics.sums.kept import (
    CHANGED_EXCHANGES,
    CHANGED_JUDGEMENTS,
    CHANGED_SESSIONS,
    COLD,
    COST_HOURS,
    EXACT_DAY_COLUMNS,
    EXACT_HOUR_COLUMNS,
    EXCHANGE_DAYS,
    KEPT_COST_HOURS,
    KEPT_EXCHANGE_DAYS,
    PROJECT_MATCHES,
    RETENTION,
    SCORE_SUMS,
    SESSION_DAYS,
    TIER_SCORES,
    UNSURE,
    behaviour_units_sql,
    current_scores_sql,
    daily_sums_sql,
    hourly_sums_sql,
    is_before_sql,
    new_rows_sql,
    rows_on_days_sql,
)
from audit.drift.watched_series import BEHAVIOUR, MAX_LOG_SIZE, SIZES
from audit.exchanges.wrap_quality import PATTERNS

_FIRST_DAY = "date_trunc('day', first + INTERVAL 1 DAY - INTERVAL 1 MICROSECOND)"
_END_DAY = "date_trunc('day', until)"
QUANTILES = (
    "12.706204736175, 4.302652729749, 3.182446305284, 2.776445105198, 2.570581835636, 2.446911851145, "
    "2.364624251593, 2.306004135204, 2.262157162798, 2.228138851986, 2.200985160092, 2.178812829667, "
    "2.160368656463, 2.144786687918, 2.131449545560, 2.119905299221, 2.109815577833, 2.100922040241, "
    "2.093024054408, 2.085963447266, 2.079613844728, 2.073873067904, 2.068657610419, 2.063898561628, "
    "2.059538552753, 2.055529438643, 2.051830516480, 2.048407141795, 2.045229642133, 2.042272456301"
)
"""`audit.comparison.t_quantile` for 1, 2, … degrees of freedom at its `CONFIDENCE`. They are stored, because computing them would take 25 ms at
every start."""
_TABLE_LENGTH = QUANTILES.count(",") + 1
"""Largest number of degrees of freedom in the table. Above it, a series is exact to four digits."""
_T_QUANTILE = (
    f"(CASE WHEN freedom > {_TABLE_LENGTH} THEN 1.959963985 + 2.372271 / freedom + 2.822501 / freedom ** 2"
    f" WHEN freedom >= 1 THEN list_extract([{QUANTILES}], floor(freedom + 1e-9)::INTEGER) END)"
)
_SCORE_COLUMNS = "tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state, tier3_score"
_TIER_CASES = " ".join(f"WHEN tier = '{tier}' THEN ({score})" for tier, score in TIER_SCORES.items())
_SCORE_OF = f"CASE WHEN tier IS NULL THEN anomaly::INTEGER::DOUBLE {_TIER_CASES} END"
_RUN_VALUE = (
    "(CASE series WHEN 'trust' THEN trust_score WHEN 'unsafe' THEN (readiness_level = 'unsafe_for_production')::INTEGER"
    " ELSE list_contains(failures, substr(series, 9))::INTEGER END::DOUBLE)"
)
# A run can be evaluated again, because it grew or the evaluation changed. Its newest evaluation counts; a failed one only if none finished.
_CURRENT_EVALUATIONS = f"""
    SELECT * FROM (
        SELECT * FROM log.evaluations WHERE {PROJECT_MATCHES}
        QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY {FINISHED_FIRST}, revision DESC, _offset DESC) = 1
    )
    QUALIFY row_number() OVER (
        PARTITION BY "connection", session_id, case_id, yardstick
        ORDER BY {FINISHED_FIRST}, evaluated_at DESC, evaluation_id DESC
    ) = 1"""
# The newest finished judgement of each session without a written case. scores: overall and dimensions, 0 to 10, by name.
_SESSION_JUDGEMENTS = """
    SELECT
        project, "connection", session_id, agent, evaluation_id, coalesce(run_at, evaluated_at) AS ended_at, yardstick, judge_model,
        simulated, 1 / sampling_probability AS weight,
        map_from_entries(
            list_prepend({'name': 'overall', 'score': final_score}, [{'name': d.dimension, 'score': d.final} FOR d IN dimensions])
        ) AS scores
    FROM log.evaluations
    WHERE sampling_probability IS NOT NULL AND status = 'completed'
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY revision DESC, _offset DESC) = 1"""
# The sums of a day whose scores are gone stay unchanged, even if late records arrive.
_CHANGED_DAYS = f"""
    SELECT project, date_trunc('day', exchange_at) AS day
    FROM {new_rows_sql(SCORE_SUMS, "scores")}
    WHERE NOT {is_before_sql([RETENTION, COLD], "project", "date_trunc('day', exchange_at)")}"""


def _daily_sums_sql(scores: str) -> str:
    return daily_sums_sql(f"({current_scores_sql(scores)})")


# Days with scores that are newer than their sums. They complement the kept sums of all other days.
_FRESH_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_scores() WHERE {PROJECT_MATCHES}
    )
    {_daily_sums_sql(rows_on_days_sql("changed", "scores", "exchange_at"))}"""
_SCORE_DAYS = f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT project, day FROM log.changed_scores() WHERE {PROJECT_MATCHES} AND day >= {_FIRST_DAY} AND day < {
    _END_DAY
}
    )
    SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({EXACT_DAY_COLUMNS})
    FROM log.daily_scores ANTI JOIN changed USING (project, day)
    WHERE {PROJECT_MATCHES} AND day >= {_FIRST_DAY} AND day < {_END_DAY}
    UNION ALL BY NAME
    {
    _daily_sums_sql(
        f'''(
            SELECT * FROM log.scores
            WHERE {PROJECT_MATCHES} AND exchange_at >= first AND exchange_at < least({_FIRST_DAY}, until)
            UNION ALL
            SELECT * FROM log.scores
            WHERE {PROJECT_MATCHES} AND exchange_at >= greatest({_FIRST_DAY}, {_END_DAY}) AND exchange_at < until
            UNION ALL
            SELECT * FROM {rows_on_days_sql("changed", "scores", "exchange_at")}
        )'''
    )
}"""
# For periods of complete days without new scores (`analytics.sums.daily`). Planning takes a third of the time.
_KEPT_SCORE_DAYS = f"""
    SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({EXACT_DAY_COLUMNS})
    FROM log.daily_scores
    WHERE {PROJECT_MATCHES} AND day >= first AND day < until"""
_IN_PROJECTS = "project IN (SELECT unnest(projects))"
_HOUR_DAY = "date_trunc('day', hour)"
_SCORES_OF_DAYS = rows_on_days_sql("single", "scores", "exchange_at", "r.exchange_at >= first AND r.exchange_at < until")
# A day that the end of the period cuts is read from the sums if it has no scores after that end. So is today.
_SCORE_HOURS = f"""
    WITH kept AS MATERIALIZED (
        SELECT * EXCLUDE (_topic, _partition, _offset) REPLACE ({EXACT_HOUR_COLUMNS}), {_HOUR_DAY} AS day
        FROM log.hourly_scores
        WHERE {_IN_PROJECTS} AND hour >= date_trunc('day', first) AND hour < until
    ), single AS MATERIALIZED (
        SELECT project, day FROM log.changed_scores() WHERE {_IN_PROJECTS} AND day >= date_trunc('day', first) AND day < until
        UNION
        SELECT project, {_HOUR_DAY} AS day FROM log.hourly_scores
        WHERE {_IN_PROJECTS} AND hour >= {_END_DAY} AND hour < {_END_DAY} + INTERVAL 1 DAY AND last_at >= until
        UNION
        SELECT project, day FROM kept WHERE day < first
    )
    SELECT * FROM kept ANTI JOIN single USING (project, day)
    UNION ALL BY NAME
    SELECT *, {_HOUR_DAY} AS day FROM ({hourly_sums_sql(f"({current_scores_sql(_SCORES_OF_DAYS)})")})"""

# The judge's answers, each on its own; those of cold days, whose details are in the lake only, added up by session and model.
_ANSWER_COSTS = """
    SELECT
        j.project, "connection", session_id, judged_at AS answered_at, requested_model AS model, 1 AS judgements, attempts AS calls,
        input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, round(cost_usd * 1e9)::BIGINT AS nano_usd,
        (cost_usd IS NULL)::BIGINT AS unknown_costs, simulated::BIGINT AS simulated
    FROM log.judgements AS j LEFT JOIN log.cold_borders() AS b ON j.project = b.project
    WHERE judged_at >= coalesce(border, '-infinity')
    UNION ALL
    SELECT
        k.project, "connection", session_id, day, model, judgements, calls, input_tokens, output_tokens, cache_write_tokens,
        cache_read_tokens, CASE WHEN judgements > unknown_costs THEN nano_usd END, unknown_costs, simulated
    FROM log.session_costs AS k JOIN log.cold_borders() AS b ON k.project = b.project
    WHERE day < border"""
_COLD_BORDERS = f"""
    SELECT topic AS project, make_timestamp(next_position) AS border
    FROM log.watermarks
    WHERE consumer = '{COLD}' AND next_position > 0"""

# A turn has texts, a score, or both: a score follows its exchange within moments, and may be kept longer.
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

# An event belongs to the turn of the exchange that it names. Otherwise it belongs to the last turn that began before it, or to turn 0.
# Of several turns that began at the same time, the last counts.
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

# The latest revisions of a project's scores in the two periods before and after a change.
_SCORES_AROUND = """
    WITH latest AS (
        SELECT score_id, max((revision, _offset)) AS version
        FROM log.scores
        WHERE project = in_project AND (
            (exchange_at >= before_since AND exchange_at < before_until) OR (exchange_at >= after_since AND exchange_at < after_until)
        )
        GROUP BY score_id
    )
    SELECT s.*, exchange_at >= after_since AS is_after
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE project = in_project"""

# The current diagnosis of each run. Most runs have one revision, so it is cheaper to find those with more. Only a later revision can name
# another project than the one that numbered the run.
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
        WHEN l.version IS NULL THEN in_project IS NULL OR d.project = in_project
        ELSE (d.revision, d._offset) = l.version AND (in_project IS NULL OR l.project = in_project)
    END"""

_BEHAVIOUR_UNITS = behaviour_units_sql(
    f"{CURRENT_EXCHANGES} WHERE project = in_project AND occurred_at >= first AND occurred_at < until"
)

# Nulls come last in both directions. Ties are broken by the smaller id.
_LISTED_AFTER = """(
    last_id IS NULL
    OR (number IS NULL AND text IS NULL AND (last_number IS NOT NULL OR last_text IS NOT NULL OR id > last_id))
    OR coalesce(CASE WHEN down THEN number < last_number ELSE number > last_number END, false)
    OR coalesce(CASE WHEN down THEN text < last_text ELSE text > last_text END, false)
    OR coalesce(number = last_number OR text = last_text, false) AND id > last_id
)"""

# All revisions of the scores that match a list's filters, with their sort key. Time and turn are included as stored columns too, because a
# scan for the first rows can skip row groups only by stored columns.
_LIST_PARAMETERS = (
    "in_project, first, until, of_agent, in_session, with_anomaly, for_reason, with_outcome, of_tier, least, most, sort"
)
_LISTED_SCORES = """
    SELECT
        s.rowid AS row, score_id, "connection", exchange_id, exchange_at, revision, _offset, turn_number,
        CASE sort
            WHEN 'at' THEN epoch_us(exchange_at)::DOUBLE WHEN 'turn' THEN turn_number::DOUBLE WHEN 'tier1' THEN tier1_score
            WHEN 'tier2' THEN tier2_score WHEN 'tier2_5' THEN tier2_5_alignment WHEN 'tier3' THEN tier3_score WHEN 'cost' THEN cost_usd
        END AS sort_number,
        CASE sort WHEN 'agent' THEN agent WHEN 'session' THEN session_id WHEN 'outcome' THEN disposition END AS sort_text
    FROM log.scores AS s
    WHERE log.matches_project(project, in_project)
        AND (first IS NULL OR exchange_at >= first) AND (until IS NULL OR exchange_at < until)
        AND (of_agent IS NULL OR coalesce(agent, '') = of_agent) AND (in_session IS NULL OR session_id = in_session)
        AND (with_anomaly IS NULL OR anomaly = with_anomaly) AND (with_outcome IS NULL OR disposition = with_outcome)
        AND (for_reason IS NULL
            OR contains(lower(array_to_string(list_concat(anomaly_reasons, tier1_flags), chr(10))), lower(for_reason)))
        AND (
            least IS NULL AND most IS NULL
            OR CASE of_tier WHEN 'tier1' THEN tier1_score WHEN 'tier2' THEN tier2_score WHEN 'tier2_5' THEN tier2_5_alignment
                ELSE tier3_score END BETWEEN coalesce(least, '-infinity'::DOUBLE) AND coalesce(most, 'infinity'::DOUBLE)
        )"""

# Exchanges that match the filters that no score has. `blocks` are those of the search index; NULL: all.
_TAG_PARAMETERS = "of_model, of_label, label_value, of_version, with_tool, tool_failed, search_text"
_IS_TAGGED = "(coalesce(of_model, of_label, of_version, with_tool, tool_failed::VARCHAR, search_text) IS NOT NULL)"
_TAGGED_EXCHANGES = f"""
    SELECT "connection", session_id, "connection" || '/' || exchange_id AS id
    FROM {CURRENT_EXCHANGES}
    WHERE log.is_tagged(of_model, of_label, label_value, of_version, with_tool, tool_failed, search_text)
        AND log.matches_project(project, in_project)
        AND (first IS NULL OR occurred_at >= first) AND (until IS NULL OR occurred_at < until)
        AND (blocks IS NULL OR list_contains(blocks, log.block_of(_partition, _offset)))
        AND (of_model IS NULL OR agent_model = of_model)
        AND (of_label IS NULL
            OR len(list_filter(labels, lambda item: item.name = of_label AND (label_value IS NULL OR item.value = label_value))) > 0)
        AND (of_version IS NULL OR list_contains([l.value FOR l IN labels IF l.name = 'agent_version'], of_version))
        AND (with_tool IS NULL OR list_contains([c.name FOR c IN tool_calls], with_tool))
        AND (tool_failed IS NULL
            OR list_contains([c.outcome FOR c IN tool_calls IF with_tool IS NULL OR c.name = with_tool], 'error'))
        AND (search_text IS NULL
            OR list_has_all(log.words_of(log.searched_text(user_message, agent_response, tool_calls)), log.words_of(search_text)))"""

# The change of the leading series for the worse, as a fraction of its scale. Evidence lists that series first; older evidence has no levels.
_SIZE_SCALES = " ".join(f"WHEN '{BEHAVIOUR}{size}' THEN {MAX_LOG_SIZE:g}" for size in SIZES)
_INCIDENT_SIZE = f"""(
    list_reduce(
        list_transform(
            TRY(json_extract_string(metadata, ['$.moved[0].to', '$.moved[0].from'])), lambda level: TRY_CAST(level AS DOUBLE)
        ),
        lambda after, before: after - before
    )
    / CASE tier WHEN 'tier3' THEN 4 WHEN 'trust' THEN 100 {_SIZE_SCALES} ELSE 1 END
    * CASE WHEN type = 'anomaly_spike' OR tier = 'unsafe' OR starts_with(tier, 'failure:') OR starts_with(tier, 'behaviour:') THEN 1 ELSE -1 END
)"""
# The order of incidents, worst first, for the inbox, the fleet and a project: undecided before decided, notices last, confirmed before
# suspected, critical before warning, unacknowledged before acknowledged, a drift before a spike, and then by the size of the change.
_INCIDENT_WORST = """(
    (32 * (status IN ('open', 'acknowledged'))::BIGINT + 16 * (severity <> 'notice')::BIGINT + 8 * (confidence = 'confirmed')::BIGINT + 4 * (severity = 'critical')::BIGINT
        + 2 * (status = 'open')::BIGINT + (type = 'drift')::BIGINT) * 10000
    + 5000 + round(4999 * least(1, greatest(-1, coalesce(size, 0))))::BIGINT
)"""


BLOCK_SIZE = 2048
"""Positions of the topic of exchanges that share an entry of the search index."""
PARTITION_BLOCKS = 1 << 40
"""More blocks than a partition has."""
_MAX_EXCERPT = 200
# Cut before squeezing white space: a text may have megabytes.
_EXCERPT = f"left(trim(regexp_replace(left(text, {4 * _MAX_EXCERPT}), '\\s+', ' ', 'g')), {_MAX_EXCERPT})"

# The steps of a wrap-up in a text. Patterns are constants, because DuckDB would compile any other pattern for every text.
_WRAP_PARTS = ", ".join(f"'{name}': regexp_matches(text, '{pattern}', 'i')" for name, pattern in PATTERNS.items())
_WRAP_STEPS = f"({{{_WRAP_PARTS}}})"


def translation_statements() -> Iterator[str]:
    """Return the statements that create the macros for translating values of earlier versions."""
    accepted = "status = 'accepted'"
    macros = {
        "incident_status(status)": f"(CASE WHEN {accepted} THEN 'resolved' ELSE status END)",
        "incident_resolution(status, resolution)": f"coalesce(resolution, CASE WHEN {accepted} THEN 'new_normal' END)",
        "incident_assignee(assignee, assigned_at, acknowledged_by)": (
            "(CASE WHEN assigned_at IS NULL THEN acknowledged_by ELSE assignee END)"
        ),
        "incident_size(type, tier, metadata)": _INCIDENT_SIZE,
        "is_snoozed(snoozed_at, snoozed_until, woken_at, now)": (
            "(snoozed_at IS NOT NULL AND woken_at IS NULL AND snoozed_at <= now AND (snoozed_until IS NULL OR snoozed_until > now))"
        ),
        "incident_worst(status, confidence, severity, type, size)": _INCIDENT_WORST,
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"


def macro_statements() -> Iterator[str]:
    """Return the statements that create the macros for queries."""
    macros = {
        "matches_project(project, in_project)": "(CASE WHEN in_project IS NULL THEN NOT starts_with(project, 'anchors.') ELSE project = in_project END)",
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
        "changed_scores()": f"TABLE {_CHANGED_DAYS}",
        "changed_exchanges()": f"TABLE {CHANGED_EXCHANGES}",
        "changed_judgements()": f"TABLE {CHANGED_JUDGEMENTS}",
        "changed_sessions()": f"TABLE {CHANGED_SESSIONS}",
        "cold_borders()": f"TABLE {_COLD_BORDERS}",
        "answer_costs()": f"TABLE {_ANSWER_COSTS}",
        "t_quantile(freedom)": _T_QUANTILE,
        "current_evaluations(in_project)": f"TABLE {_CURRENT_EVALUATIONS}",
        "session_judgements()": f"TABLE {_SESSION_JUDGEMENTS}",
        "fresh_score_days(in_project)": f"TABLE {_FRESH_DAYS}",
        "score_days(in_project, first, until)": f"TABLE {_SCORE_DAYS}",
        "kept_score_days(in_project, first, until)": f"TABLE {_KEPT_SCORE_DAYS}",
        "score_hours(projects, first, until)": f"TABLE {_SCORE_HOURS}",
        "exchange_days(in_project)": f"TABLE {EXCHANGE_DAYS}",
        "kept_exchange_days(in_project)": f"TABLE {KEPT_EXCHANGE_DAYS}",
        "behaviour_units(in_project, first, until)": f"TABLE {_BEHAVIOUR_UNITS}",
        "cost_hours(in_project, first, until)": f"TABLE {COST_HOURS}",
        "kept_cost_hours(in_project, first, until)": f"TABLE {KEPT_COST_HOURS}",
        "session_days(in_project, first, until)": f"TABLE {SESSION_DAYS}",
        "scores_around(in_project, before_since, before_until, after_since, after_until)": f"TABLE {_SCORES_AROUND}",
        "excerpt(text)": f"({_EXCERPT})",
        "wrap_steps(text)": _WRAP_STEPS,
        f"listed_scores({_LIST_PARAMETERS})": f"TABLE {_LISTED_SCORES}",
        "listed_after(down, number, text, id, last_number, last_text, last_id)": _LISTED_AFTER,
        "run_diagnoses(in_project)": f"TABLE {_RUN_DIAGNOSES}",
        f"is_tagged({_TAG_PARAMETERS})": _IS_TAGGED,
        "block_of(part, position)": f"(part::BIGINT * {PARTITION_BLOCKS} + position // {BLOCK_SIZE})",
        "searched_text(question, answer, calls)": "concat_ws(' ', question, answer, array_to_string([c.name FOR c IN calls], ' '))",
        "words_of(text)": "list_distinct(regexp_extract_all(lower(strip_accents(text)), '[\\p{L}\\p{N}]+'))",
        "word_hash(word)": "(md5_number_lower(word) >> 33)::INTEGER",
        f"tagged_exchanges(in_project, first, until, {_TAG_PARAMETERS}, blocks)": f"TABLE {_TAGGED_EXCHANGES}",
        "session_turns(in_project, in_connection, in_session, first, last)": f"TABLE {_SESSION_TURNS}",
        "session_parts(in_project, in_connection, in_session, first, last)": f"TABLE {_SESSION_PARTS}",
    }
    for name, text in macros.items():
        yield f"CREATE OR REPLACE MACRO log.{name} AS {text}"
