-- purpose: the judge's scores per dimension of Tier 2 or Tier 3 before and after a change
-- grain: one row per dimension, by name. judged_*: exchanges with a score of the dimension; sessions_*: their
--     sessions; mean_*: mean weighted by 1 / sampling_probability; error_*: its standard error, clustered by session,
--     NULL for fewer than two sessions
-- parameters: $project, $agent ('' for exchanges without an agent; NULL: any), $tier (tier2 or tier3), $before_since, $before_until, $after_since, $after_until (event
--     times; since inclusive, until exclusive)
WITH judged AS (
    SELECT
        is_after, connection, session_id, log.weight_of($tier, sampling_probability) AS weight,
        unnest(CASE $tier WHEN 'tier2' THEN tier2_dimensions WHEN 'tier3' THEN tier3_dimensions END) AS item
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    )
    WHERE ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR)
        AND CASE $tier WHEN 'tier2' THEN tier2_state WHEN 'tier3' THEN tier3_state END = 'scored'
), sessions AS (
    -- In integer millionths, so that sums do not depend on the order of rows.
    SELECT
        is_after, connection, session_id, item.dimension AS dimension, count(*) AS judged,
        sum(round(weight * 1e6)::BIGINT) AS w, sum(round(weight * item.score * 1e6)::BIGINT) AS t
    FROM judged
    GROUP BY is_after, connection, session_id, item.dimension
), sums AS (
    SELECT
        is_after, dimension, sum(judged)::BIGINT AS judged, count(*) AS n, sum(w) / 1e6 AS w, sum(t) / 1e6 AS t, sum(w * w) / 1e12 AS ww,
        sum(w * t) / 1e12 AS wt, sum(t * t) / 1e12 AS tt
    FROM sessions
    GROUP BY is_after, dimension
), sides AS (
    SELECT
        is_after, dimension, judged, n, t / w AS mean,
        CASE WHEN n > 1 THEN sqrt(greatest(0, tt - 2 * t / w * wt + (t / w) ** 2 * ww) * n / (n - 1)) / w END AS error
    FROM sums
)
SELECT
    dimension, coalesce(any_value(judged) FILTER (NOT is_after), 0) AS judged_before,
    coalesce(any_value(judged) FILTER (is_after), 0) AS judged_after,
    coalesce(any_value(n) FILTER (NOT is_after), 0) AS sessions_before, coalesce(any_value(n) FILTER (is_after), 0) AS sessions_after,
    round(any_value(mean) FILTER (NOT is_after), 4) AS mean_before, round(any_value(mean) FILTER (is_after), 4) AS mean_after,
    round(any_value(error) FILTER (NOT is_after), 4) AS error_before, round(any_value(error) FILTER (is_after), 4) AS error_after
FROM sides
GROUP BY dimension
ORDER BY dimension
