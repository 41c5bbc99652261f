-- purpose: what failed in a project, in groups of runs that are not ready and of exchanges with an anomaly, with the same group in the
--     period of the same length before
-- grain: one row per group with failures in the period, the largest first. error: the wording of its first failure; sessions: each counts
--     once per UTC day; first_at: over all records that are kept; units, units_before: exchanges and finished runs of each period, failed or
--     not; sessions_before and units_before: 0 without $since; wordings: different errors; is_new: no failure before the period; examples: the newest three
-- parameters: $project, $since (inclusive) and $until (exclusive), rounded to UTC days (NULL: unbounded; an unbounded end is the newest
--     failure), $limit
WITH kept AS MATERIALIZED (
    SELECT * FROM log.daily_failures WHERE project = $project
), period AS (
    SELECT
        coalesce(date_trunc('day', $since::TIMESTAMP), '-infinity') AS first,
        coalesce(date_trunc('day', $until::TIMESTAMP + INTERVAL 1 DAY - INTERVAL 1 MICROSECOND), max(day) + INTERVAL 1 DAY) AS until,
        CASE WHEN $since IS NULL THEN first ELSE first - greatest(until - first, INTERVAL 1 DAY) END AS before
    FROM kept
), units AS (
    SELECT coalesce(sum(count) FILTER (day >= first), 0)::BIGINT AS units, coalesce(sum(count) FILTER (day < first), 0)::BIGINT AS units_before
    FROM (
        SELECT day, exchanges AS count FROM log.exchange_days($project)
        UNION ALL
        SELECT date_trunc('day', coalesce(ended_at, closed_at)) AS day, 1 AS count FROM log.diagnoses WHERE project = $project AND revision = 0
    ), period
    WHERE day >= before AND day < until
), groups AS (
    SELECT
        failure_group, arg_min(name, first_at) AS name, any_value(kind) AS kind, any_value(cause) AS cause, any_value(tool) AS tool,
        arg_min(error, (first_at, error)) AS error, min(first_at) AS first_at, max(last_at) FILTER (day >= first AND day < until) AS last_at,
        coalesce(sum(sessions) FILTER (day >= first AND day < until), 0)::BIGINT AS sessions,
        coalesce(sum(runs) FILTER (day >= first AND day < until), 0)::BIGINT AS runs,
        coalesce(sum(exchanges) FILTER (day >= first AND day < until), 0)::BIGINT AS exchanges,
        coalesce(sum(wasted_tokens) FILTER (day >= first AND day < until), 0)::BIGINT AS wasted_tokens,
        coalesce(sum(sessions) FILTER (day >= before AND day < first), 0)::BIGINT AS sessions_before,
        count(DISTINCT error) FILTER (day >= first AND day < until) AS wordings,
        min(day) >= any_value(first) AS is_new,
        list_slice(flatten(list(examples ORDER BY day DESC, last_at DESC, error) FILTER (day >= first AND day < until)), 1, 3) AS examples
    FROM kept, period
    GROUP BY failure_group
)
SELECT
    failure_group, name, kind, cause, tool, error, sessions, runs, exchanges, wasted_tokens, first_at, last_at, sessions_before, wordings,
    is_new, examples, units, units_before
FROM groups, units
WHERE sessions > 0
ORDER BY sessions DESC, name, failure_group
LIMIT $limit
