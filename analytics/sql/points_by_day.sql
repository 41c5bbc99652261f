-- purpose: the daily points of the charts of a project or of an agent in it: each tier with the 95% confidence interval of its mean, anomalies
--     and exchanges
-- grain: one row per UTC day with scores, oldest first. mean: a judged exchange counts 1 / sampling_probability
--     times, except in Tier 1; weight: number of exchanges that the scores represent; half: half the width of the
--     interval (Student's t with the effective sample size), NULL for fewer than two scores
-- parameters: $project, $agent (NULL: any), $from (inclusive) and $to (exclusive) of the time of the exchange
WITH days AS (
    FROM log.score_days($project, $from::TIMESTAMP, $to::TIMESTAMP)
    WHERE project = $project AND ($agent::VARCHAR IS NULL OR agent = $agent::VARCHAR)
), tiers AS (
    SELECT day, 'tier1' AS tier, 1 AS weight, tier1_count AS n, tier1_sum AS total, tier1_squares AS squares FROM days
    UNION ALL
    SELECT day, 'tier2' AS tier, weight AS weight, tier2_count AS n, tier2_sum AS total, tier2_squares AS squares FROM days
    UNION ALL
    SELECT day, 'tier2_5' AS tier, weight AS weight, tier2_5_count AS n, tier2_5_sum AS total, tier2_5_squares AS squares FROM days
    UNION ALL
    SELECT day, 'tier3' AS tier, weight AS weight, tier3_count AS n, tier3_sum AS total, tier3_squares AS squares FROM days
), measured AS (
    SELECT
        day, tier, sum(n)::BIGINT AS scores, log.mean_of(sum(weight * n), sum(weight * total)) AS mean,
        log.weighted_deviation_of(sum(weight * n), sum(weight * total), sum(weight * squares)) AS deviation,
        sum(weight * n) AS weight,
        sum(weight * n) ** 2 / nullif(sum(weight ** 2 * n), 0) AS effective
    FROM tiers
    WHERE n > 0
    GROUP BY day, tier
), counted AS (
    SELECT
        day, sum(anomalies)::BIGINT AS anomaly_count, sum(exchanges)::BIGINT AS exchange_count,
        coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS judged_count
    FROM days
    GROUP BY day
)
SELECT
    c.day AS period, any_value(anomaly_count) AS anomaly_count, any_value(exchange_count) AS exchange_count,
    any_value(judged_count) AS judged_count,
    coalesce(
        list({tier: tier, scores: scores, weight: weight, mean: mean,
            half: log.t_quantile(effective - 1) * deviation / sqrt(greatest(effective - 1, 0))} ORDER BY tier)
            FILTER (tier IS NOT NULL),
        []
    ) AS tiers
FROM counted AS c
LEFT JOIN measured AS m ON c.day = m.day
GROUP BY c.day
ORDER BY period
