-- purpose: the average of each tier per day, by the time of the exchange, which the drift rules compare with the
--     baseline
-- grain: one row per project, tier (tier1, tier2, tier2_5, tier3) and UTC day with scores, oldest first.
--     weighted_mean: a judged exchange counts 1 / sampling_probability times; half: half the width of the 95%
--     confidence interval of the mean (Student's t with the effective sample size), NULL for fewer than two scores
-- parameters: $project (NULL: all except anchor projects), $agent ('' for exchanges without an agent; NULL: any), $as_of (exclusive end), $days (number of UTC days; the
--     last may be incomplete)
WITH days AS (
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
    WHERE log.matches_project(project, $project) AND ($agent::VARCHAR IS NULL OR agent = $agent::VARCHAR)
), tiers AS (
    SELECT project, day, 'tier1' AS tier, 1 AS weight, tier1_count AS n, tier1_sum AS total, tier1_squares AS squares FROM days
    UNION ALL
    SELECT project, day, 'tier2' AS tier, weight AS weight, tier2_count AS n, tier2_sum AS total, tier2_squares AS squares FROM days
    UNION ALL
    SELECT project, day, 'tier2_5' AS tier, weight AS weight, tier2_5_count AS n, tier2_5_sum AS total, tier2_5_squares AS squares FROM days
    UNION ALL
    SELECT project, day, 'tier3' AS tier, weight AS weight, tier3_count AS n, tier3_sum AS total, tier3_squares AS squares FROM days
), averaged AS (
    SELECT
        project, tier, day::DATE AS day, sum(n)::BIGINT AS count, log.mean_of(sum(n), sum(total)) AS mean,
        log.deviation_of(sum(n), sum(total), sum(squares)) AS stddev,
        log.mean_of(sum(weight * n), sum(weight * total)) AS weighted_mean,
        sum(weight * n) ** 2 / nullif(sum(weight ** 2 * n), 0) AS effective_count
    FROM tiers
    WHERE n > 0
    GROUP BY project, tier, day
)
SELECT
    *,
    CASE WHEN effective_count >= 2 THEN log.t_quantile(effective_count - 1) * stddev / sqrt(effective_count - 1) END AS half
FROM averaged
ORDER BY project, tier, day
