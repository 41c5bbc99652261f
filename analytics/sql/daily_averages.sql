-- purpose: the average of each tier day by day, which the rules of drift compare with the baseline: by the day of the exchange, whenever it was scored
-- grain: one row per project, tier (tier1, tier2, tier2_5, tier3) and UTC day with scores of it, oldest first: within the last $days days up to $as_of, of which the last one may not be over; weighted: a judged exchange counts 1 / sampling_probability times; half: half the width of the 95 % interval of the mean (Student's t over the effective number of scores), NULL for fewer than two
-- parameters: $project (NULL for all but those of anchors), $as_of (what happened then or later is left out), $days
WITH days AS (
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
    WHERE log.is_asked(project, $project)
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
